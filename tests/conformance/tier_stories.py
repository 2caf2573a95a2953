"""Scenarios of a tier in host memory: what moves out, what is found there, what stays.

Engines copy blocks out ahead of time; here a block moves out when it is evicted, so a
step that backs something up has nothing to do.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from engine_stories import SMALL, bound
from host import IDENTITY, Host, Sequence, Tier, hit
from scenario_spec import layout, plan
from tree_steps import VERDICTS

import hybridcache_jax as hc
from hybridcache_jax.block_counts import minimum_blocks
from hybridcache_jax.offload.loads import LoadStage
from hybridcache_jax.testing.stores import Inline, MemoryStore

CHUNKS = [{"kind": "full", "block_size": 16}]
LATE = 10**6  # reads until something comes


def tiered(groups, *, grids: int, **options) -> tuple[Host, Tier]:
    """A host whose evicted blocks move to a tier of so many grid units."""
    capacity = plan(groups, **options)
    tier = Tier(capacity, grids)
    return Host(capacity, tier), tier


def where(found: hc.ResumePlan) -> dict:
    """Tokens that can be used at once, and those that have to be waited for."""
    waits = found.verdict == hc.Verdict.NEEDS_IO
    ready = hit(found)
    return {
        "device_hit": ready,
        "host_hit": found.length - ready if waits else 0,
        "verdict": VERDICTS[found.verdict],
    }


def evicted_leaf(scenario: dict):
    """Evicted on the device, it is found outside; evicted there, it is a miss."""
    host, tier = tiered(bound(scenario["groups"], 1, 4), length=16, grids=4)
    host.store([1, 2])
    host.move_out()
    if any("host" in step for step in scenario["steps"]):
        tier.drop(0, np.array(tier.held(0)))
    ours = where(host.look_up([1, 2]))
    for name, value in scenario["expect"]["m"].items():
        yield "m", name, 2 if value == "2p" else value, ours[name]


def full_tier(scenario: dict):
    """A pending load needs every place: what is evicted then is lost whole."""
    host, tier = tiered(bound(scenario["groups"], 1, 4), length=16, grids=3)
    host.store([50, 51, 52])
    host.move_out()
    tier.delay(LATE)
    host.ask([50, 51, 52])
    host.store([1, 2])
    host.store([1, 2, 1000])
    free = int(host.cache.tables[0].num_free)
    host.move_out()
    yield "e", "evicted_ge", 3, int(host.cache.tables[0].num_free) - free
    ours = where(host.look_up([1, 2, 1000]))
    yield "m", "device_hit", 0, ours["device_hit"]
    yield "m", "host_hit", 0, ours["host_hit"]


def contents(scenario: dict):
    """Bytes come back although others lie where they were."""
    groups = bound(scenario["groups"], 1, 4)
    host, _ = tiered(groups, length=16, grids=4)
    full, state = layout(groups).pools
    host.store([1, 2])
    _paint(host, {full: 3, state: 11})
    host.move_out()
    _paint(host, {full: 9, state: 21})
    assert host.load([1, 2]).ready
    found = host.look_up([1, 2])
    yield "m", "hit", 2, hit(found)
    claims = found.claims.blocks
    read = {"full": (full, claims[full][:2]), "state": (state, claims[state][1:2])}
    content = {}
    for name, (pool, ids) in read.items():
        planes = host.cache.pools[pool].values()
        (content[name],) = {int(x) for p in planes for x in np.unique(p[:, ids])}
    yield "m", "content", scenario["expect"]["m"]["content"], content


def child_of_a_parent_on_the_device(scenario: dict):
    """The parent moves out after its child; lost instead, it takes the child along."""
    parent = list(range(1, 49))
    whole = [*parent, *range(1000, 1032)]
    for number, row in enumerate(scenario["steps"][0]["rows"]):
        host, tier = tiered(scenario["groups"], length=256, grids=8)
        host.store(parent)
        host.store(whole)
        host.evict([2])
        assert len(tier.held(0)) == 2
        kept = host.look_up(whole).length == len(whole)
        yield str(number), "kept", row["kept"], kept
        host.move_out()
        sane = where(host.look_up(whole))["host_hit"] == 16 * len(tier.held(0))
        yield str(number), "holds", True, sane
    groups = scenario["groups"] + [
        {"kind": "swa", "block_size": 16, "window": 16},
        {"kind": "recurrent", "block_size": 16},
    ]
    host, tier = tiered(groups, length=256, grids=8)
    full, *extra = layout(groups).pools
    host.store(whole, ends=range(16, 80, 16))
    host.evict([2, 2, 2])
    assert all(len(tier.held(pool)) == 2 for pool in (full, *extra))
    for block in range(3):
        host.drop(parent, full, block)
    host.put(host.prefixes.recover(host.cache))
    released = (2 - len(tier.held(full))) * 16
    yield "0", "host_tokens_released_if_dropped", 32, released
    gone = not any(tier.held(pool) for pool in extra)
    yield "0", "extra_pools_released_if_dropped", True, gone
    yield "0", "reported_loaded_if_dropped", 0, host.look_up(whole).length


def what_a_load_brings(scenario: dict):
    """Blocks per form that resuming there reads; no room, and it waits."""
    groups = scenario["groups"]
    pools = dict(zip(("full", "swa", "state"), layout(groups).pools, strict=True))
    least = minimum_blocks(layout(groups).spec.pools[pools["swa"]], 1, 16, 1)
    blocks = tuple(least if pool == pools["swa"] else 64 for pool in range(3))
    tight = {"length": 16, "grids": 16, "rows": 1, "chunk": 1, "blocks": blocks}
    for number, row in enumerate(scenario["steps"][0]["rows"]):
        host, _ = tiered(groups, **tight)
        prompt = list(range(row["prefetch_tokens"] or 4))
        host.store(prompt)
        if row["prefetch_tokens"]:
            host.move_out()
        else:
            host.demote(prompt, pools["state"], len(prompt) - 1)
        loads = host.look_up(prompt).loads
        brought = len(loads[pools[row["form"]]])
        if "reserve" in row:
            yield str(number), "reserved", row["reserve"], brought
        else:
            more = brought - row["prefetch_tokens"]
            yield str(number), "reserved", row["reserve_extra"], more
    host, _ = tiered(groups, **tight)
    host.store(range(4))
    host.move_out()
    row = Sequence([7] * 16)
    host.open(row)
    while int(host.cache.tables[pools["swa"]].num_free) >= 3:
        assert host.run(row, row.length + 1, publish=False)
    report = host.load(range(4))
    assert report.stage == LoadStage.ROOM
    yield "x", "aborted", True, report.failed
    # Stored blocks were evicted where that helped: these pools have too few still.
    tables, loads = host.cache.tables, report.load.plan.loads
    full = [name for name, n in pools.items() if len(loads[n]) > tables[n].num_free]
    yield "x", "eviction_asked_in_pool", "swa", ", ".join(full)
    yield "x", "tokens_asked", 4, len(report.load.plan.loads[pools["swa"]])


def holes_in_a_window(scenario: dict):
    """Only what lies in the window that is read has to come back."""
    groups = bound(scenario["groups"], 1, 4)
    full, window = layout(groups).pools
    holes = (None, 6, 3)  # of the tokens 5, 6 and 7 that are read
    rows = zip(scenario["steps"][0]["rows"], holes, strict=True)
    for number, (row, hole) in enumerate(rows):
        host, _ = tiered(groups, length=16, grids=16)
        prompt = list(range(1, 9))
        host.store(prompt)
        if hole is not None:
            host.demote(prompt, window, hole)
        loads = host.look_up(prompt).loads
        want = 1 if row["swa_host_hit"] == "p" else 0
        yield str(number), "swa_host_hit", want, len(loads[window])
        yield str(number), "host_hit", 0, len(loads[full])


def last_token_of_a_window(scenario: dict):
    """One row of the window away: one token less at once, all of it after a load."""
    groups = scenario["groups"]
    host, _ = tiered(groups, length=16, grids=16)
    full, window = layout(groups).pools
    host.store([1, 2, 3], ends=(1, 2))
    host.demote([1, 2, 3], window, 2)
    found = host.look_up([1, 2, 3])
    ours = {
        "device_hit": hit(found),
        "host_hit": len(found.loads[full]),
        "swa_host_hit": len(found.loads[window]),
        "reachable": found.length,
        "verdict": VERDICTS[found.verdict],
    }
    for name, value in scenario["expect"]["m"].items():
        yield "m", name, value, ours[name]


def places(scenario: dict):
    """Chunks in the places of a tier; a chunk is a prompt of one block."""
    host, tier = tiered(CHUNKS, length=17, grids=scenario["options"]["chunks"])
    tier.delay(LATE)

    def place(key):
        found = host.look_up([key] * 16)
        if not found.length:
            return None
        return int(found.claims.blocks[0][0]) - host.plan.blocks[0] - 1

    known: list[int] = []
    for number, ((op, what), expected) in enumerate(scenario["expect"]["cases"]):
        if op == "store":
            # What a batch asks for and is there already is wanted: it stays.
            asked = [host.ask([key] * 16) for key in what if place(key) is not None]
            new = [key for key in what if place(key) is None]
            for key in new:
                host.store([key] * 16)
                host.move_out()
            for load in asked:
                host.prefixes.cancel(load)
            gone = [key for key in known if place(key) is None]
            slots = [place(key) for key in new]
            known = [*known, *new]
            ours = {"to_store": new, "slots": slots, "evicted": gone}
            ours["fail"] = slots == [None] * len(new)
        elif op == "load":
            for key in what:
                host.ask([key] * 16)
            ours = {"slots": [place(key) for key in what]}
        elif op == "lookup":
            ours = {"result": "MISS" if place(what) is None else "HIT"}
        else:  # a store is done when it returns; nothing is used but by loading it
            ours = {}
        for name, want in expected.items():
            yield str(number), name, want, ours[name]


def matched_and_pushed(scenario: dict):
    """What was found outside and asked for stays while others come."""
    a, c, d = ([key] * 32 for key in b"acd")
    host, _ = tiered(scenario["groups"], length=256, grids=4)
    host.store(a)
    host.move_out()
    found = host.look_up(a)
    yield "", "match_tokens", scenario["expect"]["match_tokens"], found.length
    host.ask(a)
    for prompt in (c, d):
        host.store(prompt)
        host.move_out()
    (report,) = host.poll()
    assert report.ready
    came = len(report.load.plan.loads[0])
    yield "", "load_blocks", scenario["expect"]["load_blocks"], came
    lost = [name for name, key in (("C", c), ("D", d)) if not host.look_up(key).length]
    yield "", "evicted_instead", [scenario["expect"]["evicted_instead"]], lost


def saved_slot(scenario: dict):
    """Saved by moving out, restored by a load; then only what differs is run."""
    host, tier = tiered(scenario["groups"], grids=256, **SMALL)
    a = list(range(84))  # 21 tokens of a prompt, and what followed
    b = [*a[:15], *range(100, 106)]
    expect = scenario["expect"]
    processed = host.match(a[:21]).tokens_to_run
    yield "p1", "processed", expect["p1"]["processed"], processed
    row = Sequence(a)
    host.open(row)
    assert host.run(row, 21)
    before = host.prefixes.stored_tokens
    assert host.run(row, len(a))
    generated = host.prefixes.stored_tokens - before
    expected = expect["p1"]["generated_then_saved"]
    yield "p1", "generated_then_saved", expected, generated
    host.close(row)
    host.move_out()
    yield "s", "saved", expect["s"]["saved"], len(tier.held(0))
    assert host.load(a[:15]).ready
    row = Sequence(b)
    host.open(row, host.match(b))
    yield "p2", "processed", expect["p2"]["processed"], len(b) - row.length
    assert host.run(row, len(b), publish=False)
    host.close(row, publish=False)
    assert host.load(a).ready
    yield "r", "restored", expect["r"]["restored"], hit(host.look_up(a))
    processed = host.match(b).tokens_to_run
    yield "p3", "processed", expect["p3"]["processed"], processed
    host.store(b)
    processed = host.match(b).tokens_to_run
    yield "p4", "processed", expect["p4"]["processed"], processed


def saved_file(scenario: dict):
    """Saved by one process, restored by another, where it is of use to it.

    There is no restoring by name: what a reader cannot use, it does not find.  The
    picture stands first, for what stands before one is found by every reader.
    """
    groups, expect = scenario["groups"], scenario["steps"][0]["rows"]
    long = "picture " * 16  # its id alone outgrows the context
    prompt, picture = list(range(16)), [(0, 12, long)]
    for number, (row, reader) in enumerate(zip(expect, ((), picture), strict=True)):
        store, hosts = MemoryStore(), []
        for _ in range(2):
            capacity = plan(groups, length=16)
            assert capacity.max_length < len(long)
            tier = Tier(capacity, 64)
            hosts.append(Host(capacity, tier, store=store, executor=Inline()))
        writer, other = hosts
        found = writer.prefixes.match(writer.cache, prompt, IDENTITY, contents=picture)
        sequence = Sequence(prompt)
        writer.open(sequence, found)
        assert writer.run(sequence, len(prompt))
        writer.close(sequence)
        writer.put(writer.prefixes.flush(writer.cache))

        def asked(host=other, reader=reader):
            return host.prefixes.match(host.cache, prompt, IDENTITY, contents=reader)

        wanted = asked()
        restored = wanted.verdict == hc.Verdict.NEEDS_IO
        if restored:
            other.prefixes.load(other.cache, wanted)
            (report,) = other.poll()
            assert report.ready
        yield str(number), "status", row["status"], 200 if restored else 400
        processed = asked().tokens_to_run
        all_of_it = row["then_processed"] == "all"
        theirs = len(prompt) if all_of_it else row["then_processed"]
        yield str(number), "processed", theirs, processed
        if "then_cached" in row:
            yield str(number), "cached", len(prompt) - 1, asked().length


def idle_slot(scenario: dict):
    """Pushed out by other requests, it comes back from the tier."""
    host, tier = tiered(scenario["groups"], grids=256, **SMALL)
    long = list(range(90))
    first = host.match(long).tokens_to_run
    host.store(long)
    for other in range(3):
        host.store(range(100 * other + 100, 100 * other + 170))
    assert tier.held(0)
    assert host.load(long[:-1]).ready
    found = host.match(long)
    yield "p2", "cached_gt", True, hit(found) > 0
    yield "p2", "processed_lt", True, found.tokens_to_run < first


STORIES = {
    "sgl-tier-01": evicted_leaf,
    "sgl-tier-03": evicted_leaf,
    "sgl-tier-05": full_tier,
    "sgl-tier-07": contents,
    "sgl-tier-09": child_of_a_parent_on_the_device,
    "sgl-tier-11": what_a_load_brings,
    "sgl-tier-13": holes_in_a_window,
    "sgl-tier-17": last_token_of_a_window,
    "O02": places,
    "O04": places,
    "F13": matched_and_pushed,
    "lcp-slot-01": saved_slot,
    "lcp-slot-03": saved_file,
    "lcp-idle-01": idle_slot,
}


def _paint(host: Host, values: dict[int, int]) -> None:
    """Writes one number into every block of each pool."""
    pools = list(host.cache.pools)
    for pool, value in values.items():
        pools[pool] = jax.tree.map(lambda x, v=value: jnp.full_like(x, v), pools[pool])
    host.put(dataclasses.replace(host.cache, pools=tuple(pools)))
