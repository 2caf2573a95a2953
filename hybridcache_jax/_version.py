"""The version of the library, which stored records name."""

__version__ = "0.1.0"
