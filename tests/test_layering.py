"""The list of files in CONTRIBUTING.md is complete, and imports follow it."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
LIBRARY = ROOT / "hybridcache_jax"
# What everybody may use, wherever it stands in the list.
COMMON = ("errors", "_typing", "_whole", "_compat", "_indexing", "_version")
# Entry points: everything comes together there.
ENTRIES = ("__init__", "__main__")


def listed() -> dict[str, int]:
    """Line of the list for every file or folder it names."""
    lines = [
        line
        for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    return {
        name.removesuffix(".py").rstrip("/"): number
        for number, line in enumerate(lines)
        for name in re.findall(r"`([^`]+)`", line.split("|")[1])
    }


ORDER = listed()


def place(module: str) -> int | None:
    """The line that stands for a module, the most particular one."""
    parts = module.split("/")
    for count in range(len(parts), 0, -1):
        if "/".join(parts[:count]) in ORDER:
            return ORDER["/".join(parts[:count])]
    return None


FILES = {
    path.relative_to(LIBRARY).with_suffix("").as_posix(): path
    for path in LIBRARY.rglob("*.py")
}
MODULES = sorted(name for name in FILES if name not in ENTRIES)


def imported(path: pathlib.Path) -> set[str]:
    """Modules of the library that a file imports when it is loaded."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        if node.module == "hybridcache_jax":
            found |= {alias.name for alias in node.names}
        elif node.module.startswith("hybridcache_jax."):
            found.add(node.module.removeprefix("hybridcache_jax.").replace(".", "/"))
    return found


def test_every_file_has_a_line():
    assert [name for name in MODULES if place(name) is None] == []
    gone = [
        name for name in ORDER if name not in FILES and not (LIBRARY / name).is_dir()
    ]
    assert gone == []


@pytest.mark.parametrize("name", MODULES)
def test_a_file_imports_only_what_stands_above_it(name):
    mine = place(name)
    assert mine is not None
    lines = {other: place(other) for other in imported(FILES[name]) - set(COMMON)}
    assert {n for n, line in lines.items() if line is None or line > mine} == set()
