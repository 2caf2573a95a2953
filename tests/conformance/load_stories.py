"""Scenarios of loads that fail or come late, and of leases that are not given back."""

import dataclasses

import numpy as np
from engine_stories import bound
from host import Host, Sequence, Tier, hit
from scenario_spec import layout, plan
from tier_stories import tiered
from tree_steps import VERDICTS

import hybridcache_jax as hc
from hybridcache_jax.offload.loads import LoadStage
from hybridcache_jax.offload.payload import Payload

BLOCKS = 99  # of 16 tokens, stored of 100


def replay_after_a_load(scenario: dict):
    """The history comes from the tier, the window is stored nowhere."""
    prompt = list(range(100))
    host, tier = tiered(scenario["groups"], length=101, grids=16)
    _, window = layout(scenario["groups"]).pools
    host.store(prompt[:64])
    host.move_out()
    tier.drop(window, np.array(tier.held(window)))
    found = host.match(prompt)
    assert found.verdict == hc.Verdict.NEEDS_IO
    host.prefixes.load(host.cache, found)
    (report,) = host.poll()
    assert report.ready
    found = host.match(prompt)
    yield "", "resume_at", scenario["expect"]["resume_at"], found.start
    yield "", "scheduled", scenario["expect"]["scheduled"], found.tokens_to_run


def one_of_three_fails(scenario: dict):
    """Blocks 50 and 98 of the second request are gone; the others are not touched."""
    host, tier = tiered(scenario["groups"], length=1601, grids=3 * BLOCKS)
    prompts = [[n] * (16 * BLOCKS) for n in range(3)]
    for prompt in prompts:
        host.store(prompt)
    host.move_out()
    for prompt in prompts:
        host.ask(prompt)
    for block in (50, 98):
        _lose(host, tier, prompts[1], block)
    failed = [report.failed for report in host.poll()]
    assert sorted(failed) == [False, False, True]
    assert host.load(prompts[1]).ready  # what is left of it
    ours = [hit(host.look_up(prompt)) for prompt in prompts]
    yield "", "computed", scenario["expect"]["computed"], ours


def shared_blocks_fail(scenario: dict):
    """Blocks 25 and 49 of what two requests share are gone."""
    host, tier = tiered(scenario["groups"], length=1601, grids=2 * BLOCKS)
    owner = list(range(16 * BLOCKS))
    sharer = [*owner[:800], 9]
    host.store(owner)
    host.move_out()
    for prompt in (owner, sharer[:800]):
        host.ask(prompt)
    for block in (25, 49):
        _lose(host, tier, owner, block)
    assert all(report.failed for report in host.poll())
    assert host.load(owner).ready
    ours = [hit(host.look_up(owner)), hit(host.match(sharer))]
    yield "", "computed", scenario["expect"]["computed"], ours


def bad_block_leaves_the_index(scenario: dict):
    """Claims up to the bad block stay; it and what follows are found no more."""
    host, tier = tiered(scenario["groups"], length=1601, grids=2 * BLOCKS)
    prompt = list(range(16 * BLOCKS))
    host.store(prompt)
    host.move_out()
    _lose(host, tier, prompt, 50)
    status = "error" if host.load(prompt).failed else "ok"
    yield "", "status", scenario["expect"]["status"], status
    host.put(host.prefixes.recover(host.cache))
    end = host.look_up(prompt).claimed_length
    indexed = {"0..49": end >= 800, "50..": end > 800}
    yield "", "indexed_after", scenario["expect"]["indexed_after"], indexed


def failed_load_takes_nothing(scenario: dict):
    """A copy that fails, and a pool without room: no state is taken."""
    state = layout(scenario["groups"]).pools[1]
    for number, row in enumerate(scenario["steps"][0]["rows"]):
        host, tier = tiered(
            scenario["groups"], length=16, grids=16, rows=2, blocks=(32, 6)
        )
        prompt = [1, 2, 3]
        host.store(prompt)
        host.move_out()
        tight = row["fault"] == "device_capacity"
        if tight:
            for other in (Sequence([n] * 16) for n in (7, 8)):
                host.open(other)
                assert host.run(other, 16, publish=False)
        else:
            tier.fail(OSError("copy failed"))
        before = host.prefixes.account(host.cache)
        report = host.load(prompt)
        assert report.stage == (LoadStage.ROOM if tight else LoadStage.READ)
        step = str(number)
        yield step, "loaded_tokens", 0, hit(host.look_up(prompt))
        taken = host.held_ids(prompt, state)
        if not tight:
            request = Sequence(prompt)
            host.open(request)
            taken |= set(host.row_blocks(request, state).values())
            host.close(request, publish=False)
        yield step, "request_state_slot", None, next(iter(taken), None)
        same = host.prefixes.account(host.cache) == before
        yield step, "state_pool", "baseline", "baseline" if same else "changed"
        verdict = VERDICTS[host.look_up(prompt).verdict]
        yield step, "verdict", "partial_recompute", verdict


def damaged_store(scenario: dict):
    """Pages cut short or gone, known to the facts or not."""
    rows = scenario["steps"][0]["rows"]
    for number, row in enumerate(rows):
        host, tier = tiered(bound(scenario["groups"], 1, 4), length=16, grids=16)
        prompt = list(range(1, 9))
        host.store(prompt)
        host.move_out()
        stored = tier.held(0)
        if number == 0:
            tier.damage(_cut)
            assert host.load(prompt).failed
        elif number == 3:
            tier.lose(0, stored[5])
            assert host.load(prompt).failed
        else:
            gone = stored[0 if number == 1 else 5]
            tier.drop(0, np.array([gone]))
        tier.damage(None)
        found = host.look_up(prompt)
        want = {0: 0, 1: 0, 2: 5, 3: 5}[number]
        yield str(number), "hit" + "_after_load" * (number == 3), want, found.length
        if number == 3:
            assert host.load(prompt).ready
            verdict = VERDICTS[host.look_up(prompt).verdict]
            yield "3", "verdict", row["verdict"], verdict
        host.store(prompt, cold=True)
        alive = hit(host.look_up(prompt)) == len(prompt)
        if "worker_alive" in row:
            yield str(number), "worker_alive", row["worker_alive"], alive
        assert alive


def gap_in_a_load(scenario: dict):
    """One chunk of eight is gone: what is before it is loaded, what is after goes."""
    registry = hc.MemoryRegistry()
    capacity = plan(scenario["groups"], length=2049)
    tier = Tier(capacity, 16)
    host = Host(capacity, tier, hc.Metrics(registry))
    prompt = list(range(2048))
    host.store(prompt)
    host.move_out()
    found = host.look_up(prompt)
    yield "m", "hit", scenario["expect"]["m"]["hit"], found.length
    yield "m", "verdict", "io_wait", VERDICTS[found.verdict]
    _lose(host, tier, prompt, 5)
    assert host.load(prompt).failed
    counted = registry.value("hybridcache_load_failures_total")
    host.put(host.prefixes.recover(host.cache))
    expect = scenario["expect"]["l"]
    yield "l", "counter", "load_failure", "load_failure" if counted == 1 else counted
    yield "l", "released_chunks", expect["released_chunks"], 8 - len(tier.held(0))
    assert host.load(prompt).ready
    found = host.look_up(prompt)
    yield "l", "usable", expect["usable"], hit(found)
    yield "l", "verdict", expect["verdict"], VERDICTS[found.verdict]


def read_outlasts_its_lease(scenario: dict):
    """Ticks for seconds: too late is too late, even though the bytes are there."""
    lease = scenario["steps"][0]["lease_s"]
    for step in scenario["steps"][1:]:
        host, _ = tiered(scenario["groups"], length=16, grids=16)
        host.store([1, 2, 3])
        host.move_out()
        host.ask([1, 2, 3], deadline=lease)
        host.wait(step["duration_s"])
        (report,) = host.poll()
        expired = report.stage == LoadStage.DEADLINE
        result = "lease_expired" if expired else "ok"
        expect = scenario["expect"][step["as"]]
        yield step["as"], "result", expect["result"], result
        if "usable" in expect:
            usable = hit(host.look_up([1, 2, 3])) > 0
            yield step["as"], "usable", expect["usable"], usable


def lease_of_a_reader(scenario: dict):
    """While it is out nothing of it moves; overdue, it is in doubt and keeps all."""
    host = Host(plan(scenario["groups"], length=16))
    prompt = list(range(7))
    host.store(prompt)
    found = host.look_up(prompt)
    cache, lease = host.prefixes.acquire(host.cache, found, deadline=2)
    host.put(cache)
    pages = list(host.row_blocks(Sequence(prompt, lease=lease), 0).values())
    yield "l", "pages", found.claims.blocks[0][: len(prompt)].tolist(), pages
    before = host.prefixes.account(host.cache)
    host.put(host.prefixes.shrink(host.cache, 10**9))
    refused = host.prefixes.account(host.cache) == before
    yield "z", "refused", True, refused
    host.move_out()
    refused = host.prefixes.account(host.cache) == before
    yield "s", "refused", True, refused
    yield "s", "state_unchanged", True, hit(host.look_up(prompt)) == len(prompt)
    host.wait(4)
    for step in ("d", "d2"):
        late = host.prefixes.overdue(host.cache)
        yield step, "result", "in_doubt", "in_doubt" if late else "settled"
        host.wait(4)
    yield "d2", "outstanding", 1, len(late)
    assert host.prefixes.account(host.cache) == before
    host.put(host.prefixes.release(host.cache, late[0], publish=False))
    assert host.prefixes.overdue(host.cache) == ()


def holders_go(scenario: dict):
    """Two requests that resumed at the last checkpoint end, one after the other."""
    wanted = [row.get("hit", row.get("after_drop_hit")) for row in _rows(scenario)]
    host = Host(plan(scenario["groups"], length=256))
    host.store(range(64), ends=(32,))
    rows = [Sequence(list(range(64))) for _ in range(2)]
    for row in rows:
        host.open(row, host.look_up(range(64)))
    for step, row in enumerate(rows):
        host.close(row, publish=False)
        yield str(step), "hit", wanted[step], hit(host.look_up(range(64)))
    host = Host(plan(scenario["groups"], length=256))
    host.store(range(48), ends=(32,))
    yield "2", "hit", wanted[2], hit(host.look_up(range(48)))


STORIES = {
    "F05": replay_after_a_load,
    "F06b": one_of_three_fails,
    "F07": shared_blocks_fail,
    "F09": bad_block_leaves_the_index,
    "sgl-tier-15": failed_load_takes_nothing,
    "sgl-file-05": damaged_store,
    "lmc-fault-01": gap_in_a_load,
    "mck-lease-01": read_outlasts_its_lease,
    "trt-lease-01": lease_of_a_reader,
    "trt-ssm-05": holders_go,
}


def _rows(scenario: dict) -> list[dict]:
    return scenario["steps"][0]["rows"]


def _lose(host, tier, tokens, block: int) -> None:
    """One block outside vanishes behind the facts."""
    claimed = int(host.claims(tokens).blocks[0][block])
    tier.lose(0, claimed - host.plan.blocks[0] - 1)


def _cut(payload: Payload) -> Payload:
    planes = {k: x[:, : x.shape[1] // 2] for k, x in payload.planes.items()}
    return dataclasses.replace(payload, planes=planes)
