"""Objects in buckets, on servers that fail: what is said is true, and all of it.

S3 is moto's server, which TensorStore's own tests use, too.  Google's service is a stub
of ours.
"""

import itertools
import json
import threading
import time
import zlib

import pytest
from bucket_servers import BUCKET, Way, ask, login, started
from google_stub import GoogleStub
from small_records import expected, look, prefix, save
from test_snapshots import P, Serving, restored

from hybridcache_jax import Verdict
from hybridcache_jax.store import trust
from hybridcache_jax.store.collection import collect
from hybridcache_jax.store.exports import export_records
from hybridcache_jax.store.finding import find_records
from hybridcache_jax.store.imports import import_records
from hybridcache_jax.store.objects import ObjectStore
from hybridcache_jax.store.orbax_store import OrbaxPrefixStore
from hybridcache_jax.store.pack import read_blocks, write_blocks
from hybridcache_jax.store.prefix_store import ShortObjectError, StoreError
from hybridcache_jax.store.snapshot_manifest import SnapshotError
from hybridcache_jax.store.usage import measure
from hybridcache_jax.store.verification import verify
from hybridcache_jax.testing.stores import MemoryStore as Memory
from hybridcache_jax.testing.stores import check_store

OLD, NEW = b"old" * 100, b"newer" * 1000
PASSING = [
    "500",
    "502",
    "503",
    "504",
    "429",
    "408",
    "500 InternalError",
    "503 SlowDown",
    "lost",
    "unheard",
    "half sent",
    "half",
]
FOLDERS = (f"test{n}" for n in itertools.count())


@pytest.fixture(scope="module")
def s3():
    # Three names are a page of a list.
    pages = {"MOTO_S3_DEFAULT_MAX_KEYS": "3"}
    server = started("moto.server", "-H", "127.0.0.1", "-p", "PORT", **pages)
    with server as host:
        assert ask(host, "PUT", f"/{BUCKET}") == 200
        yield host


@pytest.fixture
def way(s3):
    way = Way(s3)
    yield way
    way.close()


@pytest.fixture
def client(way, tmp_path):
    """Makes clients of a place in the bucket that is the test's own."""
    folder = next(FOLDERS)

    def client(path=folder, store=ObjectStore, **options):
        defaults = {
            "endpoint": way.url,
            "region": "here",
            "credentials": login(tmp_path / "login"),
            "wait": 0.001,
            "timeout": 5.0,
        }
        return store(f"s3://{BUCKET}/{path}", **{**defaults, **options})

    return client


@pytest.fixture
def google(monkeypatch):
    """Makes clients of a stub of Google's service, and the way to it."""
    stub = GoogleStub(BUCKET)
    way = Way(stub.host)
    # How TensorStore's own tests lead it to another server.
    monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", way.url)
    monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "token")
    yield (lambda **more: ObjectStore(f"gs://{BUCKET}/a", wait=0.001, **more)), way
    way.close()
    stub.close()


def operations(store):
    """All that can be asked of a store with an object ``old``, and what it must say."""
    return {
        "read": lambda: store.get("old") == OLD,
        "read part": lambda: store.get("old", 100, 200) == OLD[100:200],
        "written": lambda: store.put("new", NEW) is None,
        "listed": lambda: set(store.names("o")) == {"old"},
        "deleted": lambda: store.delete("gone") is None,
    }


def test_a_bucket_keeps_what_a_store_promises(client):
    beside, inside = client("testing"), client("test/ing")
    beside.put("mine", OLD)
    check_store(client("test"), client("test"))
    check_store(inside, client("test/ing/"))
    assert list(beside.names("")) == ["mine"]
    assert beside.sweep() == 0


def test_googles_service_keeps_what_a_store_promises(google):
    client, way = google
    check_store(client(), client())
    # A page of its list has three names.
    assert any("pageToken" in path for _, _, path, _ in way.asked)


def test_names_come_on_many_pages_or_not_at_all(client, way):
    store = client()
    names = {f"a/{n}" for n in range(10)} | {"b/c", "b-d"}
    for name in names:
        store.put(name, b"")
    assert set(store.names("")) == names
    assert set(store.names("a/")) == {name for name in names if name[0] == "a"}
    assert set(store.names("b/")) == {"b/c"}
    way.trouble = lambda _, path: "403 AccessDenied" if "token" in path else ""
    with pytest.raises(StoreError, match=r"'' could not be listed .*AccessDenied"):
        store.names("")
    assert set(store.names("b/")) == {"b/c"}


def test_requests_are_signed_as_they_were_told_to(client, way):
    client(region="there").put("x", OLD)
    signed = way.asked[-1][3]["Authorization"]
    assert "Credential=tester/" in signed
    assert "/there/s3/aws4_request" in signed
    nobody = client(credentials={"type": "anonymous"})
    with pytest.raises(StoreError, match="PERMISSION_DENIED"):
        nobody.get("x")
    assert "Authorization" not in way.asked[-1][3]


@pytest.mark.parametrize("trouble", PASSING)
def test_errors_that_pass_are_not_seen(client, way, trouble):
    store = client()
    store.put("old", OLD)
    for what, operation in operations(store).items():
        way.fail = [trouble, trouble]
        assert operation(), what
    assert client().get("new") == NEW
    assert client().get("old") == OLD


@pytest.mark.parametrize("trouble", PASSING)
def test_errors_that_last_are_said(client, way, trouble):
    store = client(tries=2)
    store.put("old", OLD)
    for what, operation in operations(store).items():
        way.trouble, before = (lambda *_: trouble), len(way.asked)
        if trouble == "half" and what in {"written", "deleted"}:
            # Their answers have no body to lose.
            assert operation()
        else:
            said = rf"could not be {what.split()[0]} in s3://{BUCKET}/test\d+: ."
            with pytest.raises(StoreError, match=said):
                operation()
        # One more of each where a connection that was kept turned out to be closed.
        assert len(way.asked) - before <= 4
        way.trouble = lambda *_: ""
    assert client().get("old") == OLD
    assert client().get("new") in {None, NEW}


@pytest.mark.parametrize("trouble", ["500", "503", "429", "half", "lost"])
def test_googles_errors_pass_or_are_said(google, trouble):
    client, way = google
    store = client(tries=3)
    store.put("old", OLD)
    for what, operation in operations(store).items():
        way.fail = [trouble, trouble]
        assert operation(), what
        way.trouble, before = (lambda *_: trouble), len(way.asked)
        if (what, trouble) != ("deleted", "half"):
            with pytest.raises(StoreError, match="All 2 retry attempts failed"):
                operation()
        assert len(way.asked) - before <= 6
        way.trouble = lambda *_: ""
    assert client().get("old") == OLD


@pytest.mark.parametrize("status", ["400", "401", "403", "404"])
def test_what_google_refuses_is_asked_once(google, status):
    """Also a list, which TensorStore takes for an empty one."""
    client, way = google
    store = client()
    store.put("old", OLD)
    way.refusal = json.dumps({"error": {"code": int(status), "errors": []}}).encode()
    way.trouble = lambda *_: status
    for what, operation in operations(store).items():
        before = len(way.asked)
        if status == "404" and what != "written":
            # A bucket that is not there is like one that is empty, until it is written.
            assert operation() == (what == "deleted")
        else:
            with pytest.raises(StoreError, match=status):
                operation()
        assert len(way.asked) == before + 1 + (what == "listed")


def test_googles_names_come_on_many_pages_or_not_at_all(google):
    """TensorStore takes a page that is refused for the end of a list."""
    client, way = google
    store, names = client(), {f"a/{n}" for n in range(8)}
    way.refusal = json.dumps({"error": {"code": 401, "errors": []}}).encode()
    for name in names:
        store.put(name, b"")
    for page in range(1, 4):
        way.fail = [""] * page + ["401"]
        assert set(store.names("a/")) == names
    for page in range(4):
        way.fail, way.trouble = [""] * page, lambda *_: "401"
        with pytest.raises(StoreError, match="401"):
            store.names("a/")
        way.fail, way.trouble = [], lambda *_: ""


def test_googles_service_is_given_up_where_it_hangs(google):
    client, way = google
    way.trouble = lambda *_: "hang"
    with pytest.raises(StoreError, match=r"no answer in 0\.1 seconds, 2 times"):
        client(tries=2, timeout=0.1).get("old")


@pytest.mark.parametrize("trouble", ["403", "403 AccessDenied", "400", "404", "501"])
def test_what_is_refused_is_asked_once(client, way, trouble):
    store = client()
    store.put("old", OLD)
    way.trouble = lambda *_: trouble
    absent = {"read", "read part", "deleted"} if trouble == "404" else set()
    for what, operation in operations(store).items():
        before = len(way.asked)
        if what in absent:
            assert operation() == (what == "deleted")
        else:
            with pytest.raises(StoreError, match=trouble[:3]):
                operation()
        assert len(way.asked) == before + 1


def test_what_is_too_short_is_asked_once(client, way):
    store = client()
    store.put("old", OLD)
    for start, stop in ((0, 301), (300, 301), (400, None), (400, 400)):
        before = len(way.asked)
        with pytest.raises(ShortObjectError):
            store.get("old", start, stop)
        assert len(way.asked) == before + 1


def test_a_bucket_that_is_not_there_is_said(way, tmp_path):
    store = ObjectStore(
        "s3://nobody", endpoint=way.url, credentials=login(tmp_path / "login")
    )
    for call in (lambda: store.put("a", b""), lambda: store.names("")):
        with pytest.raises(StoreError, match="NoSuchBucket"):
            call()


def test_waits_grow(client, way):
    store = client(wait=0.1)
    way.trouble = lambda *_: "503"
    with pytest.raises(StoreError):
        store.get("x")
    times = [asked[0] for asked in way.asked]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    for gap, least in zip(gaps, (0.1, 0.2, 0.4), strict=True):
        assert gap > least * 0.95


def test_a_request_that_hangs_is_made_again(client, way):
    store = client(timeout=0.3)
    store.put("old", OLD)
    for what, operation in operations(store).items():
        way.fail = ["hang"]
        assert operation(), what


def test_a_server_that_hangs_is_given_up_and_comes_back(client, way):
    """Requests that hang keep no place from those that come after them."""
    store, errors = client(timeout=1.0, tries=2), []
    store.put("old", OLD)
    way.trouble = lambda *_: "hang"

    def ask():
        try:
            store.get("old")
        except StoreError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(40)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - start < 20
    assert len(errors) == 40
    assert all("no answer in 1 seconds, 2 times" in error for error in errors)
    way.trouble = lambda *_: ""
    assert store.get("old") == OLD


@pytest.mark.parametrize("trouble", ["half sent", "unheard", "lost", "500"])
def test_a_write_that_fails_half_way_leaves_an_object_whole(client, way, trouble):
    store = client(tries=2)
    store.put("name", OLD)
    for name, allowed in (("name", {OLD, NEW}), ("other", {None, NEW})):
        way.trouble = lambda *_: trouble
        with pytest.raises(StoreError):
            store.put(name, NEW)
        way.trouble = lambda *_: ""
        assert client().get(name) in allowed
        assert set(client().names("")) <= {"name", "other"}


@pytest.mark.parametrize("trouble", ["half", "short", "lost"])
@pytest.mark.parametrize("times", [1, 9])
def test_a_read_that_is_cut_short_gives_no_wrong_block(client, way, trouble, times):
    store = client()
    some = [(n, bytes([n]) * 100) for n in range(20)]
    places = write_blocks(store, some)
    way.fail = [trouble] * times
    try:
        found = read_blocks(store, places, 100)
    except StoreError:
        assert times == 9
    else:
        # A server that lies about its length is taken at its word: a miss.
        assert found == [None if trouble == "short" else block for _, block in some]


def each_fails_first(times, troubles=PASSING):
    """Every request fails as often, each in a way of its own, before it is heard."""
    asked, lock = {}, threading.Lock()

    def trouble(method, path):
        with lock:
            number = asked[method, path] = asked.get((method, path), -1) + 1
        kind = zlib.crc32(f"{method}{path}{number}".encode())
        return troubles[kind % len(troubles)] if number < times else ""

    return trouble


def test_two_clients_write_and_find_records_while_much_fails(client, way):
    way.trouble = each_fails_first(2)
    stores = [client(), client()]
    both = [[1, 2, 3, 4, owner, 5, 6, 7] for owner in (8, 9)]
    steps, errors = [(0, 4), (4, 6), (6, 8)], []

    def want(tokens, stop):
        return [expected(tokens[:e], s) for s, e in steps if e <= stop]

    def work(store, tokens):
        try:
            for start, stop in steps:
                save(store, tokens[:stop], start)
                assert look(store, tokens) == want(tokens, stop)
        except Exception as error:
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=args)
        for args in zip(stores, both, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    # Each finds what the other wrote.
    for store, tokens in zip(stores, reversed(both), strict=True):
        assert look(store, tokens) == want(tokens, 8)
        assert find_records(store, prefix(tokens)).problems == ()


@pytest.mark.parametrize("trouble", ["500", "lost", "unheard", "half sent"])
def test_a_record_whose_writing_ends_at_any_request_is_there_or_not(
    client, way, trouble
):
    store, tokens = client(tries=2), list(range(8))
    old, new = expected(tokens[:4]), expected(tokens, 4)
    save(store, tokens[:4])
    # What the next sweep takes, a pack, then the manifest.
    for requests in range(3):
        way.fail, way.trouble = [""] * requests, lambda *_: trouble
        with pytest.raises(StoreError, match=r"could not be (listed|written)"):
            save(store, tokens, 4)
        way.fail, way.trouble = [], lambda *_: ""
        # What is sent whole may have been done, and not been heard of.
        heard = (requests, trouble) != (2, "unheard")
        assert look(client(), tokens) in ([[old]] if heard else [[old], [old, new]])
        assert find_records(client(), prefix(tokens)).problems == ()
    save(store, tokens, 4)
    assert look(client(), tokens) == [old, new]


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["half sent", "half", "unheard", "lost", "503"])
def test_whole_packs_come_and_go_while_much_fails(client, way, trouble):
    store, size = client(timeout=60.0), 2**20
    some = [(n, bytes([n]) * size) for n in range(70)]
    way.trouble = each_fails_first(2, [trouble])
    places = write_blocks(store, iter(some))
    assert len({place.pack for place in places}) == 2
    way.trouble = each_fails_first(2, [trouble])
    assert read_blocks(store, places, size) == [block for _, block in some]


def test_house_keeping_in_a_bucket_does_what_it_does_in_memory(client, tmp_path):
    bucket, memory = client(), Memory()
    for store in (bucket, memory):
        for last in range(4):
            save(store, [1, 2, last])
        save(store, [1, 2, 3, 4], 3)
    for threads, rule in ((4, {"quota": 3000}), (1, {"keep_ticks": 1}), (4, {})):
        done = collect(bucket, **rule, threads=threads)
        assert done == collect(memory, **rule)
        assert verify(bucket, threads=threads) == verify(memory)
        assert measure(bucket, threads=threads) == measure(memory)
    assert {name: bucket.get(name) for name in bucket.names("")} == memory.objects
    save(bucket, [1, 2, 3])
    export_records(bucket, tmp_path / "a.tar", threads=4)
    other = client("other")
    assert import_records(other, tmp_path / "a.tar").refused == ()
    assert look(other, [1, 2, 3]) == [expected([1, 2, 3])]


def test_whole_caches_beside_a_bucket_lie_in_a_folder(client, way, tmp_path):
    """Orbax cannot write them to S3; what was given up in the bucket counts."""
    some = Serving()
    some.store(P)
    store = client(store=OrbaxPrefixStore)
    asked = len(way.asked)
    for call in (
        store.snapshots,
        store.latest_step,
        lambda: store.save_snapshot(1, some.cache, some.prefixes),
        lambda: store.restore_snapshot(some.model.plan),
    ):
        with pytest.raises(SnapshotError, match=r"snapshots=\.\.\.\) a folder"):
            call()
    assert [method for _, method, *_ in way.asked[asked:] if method == "PUT"] == []
    for address in ("s3://bucket/prefix", "az://bucket/prefix"):
        with pytest.raises(ValueError, match="writes to folders and gs://"):
            OrbaxPrefixStore(tmp_path, snapshots=address)
    beside = client(store=OrbaxPrefixStore, snapshots=tmp_path / "snapshots")
    beside.save_snapshot(1, some.cache, some.prefixes)
    again = restored(client(store=OrbaxPrefixStore, snapshots=tmp_path / "snapshots"))
    assert again.match([*P, 0]).verdict == Verdict.RESUMABLE
    trust.give_up(client(), some.model.identity)
    assert restored(beside).match([*P, 0]).length == 0
