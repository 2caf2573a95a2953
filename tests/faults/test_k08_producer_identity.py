"""K08: producer identity.

A hit requires equal identities.  Any one field changed is a miss with that field
named; the path, the host and the time are in none of them; an identity that is missing
or cannot be computed is a miss, for the reader and for the writer.
"""

import dataclasses
import functools
import json
import os
import pathlib

import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridcache_jax as hc
from hybridcache_jax import Identity, Reason, Verdict
from hybridcache_jax.configs.gemma3 import Gemma3Config
from hybridcache_jax.models.checkpoint import digest_files

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens"
PRODUCER = [
    field.name for field in dataclasses.fields(Identity) if field.name != "namespace"
]
TEXT = [name for name in PRODUCER if name != "format_version"]
ME = Identity("w1", "c1", "l1", "t1", "a1@1.0", "highest", "tenant")


def store(session, identity, tokens):
    """Runs a prompt for an identity, from wherever it resumes, and stores it."""
    plan = session.prefixes.match(session.cache, tokens, identity)
    lease = session.acquire(plan)
    session.feed(lease, tokens[plan.start :])
    session.release(lease)


@functools.cache
def stored_by(*writers):
    """P[:8], stored by each of the writers."""
    session = toy.Session(toy.only_full())
    for writer in writers:
        store(session, writer, toy.P[:8])
    return session


def ask(identity, *writers):
    session = stored_by(*writers)
    return session.prefixes.match(session.cache, toy.P[:9], identity)


def assert_hit(plan):
    assert (plan.verdict, plan.length) == (Verdict.RESUMABLE, 8)
    assert (plan.reason, plan.changed) == (Reason.OK, ())


def assert_miss(plan, reason, changed=()):
    assert plan.verdict == Verdict.NEEDS_FULL_RECOMPUTE
    assert (plan.length, plan.start, plan.claimed_length) == (0, 0, 0)
    assert (plan.reason, plan.changed) == (reason, changed)


VALUES = st.fixed_dictionaries(
    {
        **dict.fromkeys(TEXT, st.sampled_from(["", "x", "other"])),
        "weights": st.sampled_from([None, "", "w1", "w1", "w2"]),
        "config": st.sampled_from([None, "c1", "c1", "c2"]),
        "layout": st.sampled_from(["", "l1", "l1", "l2"]),
        "format_version": st.sampled_from([1, 1, 2]),
    }
)


@pytest.mark.kind("K08")
@settings(max_examples=60)
@given(fields=st.lists(st.sampled_from(PRODUCER), unique=True), values=VALUES)
def test_a_hit_requires_every_field_and_a_miss_names_those_that_differ(fields, values):
    reader = dataclasses.replace(ME, **{name: values[name] for name in fields})
    differ = tuple(n for n in PRODUCER if getattr(reader, n) != getattr(ME, n))
    assert ME.differences(reader) == reader.differences(ME) == differ
    assert (reader.digest == ME.digest) == (not differ)
    plan = ask(reader, ME)
    if not (reader.weights and reader.config and reader.layout):
        assert_miss(plan, Reason.IDENTITY_UNKNOWN)
    elif differ:
        assert_miss(plan, Reason.PRODUCER_CHANGED, differ)
    else:
        assert_hit(plan)


@pytest.mark.parametrize("field", ["weights", "config", "layout"])
def test_what_was_written_without_identity_is_found_by_nobody(field):
    nobody = dataclasses.replace(ME, **{field: ""})
    assert_miss(ask(nobody, nobody), Reason.IDENTITY_UNKNOWN)
    assert_miss(ask(ME, nobody), Reason.NOT_STORED)


def test_who_wrote_it_is_settled_when_the_row_is_handed_out():
    """Other weights are loaded while the row runs: what it ran is the old ones'."""
    session = toy.Session(toy.only_full())
    plan = session.prefixes.match(session.cache, toy.P[:8], ME)
    lease = session.acquire(plan)
    later = dataclasses.replace(ME, weights="w2")
    store(session, later, [9, 9, 9, 9])
    session.feed(lease, toy.P[:8])
    session.release(lease)
    match = functools.partial(session.prefixes.match, session.cache, toy.P[:9])
    assert_hit(match(ME))
    assert_miss(match(later), Reason.PRODUCER_CHANGED, ("weights",))


def producer(folder, *, weights, tokenizer=b"tokens", ratio=4, **settings_of_config):
    """An identity as an application computes it, from files in a folder."""
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "tokenizer.json").write_bytes(tokenizer)
    text = (GOLDENS / "gemma3_text" / "hub_config.json").read_text()
    config = Gemma3Config.from_hf({**json.loads(text), **settings_of_config})
    entry = hc.Entry.kv(1, 1)
    layers = [hc.LayerSpec(global_=hc.Entries(entry, ratio, raw=entry))]
    return Identity(
        weights=digest_files([folder / "model.safetensors"], None),
        config=config.digest,
        layout=hc.CacheSpec.from_layers(layers, block_tokens=8).fingerprint,
        tokenizer=digest_files([folder / "tokenizer.json"], None),
    )


def test_b35_content_is_identity_and_a_name_or_a_path_is_not(tmp_path):
    first = producer(tmp_path / "model", weights=b"first")
    (tmp_path / "elsewhere").mkdir()
    # Same name and shapes, other weights.
    other = producer(tmp_path / "elsewhere" / "model", weights=b"other")
    assert_miss(ask(other, first), Reason.PRODUCER_CHANGED, ("weights",))
    # Same content under another path, and of another day.
    copy = producer(tmp_path / "renamed", weights=b"first")
    os.utime(tmp_path / "renamed" / "model.safetensors", (0, 0))
    assert digest_files([tmp_path / "renamed" / "model.safetensors"], None) == (
        first.weights
    )
    assert_hit(ask(copy, first))
    # Same weights, one setting edited.
    for number, (edit, field) in enumerate(
        [
            ({"rope_theta": 2e6}, "config"),
            ({"sliding_window": 9}, "config"),
            ({"ratio": 8}, "layout"),
            ({"tokenizer": b"other tokens"}, "tokenizer"),
        ]
    ):
        edited = producer(tmp_path / str(number), weights=b"first", **edit)
        assert_miss(ask(edited, first), Reason.PRODUCER_CHANGED, (field,))
    # A record with no identity, and a reader that cannot compute its own.
    unknown = dataclasses.replace(first, weights=None)
    assert_miss(ask(first, unknown), Reason.NOT_STORED)
    assert_miss(ask(unknown, first), Reason.IDENTITY_UNKNOWN)


def test_b36_an_adapter_is_its_weights_and_its_scale():
    def adapted(adapter):
        return dataclasses.replace(ME, adapter=adapter)

    stored = adapted("A#1@1.0")
    assert_hit(ask(adapted("A#1@1.0"), stored))
    for asked in ("A#1@0.5", "B#9@1.0", "", "A#2@1.0"):
        plan = ask(adapted(asked), stored)
        assert_miss(plan, Reason.PRODUCER_CHANGED, ("adapter",))
    assert_hit(ask(adapted(""), stored, adapted("")))
    assert_hit(ask(adapted("A#1@1.0"), stored, adapted("")))
