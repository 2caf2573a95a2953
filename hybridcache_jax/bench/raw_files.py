"""What any store on disk costs at least: files written, and read into device memory."""

import os
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def write(folder: pathlib.Path, sizes: list[int]) -> float:
    """Writes files of given sizes, one after the other, and waits for each.

    Args:
      folder: an empty one.
      sizes: bytes of each.

    Returns:
      Seconds until the last of them survives the end of the machine.
    """
    data = np.random.default_rng(0).bytes(max(sizes))
    start = time.perf_counter()
    for number, size in enumerate(sizes):
        with (folder / str(number)).open("wb", buffering=0) as file:
            left = memoryview(data)[:size]
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
    return time.perf_counter() - start


class Reader:
    """Reads files one after the other and puts each in its place on the device."""

    def __init__(self, folder: pathlib.Path, nbytes: int):
        """Allocates the memory and compiles the copy.

        Args:
          folder: with files of one size; the last may be shorter.
          nbytes: how many are read; what lies behind them is left.
        """
        files = sorted(folder.iterdir(), key=lambda path: int(path.name))
        self._size = files[0].stat().st_size
        self._count = -(-nbytes // self._size)
        self._files, self._nbytes = files[: self._count], nbytes
        self._bytes = bytearray(self._size)
        self._buffer = np.frombuffer(self._bytes, np.uint8)
        self._put = jax.jit(_put, donate_argnums=0)
        self._memory = jnp.zeros((self._count, self._size), jnp.uint8)
        self._memory = self._put(self._memory, self._buffer, np.int32(0))

    def read(self) -> float:
        """Seconds until all of it is there."""
        left, start = self._nbytes, time.perf_counter()
        for number, path in enumerate(self._files):
            part = memoryview(self._bytes)[: min(left, self._size)]
            with path.open("rb", buffering=0) as file:
                while part and (read := file.readinto(part)):
                    part, left = part[read:], left - read
            self._memory = self._put(self._memory, self._buffer, np.int32(number))
            # The buffer is free again once the copy is done.
            self._memory.block_until_ready()
        return time.perf_counter() - start


def forget(folder: pathlib.Path) -> None:
    """Drops what the operating system remembers of all files below a folder.

    Raises:
      OSError: where that cannot be asked for.
    """
    if not hasattr(os, "posix_fadvise"):
        raise OSError("this system cannot be asked to forget files; use Linux")
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _put(memory: jax.Array, data: jax.Array, number: jax.Array) -> jax.Array:
    return lax.dynamic_update_index_in_dim(memory, data, number, 0)
