"""Applies a mutation to a copy of the repository and looks whether it is found."""

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
_COPIED = ("hybridcache_jax", "pallas_kernels", "tests", "pyproject.toml")
_FAILED = 1  # pytest's exit code for tests that ran and failed
_LIMIT = 1800.0  # seconds
_MACHINE_LIMIT = 600.0  # seconds
_DIFFERS = 3  # exit code of machine_soak.py for a difference

OPERATIONS = 2000
"""Of the machine, unless it is told another number."""

SEED = 1
"""Of the machine, unless it is told another one."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one mutation.

    Attributes:
      name: of the mutation.
      verdict: ``"caught"``, ``"survived"``, ``"hangs"``, which may be the machine's
        fault and is no proof, or ``"broken"``: its text does not stand exactly once in
        the file, or its tests could not be run.
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
    file = root / mutation.package / mutation.file
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


def run_python(root: Path, arguments: Sequence[str], limit: float) -> tuple[int, str]:
    """Runs Python in a copy: its exit code, and its output."""
    paths = [str(root), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    # Most of the time is XLA's.
    environment.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit,
    )
    return done.returncode, done.stdout


def run_tests(root: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Runs tests of a copy until one fails: pytest's exit code, and its output."""
    command = ["-m", "pytest", "-q", "-x", "--no-header"]
    command += ["-p", "no:cacheprovider", "--rootdir", str(root), "--tb=line"]
    command += ["--hypothesis-profile=unshrunk", *tests]
    return run_python(root, command, _LIMIT)


def planted(mutation, check: Callable[[Path], tuple[str, str]]) -> Outcome:
    """Applies one mutation to a fresh copy and looks whether it is found there.

    Args:
      mutation: the mistake.
      check: given the copy, says what became of it and why.
    """
    begin = time.perf_counter()
    with copied() as root:
        try:
            apply(mutation, root)
            verdict, detail = check(root)
        except ValueError as error:
            verdict, detail = "broken", str(error)
        except subprocess.TimeoutExpired:
            verdict, detail = "hangs", "nothing failed in time"
    return Outcome(mutation.name, verdict, detail, time.perf_counter() - begin)


def try_one(mutation) -> Outcome:
    """Applies one mutation to a fresh copy and runs its tests."""

    def check(root: Path) -> tuple[str, str]:
        code, output = run_tests(root, mutation.tests)
        failures = [line for line in output.splitlines() if line.startswith("FAILED")]
        if code == _FAILED and failures:
            return "caught", failures[0].removeprefix("FAILED ")[:200]
        if code == 0:
            return "survived", f"{', '.join(mutation.tests)} passed"
        return "broken", f"pytest ended with {code}: {output[-300:]}"

    return planted(mutation, check)


def try_in_machine(mutation, how, count: int = OPERATIONS, seed: int = SEED) -> Outcome:
    """Applies one mutation to a fresh copy and runs the machine there."""

    def check(root: Path) -> tuple[str, str]:
        code, output = run_machine(root, how, count, seed)
        if code == _DIFFERS:
            return "caught", output.strip().splitlines()[-1][:200]
        if code == 0:
            return "survived", f"{count} operations of seed {seed} found no difference"
        return "broken", f"the run ended with {code}: {output[-300:]}"

    return planted(mutation, check)


def run_machine(root: Path, how, count: int, seed: int) -> tuple[int, str]:
    """Runs the machine of a copy: 0 if nothing differed, and its output."""
    command = ["tests/mutations/machine_soak.py", how.model, str(count), str(seed)]
    command += ["--store"] if how.store else []
    return run_python(root, command, _MACHINE_LIMIT)
