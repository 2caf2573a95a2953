"""Scenarios of other engines that have steps of their own."""

import numpy as np
import rule_tables
from host import IDENTITY, Host, Sequence, hit
from scenario_spec import layout, plan
from tree_steps import VERDICTS

import hybridcache_jax as hc
from hybridcache_jax.forms import required

FULL, SWA, STATE = "full", "swa", "state"
# A pool that three sequences fill, for blocks of one token.
SMALL = {"length": 96, "rows": 3, "chunk": 96, "blocks": (256,)}


def window_pinned_by_a_lock(scenario: dict):
    """Window tokens, in whole pages, that a lease on a whole prompt reads."""
    for number, row in enumerate(scenario["steps"][0]["rows"]):
        pool = _window_pool(row["page"], row["window"])
        lo, hi = required(pool.form, pool.geometry, row["len"])
        pages = set(range(lo // row["page"], -(-hi // row["page"])))
        want = row["expect_tail"]
        yield str(number), "protected.swa", want, len(pages) * row["page"]
        (full,) = layout([{"kind": "full", "block_size": row["page"]}]).spec.pools
        lo, hi = required(full.form, full.geometry, row["len"])
        yield str(number), "protected.full", row["len"], hi - lo


def frontier_rows(scenario: dict):
    """Window tokens that a row lets go of before it runs its last position."""
    for number, row in enumerate(scenario["steps"][0]["rows"]):
        ours = _frontier(row["page"], row["window"], row["len"] - 1)
        yield str(number), "frontier", row["frontier"], ours


def frontier_sweep(scenario: dict):
    """The last page that can be stored keeps its window, given a page of rollback."""
    sweep = scenario["steps"][0]
    below, equal, equal_later = True, True, True
    for page in sweep["page"]:
        for window in (w for w in sweep["window"] if w < page):
            for length in range(page + 1, 5 * page):
                theirs = max(0, (length - 1 - page) // page * page)
                ours = _frontier(page, window, length - 1, rollback=page)
                below &= ours < length // page * page
                equal &= ours == theirs
                equal_later &= ours <= theirs
    assert equal_later  # nothing is let go of earlier than there
    yield "f", "frontier_lt", True, below
    yield "f", "frontier", True, equal


def healed_tombstone(scenario: dict):
    """A lost window is stored again; the history keeps the blocks it had."""
    groups = bound(scenario["groups"], 1, 4)
    host = Host(plan(groups, length=16))
    full, window = layout(groups).pools
    prompt = [1, 2, 3, 4]
    host.store(prompt)
    host.store([*prompt, 100])
    for block in range(4):
        host.drop(prompt, window, block)
    lock = Sequence(prompt)
    host.open(lock, host.look_up(prompt))
    pinned = host.prefixes.account(host.cache)
    free = int(host.cache.tables[full].num_free)
    before = host.claims(prompt).blocks[full].tolist()
    again = Sequence(prompt)
    host.open(again)
    assert host.run(again, 4)
    taken = free - int(host.cache.tables[full].num_free)
    host.close(again)
    given_back = int(host.cache.tables[full].num_free) - (free - taken)
    same = host.claims(prompt).blocks[full].tolist() == before
    yield "i", "full_slots_of.same_as_before", True, same
    yield "i", "full_available_delta", 4, given_back
    live = len(host.held(prompt, window)) == 4
    yield "i", "swa_of.state", "live", "live" if live else "dead"
    name = host.plan.spec.pools[full].name
    yield "i", "protected_len", 4, pinned[name]["pinned"]
    host.close(lock, publish=False)


def capacity_in_pages(scenario: dict):
    """A batch of short extensions against free pages of two pools."""
    from hybridcache_jax.append import _grant

    for number, row in enumerate(scenario["steps"][0]["rows"]):
        page = row["page"]
        more = [
            [-(-new // page) - -(-old // page) > 0]
            for old, new in zip(row["from"], row["to"], strict=True)
        ]
        free = [np.int32(row[name] // page) for name in (FULL, SWA)]
        granted = np.asarray(_grant([np.array(more)] * 2, free))
        yield str(number), "admitted", row["ok"], bool(granted.all())
        some = bool(granted.any()) and not granted.all()
        yield str(number), "no_partial_allocation_when_refused", True, not some


def snapshots_in_a_block(scenario: dict):
    """Checkpoints at given lengths; here with blocks that end where they are taken."""
    groups = bound(scenario["groups"], 1, 1, size=2)
    for number, row in enumerate(scenario["steps"][0]["rows"]):
        host = Host(plan(groups, length=256))
        ends = sorted({*row.get("base", ()), *row["snapshots"]})
        host.store(range(64), ends=ends)
        shared = row["query_shared"]
        yield str(number), "hit", row["hit"], hit(host.look_up(range(shared)))


def coverage_of_groups(scenario: dict):
    """Which tokens each group reads to resume at the end."""
    groups = scenario["groups"]
    host = Host(plan(groups, length=16))
    pools = layout(groups).pools
    host.store(range(8))
    found = host.look_up(range(8))
    names = [host.plan.spec.pools[pool].name for pool in pools]
    whole = {}
    for group, name in zip(groups, names, strict=True):
        report = next(report for report in found.forms if report.pool == name)
        lo, hi = report.required
        size = group["block_size"]
        whole[group["name"]] = [lo - lo % size, -(-hi // size) * size]
    yield "m", "coverage", scenario["expect"]["m"]["coverage"], whole
    yield "m", "endpoint", 8, hit(found)
    complete = all(report.held for report in found.forms)
    yield "m", "complete", True, complete
    # The last window is not to be shared: it is gone, and a replay rebuilds it.
    stored = [host.uses(pool, host.held_ids(range(8), pool)) for pool in pools]
    for block in range(2):
        host.drop(range(8), pools[2], block)
    row = Sequence([*range(8), 9])
    host.open(row, host.match(row.tokens))
    assert host.run(row, len(row.tokens), publish=False)
    shared, private = [], []
    for group, pool, ids in zip(groups, pools, stored, strict=True):
        below = [id for block, id in host.row_blocks(row, pool).items() if block < 2]
        mine = host.uses(pool, below)
        (shared if mine and mine <= ids else private).append(group["name"])
    yield "r", "shared_pages", scenario["expect"]["r"]["shared_pages"], shared
    yield "r", "private_pages", scenario["expect"]["r"]["private_pages"], private


def small_pool(scenario: dict):
    """Eight blocks of four tokens; an identical, a half shared and another prompt."""
    host = Host(plan(scenario["groups"], length=24, rows=3, chunk=24, blocks=(8,)))
    host.store(range(8))
    a = hit(host.match(range(8)))
    yield "a", "hit", 7, a
    b = host.match([0, 1, 2, 3, 100, 101, 102, 103])
    yield "b", "hit", 4, hit(b)
    yield "c", "hit", 0, hit(host.match(range(200, 208)))
    counts = host.prefixes.account(host.cache)["full_kv.0"]
    total = counts.pop("total")
    yield "always", "used_plus_free", 8, sum(counts.values())
    assert total == 8


def covering_checkpoint(scenario: dict):
    """961 tokens are kept, resuming at 960 lies within the window."""
    groups = bound(scenario["groups"], 1, 1, size=32)
    host = Host(plan(groups, length=1024))
    host.store(range(961))
    found = host.match(range(961))
    yield "r", "uses_checkpoint", True, found.verdict == hc.Verdict.RESUMABLE
    yield "r", "resume_len", 960, hit(found)
    yield "r", "verdict", "resumable", VERDICTS[found.verdict]


def fragmented_pool(scenario: dict):
    """Three sequences; the middle one goes and comes back into scattered blocks."""
    host = Host(plan(scenario["groups"], **SMALL))
    rows = [Sequence(list(range(n * 100, n * 100 + 70))) for n in range(3)]
    for at in range(10, 80, 10):  # in turn, so that their blocks lie mixed
        for row in rows:
            if row.lease is None:
                host.open(row)
            assert host.run(row, min(at, 70), publish=False)
    host.close(rows[1], publish=False)
    host.open(rows[1])
    yield "r", "ok", True, host.run(rows[1], 70)


def fold_of_masks(scenario: dict):
    """The highest chunk boundary that every group can serve."""
    spec = layout(scenario["groups"]).spec
    for number, row in enumerate(scenario["steps"][0]["rows"]):
        masks = [row["present"][group["name"]] for group in scenario["groups"]]
        point = rule_tables.fold(spec, masks, 4 * 256 + 1).device_point
        yield str(number), "hit", row["hit_chunks"], int(point) // 256


def slot_reused_before_use(scenario: dict):
    """The window's blocks go to another request between match and use."""
    host = Host(plan(scenario["groups"], length=300, chunk=128))
    prompt = list(range(256))
    host.store(prompt)
    found = host.look_up(prompt)
    host.put(host.prefixes.evict(host.cache, hc.Form.SWA_WINDOW))
    host.store([9] * 256)
    yield "a", "ok", False, not refused(host, found)
    now = host.look_up(prompt)
    reason = next(r.reason for r in now.forms if r.form == hc.Form.SWA_WINDOW)
    names = {hc.Reason.EVICTED: "epoch_changed"}
    yield "a", "reason", "epoch_changed", names.get(reason, reason.name)
    yield "a", "verdict", "full_recompute", VERDICTS[now.verdict]


def checkpoint_behind_what_is_shared(scenario: dict):
    """The only checkpoints lie in tokens that the next request does not share."""
    groups = scenario["groups"]
    for number, row in enumerate(scenario["steps"][0]["rows"]):
        host = Host(plan(groups, length=2560))
        prompt = list(range(row["shared"] + row["unique"]))
        host.store(prompt, ends=row["states"])
        other = [*prompt[: row["shared"]], *[9] * row["unique"]]
        found = host.match(other)
        yield str(number), "hit", row["hit"], hit(found)
        missing = [report.form for report in found.limiting]
        lost = [] if row["hit"] else [hc.Form.RECURRENT_STATE]
        yield str(number), "miss_group", lost, missing
        if row["hit"]:
            continue
        others = [[*prompt[: row["shared"]], *[n] * row["unique"]] for n in range(64)]
        hits = sum(hit(host.match(other)) > 0 for other in others)
        yield str(number), "requests_hit", row["requests_hit"], f"{hits} of 64"
        kept = found.history_length
        yield str(number), "kv_only_hit", row["kv_only_hit"], kept
        yield str(number), "checkpoint_wanted_at", row["checkpoint_wanted_at"], kept


def state_of_its_own_size(scenario: dict):
    """Which checkpoint a deep hit reads; all lengths are a 64th of the scenario's."""
    groups = [
        group | {"block_size": group["block_size"] // 64}
        for group in scenario["groups"]
    ]
    host = Host(plan(groups, length=1024, chunk=112))
    prompt = list(range(896))
    host.store(prompt, ends=range(112, 897, 112))
    found = host.look_up(prompt)
    assert hit(found) == 57344 // 64
    row = Sequence([*prompt, 1])
    host.open(row, found)
    (index,) = host.row_blocks(row, layout(groups).pools[1])
    yield "r", "state_index", 7, index
    yield "r", "must_not_be", True, index != 57344 // 64 - 1
    host.close(row, publish=False)
    checked = True
    for wrong in (host.plan.blocks[1], 895, 2**30, -1):
        found = host.look_up(prompt)
        found.claims.blocks[1][index] = wrong
        checked &= refused(host, found)
    host.open(row, host.look_up(prompt))  # the index itself is as it was
    assert list(host.row_blocks(row, layout(groups).pools[1])) == [7]
    yield "r", "bounds_checked", True, checked


def reset_while_live(scenario: dict):
    """What a row runs after a reset stays its own."""
    registry = hc.MemoryRegistry()
    capacity = plan(scenario["groups"], length=256)
    host = Host(capacity, metrics=hc.Metrics(registry))
    row = Sequence(list(range(96)))
    host.open(row)
    assert host.run(row, 64)
    host.prefixes.set_scope(IDENTITY, "off")
    host.prefixes.set_scope(IDENTITY, "namespace")
    before = registry.value("hybridcache_stored_blocks_total")
    assert before == 2
    ok = host.run(row, 96)
    events = registry.value("hybridcache_stored_blocks_total") - before
    yield "c", "ok", True, ok
    yield "c", "published", False, host.prefixes.stored_tokens > 0
    yield "c", "events", 0, events
    yield "m", "hit", 0, hit(host.look_up(row.tokens))


STORIES = {
    "sgl-swa-03": window_pinned_by_a_lock,
    "sgl-swa-05": frontier_sweep,
    "sgl-swa-07": frontier_rows,
    "sgl-swa-13": healed_tombstone,
    "sgl-swa-17": capacity_in_pages,
    "trt-ssm-03": snapshots_in_a_block,
    "trt-grp-01": coverage_of_groups,
    "trt1-01": small_pool,
    "lcp-ckpt-01": covering_checkpoint,
    "lcp-frag-01": fragmented_pool,
    "lmc-fold-01": fold_of_masks,
    "idx-03": slot_reused_before_use,
    "iss-ckpt-01": checkpoint_behind_what_is_shared,
    "iss-unit-01": state_of_its_own_size,
    "iss-epoch-01": reset_while_live,
}


def refused(host: Host, found: hc.ResumePlan) -> bool:
    """Whether a plan is turned down when a row is asked for, and nothing moved."""
    before = host.prefixes.account(host.cache)
    try:
        host.prefixes.acquire(host.cache, found)
    except hc.LeaseError:
        return host.prefixes.account(host.cache) == before
    return False


def bound(groups: list[dict], page: int, window: int, size: int | None = None):
    """Groups with their symbols bound, or with blocks of another size."""
    numbers = {"p": page, "w": window}
    return [
        {
            **group,
            "block_size": size or numbers.get(group["block_size"], group["block_size"]),
            "window": numbers.get(group["window"], group["window"]),
        }
        for group in groups
    ]


def _window_pool(page: int, window: int):
    group = {"kind": "swa", "block_size": page, "window": window}
    return layout([group]).spec.pools[0]


def _frontier(page: int, window: int, position: int, rollback: int = 0) -> int:
    """Tokens in whole blocks behind all that ``position`` and a rollback require."""
    pool = _window_pool(page, window)
    seen, _ = required(pool.form, pool.geometry, max(position - rollback, 0))
    return int(seen) // page * page
