"""Keys of stored prefixes: equal exactly where prefix, producer and namespace are."""

import dataclasses
import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcache_jax.codes import Provenance
from hybridcache_jax.contents import Contents
from hybridcache_jax.identity import Identity
from hybridcache_jax.rollout import Key, Scope
from hybridcache_jax.store.keys import KEY_BYTES, chain, keyed_blake3, root_key

ME = Identity(weights="w", config="c", layout="l", namespace="a")
GRID = 4


KEY = Key(ME)


def keys(tokens, contents=(), key=KEY, grid=GRID):
    ids = np.array(tokens, np.int32)
    root = root_key(key, grid)
    return chain(key.identity, root, ids, Contents.of(contents, len(ids)), grid)


PAIRS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([None, "x", b"x", 1])), max_size=12
)


def split(pairs):
    """Token ids and spans of single tokens."""
    spans = [(n, n + 1, content) for n, (_, content) in enumerate(pairs) if content]
    return [token for token, _ in pairs], spans


@pytest.mark.kind("K09")
@settings(max_examples=200)
@given(PAIRS, PAIRS)
def test_keys_are_equal_exactly_where_pairs_are(one, other):
    first, second = keys(*split(one)), keys(*split(other))
    for number, (a, b) in enumerate(zip(first, second, strict=False)):
        same = one[: number * GRID] == other[: number * GRID]
        assert (a == b) == same
    assert len(first) == 1 + len(one) // GRID


@pytest.mark.kind("K09")
@given(PAIRS, st.integers(0, 3))
def test_a_chain_goes_on_from_any_of_its_keys(pairs, cut):
    tokens, spans = split(pairs)
    whole = keys(tokens, spans)
    cut = min(cut, len(whole) - 1)
    rest = [(a - cut * GRID, b - cut * GRID, c) for a, b, c in spans if a >= cut * GRID]
    ids = np.array(tokens[cut * GRID :], np.int32)
    again = chain(ME, whole[cut], ids, Contents.of(rest, len(ids)), GRID)
    assert again == whole[cut:]


def test_any_field_of_producer_and_readers_changes_every_key():
    changed = [
        dataclasses.replace(ME, **{field.name: value})
        for field in dataclasses.fields(ME)
        for value in [2 if field.name == "format_version" else "other"]
    ]
    assert len(changed) == len(dataclasses.fields(ME))
    readers = [
        {"scope": Scope.GLOBAL},
        {"scope": Scope.SESSION, "owner": "s"},
        {"scope": Scope.SESSION, "owner": "t"},
        {"generation": 1},
        {"provenance": Provenance.APPROXIMATE},
    ]
    asked = [Key(who) for who in (ME, *changed)]
    asked += [dataclasses.replace(KEY, **each) for each in readers]
    found = [tuple(keys(range(8), key=key)) for key in asked]
    for one, other in itertools.combinations(found, 2):
        assert not set(one) & set(other)


def test_a_namespace_is_no_part_of_the_text_but_the_key_of_the_hash():
    """Equal texts under two namespaces are hashed under two secrets."""
    heard = []

    def listen(secret, data):
        heard.append((secret, data))
        return keyed_blake3(secret, data)

    for namespace in ("a", "b"):
        who = ME.within(namespace)
        chain(
            who,
            b"r" * KEY_BYTES,
            np.arange(4, dtype=np.int32),
            Contents(),
            GRID,
            listen,
        )
    (one, text), (other, same) = heard
    assert text == same
    assert one != other
    assert b"a" not in {one, other}


@pytest.mark.parametrize(
    "change",
    [
        {"identity": dataclasses.replace(ME, weights=None)},
        {"scope": Scope.OFF},
        {"scope": Scope.SESSION},
    ],
    ids=str,
)
def test_what_may_not_be_shared_has_no_key(change):
    with pytest.raises(ValueError, match="Nothing is stored under this key"):
        root_key(dataclasses.replace(KEY, **change), GRID)


def test_keys_are_the_same_in_every_process():
    """And in every release: they name what lies on disk."""
    code = (
        "import numpy as np;"
        "from hybridcache_jax.contents import Contents;"
        "from hybridcache_jax.identity import Identity;"
        "from hybridcache_jax.rollout import Key;"
        "from hybridcache_jax.store.keys import chain, root_key;"
        "who = Identity('w', 'c', 'l', namespace='a');"
        "root = root_key(Key(who), 4);"
        "ids = np.arange(8, dtype=np.int32);"
        "found = chain(who, root, ids, Contents.of([(5, 6, 'x')], 8), 4);"
        "print(*(key.hex() for key in found))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    here = [key.hex() for key in keys(range(8), [(5, 6, "x")])]
    assert done.stdout.split() == here
    assert here[0] == "be9ef42566132b74918540a5b37ff865"
