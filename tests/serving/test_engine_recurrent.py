"""The engine over a model with recurrent state: checkpoints, replays, cold equality."""

import numpy as np
import pytest
from flax import nnx

import hybridcache_jax as hc
from hybridcache_jax.configs.qwen3_next import Qwen3NextConfig
from hybridcache_jax.models.qwen3_next import Qwen3Next
from hybridcache_jax.serving.buckets import Buckets
from hybridcache_jax.serving.engine import Engine
from hybridcache_jax.serving.request import Request
from hybridcache_jax.serving.step import CompiledStep
from hybridcache_jax.testing.audit import violations

VOCABULARY = 31
CONFIG = Qwen3NextConfig.from_hf(
    {
        "model_type": "qwen3_next",
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 4,
        "linear_value_head_dim": 4,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
        "max_position_embeddings": 256,
    }
)
SPEC = hc.CacheSpec.from_layers(CONFIG.layers("float32"), block_tokens=4)
PLAN = hc.plan_capacity(
    SPEC,
    budget="8MiB",
    max_sequences=2,
    max_length=64,
    max_chunk=16,
    stored_tokens=160,
)
IDENTITY = hc.Identity(weights="w", config=CONFIG.digest, layout=SPEC.fingerprint)
BASE = np.random.default_rng(1).integers(0, VOCABULARY, 60, dtype=np.int32)


@pytest.fixture(scope="module")
def compiled():
    graph, state = nnx.split(Qwen3Next(CONFIG, rngs=nnx.Rngs(0)))
    rng = np.random.default_rng(0)

    def draw(_, leaf):
        return leaf.replace(rng.normal(0, 0.4, leaf.shape).astype(leaf.dtype))

    return CompiledStep(nnx.merge(graph, nnx.map_state(draw, state)), VOCABULARY)


@pytest.fixture
def make_engine(compiled):
    def make():
        buckets = Buckets(batch=(2,), chunk=(1, 16))
        return Engine(
            compiled,
            PLAN,
            IDENTITY,
            vocab_size=VOCABULARY,
            buckets=buckets,
            policy=hc.ReusePolicy(scope="namespace"),
        )

    return make


def answer(engine, tokens, count=6):
    (result,) = engine.run([Request(tokens, max_new_tokens=count)])
    assert violations(engine.cache) == []
    return result


@pytest.mark.parametrize(
    ("stored", "shared", "point"),
    [
        # Prefill steps end at 16, 32 and, on the grid, at 40.
        pytest.param(40, 40, 40, marks=pytest.mark.slow),
        (43, 43, 40),  # the last step but one stops on the grid on purpose
        (40, 37, 32),  # 36 was never the end of a step: no checkpoint there
        (40, 16, 16),
        (40, 15, 0),
    ],
)
def test_a_state_is_resumed_where_a_step_ended(make_engine, stored, shared, point):
    engine = make_engine()
    answer(engine, BASE[:stored], count=1)
    prompt = np.concatenate([BASE[:shared], (BASE[shared:50] + 1) % VOCABULARY])
    result = answer(engine, prompt)
    verdict = hc.Verdict.RESUMABLE if point else hc.Verdict.NEEDS_FULL_RECOMPUTE
    if result.plan.verdict == hc.Verdict.NEEDS_PARTIAL_RECOMPUTE:
        # The history goes deeper than the last checkpoint and is read, not run.
        assert (result.plan.start, point) == (32, 32)
        assert result.plan.length == 36
    else:
        assert (result.plan.verdict, result.plan.length) == (verdict, point)
    assert result.tokens == answer(make_engine(), prompt).tokens


def test_decoding_leaves_a_checkpoint_at_every_grid_point(make_engine):
    engine = make_engine()
    first = answer(engine, BASE[:18], count=16)
    prompt = np.concatenate([BASE[:18], np.array(first.tokens, np.int32)])
    result = answer(engine, prompt)
    assert (result.plan.verdict, result.plan.length) == (hc.Verdict.RESUMABLE, 32)
    assert result.tokens == answer(make_engine(), prompt).tokens


def test_lost_checkpoints_are_replayed_from_nothing_or_from_an_earlier_one(
    make_engine,
):
    engine = make_engine()
    answer(engine, BASE[:40], count=1)
    engine.cache = engine.prefixes.evict(engine.cache, hc.Form.RECURRENT_STATE)
    result = answer(engine, BASE[:45])
    assert result.plan.verdict == hc.Verdict.NEEDS_FULL_RECOMPUTE
    assert result.tokens == answer(make_engine(), BASE[:45]).tokens


def test_two_rows_share_a_checkpoint_and_go_their_own_ways(make_engine):
    engine = make_engine()
    answer(engine, BASE[:32], count=1)
    prompts = [
        np.concatenate([BASE[:32], np.array([n, n + 1, n + 2], np.int32)])
        for n in (3, 9)
    ]
    results = engine.run([Request(p, max_new_tokens=7) for p in prompts])
    for prompt, result in zip(prompts, results, strict=True):
        assert (result.plan.verdict, result.plan.length) == (hc.Verdict.RESUMABLE, 32)
        assert result.tokens == answer(make_engine(), prompt, count=7).tokens
    assert violations(engine.cache) == []


@pytest.mark.slow
@pytest.mark.parametrize("policy", [hc.Retention.ends(), hc.Retention.every(12)])
def test_checkpoints_are_taken_where_the_policy_keeps_them(compiled, policy):
    """The same prompt again, a longer one and the next turn; equal to cold answers."""
    sizes = {"max_sequences": 2, "max_length": 64, "max_chunk": 16}
    plan = hc.plan_capacity(
        SPEC, budget="8MiB", stored_tokens=160, retention=policy, **sizes
    )

    def make():
        buckets = Buckets(batch=(2,), chunk=(1, 16))
        return Engine(
            compiled,
            plan,
            IDENTITY,
            vocab_size=VOCABULARY,
            buckets=buckets,
            policy=hc.ReusePolicy("namespace"),
        )

    engine = make()
    first = answer(engine, BASE[:24], count=11)
    turn = np.concatenate([BASE[:24], np.array(first.tokens, np.int32), BASE[:3]])
    longer = np.concatenate([BASE[:24], BASE[30:33]])
    ends = policy == hc.Retention.ends()
    for prompt, point in [
        (BASE[:24], 20 if ends else 12),
        (longer, 24),
        (turn, 32 if ends else 24),
    ]:
        result = answer(engine, prompt)
        # The history may go deeper and is read; what is run starts at the checkpoint.
        assert result.plan.start == point
        assert result.tokens == answer(make(), prompt).tokens
