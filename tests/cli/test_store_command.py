"""``hybridcache store`` on a folder, as a user meets it."""

import dataclasses
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import hybridcache_jax as hc
from hybridcache_jax.cli import main
from hybridcache_jax.contents import Contents
from hybridcache_jax.offload.payload import Payload
from hybridcache_jax.rollout import Key
from hybridcache_jax.store.objects import ObjectStore
from hybridcache_jax.store.records import PoolBlocks, Prefix, layout_of, write_record

GRID = 4
SPEC = hc.CacheSpec.from_layers(
    [hc.LayerSpec(global_=hc.Entries(hc.Entry.kv(heads=1, dim=2)))], block_tokens=GRID
)
(POOL,) = SPEC.pools
NAMESPACE = "tenant [red]\x1b[2J"
KEY = Key(hc.Identity("w", "c", SPEC.fingerprint, namespace=NAMESPACE))


def write(store, tokens, start=0):
    planes = layout_of(POOL)
    blocks = [
        (n, Payload.sealed({p.name: np.full(p.shape, n, p.dtype) for p in planes}))
        for n in range(start // GRID, len(tokens) // GRID)
    ]
    ids = np.array(tokens, np.int32)
    contents = Contents.of([(0, 2, "pic\x07ture")], GRID)
    prefix = Prefix(KEY, ids, contents, GRID)
    parts = [PoolBlocks(POOL, blocks)]
    return write_record(store, prefix, start, parts, library="0.1.0", age=0)


@pytest.fixture
def folder(tmp_path):
    """Two records, one on the other."""
    store = ObjectStore(tmp_path / "store")
    write(store, range(8))
    write(store, range(12), 8)
    return tmp_path / "store"


@pytest.fixture
def run(capsys):
    def one(*arguments):
        """Exit code, standard output, and the object where it is JSON."""
        code = main(["store", *map(str, arguments)])
        out = capsys.readouterr().out
        return code, json.loads(out) if "--json" in arguments else out

    return one


def key_of(tokens):
    prefix = Prefix(KEY, np.array(tokens, np.int32), Contents(), GRID)
    spans = Contents.of([(0, 2, "pic\x07ture")], GRID)
    return dataclasses.replace(prefix, contents=spans).keys()[-1].hex()


def test_ls_and_show(folder, run):
    code, listed = run("ls", folder, "--json")
    assert code == 0
    assert listed["tick"] == 0
    first, second = listed["records"]
    assert (first["start"], first["stop"], second["stop"]) == (0, 8, 12)
    assert second["parent"] == first["key"] == key_of(range(8))
    assert first["identity"]["namespace"] == NAMESPACE
    assert first["form_bytes"] == {"FULL_KV": 2 * POOL.block_bytes}
    code, out = run("ls", folder)
    assert code == 0
    assert "full_kv" in out
    assert "2 records at tick 0" in out
    code, shown = run("show", folder, first["key"][:6], "--json")
    assert code == 0
    (record,) = shown["records"]
    assert record["tokens"] == {
        "count": 8,
        "first": list(range(8)),
        "last": list(range(8)),
    }
    assert record["pools"][0]["blocks"] == [0, 1]
    assert (record["scope"], record["provenance"]) == ("namespace", "exact")
    assert record["contents"] == [
        {"start": 0, "stop": 2, "type": "str", "id": "pic\x07ture"}
    ]
    code, out = run("show", folder, second["key"])
    assert code == 0
    assert "tokens: 4: 8 9 10 11" in out


def test_nothing_from_a_store_steers_the_terminal(folder, run):
    for action in (["ls"], ["show", key_of(range(8))]):
        _, out = run(action[0], folder, *action[1:])
        assert "\x1b" not in out
        assert "\x07" not in out
    assert "[red]" in run("show", folder, key_of(range(8)))[1]


def test_verify_says_what_is_damaged_and_moves_it(folder, run):
    assert run("verify", folder)[0] == 0
    pack = next((folder / "packs").rglob("*/*"))
    pack.write_bytes(pack.read_bytes()[:-1])
    code, found = run("verify", folder, "--json")
    assert (code, found["sound"], found["moved"]) == (1, False, [])
    code, out = run("verify", folder, "--quarantine")
    assert code == 1
    assert "moved to quarantine" in out
    assert run("verify", folder)[0] == 0
    assert run("ls", folder, "--json")[1]["quarantined"]


def test_gc_and_du(folder, run):
    before = run("du", folder, "--json")[1]
    on_disk = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    assert before["total_bytes"] == on_disk
    assert "full_kv" in run("du", folder)[1]
    code, would = run("gc", folder, "--quota", "1B", "--dry-run", "--json")
    assert (code, len(would["dropped"])) == (0, 2)
    code, done = run("gc", folder, "--keep-ticks", 2, "--json")
    assert (code, done["tick"], done["dropped"], done["kept"]) == (0, 1, [], 2)
    assert run("gc", folder)[0] == 0
    code, out = run("gc", folder, "--keep-ticks", 2)
    assert code == 0
    assert "2 records dropped" in out
    assert "noted for the next run" in out
    assert run("du", folder, "--json")[1]["leftovers"]["objects"] == 2
    assert len(run("gc", folder, "--json")[1]["swept"]) == 2
    assert run("du", folder, "--json")[1]["total_bytes"] == 0
    (folder / "records" / "odd").write_bytes(b"?")
    code, out = run("gc", folder)
    assert code == 1
    assert "no pack may go" in out


def test_snapshots_are_counted_and_what_killed_savers_left_goes(folder, run):
    whole = folder / "snapshots" / "1" / "cache" / "d"
    begun = folder / "snapshots" / "2.orbax-checkpoint-tmp"
    for path, size in ((whole, 10), (begun, 1000)):
        path.mkdir(parents=True)
        (path / "0a").write_bytes(bytes(size))
    usage = run("du", folder, "--json")[1]
    assert usage["snapshots"] == {"objects": 2, "bytes": 1010}
    on_disk = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    assert usage["total_bytes"] == on_disk
    assert run("gc", folder, "--dry-run", "--json")[1]["half_written"] == 0
    assert begun.exists()
    assert run("gc", folder, "--json")[1]["half_written"] == 1
    assert not begun.exists()
    assert "1 files of snapshots: 10" in run("du", folder)[1]


def test_export_and_import(folder, run, tmp_path):
    file, other = tmp_path / "a.tar", tmp_path / "other"
    key = key_of(range(8))
    code, done = run("export", folder, file, key[:8], "--json")
    assert (code, len(done["records"])) == (0, 1)
    code, taken = run("import", other, file, "--json")
    assert (code, taken["records"]) == (0, done["records"])
    assert run("export", folder, file)[0] == 0
    code, out = run("import", other, file)
    assert code == 0
    assert "1 records and 1 packs written, 1 records were there already" in out
    assert run("verify", other)[0] == 0
    code, out = run("import", tmp_path / "third", file, "--largest", "10B")
    assert code == 1
    assert "refused" in out


def test_what_cannot_be_used_is_said_with_exit_code_2(folder, capsys, tmp_path):
    (tmp_path / "text").write_text("no archive")
    for arguments, why in (
        (["ls", tmp_path / "nothing"], "is no folder"),
        (["show", folder, "0123456789"], "No record's key begins with"),
        (["show", folder, ""], "2 keys begin with"),
        (["gc", folder, "--keep-ticks", "0"], "must be positive"),
        (["gc", folder, "--quota", "much"], "amount of memory"),
        (["import", folder, tmp_path / "text"], "is no archive"),
        (["import", folder, tmp_path / "none"], "No such file"),
        (["export", folder, tmp_path / "no" / "a.tar"], "No such file"),
    ):
        assert main(["store", *map(str, arguments)]) == 2
        assert why in capsys.readouterr().err
    assert not (tmp_path / "nothing").exists()


def test_help_loads_nothing(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["store", "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    for action in ("ls", "show", "verify", "gc", "du", "export", "import"):
        assert action in out
    code = (
        "import sys; from hybridcache_jax.cli import main;"
        "\ntry: main(['store', 'gc', '--help'])\nexcept SystemExit: pass\n"
        "assert not {'jax', 'numpy', 'tensorstore', 'rich'} & set(sys.modules)"
    )
    root = pathlib.Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)
