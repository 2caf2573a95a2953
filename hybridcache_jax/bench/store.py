"""Saving to a folder and restoring from it, against the same bytes in plain files.

A restore begins with the lookup in the store and ends when the prefix can be resumed:
every block was compared with its digest.  Its floor reads as many bytes and copies them
into device memory.  A save begins when the prefix is published and ends when its record
survives the end of the machine; its floor writes files of the same sizes and waits for
each.
"""

import contextlib
import gc
import pathlib
import tempfile
import tracemalloc

import numpy as np

from hybridcache_jax.bench import raw_files
from hybridcache_jax.bench.measure import Footprint, Measurement, Report
from hybridcache_jax.bench.saved import Prefix, Process
from hybridcache_jax.bench.saving_step import step_seconds
from hybridcache_jax.byte_sizes import format_bytes
from hybridcache_jax.offload.pack_writes import PACK_BYTES
from hybridcache_jax.offload.staging import WINDOW_BYTES

LARGE, SMALL = 2**30, 2**20
"""Bytes of the prefixes that are saved and restored."""


def run(
    large: int = LARGE, *, repeat: int = 3, steps: int = 64, saved_tokens: int = 4096
) -> Report:
    """Saves and restores a large prefix and a small one, and steps while saving.

    Args:
      large: bytes of the large one; of blocks of 512 KiB.
      repeat: rounds; measured and floor take turns in each.
      steps: of a model, with a save beside them and without.
      saved_tokens: of the prefix that is saved then, 24 KiB each.
    """
    size = format_bytes(large)
    big = [_round(Prefix.of_bytes(large)) for _ in range(repeat)]
    saved, written, disk, raw_disk, memory, raw_memory = _medians(big)
    small = [_round(Prefix.of_bytes(SMALL)) for _ in range(3 * repeat)]
    saved_small, _, restored_small, *_ = _medians(small)
    saving, alone = step_seconds(steps, repeat, saved_tokens)
    prefix = Prefix.of_bytes(large)
    copied, staged = _peaks(prefix)
    batch = prefix.plan.staging_blocks * prefix.plan.spec.pools[-1].block_bytes
    packs, window = 2 * (PACK_BYTES + batch), WINDOW_BYTES + batch
    lines = (
        Measurement(f"{size} saved", saved, "written, with fsync", written, 2.0),
        Measurement(
            f"{size} restored from disk", disk, "read and copied in", raw_disk, 1.25
        ),
        Measurement(
            f"{size} restored, in the page cache",
            memory,
            "read and copied in",
            raw_memory,
        ),
        Measurement("1 MiB saved", saved_small, "50 ms", 0.05, 1.0),
        Measurement("1 MiB restored from disk", restored_small, "10 ms", 0.01, 1.0),
        Measurement("step while saving", saving, "step alone", alone, 1.15),
        Footprint("memory while saving", copied, "two packs and batches", packs, 2.0),
        Footprint("memory while restoring", staged, "a window, a batch", window, 2.0),
    )
    return Report("store", f"blocks of 512 KiB, in {tempfile.gettempdir()}", lines)


def _round(prefix: Prefix) -> tuple[float, ...]:
    """Seconds of a save and five others, each beside its floor."""
    with tempfile.TemporaryDirectory() as name:
        store, raw = (pathlib.Path(name, part) for part in ("store", "raw"))
        raw.mkdir()
        with _started(prefix, store) as first:
            first.publish()
            saved = first.save()
        sizes = [path.stat().st_size for path in (store / "packs").rglob("*/*")]
        written = raw_files.write(raw, sorted(sizes, reverse=True))
        times = [saved, written]
        for from_disk in (True, False):
            if from_disk:
                raw_files.forget(pathlib.Path(name))
            with _started(prefix, store) as other:
                seconds, nbytes = other.restore()
            times += [seconds, raw_files.Reader(raw, nbytes).read()]
    return tuple(times)


def _peaks(prefix: Prefix) -> tuple[int, int]:
    """The most host memory of a save and of a restore, as Python and NumPy count it."""
    with tempfile.TemporaryDirectory() as name:
        store, peaks = pathlib.Path(name), []
        with _started(prefix, store) as first:
            first.publish()
            peaks.append(_peak(first.save))
        with _started(prefix, store) as other:
            peaks.append(_peak(other.restore))
    return peaks[0], peaks[1]


def _peak(call) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@contextlib.contextmanager
def _started(prefix: Prefix, folder: pathlib.Path):
    process = Process(prefix, folder)
    try:
        yield process
    finally:
        process.close()


def _medians(rounds: list[tuple[float, ...]]) -> list[float]:
    return np.median(np.array(rounds), axis=0).tolist()
