"""Exceptions of the library: every message says what was wrong and how to mend it."""


class HybridCacheError(Exception):
    """Base of every error the library raises on purpose."""


class CheckpointError(HybridCacheError):
    """Weights or their config are missing, damaged, mismatched or unsupported."""


class TokenizerError(HybridCacheError):
    """A tokenizer is damaged, unsupported, or was given ids it does not have."""


class LeaseError(HybridCacheError):
    """A plan or lease no longer holds: match and acquire again."""


class StaleCacheError(HybridCacheError):
    """A cache value that is not the newest one of its line."""


class NoRoomError(HybridCacheError):
    """Every row, or every block that could be freed, is in use."""
