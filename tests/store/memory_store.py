"""The store in memory, by its short name."""

from hybridcache_jax.testing.stores import MemoryStore

Memory = MemoryStore
