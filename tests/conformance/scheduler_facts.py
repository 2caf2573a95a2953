"""Facts about vLLM's scheduler, each played with a host of ours."""

from host import Host, Sequence, hit
from scenario_spec import layout, plan

from hybridcache_jax import Form

PROMPT = list(range(100))


def replay_of_a_window(scenario: dict):
    """The window is not stored; a hit replays it."""
    cached = 32 if scenario["id"] == "F03" else len(PROMPT)
    host = Host(plan(scenario["groups"], length=len(PROMPT) + 1))
    full, window = layout(scenario["groups"]).pools
    host.store(PROMPT[:cached])
    host.put(host.prefixes.evict(host.cache, Form.SWA_WINDOW))
    found = host.match(PROMPT)
    request = Sequence(list(PROMPT))
    host.open(request, found)
    shared = len(host.row_blocks(request, full))
    assert host.run(request, len(PROMPT))
    nulls = -(-len(PROMPT) // 16) - len(host.row_blocks(request, window))
    return {
        "resume_at": found.start,
        "scheduled": found.tokens_to_run,
        "shared_full_blocks": shared,
        "window_null_blocks": nulls,
        "full_table_len": len(host.row_blocks(request, full)),
    }


def blocks_behind_the_window(scenario: dict):
    """Blocks that a row let go of, before and after each of three more steps."""
    host = Host(plan(scenario["groups"], length=len(PROMPT) + 4))
    (pool,) = layout(scenario["groups"]).pools
    request = Sequence([*PROMPT, 1, 1, 1])
    host.open(request)
    nulls = []
    for end in range(100, 104):
        assert host.run(request, end)
        nulls.append(-(-end // 16) - len(host.row_blocks(request, pool)))
    return {"nulls": nulls}


def cancelled_chunk(scenario: dict):
    """The third chunk of a request is planned, and the request preempted instead."""
    host = Host(plan(scenario["groups"], length=200))
    request = Sequence(list(range(200)))
    host.open(request)
    for end in (32, 64):
        assert host.run(request, end)
    assert host.run(request, 96, publish=False)
    host.close(request, publish=False)
    return {"match_A": hit(host.match(request.tokens))}


FACTS = {
    "F01": replay_of_a_window,
    "F03": replay_of_a_window,
    "F11": blocks_behind_the_window,
    "N01": cancelled_chunk,
}


def outcomes(scenario: dict) -> dict[tuple[str, str], tuple]:
    """What a scenario expects and what we give."""
    ours = FACTS[scenario["id"]](scenario)
    return {("", name): (want, ours[name]) for name, want in scenario["expect"].items()}
