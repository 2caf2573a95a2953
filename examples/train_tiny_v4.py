"""Trains the small DeepSeek-V4-style byte model that the library ships.

A window, compressed sparse entries with overlap and indexer, heavily compressed
entries: every form a V4 cache has, in a few layers.  The text is the Python language
reference as it comes with Python itself (``pydoc_data``, PSF licence) and the document
of the demo.  Training runs over whole sequences, without a cache; the indexer learns
what attention looks at (``models.whole_sequence``).

    python examples/train_tiny_v4.py --out hybridcache_jax/models/tiny_v4_checkpoint
"""

import argparse
import functools
import importlib.resources
import json
import time
from pathlib import Path
from pydoc_data.topics import topics

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx

from hybridcache_jax.configs.deepseek_v4 import DeepseekV4Config
from hybridcache_jax.models.byte_tokenizer import BOS, VOCAB_SIZE
from hybridcache_jax.models.deepseek_v4 import DeepseekV4
from hybridcache_jax.models.tiny_v4 import write_digest
from hybridcache_jax.models.whole_sequence import WholeSequenceView

WINDOW, CSA, HCA = (
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
)
SETTINGS = {
    "model_type": "deepseek_v4",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 64,
    "o_groups": 2,
    "o_lora_rank": 32,
    "index_n_heads": 8,
    "index_head_dim": 32,
    "index_topk": 16,
    "layer_types": [WINDOW, CSA, HCA, CSA, CSA],
    "compress_rates": {CSA: 4, HCA: 16},
    "sliding_window": 32,
    "moe_intermediate_size": 96,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "num_hash_layers": 0,
    "hc_mult": 2,
    "hc_sinkhorn_iters": 5,
    "max_position_embeddings": 65536,
    "bos_token_id": BOS,
    "rope_theta": 10000.0,
    "compress_rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


def corpus() -> np.ndarray:
    """All bytes of the text, ``[n]`` int32."""
    document = importlib.resources.files("hybridcache_jax.cli") / "document.txt"
    texts = [topics[name] for name in sorted(topics)]
    text = "\n\n".join([*texts, document.read_text(encoding="utf-8")])
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def batches(text: np.ndarray, batch: int, length: int, seed: int):
    """Endless random pieces ``[batch, length + 1]`` of the text, BOS in front."""
    random = np.random.default_rng(seed)
    while True:
        starts = random.integers(0, len(text) - length, batch)
        pieces = np.stack([text[start : start + length] for start in starts])
        yield np.pad(pieces, ((0, 0), (1, 0)), constant_values=BOS)


def make_step(graph, layers, optimiser):
    """``step(state, moments, tokens)``: one update and the loss in nats per byte."""

    def loss(state, tokens):
        model = nnx.merge(graph, state)
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        view = WholeSequenceView.start(layers, *inputs.shape)
        hidden, _ = model(inputs, view)
        logits = model.logits(hidden)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(state, moments, tokens):
        value, gradient = jax.value_and_grad(loss)(state, tokens)
        updates, moments = optimiser.update(gradient, moments, state)
        return optax.apply_updates(state, updates), moments, value

    return step


def train(steps: int, batch: int, length: int, seed: int, rate: float, out: Path):
    """Trains from scratch; writes the model to ``out`` now and then, and at the end."""
    config = DeepseekV4Config.from_hf(SETTINGS)
    model = DeepseekV4(config, rngs=nnx.Rngs(seed))
    graph, state = nnx.split(model, nnx.Param)
    warm = max(1, steps // 20)
    schedule = optax.warmup_cosine_decay_schedule(0.0, rate, warm, steps, rate / 20)
    optimiser = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.01)
    )
    step = make_step(graph, config.layers("float32"), optimiser)
    moments = optimiser.init(state)
    mean, started = None, time.perf_counter()
    pieces = batches(corpus(), batch, length, seed)
    for number in range(1, steps + 1):
        state, moments, value = step(state, moments, jnp.asarray(next(pieces)))
        mean = float(value) if mean is None else 0.98 * mean + 0.02 * float(value)
        if number % 20 == 0 or number == steps:
            spent = time.perf_counter() - started
            print(
                f"{number}/{steps}: {mean:.3f} nats per byte, {spent:.0f} s", flush=True
            )
        if number % 200 == 0 or number == steps:
            save(out, state)


def save(folder: Path, state: nnx.State) -> None:
    """Writes ``config.json`` and the parameters, rounded to bfloat16, with Orbax."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SETTINGS, indent=1) + "\n")
    rounded = {
        ".".join(map(str, path)): leaf.get_value().astype(jnp.bfloat16)
        for path, leaf in nnx.to_flat_state(state)
    }
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save((folder / "params").resolve(), rounded, force=True)
    write_digest(folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Trains the small DeepSeek-V4-style byte model."
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=512, help="tokens per sequence")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=1.5e-3, help="peak learning rate")
    options = parser.parse_args()
    train(
        options.steps,
        options.batch,
        options.length,
        options.seed,
        options.rate,
        options.out,
    )


if __name__ == "__main__":
    main()
