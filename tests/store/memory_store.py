"""A store in a dictionary that counts what it is asked for."""

import dataclasses

from hybridcache_jax.store.prefix_store import ShortObjectError


@dataclasses.dataclass
class Memory:
    """Objects by name.

    Attributes:
      objects: all of them.
      reads: calls of ``get``.
      cut: writes that are still done; the next one raises.
    """

    objects: dict = dataclasses.field(default_factory=dict)
    reads: int = 0
    cut: int = 10**9

    def put(self, name, data):
        if self.cut <= 0:
            raise KeyboardInterrupt
        self.cut -= 1
        self.objects[name] = bytes(data)

    def get(self, name, start=0, stop=None):
        self.reads += 1
        data = self.objects.get(name)
        if data is not None and stop is not None and stop > len(data):
            raise ShortObjectError(name)
        return None if data is None else data[start:stop]

    def names(self, prefix):
        return [name for name in self.objects if name.startswith(prefix)]

    def delete(self, name):
        self.objects.pop(name, None)
