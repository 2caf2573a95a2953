"""A reader of a folder of objects that shares nothing with the library's own."""

import os
import pathlib

from hybridcache_jax.store.prefix_store import ShortObjectError


class PlainFolder:
    """What ``get`` and ``names`` must say, by plain calls of the operating system."""

    def __init__(self, root):
        self.root = pathlib.Path(root)

    def get(self, name, start=0, stop=None):
        try:
            data = (self.root / name).read_bytes()
        except FileNotFoundError:
            return None
        if stop is not None and stop > len(data):
            raise ShortObjectError(name)
        return data[start:stop]

    def names(self, prefix):
        for folder, _, files in os.walk(self.root):
            for file in files:
                name = pathlib.Path(folder, file).relative_to(self.root).as_posix()
                if name.startswith(prefix) and not name.endswith(".__lock"):
                    yield name
