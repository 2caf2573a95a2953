"""The shipped model: it has learnt something, so a corrupted cache shows."""

import functools
import shutil
from importlib.resources import files

import jax.numpy as jnp
import numpy as np
import pytest
from whole_logits import whole_sequence_logits

import hybridcache_jax as hc
from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.models.tiny_v4 import FOLDER, load_tiny_v4, write_digest
from hybridcache_jax.serving.buckets import Buckets
from hybridcache_jax.serving.build import build_engine
from hybridcache_jax.serving.request import Request
from hybridcache_jax.spec import Part

DOCUMENT = files("hybridcache_jax.cli").joinpath("document.txt").read_text()
# Long enough that a query selects a small part of its entries.
TEXT = DOCUMENT[:1600]


@functools.cache
def model():
    return load_tiny_v4()


@functools.cache
def tokens():
    return np.array(model().tokenizer.encode(TEXT), np.int32)


@pytest.fixture(scope="module")
def engine():
    return build_engine(
        model(),
        max_length=len(tokens()) + 32,
        max_sequences=1,
        stored_tokens=2 * len(tokens()),
        budget="64MiB",
        buckets=Buckets(batch=(1,), chunk=(32,)),
        policy=hc.ReusePolicy(scope="namespace"),
    )


def test_it_predicts_text_far_better_than_chance():
    text = tokens()[:512]
    logits = whole_sequence_logits(model().model, model().layers, text[None])
    logits = logits[0, :-1].astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    chosen = logits[np.arange(len(logits)), text[1:]]
    nats = np.log(np.exp(logits).sum(axis=-1)) - chosen
    # Chance is ln 257 = 5.55; single letters of English are about 2.9.
    assert nats.mean() < 2.2


def test_every_form_of_a_v4_cache_is_there(engine):
    assert {pool.part for pool in engine.plan.spec.pools} == set(Part) - {Part.STATE}
    assert {pool.form for pool in engine.plan.spec.pools} == {
        hc.Form.SWA_WINDOW,
        hc.Form.COMPRESSED_KV,
        hc.Form.UNCOMPRESSED_TAIL,
        hc.Form.INDEXER_STATE,
    }


def run(engine, reuse=True):
    request = Request(tokens(), max_new_tokens=24, reuse=reuse)
    return engine.run([request])[0]


@pytest.fixture(scope="module")
def cold(engine):
    """The answer without any stored prefix; then the prefix is stored."""
    answer = run(engine, reuse=False).tokens
    assert run(engine).tokens == answer
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("part", [Part.LOCAL, Part.ENTRIES, Part.INDEX])
def test_a_corrupted_form_changes_what_it_writes(engine, cold, part):
    assert run(engine).tokens == cold
    sound = engine.cache
    pools = list(sound.pools)
    for number, pool in enumerate(engine.plan.spec.pools):
        if pool.part == part:
            rng = np.random.default_rng(0)
            pools[number] = {
                name: jnp.asarray(3 * rng.standard_normal(value.shape), value.dtype)
                for name, value in pools[number].items()
            }
    engine.cache = engine.compiled_step.place(
        hc.HybridCache(
            plan=sound.plan,
            pools=tuple(pools),
            tables=sound.tables,
            rows=sound.rows,
            clock=sound.clock,
            stamp=sound.stamp,
        )
    )
    corrupted = run(engine)
    assert corrupted.plan.verdict == hc.Verdict.RESUMABLE
    assert corrupted.tokens != cold
    for form in hc.Form:
        engine.cache = engine.prefixes.evict(engine.cache, form)
    assert run(engine).tokens == cold


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
        (lambda folder: (folder / "params.sha256").unlink(), "params.sha256"),
        (lambda folder: shutil.rmtree(folder / "params"), "SHA-256"),
        (lambda folder: flip_a_bit(folder), "SHA-256"),
        (lambda folder: [flip_a_bit(folder), write_digest(folder)], None),
        (lambda folder: [lose_metadata(folder), write_digest(folder)], "Cannot read"),
    ],
)
def test_a_damaged_folder_is_refused_by_name(tmp_path, damage, message):
    folder = tmp_path / "tiny"
    shutil.copytree(FOLDER, folder)
    damage(folder)
    if message is None:
        # Orbax itself sees no flipped bit: that is what the digest is for.
        load_tiny_v4(folder=folder)
        return
    with pytest.raises(CheckpointError, match=message):
        load_tiny_v4(folder=folder)


def largest(folder):
    files = [path for path in (folder / "params").rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


def flip_a_bit(folder):
    path = largest(folder)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def lose_metadata(folder):
    (folder / "params" / "_METADATA").unlink()
    (folder / "params" / "manifest.ocdbt").unlink()
