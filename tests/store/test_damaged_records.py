"""Damaged and hostile records: a miss with its reason or the right bytes, no others."""

import ast
import itertools
import pathlib
import tracemalloc

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from small_records import expected, look, prefix, save

import hybridcache_jax.store
from hybridcache_jax.store import manifest as lib
from hybridcache_jax.store.finding import find_records
from hybridcache_jax.store.manifest import Manifest, ManifestError, decode, encode
from hybridcache_jax.store.objects import ObjectStore
from hybridcache_jax.testing.stores import MemoryStore as Memory

ONE, TWO, THREE = [1, 2, 3], [1, 2, 3, 4, 5], [7, 8]
# What look sees of each record, and what it goes on from.
RIGHT = {
    tuple(ONE): [expected(ONE)],
    tuple(TWO): [expected(ONE), expected(TWO, 3)],
    tuple(THREE): [expected(THREE)],
}


def write_all(store):
    save(store, ONE)
    save(store, TWO, 3)
    save(store, THREE)
    return store


@pytest.fixture(scope="module")
def objects():
    return write_all(Memory()).objects


def sealed(body, version=lib.FORMAT):
    """A file whose digest is right, whatever its body says."""
    number = version.to_bytes(2, "little")
    return b"hcjr" + number + blake3(number + body).digest(length=32) + body


def judge(store, damaged):
    """Looks for every record in a store with damage: no other bytes are ever found.

    Returns:
      How many records are missing or have blocks that are.
    """
    lost = 0
    for tokens, right in RIGHT.items():
        seen = look(store, tokens)
        problems = find_records(store, prefix(tokens)).problems
        assert len(seen) <= len(right)
        for got, want in zip(seen, right, strict=False):
            assert got[:2] == want[:2]
            for (pool, number, data), wanted in zip(got[2], want[2], strict=True):
                assert [pool, number] == wanted[:2]
                assert data in (wanted[2], None)
        if len(seen) < len(right):
            # The reason names the file.
            reasons = dict(problems)
            assert set(reasons) & set(damaged), (reasons, damaged)
            assert all(reasons.values())
        lost += seen != right
    return lost


def test_every_flipped_byte_of_every_file_is_found():
    store = Memory()
    save(store, ONE)
    for name, data in dict(store.objects).items():
        for place in range(len(data)):
            damaged = bytearray(data)
            damaged[place] ^= 1 << place % 8
            store.objects[name] = bytes(damaged)
            (right,) = RIGHT[tuple(ONE)]
            if name.startswith("records/"):
                assert look(store, ONE) == []
                continue
            # The block that it is in is missing, and no other.
            ((*_, blocks),) = look(store, ONE)
            wrong = [n for n in range(len(blocks)) if blocks[n] != right[2][n]]
            assert wrong == [place * len(blocks) // len(data)]
            assert blocks[wrong[0]][2] is None
        store.objects[name] = data
    assert look(store, ONE) == RIGHT[tuple(ONE)]


@pytest.mark.slow
def test_every_flipped_bit_of_several_records_is_found(objects):
    assert judge(Memory(dict(objects)), []) == 0
    for name, data in objects.items():
        for place, bit in itertools.product(range(len(data)), range(8)):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            assert judge(Memory({**objects, name: bytes(damaged)}), [name]) > 0


@pytest.mark.slow
def test_every_other_length_of_several_records_is_found(objects):
    for name, data in objects.items():
        for length in range(len(data)):
            assert judge(Memory({**objects, name: data[:length]}), [name]) > 0
        longer = judge(Memory({**objects, name: data + b"\0"}), [name])
        # Behind the last block of a pack nothing is read.
        assert bool(longer) == name.startswith("records/")


def test_every_other_length_is_found():
    store = Memory()
    save(store, ONE)
    for name, data in dict(store.objects).items():
        for length in range(len(data)):
            store.objects[name] = data[:length]
            seen = look(store, ONE)
            if name.startswith("packs/"):
                assert None in [block for _, _, block in seen[0][2]]
            else:
                assert seen == []
        store.objects[name] = data + b"\0"
        # Behind the last block of a pack nothing is read.
        assert bool(look(store, ONE)) == name.startswith("packs/")
        store.objects[name] = data
    assert look(store, ONE) == RIGHT[tuple(ONE)]


def test_files_in_each_others_place_are_found(objects):
    """Also when every one of them is whole."""
    for one, other in itertools.permutations(objects, 2):
        copied = {**objects, one: objects[other]}
        swapped = {**copied, other: objects[one]}
        gone = {name: data for name, data in objects.items() if name != one}
        assert judge(Memory(copied), [one]) > 0
        assert judge(Memory(swapped), [one, other]) > 0
        missing = Memory(gone)
        for tokens, right in RIGHT.items():
            assert len(look(missing, tokens)) <= len(right)


DAMAGES = ("flip", "cut", "lengthen", "empty", "zeros", "swap")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("damaged")
    write_all(ObjectStore(root))
    return root


@pytest.mark.kind("K14")
@settings(max_examples=25)
@given(st.integers(0, 5), st.integers(0, 10**6), st.sampled_from(DAMAGES))
@pytest.mark.on_disk("K14")
def test_damage_in_a_folder_costs_what_it_hits_and_nothing_else(
    folder, number, place, damage
):
    store = ObjectStore(folder)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    path, other = paths[number], paths[number - 1]
    data, second = path.read_bytes(), other.read_bytes()
    place %= len(data)
    damaged = {
        "flip": data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :],
        "cut": data[:place],
        "lengthen": data + second,
        "empty": b"",
        "zeros": bytes(len(data)),
        "swap": second,
    }[damage]
    path.write_bytes(damaged)
    if damage == "swap":
        other.write_bytes(data)
    try:
        names = [one.relative_to(folder).as_posix() for one in (path, other)]
        lost = judge(store, names)
        assert (lost > 0) or (damage == "lengthen" and names[0].startswith("packs/"))
    finally:
        path.write_bytes(data)
        other.write_bytes(second)
    # The next good load works, without a new store.
    assert judge(store, []) == 0


# What a manifest with a right digest may say of where its blocks lie.
NAMES = (
    "../../secret",
    "/etc/passwd",
    "packs/../../secret",
    "packs",
    "packs/",
    "packs/{pack}/..",
    "packs/{pack}",
    "packs/{pack}/{pack}" + "a" * 5000,
    "packs/" + "a/" * 3000 + "a",
    "packs/{pack}/x.__lock",
    "packs/{pack}/\0",
    "packs/ä/ä",
    "",
    "records/{record}",
)
NUMBERS = (-1, -(2**63), 2**63 - 1, 2**64 - 1, 2**48, 2**48 - 1, 1, 10**6)


def hostile_places(record):
    """Manifests in which no block has its place, with as many wrong ones as it has."""
    pack = record.parts[0].blocks[0].pack.split("/")[1]
    wrong = [
        {"pack": name.format(pack=pack, record=record.key.hex())} for name in NAMES
    ] + [{"start": number} for number in NUMBERS]
    while wrong:
        parts = []
        for part in record.parts:
            blocks = [
                msgspec.structs.replace(
                    place, **(wrong.pop() if wrong else {"pack": ""})
                )
                for place in part.blocks
            ]
            parts.append(msgspec.structs.replace(part, blocks=tuple(blocks)))
        yield msgspec.structs.replace(record, parts=tuple(parts))


def test_names_and_offsets_of_a_manifest_lead_nowhere_else(nursery, tmp_path):
    """No call names what lies outside of the store; nothing is run; memory is bounded.

    All under a digest that is right.  A folder, a name that is too long and what
    TensorStore calls its own are a miss like any other.
    """
    (tmp_path / "secret").write_bytes(b"s" * 4096)
    root = tmp_path / "store"
    write_all(ObjectStore(root))
    (path,) = [
        path
        for path in (root / "records").rglob("*")
        if path.is_file() and decode(path.read_bytes()).stop == 2
    ]
    whole = path.read_bytes()
    action = {"kind": "look", "tokens": THREE, "memory": 64 * 2**20}
    plain = nursery.trial(root, action, watched="")
    assert plain["value"]["seen"] == RIGHT[tuple(THREE)]
    where = str(root).removeprefix("/")
    known = {event[1] for event in plain["events"]}
    assert f"{where}/{path.relative_to(root)}" in known
    for record in hostile_places(decode(whole)):
        path.write_bytes(encode(record))
        done = nursery.trial(root, action, watched="")
        assert done["end"] == "done", done
        ((start, stop, blocks),) = done["value"]["seen"]
        assert (start, stop) == (0, 2)
        assert [data for _, _, data in blocks] == [None] * 4
        opened = {event[1] for event in done["events"]} - known
        assert all(name.startswith(where) for name in opened), opened
        assert done["value"]["heard"] == plain["value"]["heard"]
    assert not {
        "pickle.find_class",
        "marshal.loads",
        "exec",
        "compile",
        "import",
    } & set(plain["value"]["heard"])


def test_a_file_of_any_size_is_not_read_for_a_manifest(nursery, tmp_path):
    write_all(ObjectStore(tmp_path / "store"))
    action = {"kind": "look", "tokens": ONE, "memory": 64 * 2**20}
    assert nursery.trial(tmp_path / "store", action)["value"]["seen"]
    for path in (tmp_path / "store" / "records").rglob("*"):
        if path.is_file():
            with open(path, "r+b") as file:
                # A file with a hole: it takes no room on the disk.
                file.truncate(2**40)
    done = nursery.trial(tmp_path / "store", action)
    assert done["end"] == "done", done
    assert done["value"]["seen"] == []
    store = ObjectStore(tmp_path / "store")
    ((_, why),) = find_records(store, prefix(ONE)).problems
    assert why == f"it has more than {lib.MOST_BYTES} bytes"


def fields_of(objects):
    for name, data in objects.items():
        if name.startswith("records/") and decode(data).stop == len(THREE):
            return name, msgspec.msgpack.decode(msgspec.msgpack.encode(decode(data)))
    raise AssertionError("no such record")


MANY = 20_000
HOSTILE = {
    "deep": lambda f: f.update(parts=deep(500)),
    "deep identity": lambda f: f["identity"].update(weights=deep(500)),
    "contents": lambda f: f.update(contents=[[0, 0, "", ""]] * MANY),
    "contents over all": lambda f: f.update(contents=[[0, 2, "a", "b"]] * MANY),
    "identity": lambda f: f["identity"].update({f"{n:x}": 0 for n in range(MANY)}),
    "pools": lambda f: f.update(parts=f["parts"] * MANY),
    "planes": lambda f: f["parts"][0].update(planes=f["parts"][0]["planes"] * MANY),
    "blocks": lambda f: f["parts"][0].update(blocks=f["parts"][0]["blocks"] * MANY),
    "tokens": lambda f: f.update(tokens=bytes(4 * MANY), stop=MANY),
    "long spans": lambda f: f.update(
        tokens=bytes(4 * MANY), stop=MANY, contents=[[0, MANY, "a", "b"]]
    ),
    "more tokens": lambda f: f.update(tokens=bytes(4 * MANY)),
    "start": lambda f: f.update(start=2**64 - 1),
    "stop": lambda f: f.update(stop=-(2**63)),
    "grid": lambda f: f.update(grid=0),
    "spans": lambda f: f.update(contents=[[-1, 2**64 - 1, "a", "b"]]),
}


def deep(levels):
    return [deep(levels - 1)] if levels else []


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_manifest_says_is_bounded_by_its_own_size(objects, name):
    where, fields = fields_of(objects)
    HOSTILE[name](fields)
    data = sealed(msgspec.msgpack.encode(fields))
    store = Memory({**objects, where: data})
    tracemalloc.start()
    found = find_records(store, prefix([*THREE, 9]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Of contents there may be a million; a span takes few bytes in the file.
    assert peak < (24 if "contents" in name else 6) * len(data) + 2**20
    if name in {"blocks", "contents"}:
        # Which numbers of blocks are right is for those to say who know the pools.
        # Contents of no token say nothing.
        assert found.length == len(THREE)
    else:
        assert found.length == 0
        # Other tokens than the prompt's are no mistake.
        right = name in {"tokens", "long spans"}
        assert [one for one, _ in found.problems] == [where] * (not right)


COUNTS = {
    "list": b"\xdd",
    "map": b"\xdf",
    "text": b"\xdb",
    "bytes": b"\xc6",
    "other": b"\xc9",
}


@pytest.mark.kind("K14")
@settings(max_examples=100)
@given(
    st.sampled_from([field.name for field in msgspec.structs.fields(Manifest)]),
    st.sampled_from(sorted(COUNTS)),
    st.sampled_from([2**32 - 1, 2**31, 2**28, 10**6]),
    st.binary(max_size=20),
)
def test_a_count_that_the_file_does_not_have_costs_nothing(field, kind, count, rest):
    said = msgspec.msgpack.encode(field) + COUNTS[kind] + count.to_bytes(4, "big")
    data = sealed(b"\x81" + said + rest)
    tracemalloc.start()
    with pytest.raises(ManifestError):
        decode(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**18


def test_a_record_that_could_not_be_read_again_is_not_written():
    store = Memory()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lib, "MOST_BYTES", 100)
        with pytest.raises(ValueError, match="could not be read again"):
            save(store, ONE)
    assert not store.names("records/")


BANNED = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"} | {
    "runpy",
    "importlib",
    "subprocess",
    "ctypes",
}
HARMLESS = ("re.compile", "json.loads")
CALLS = {"eval", "exec", "compile", "__import__", "load", "loads", "system"}


def test_nothing_that_is_read_is_run():
    """No file of the store's imports what could, and none calls it."""
    files = list(pathlib.Path(hybridcache_jax.store.__file__).parent.glob("*.py"))
    assert len(files) > 6
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {(node.module or "").partition(".")[0]}
            elif isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                whose = ast.unparse(node.func)
                assert name not in CALLS or whose in HARMLESS, (path.name, whose)
                continue
            else:
                continue
            assert not names & BANNED, (path.name, names)
