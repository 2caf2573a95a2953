"""A hybrid model of your own over the cache, in one file.

A two-layer decoder in Flax NNX, one sliding-window layer and one full layer, served
with proven prefix reuse.  Run it with ``python examples/decode_loop.py``.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import hybridcache_jax as hc

VOCABULARY, WIDTH, HEADS, DIM, WINDOW = 100, 32, 4, 8, 16

# What the model leaves behind: one record per layer.
ENTRY = hc.Entry.kv(heads=1, dim=DIM)
SPEC = hc.CacheSpec.from_layers(
    [
        hc.LayerSpec(local=hc.Window(WINDOW, ENTRY)),
        hc.LayerSpec(global_=hc.Entries(ENTRY)),
    ],
    block_tokens=8,
)


class Decoder(nnx.Module):
    """Attention layers only; position enters through a learned embedding."""

    def __init__(self, rngs: nnx.Rngs):
        # Wide enough that the random model's choices depend on the whole context.
        wide = nnx.initializers.normal(0.5)
        self.embed = nnx.Embed(VOCABULARY, WIDTH, embedding_init=wide, rngs=rngs)
        self.place = nnx.Embed(512, WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, VOCABULARY, kernel_init=wide, rngs=rngs)
        self.inward = nnx.List(
            [
                nnx.Linear(WIDTH, (HEADS + 2) * DIM, kernel_init=wide, rngs=rngs)
                for _ in SPEC.layers
            ]
        )
        self.outward = nnx.List(
            [nnx.Linear(HEADS * DIM, WIDTH, rngs=rngs) for _ in SPEC.layers]
        )

    def __call__(self, tokens: jax.Array, view: hc.StepView):
        x = self.embed(tokens) + self.place(view.positions)
        for layer in range(len(SPEC.layers)):
            heads = self.inward[layer](x).reshape(*tokens.shape, HEADS + 2, DIM)
            query, key, value = jnp.split(heads, [HEADS, HEADS + 1], axis=2)
            # The same two lines for every layer kind.
            view = view.append(layer, k=key, v=value)
            seen = view.attend(layer, query, scale=DIM**-0.5)
            x = x + self.outward[layer](seen.reshape(*tokens.shape, -1))
        return self.head(x), view


def make_step(model: nnx.Module):
    """A jitted step: tokens in, next tokens out, the cache donated."""
    graph, state = nnx.split(model)

    def step(state, cache, inputs):
        view = hc.begin_step(cache, inputs, VOCABULARY)
        logits, view = nnx.merge(graph, state)(inputs.tokens, view)
        last = jnp.maximum(inputs.counts - 1, 0)
        chosen = jnp.argmax(logits[jnp.arange(len(last)), last], axis=-1)
        return hc.end_step(view), view.status, view.only_ok(chosen, -1)

    jitted = jax.jit(step, donate_argnums=1)
    return lambda cache, inputs: jitted(state, cache, inputs)


def answer(step, cache, prefixes, prompt, identity, count):
    """Serves one prompt greedily; prints what could be reused."""
    plan = prefixes.match(cache, prompt, identity)
    print(plan.explain())
    cache, lease = prefixes.acquire(cache, plan)
    tokens, todo = [], list(prompt[plan.start :])
    while len(tokens) < count:
        part, todo = todo[:32], todo[32:]
        # Two shapes are ever compiled: a chunk of 32 and a decode step of 1.
        width = 32 if len(part) > 1 else 1
        inputs = hc.batch_inputs([(lease, part)], batch=1, width=width)
        cache, status, chosen = step(cache, inputs)
        assert status[0] == hc.Status.OK, hc.Status(int(status[0])).explanation
        cache = prefixes.publish(cache, lease)
        if not todo:
            tokens.append(int(chosen[0]))
            todo = tokens[-1:]
    return prefixes.release(cache, lease), tokens


def main() -> None:
    plan = hc.plan_capacity(
        SPEC, budget="8MiB", max_sequences=2, max_length=256, max_chunk=32
    )
    cache = hc.init(plan)
    # Each answer is a request of its own and reuses what the others stored.
    prefixes = hc.PrefixCache(plan, policy=hc.ReusePolicy(scope="namespace"))
    step = make_step(Decoder(nnx.Rngs(0)))
    identity = hc.Identity(weights="seed 0", config="demo", layout=SPEC.fingerprint)
    prompt = np.random.default_rng(0).integers(0, VOCABULARY, 150, dtype=np.int32)

    cache, cold = answer(step, cache, prefixes, prompt, identity, 8)
    cache, warm = answer(step, cache, prefixes, prompt, identity, 8)
    cache = prefixes.evict(cache, hc.Form.SWA_WINDOW)
    cache, replayed = answer(step, cache, prefixes, prompt, identity, 8)
    assert cold == warm == replayed
    print("equal tokens three times:", cold)


if __name__ == "__main__":
    main()
