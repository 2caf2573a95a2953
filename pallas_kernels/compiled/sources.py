"""Which text a kernel was compiled from.  Imports no JAX."""

import ast
import functools
import hashlib
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PACKAGE = "pallas_kernels"
# The choice among implementations is no part of any of them.
_LEFT_OUT = f"{_PACKAGE}.choice"


def fingerprint(operation: str, implementation: str, form: object) -> str:
    """A few digits that change with the text of a read, but for what it says of itself.

    Args:
      operation: read.
      implementation: ``"xla"`` or a kernel.
      form: what it is compiled for, which its ``repr`` tells.
    """
    start = "api" if implementation == "xla" else implementation
    texts = [_code(path) for path in files(f"{_PACKAGE}.{operation}.{start}")]
    return hashlib.sha256("\0".join([*texts, repr(form)]).encode()).hexdigest()[:12]


@functools.cache
def files(module: str) -> tuple[Path, ...]:
    """The file of a module, and of all that it imports of this package when loaded.

    Args:
      module: dotted name.
    """
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _ROOT.joinpath(*name.split(".")).with_suffix(".py")
        if name in found or name == _LEFT_OUT or not path.exists():
            continue
        found[name] = path
        waiting += _imports(ast.parse(path.read_text()))
    return tuple(found[name] for name in sorted(found))


def _imports(tree: ast.Module) -> Iterator[str]:
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    for node in imports:
        if node.module and node.module.split(".")[0] == _PACKAGE:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@functools.cache
def _code(path: Path) -> str:
    """A file without comments, docstrings and empty lines."""
    text = path.read_text()
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            for row in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[row] = ""
    return "\n".join(line.rstrip() for line in lines if line.strip())
