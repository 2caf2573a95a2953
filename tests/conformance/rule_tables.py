"""Tables of rules that need no cache: lookups in masks, caps, grids."""

import manager_steps
import numpy as np
from scenario_spec import layout

from hybridcache_jax.block_counts import minimum_blocks
from hybridcache_jax.forms import RULES, required
from hybridcache_jax.resume import Holdings, Solution, solve


def lookup(scenario: dict):
    """Longest usable prefix over a mask of stored blocks."""
    spec = layout(scenario["groups"]).spec
    size = spec.grid
    for mask, tail, blocks in scenario["expect"]["cases"]:
        total = len(mask) * size + tail
        yield blocks, fold(spec, [mask], total + 1).point // size


def skipped(scenario: dict):
    """Leading tokens that no later query sees."""
    pool = layout(scenario["groups"]).spec.pools[0]
    for computed, skip in scenario["expect"]["cases"]:
        yield skip, int(required(pool.form, pool.geometry, computed)[0])


def admission_cap(scenario: dict):
    """Most blocks that one sequence needs, in chunks of half of what is in flight."""
    pool = layout(scenario["groups"]).spec.pools[0]
    for in_flight, length, blocks in scenario["expect"]["cases"]:
        yield blocks, minimum_blocks(pool, 1, length, in_flight // 2)


def block_sizes(scenario: dict):
    """The grid of groups of several block sizes."""
    for sizes, lcm, _ in scenario["expect"]["cases"]:
        groups = [{"kind": "full", "block_size": size} for size in sizes]
        yield lcm, layout(groups).spec.grid


def retained(scenario: dict):
    """Blocks kept of a finished prompt, under an interval of tokens or for its end."""
    options, size = scenario["options"], scenario["options"]["align"]
    points = np.arange(1, options["end_block"] + 1, dtype=np.int32) * size
    for interval, (prompt, *_), kept in scenario["expect"]["cases"]:
        policy = manager_steps.retention(interval)
        ours = policy.keeps(points, grid=size, prompt=prompt, end=0)
        yield kept, None if ours.all() else np.flatnonzero(ours).tolist()


TABLES = {
    "retention_mask": retained,
    "lookup_mask_tail": lookup,
    "skipped_tokens": skipped,
    "admission_cap": admission_cap,
    "block_sizes": block_sizes,
}


def outcomes(scenario: dict) -> dict[tuple[str, str], tuple]:
    """Per case, what is expected and what we give."""
    pairs = TABLES[scenario["type"]](scenario)
    return {(str(case), "value"): pair for case, pair in enumerate(pairs)}


def fold(spec, masks, num_tokens: int) -> Solution:
    """The solver's answer for masks of stored blocks, one mask per pool."""
    points = np.arange(0, num_tokens, spec.grid, dtype=np.int32)
    covered = []
    for pool, mask in zip(spec.pools, masks, strict=True):
        held = np.array(mask, bool)
        if RULES[pool.form].exact:
            last = points // pool.block_tokens - 1
            inside = (points > 0) & (last < len(held))
            covered.append(inside & held[np.clip(last, 0, len(held) - 1)])
        else:
            covered.append(held * np.int32(pool.block_tokens))
    holdings = Holdings(tuple(covered), tuple(covered))
    return solve(spec, points, np.int32(num_tokens), holdings)
