"""When the machine ends at any call of a save: the old record, the new one or none.

A killed process cannot show this, for the operating system keeps what it wrote.  So the
calls of a save are played on a disk that promises no more than POSIX: a name lasts when
somebody has waited for its folder since, bytes last when somebody has waited for their
file, and of everything else any part may have come through.
"""

import dataclasses
import itertools

import pytest
from killing import files
from small_records import expected, look, save

from hybridcache_jax.store.objects import ObjectStore
from hybridcache_jax.testing.stores import MemoryStore as Memory

FIVE, SEVEN = [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7]
# Old records, the save, what is there before and after it.
SAVES = {
    "first": ([], {"tokens": FIVE}, [], [expected(FIVE)]),
    "longer": ([FIVE], {"tokens": SEVEN}, [expected(FIVE)], [expected(SEVEN)]),
    "going on": (
        [FIVE],
        {"tokens": SEVEN, "more": {"start": 5}},
        [expected(FIVE)],
        [expected(FIVE), expected(SEVEN, 5)],
    ),
    "again": (
        [FIVE],
        {"tokens": FIVE, "more": {"salt": 1, "library": ""}},
        [expected(FIVE)],
        [expected(FIVE, salt=1)],
    ),
}


@dataclasses.dataclass(eq=False)
class Node:
    """A file or a folder.

    Attributes:
      data: of a file, what is in it when all is well; None for a folder.
      whole: of a file, what will have been written into it.
      lasts: whether somebody has waited for the file since it was written.
      names: of a folder, as they are on disk.
      changes: of a folder since somebody waited for it: nodes by names, None for gone.
    """

    data: bytes | None = None
    whole: bytes = b""
    lasts: bool = True
    names: dict = dataclasses.field(default_factory=dict)
    changes: list = dataclasses.field(default_factory=list)

    def now(self, chosen=None):
        """Names with all changes, or with those of these numbers."""
        names = dict(self.names)
        for number, change in enumerate(self.changes):
            if chosen is None or number in chosen:
                names.update(change)
        return {name: node for name, node in names.items() if node is not None}


class Disk:
    """A disk that promises what POSIX promises."""

    def __init__(self, stored, contents):
        """``contents``: of the files that will be created, in order."""
        self.top, self.contents = Node(), iter(contents)
        self.made = []
        for path, data in stored.items():
            *folders, name = path.split("/")
            node = self.top
            for folder in folders:
                node = node.names.setdefault(folder, Node())
            node.names[name] = Node(data)

    def find(self, path):
        node = self.top
        for part in path.split("/"):
            node = node if part == "." else node.now()[part]
        return node

    def play(self, event):
        """One call of the trace."""
        call, path, other, _, result, _ = event
        folder, _, name = path.rpartition("/")
        if result < 0 or call in {"close", "open", "opendir", "lock"}:
            return
        if call == "mkdir":
            self.find(folder or ".").changes.append({name: Node()})
        elif call == "create":
            self.made.append(Node(b"", whole=next(self.contents)))
            self.find(folder).changes.append({name: self.made[-1]})
        elif call == "write":
            node = self.find(path)
            node.data, node.lasts = node.whole, False
        elif call == "unlink":
            self.find(folder).changes.append({name: None})
        elif call == "rename":
            assert other.rpartition("/")[0] == folder
            new = {name: None, other.rpartition("/")[2]: self.find(path)}
            self.find(folder).changes.append(new)
        else:
            assert call == "fsync", event
            node = self.find(path)
            node.lasts, node.names, node.changes = True, node.now(), []

    def files(self, kept=None):
        """Files by path: all, or with only those changes of folders that were kept."""
        found, pending = {}, [("", self.top)]
        while pending:
            path, node = pending.pop()
            chosen = None if kept is None else kept.get(node, ())
            for name, below in node.now(chosen).items():
                if below.data is None:
                    pending.append((f"{path}{name}/", below))
                else:
                    found[path + name] = below
        return found

    def changed(self):
        """Folders with changes that nobody has waited for."""
        found, pending = [], [self.top]
        while pending:
            node = pending.pop()
            if node.changes:
                found.append(node)
            below = [*node.names.values()]
            below += [n for change in node.changes for n in change.values()]
            pending += [n for n in below if n is not None and n.data is None]
        return found

    def ends(self):
        """All that may be found if the machine ends now: bytes by path."""
        folders = self.changed()
        choices = [
            itertools.chain.from_iterable(
                itertools.combinations(range(len(folder.changes)), count)
                for count in range(len(folder.changes) + 1)
            )
            for folder in folders
        ]
        for chosen in itertools.product(*choices):
            found = self.files(dict(zip(folders, chosen, strict=True)))
            for part in (0, 0.5, 1):
                yield {
                    path: node.data
                    if node.lasts
                    else node.data[: int(part * len(node.data))]
                    for path, node in found.items()
                }


def all_ends(trace, before, after):
    """What a store may hold if the machine ends after any call, each state once.

    Args:
      trace: the calls.
      before: files before them.
      after: and after them.

    Yields:
      The call, whether it is the last one, and a store.
    """
    # What is written into each file is known from where the file lies in the end.
    disk = Disk(before, itertools.repeat(b"?"))
    for event in trace:
        disk.play(event)
    last = {node: path for path, node in disk.files().items()}
    disk = Disk(before, [after.get(last.get(node), b"?") for node in disk.made])
    seen = set()
    for event in trace:
        disk.play(event)
        final = event is trace[-1]
        for state in disk.ends():
            said = final, frozenset(state.items())
            if said not in seen:
                seen.add(said)
                objects = {
                    path.removeprefix("store/"): data
                    for path, data in state.items()
                    if "__lock" not in path
                }
                yield event, final, Memory(objects)


def first_loss(trace, before, after, tokens, old, new):
    """The first call after which the end of the machine would cost a record, or None.

    Args:
      trace: as for :func:`all_ends`.
      before: too.
      after: too.
      tokens: what is looked for.
      old: what may be found until the save ends.
      new: what may be found, and must be when the save has ended.
    """
    for event, final, store in all_ends(trace, before, after):
        there = look(store, tokens)
        if there != new and (final or there != old):
            return event
    return None


@pytest.fixture(scope="module")
def traces(nursery, tmp_path_factory):
    """Of every save its calls, the files before and after it, and what is right."""
    found = {}
    for name, (stored, action, old, new) in SAVES.items():
        around = tmp_path_factory.mktemp("around")
        for tokens in stored:
            save(ObjectStore(around / "store"), tokens, library="0.1.0")
        before = files(around)
        done = nursery.trial(around / "store", {"kind": "save", **action})
        assert done["end"] == "done"
        after = files(around)
        found[name] = done["events"], before, after, action["tokens"], old, new
    return found


@pytest.mark.parametrize("name", SAVES)
def test_a_save_survives_the_end_of_the_machine(traces, name):
    assert first_loss(*traces[name]) is None


def test_every_wait_of_a_first_save_is_needed(traces):
    """And this test can see that one is missing."""
    trace, *more = traces["first"]
    waits = [n for n, event in enumerate(trace) if event[0] == "fsync"]
    assert len(waits) >= 9
    for number in waits:
        assert first_loss(trace[:number] + trace[number + 1 :], *more) is not None


def test_a_manifest_before_its_blocks_would_be_seen(traces):
    trace, *more = traces["longer"]
    begins = [n for n, event in enumerate(trace) if event[0] == "lock"]
    pack, manifest = trace[: begins[1] - 1], trace[begins[1] - 1 :]
    assert "packs" in pack[0][1]
    assert "records" in manifest[0][1]
    assert first_loss(manifest + pack, *more) is not None


@pytest.mark.slow
def test_a_record_that_is_collected_is_whole_or_gone(nursery, tmp_path):
    """Its manifest is gone for good before a byte of what it names is."""
    root, trace = tmp_path / "around" / "store", []
    for tokens in (FIVE, [8, 8]):
        save(ObjectStore(root), tokens, age=0)
    before = files(root.parent)
    for _ in range(5):
        done = nursery.trial(root, {"kind": "collect", "keep_ticks": 2})
        assert done["end"] == "done", done
        trace += done["events"]
    after = files(root.parent)
    assert not [path for path in after if "packs" in path or "records" in path]

    def halves(trace):
        return [
            event
            for event, _, store in all_ends(trace, before, after)
            for tokens in (FIVE, [8, 8])
            if look(store, tokens) not in ([expected(tokens)], [])
        ]

    assert not halves(trace)
    # Without these waits it could be otherwise.
    waits = [e for e in trace if e[0] == "fsync" and "records/" in e[1]]
    assert halves([event for event in trace if event not in waits])
