"""Registries: plain Python and Prometheus say the same; the table is the docs."""

import dataclasses
import json
import threading

import pytest

import hybridcache_jax as hc
from hybridcache_jax import observe
from hybridcache_jax.codes import Reason
from hybridcache_jax.forms import Remedy
from hybridcache_jax.matching import make_cold_plan
from hybridcache_jax.observe.declarations import PREFIX, SaveEnd, Where, Why, describe
from hybridcache_jax.offload.loads import LoadStage
from hybridcache_jax.resume_plan import FormReport
from hybridcache_jax.rollout import Key, Scope
from hybridcache_jax.ways import Alternative

ENTRY = hc.Entry.kv(heads=1, dim=1)
SPEC = hc.CacheSpec.from_layers(
    [
        hc.LayerSpec(local=hc.Window(8, ENTRY)),
        hc.LayerSpec(global_=hc.Entries(ENTRY)),
    ],
    block_tokens=4,
)
IDENTITY = hc.Identity(weights="w", config="c", layout=SPEC.fingerprint)
KEY = Key(IDENTITY, Scope.NAMESPACE)
COLD = make_cold_plan(SPEC, 9, KEY, hc.CostModel(1.0, 1.0))
MISS = dataclasses.replace(COLD, reason=Reason.NOT_STORED)
SHADOW = dataclasses.replace(COLD, shadow=True, counted=9)
LIMIT = FormReport(
    "window", hc.Form.SWA_WINDOW, (5, 12), 3, 0, Reason.EVICTED, 8, Remedy.REPLAY
)
# 12 tokens are claimed, the history holds them, the windows only those up to 4.
REPLAY = dataclasses.replace(
    MISS,
    verdict=hc.Verdict.NEEDS_PARTIAL_RECOMPUTE,
    num_tokens=20,
    length=12,
    start=7,
    reason=Reason.EVICTED,
    claimed_length=12,
    shared_length=14,
    history_length=12,
    joint_length=4,
    forms=(LIMIT, dataclasses.replace(LIMIT, pool="another window")),
    alternatives=(
        Alternative(hc.Verdict.NEEDS_PARTIAL_RECOMPUTE, 12, 7, (), 13, 0, 0, 13.0),
        Alternative(hc.Verdict.RESUMABLE, 4, 4, (), 16, 0, 0, 16.0),
        Alternative(hc.Verdict.NEEDS_FULL_RECOMPUTE, 0, 0, (), 20, 0, 0, 20.0),
    ),
)


def everything(metrics):
    """Every call once; 2 where a number is free."""
    metrics.matched(MISS)
    metrics.matched(REPLAY)
    metrics.acquired(REPLAY, outer=2)
    metrics.stale(Where.ACQUIRE)
    metrics.released(REPLAY, 15, 2)
    metrics.stored(hc.Form.FULL_KV, 2, 64)
    metrics.evicted(hc.Form.FULL_KV, 2, 64, Why.ROOM)
    metrics.ran(REPLAY, 10, 12, hc.Status.OK)
    metrics.ran(REPLAY, 22, 1, hc.Status.STALE)
    metrics.ran(REPLAY.counted_to(11), 10, 12, hc.Status.OK)
    metrics.ran(SHADOW, 0, 6, hc.Status.OK)
    metrics.acquired(SHADOW)
    metrics.released(SHADOW, 6, 5)
    metrics.retraced(2)
    metrics.moved_out(hc.Form.FULL_KV, 3, 96)
    metrics.store_failed(hc.Form.FULL_KV)
    metrics.loaded(hc.Form.FULL_KV, 1, 32)
    metrics.load_failed(LoadStage.DIGEST)
    metrics.save_ended(SaveEnd.LOST)
    metrics.lookup_failed()
    metrics.passed_by(2)
    metrics.shadow_sampled()
    metrics.shadow_compared(equal=True)
    metrics.shadow_compared(equal=False)
    metrics.overturned(REPLAY, outer=2)
    metrics.holds("window", {"free": 2, "moving": 0, "total": 2})
    metrics.holds_bytes(hc.Form.SWA_WINDOW, {"free": 64, "total": 64})
    metrics.leases(3, 1)
    metrics.index(2, 48)


# By hand from the calls above, in the order of the table.
WANT = {
    ("lookups_total",): 2,
    ("verdicts_total", "NEEDS_FULL_RECOMPUTE"): 1,
    ("verdicts_total", "NEEDS_PARTIAL_RECOMPUTE"): 1,
    ("hits_total",): 1,
    ("misses_total", "NOT_STORED"): 1,
    ("fallbacks_total", "NEEDS_PARTIAL_RECOMPUTE"): 1,
    ("limiting_forms_total", "SWA_WINDOW", "EVICTED"): 1,
    ("alignment_lost_tokens_total",): 2,
    ("history_gap_tokens_count",): 1,
    ("history_gap_tokens_sum",): 8,
    ("admissions_total", "NEEDS_PARTIAL_RECOMPUTE"): 1,
    ("stale_leases_total", "acquire"): 1,
    ("stale_leases_total", "step"): 1,
    ("prompt_tokens_total",): 20,
    ("reused_tokens_total",): 12,
    ("hit_tokens_total", "device"): 5,
    ("hit_tokens_total", "outer"): 2,
    ("hit_tokens_total", "replayed"): 5,
    ("saved_tokens_total",): 7,
    ("abandoned_tokens_total",): 5,
    ("pin_ticks_count",): 2,
    ("pin_ticks_sum",): 7,
    ("stored_blocks_total", "FULL_KV"): 3,
    ("stored_bytes_total", "FULL_KV"): 96,
    ("evicted_blocks_total", "FULL_KV", "room"): 2,
    ("evicted_bytes_total", "FULL_KV", "room"): 64,
    ("blocks", "window", "free"): 2,
    ("blocks", "window", "moving"): 0,
    ("form_bytes", "SWA_WINDOW", "free"): 64,
    ("leases", "in_time"): 3,
    ("leases", "overdue"): 1,
    ("index_tokens",): 2,
    ("index_bytes",): 48,
    ("step_rows_total", "OK"): 3,
    ("step_rows_total", "STALE"): 1,
    ("run_tokens_total", "again"): 1,
    ("run_tokens_total", "replay"): 3,
    ("run_tokens_total", "prefill"): 16,
    ("run_tokens_total", "decode"): 4,
    ("run_tokens_total", "shadow"): 6,
    ("retraces_total",): 2,
    ("moved_out_blocks_total", "FULL_KV"): 3,
    ("moved_out_bytes_total", "FULL_KV"): 96,
    ("store_failures_total", "FULL_KV"): 1,
    ("loaded_blocks_total", "FULL_KV"): 1,
    ("loaded_bytes_total", "FULL_KV"): 32,
    ("load_failures_total", "digest"): 1,
    ("saves_total", "lost"): 1,
    ("store_lookup_failures_total",): 1,
    ("records_passed_by_total",): 2,
    ("shadow_sampled_total",): 1,
    ("shadow_compared_total",): 2,
    ("shadow_mismatches_total",): 1,
    ("overturned_tokens_total", "device"): 5,
    ("overturned_tokens_total", "outer"): 2,
    ("overturned_tokens_total", "replayed"): 5,
}


def flat(snapshot):
    """What a snapshot says, keyed like ``WANT``."""
    found = {}
    for name, family in snapshot.items():
        name = name.removeprefix(PREFIX)
        for sample in family["samples"]:
            labels = tuple(sample["labels"].values())
            if family["kind"] == "histogram":
                found[f"{name}_count", *labels] = sample["count"]
                found[f"{name}_sum", *labels] = sample["sum"]
            else:
                found[name, *labels] = sample["value"]
    return found


def test_every_metric_is_counted_as_the_calls_say():
    registry = hc.MemoryRegistry()
    everything(hc.Metrics(registry))
    snapshot = registry.snapshot()
    assert flat(snapshot) == WANT
    assert list(snapshot) == [PREFIX + metric.name for metric in observe.TABLE]
    assert all(family["samples"] for family in snapshot.values())
    assert json.loads(json.dumps(snapshot)) == snapshot


def test_prometheus_serves_the_same():
    client = pytest.importorskip(
        "prometheus_client", reason="the extra 'metrics' is not installed"
    )
    collectors = client.CollectorRegistry()
    everything(hc.Metrics(hc.PrometheusRegistry(collectors)))
    served = {
        (sample.name.removeprefix(PREFIX), *sample.labels.values()): sample.value
        for family in collectors.collect()
        for sample in family.samples
    }
    assert {key: served.get(key) for key in WANT} == WANT
    # Besides: buckets, and times at which the client created its series.
    assert {
        key[0] for key in served if not key[0].endswith(("_created", "_bucket"))
    } == {key[0] for key in WANT}
    assert served["pin_ticks_bucket", "1.0"] == 0
    assert served["pin_ticks_bucket", "4.0"] == 1
    assert b"hybridcache_lookups_total 2.0" in client.generate_latest(collectors)
    with pytest.raises(ValueError, match="Duplicated"):
        hc.Metrics(hc.PrometheusRegistry(collectors))


def test_the_docs_list_every_metric():
    table = [line.strip() for line in describe().splitlines()]
    said = [line.strip() for line in (observe.__doc__ or "").splitlines()]
    assert said[-len(table) :] == table
    names = [metric.name for metric in observe.TABLE]
    assert len(set(names)) == len(names)
    for metric in observe.TABLE:
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric
        assert (metric.kind == "histogram") == bool(metric.buckets), metric


def test_without_a_registry_nothing_is_counted():
    metrics = hc.Metrics()
    everything(metrics)
    assert not metrics.enabled


def test_a_registry_that_raises_costs_its_counts_and_nothing_else(caplog):
    class Full(hc.MemoryRegistry):
        def _refuse(self, *said, **named):
            raise OSError("no space left")

        def counter(self, name, help, labels):
            made = super().counter(name, help, labels)
            made.add = self._refuse
            return made

        def gauge(self, name, help, labels):
            made = super().gauge(name, help, labels)
            made.set = self._refuse
            return made

    registry = Full()
    everything(hc.Metrics(registry))
    counted = flat(registry.snapshot())
    of_histograms = {key for key in WANT if key[0].endswith(("_sum", "_count"))}
    assert {key: counted[key] for key in of_histograms} == {
        key: WANT[key] for key in of_histograms
    }
    assert not any(counted.get(key) for key in WANT.keys() - of_histograms)
    assert "hybridcache_lookups_total could not be counted" in caplog.text
    assert "no space left" in caplog.text


def test_a_histogram_counts_values_at_its_bounds_below_them():
    registry = hc.MemoryRegistry()
    histogram = registry.histogram("h", "help", ("who",), (1, 4))
    for value in (0, 1, 2, 4, 5):
        histogram.observe(value, "a")
    assert registry.snapshot()["h"]["samples"] == [
        {
            "labels": {"who": "a"},
            "count": 5,
            "sum": 12,
            "buckets": {"1": 2, "4": 4, "+Inf": 5},
        }
    ]
    assert registry.value("h") == registry.value("h", who="a") == 5
    assert registry.value("h", who="b") == 0


def test_wrong_uses_are_refused():
    registry = hc.MemoryRegistry()
    hc.Metrics(registry)
    with pytest.raises(ValueError, match="declared here already"):
        hc.Metrics(registry)
    counter = registry.counter("c", "help", ("who",))
    with pytest.raises(ValueError, match="only grows"):
        counter.add(-1, "a")
    with pytest.raises(ValueError, match="takes values for the labels"):
        counter.add(1)
    with pytest.raises(ValueError, match="No metric 'd' was declared"):
        registry.value("d")
    with pytest.raises(ValueError, match="has the labels"):
        registry.value("c", whom="a")
    with pytest.raises(ValueError, match="buckets must ascend"):
        registry.histogram("h", "help", (), (4, 1))


def test_a_snapshot_is_of_one_moment_while_others_count():
    registry = hc.MemoryRegistry()
    counter = registry.counter("c", "help", ("who",))
    done = threading.Event()

    def count():
        for number in range(3000):
            counter.add(1, str(number))
        done.set()

    writer = threading.Thread(target=count)
    writer.start()
    before = 0
    while not done.is_set():
        seen = sum(s["value"] for s in registry.snapshot()["c"]["samples"])
        assert before <= seen <= 3000
        before = seen
    writer.join()
    assert registry.value("c") == 3000
