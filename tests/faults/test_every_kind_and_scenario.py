"""No kind of fault and no worked scenario is without its test.

A kind is tested by a property test that carries ``@pytest.mark.kind("K06")``, a
scenario by tests named after it, as ``test_b27_...``.  What a kind or scenario says of
outer tiers is tested by tests that also carry ``@pytest.mark.outer_tier("B41")``.

What they say of host memory is not said of files: ``ON_DISK`` lists what a store has to
hold as well; tests of it over a store are marked ``@pytest.mark.on_disk("B52")``.  Of
every kind there one at least is a property test on a folder, which takes it, or what
makes it, as a fixture.
"""

import ast
import collections
import pathlib
import re

import pytest

KINDS = {
    "K01": "exact-length hits and replay of the last token",
    "K02": "window geometry: logical position, physical slot, off by one",
    "K03": "rewind beyond what is kept",
    "K04": "compression boundary, open tail, overlap halo",
    "K05": "all forms agree",
    "K06": "replay extent and checkpoint position",
    "K07": "units, grain and holes",
    "K08": "producer identity",
    "K09": "input identity and keys",
    "K10": "tenant isolation",
    "K11": "stored representation",
    "K12": "topology",
    "K13": "torn and partial persistence",
    "K14": "containing a failed restore",
    "K15": "order and lifetime under asynchrony",
    "K16": "publish after write, duplicates",
    "K17": "values, not references: fork, reorder, share",
    "K18": "rows and slots of a batch",
    "K19": "positions and padding",
    "K20": "static shapes, tracing and clipping",
    "K21": "dead slots",
    "K22": "integer width",
    "K23": "eviction, pins, clocks",
    "K24": "honest verdicts",
    "K25": "split invariance and degenerate sizes",
}
SCENARIOS = (
    *("B02", "B06", "B07", "B11", "B13", "B18", "B19", "B22", "B23", "B27"),
    *("B30", "B35", "B36", "B38", "B39", "B41", "B44", "B48", "B52", "B53"),
    *("B58", "B61", "B64", "B68", "B70", "B71", "B75", "B80", "B82", "B84"),
    *("B86", "B87", "B91", "B94", "B95"),
)
# What these say of an outer tier needs a test of its own.
OUTER = (
    *("K10", "K12", "K13", "K14", "K15", "K16"),
    *("B41", "B44", "B48", "B52", "B53", "B58", "B61", "B91"),
)

# What these say needs tests of a store on disk.
ON_DISK = (
    *("K08", "K09", "K10", "K11", "K12", "K13", "K14", "K15", "K16"),
    *("B52", "B53", "B87", "B91", "B95"),
)
FOLDERS = {"folder", "tmp_path_factory"}

# Not yet tested, and why.  An entry that has become untrue fails.
NO_TEST: dict[str, str] = {}
NO_OUTER_TEST: dict[str, str] = {}
NO_DISK_TEST: dict[str, str] = {}


def decorators(function):
    """``(name, arguments)`` of each, the name without the modules before it."""
    for node in function.decorator_list:
        call = node.func if isinstance(node, ast.Call) else node
        name = call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "")
        given = node.args if isinstance(node, ast.Call) else []
        yield name, [arg.value for arg in given if isinstance(arg, ast.Constant)]


def inventory():
    """Ids to names of tests: of kinds, of scenarios, of outer tiers, of disks.

    The last has tests on folders alone, of kinds.
    """
    found = [collections.defaultdict(list) for _ in range(5)]
    kinds, scenarios, outer, disk, folders = found
    for path in sorted(pathlib.Path(__file__).parents[1].rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef):
                continue
            if not node.name.startswith("test_"):
                continue
            where, marks = f"{path.name}::{node.name}", list(decorators(node))
            names = {name for name, _ in marks}
            scenario = re.match(r"test_(b\d\d)_", node.name)
            if scenario:
                scenarios[scenario[1].upper()].append(where)
            for name, ids in marks:
                if name == "kind":
                    assert "given" in names, f"{where} is no property test"
                    kinds[ids[0]].append(where)
                if name in ("outer_tier", "on_disk"):
                    mine = [scenario[1].upper()] if scenario else []
                    mine += [ids[0] for name, ids in marks if name == "kind"]
                    assert ids[0] in mine, f"{where} is no test of {ids[0]}"
                    (outer if name == "outer_tier" else disk)[ids[0]].append(where)
                    if name == "on_disk" and FOLDERS & {a.arg for a in node.args.args}:
                        folders[ids[0]].append(where)
            if "kind" in names or scenario:
                assert not names & {"skip", "skipif", "xfail"}, where
    return found


FOUND = inventory()


@pytest.mark.parametrize("name", [*KINDS, *SCENARIOS])
def test_it_has_a_test_or_is_listed(name):
    kinds, scenarios, *_ = FOUND
    tests = (kinds if name in KINDS else scenarios)[name]
    assert bool(tests) != (name in NO_TEST), (tests, NO_TEST.get(name))


@pytest.mark.parametrize("name", OUTER)
def test_what_it_says_of_outer_tiers_has_a_test_or_is_listed(name):
    tests = FOUND[2][name]
    assert bool(tests) != (name in NO_OUTER_TEST), (tests, NO_OUTER_TEST.get(name))


@pytest.mark.parametrize("name", ON_DISK)
def test_what_it_says_of_disks_has_a_test_or_is_listed(name):
    tests = FOUND[3][name]
    assert bool(tests) != (name in NO_DISK_TEST), (tests, NO_DISK_TEST.get(name))


@pytest.mark.parametrize("name", [name for name in ON_DISK if name in KINDS])
def test_a_kind_on_disk_has_a_property_test_on_a_folder(name):
    assert FOUND[4][name]


def test_every_id_is_one_that_exists():
    kinds, scenarios, outer, disk, folders = (set(found) for found in FOUND)
    assert len(KINDS) == 25
    assert len(SCENARIOS) == len(set(SCENARIOS)) == 35
    assert kinds <= set(KINDS)
    assert scenarios <= set(SCENARIOS)
    assert outer <= set(OUTER)
    assert folders <= disk <= set(ON_DISK)
    assert set(NO_TEST) <= {*KINDS, *SCENARIOS}
    assert set(NO_OUTER_TEST) <= set(OUTER)
    assert set(NO_DISK_TEST) <= set(ON_DISK)
