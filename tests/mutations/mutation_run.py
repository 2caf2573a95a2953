"""Applies a mutation to a copy of the repository and runs its tests there."""

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
_COPIED = ("hybridcache_jax", "pallas_kernels", "tests", "pyproject.toml")
_FAILED = 1  # pytest's exit code for tests that ran and failed
_LIMIT = 1800.0  # seconds


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one mutation.

    Attributes:
      name: of the mutation.
      verdict: ``"caught"``, ``"survived"`` or ``"broken"``: its text does not stand
        exactly once in the file, or its tests could not be run.
      detail: the first failure, or what is broken.
      seconds: wall time.
    """

    name: str
    verdict: str
    detail: str
    seconds: float


def mutated(mutation, source: str) -> str:
    """The source with the mistake in it.

    Raises:
      ValueError: if the old text does not stand exactly once in it.
    """
    count = source.count(mutation.old)
    if count != 1:
        raise ValueError(
            f"{mutation.name}: the text to replace stands {count} times in "
            f"{mutation.file}, expected once; bring the catalogue up to date."
        )
    return source.replace(mutation.old, mutation.new)


def apply(mutation, root: Path) -> None:
    """Writes a mutation into the package below ``root``."""
    file = root / "hybridcache_jax" / mutation.file
    file.write_text(mutated(mutation, file.read_text("utf-8")), "utf-8")


@contextlib.contextmanager
def copied() -> Iterator[Path]:
    """A copy of the repository that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        root = Path(folder)
        ignored = shutil.ignore_patterns("__pycache__", ".pytest_cache", ".hypothesis")
        for name in _COPIED:
            source = REPOSITORY / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=ignored)
            else:
                shutil.copy(source, root / name)
        # Compiled code is found by what it is made of: a mutation misses and compiles.
        compiled = REPOSITORY / ".pytest_cache"
        compiled.mkdir(exist_ok=True)
        (root / ".pytest_cache").symlink_to(compiled, target_is_directory=True)
        yield root


def run_tests(root: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Runs tests of a copy until one fails: pytest's exit code, and its output."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header"]
    command += ["-p", "no:cacheprovider", "--rootdir", str(root), "--tb=line"]
    command += ["--hypothesis-profile=unshrunk", *tests]
    paths = [str(root), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    # Most of the time is XLA's.
    environment.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
    done = subprocess.run(
        command,
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LIMIT,
    )
    return done.returncode, done.stdout


def try_one(mutation) -> Outcome:
    """Applies one mutation to a fresh copy and runs its tests."""
    begin = time.perf_counter()

    def outcome(verdict: str, detail: str) -> Outcome:
        return Outcome(mutation.name, verdict, detail, time.perf_counter() - begin)

    with copied() as root:
        try:
            apply(mutation, root)
            code, output = run_tests(root, mutation.tests)
        except ValueError as error:
            return outcome("broken", str(error))
        except subprocess.TimeoutExpired:
            return outcome("caught", "the tests hang")
    failures = [line for line in output.splitlines() if line.startswith("FAILED")]
    if code == _FAILED and failures:
        return outcome("caught", failures[0].removeprefix("FAILED ")[:200])
    if code == 0:
        return outcome("survived", f"{', '.join(mutation.tests)} passed")
    return outcome("broken", f"pytest ended with {code}: {output[-300:]}")
