"""A process that forks others and lets them die, fail or wait at a call of their save.

It runs with the shim loaded before the C library and imports everything once.  No
thread has started in it when it forks, so hundreds of trials take seconds.  It reads a
command per line and answers with a line; :mod:`killing` is its other end.
"""

import ctypes
import dataclasses
import json
import mmap
import os
import resource
import signal
import sys

from plain_folder import PlainFolder
from small_records import look, save

from hybridcache_jax.store.collection import collect
from hybridcache_jax.store.objects import ObjectStore
from hybridcache_jax.store.prefix_store import StoreError

SHIM = ctypes.CDLL(os.environ["LD_PRELOAD"])
SHIM.shim_size.restype = ctypes.c_long
SHIM.shim_pending.restype = ctypes.c_char_p
FAULTS = {"none": 0, "kill": 1, "fail": 2, "torn": 3, "short": 4}
STATES = ("running", "waiting", "blocked", "done")


def act(root, action):
    """What a child does."""
    if "no_files_beyond" in action:
        limit = action["no_files_beyond"]
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if "uid" in action:
        os.setgid(action["uid"])
        os.setuid(action["uid"])
    store = ObjectStore(root)
    kind = action["kind"]
    if kind == "look":
        return look_closely(store, action)
    if kind == "small disk":
        return on_small_disk(root, action)
    SHIM.shim_arm(1)
    if kind == "save":
        save(store, action["tokens"], **action.get("more", {}))
    elif kind == "put":
        store.put(action["name"], action["data"].encode())
    elif kind == "delete":
        store.delete(action["name"])
    elif kind == "sweep":
        return store.sweep()
    elif kind == "collect":
        collect(store, keep_ticks=action["keep_ticks"])
    return None


def look_closely(store, action):
    """What is found, what Python ran meanwhile, and whether the memory was enough."""
    # Threads and what they need are there before the limit is.
    store.get("nothing")
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + action["memory"]
    heard = []
    sys.addaudithook(lambda event, _: heard.append(event))
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    SHIM.shim_arm(1)
    seen = look(store, action["tokens"])
    SHIM.shim_arm(0)
    return {"seen": seen, "heard": sorted(set(heard))}


def on_small_disk(root, action):
    """Saves on a disk that fills up and then may only be read, and what is there."""
    libc = ctypes.CDLL(None, use_errno=True)
    os.makedirs(root)

    def mount(flags, options):
        if libc.mount(b"tmpfs", root.encode(), b"tmpfs", flags, options):
            raise OSError(ctypes.get_errno(), "mount")

    private, remount, read_only = 1 << 18 | 1 << 14, 32, 1
    # What is mounted goes with this process.
    if libc.unshare(0x20000):
        return {"skipped": "no mount namespace of its own"}
    libc.mount(None, b"/", None, private, None)
    try:
        mount(0, b"size=64k")
    except OSError as error:
        return {"skipped": str(error)}
    store, found = ObjectStore(root), []

    def attempt(tokens):
        try:
            save(store, tokens)
            said = "done"
        except StoreError as error:
            said = str(error)
        found.append([said, look(PlainFolder(root), tokens)])

    first, second = action["tokens"]
    attempt(first)
    filler = os.path.join(root, "filler")
    with open(filler, "wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(512))
            except OSError:
                break
    attempt(second)
    os.remove(filler)
    mount(remount | read_only, b"size=64k")
    attempt(second)
    mount(remount, b"size=64k")
    attempt(second)
    return {"found": found, "swept": store.sweep()}


@dataclasses.dataclass
class Child:
    """A forked process: its id, the memory it shares, and the end of a pipe."""

    pid: int
    memory: mmap.mmap
    pointer: ctypes.c_void_p
    pipe: int

    def wait(self):
        """How it ended, and what it did until then."""
        said = b""
        while data := os.read(self.pipe, 65536):
            said += data
        os.close(self.pipe)
        _, status = os.waitpid(self.pid, 0)
        text = ctypes.create_string_buffer(2000)
        events = []
        for n in range(SHIM.shim_count(self.pointer)):
            SHIM.shim_event(self.pointer, n, text, len(text))
            call, path, other, *rest = text.value.decode().split("\t")
            events.append([call, path, other, *map(int, rest)])
        if os.WIFSIGNALED(status):
            end = {"end": "killed", "signal": os.WTERMSIG(status)}
        else:
            end = json.loads(said)
        return {**end, "events": events}


def spawn(root, action, fault="none", at=0, to=None, error=0, part=0, **more):
    """Forks a child.

    Args:
      root: of the store.
      action: see :func:`act`.
      fault: what the events ``[at, to)`` meet.
      at: first event.
      to: end; by default only ``at``.
      error: ``errno`` of calls that fail.
      part: bytes that are written of a write that is torn or short.
      more: ``dry``, whether waiting for the disk is only pretended; ``gated``, whether
        the child stops before every event; ``watched``, the folder whose files count.
    """
    memory = mmap.mmap(-1, SHIM.shim_size())
    pointer = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
    # The folder around the store belongs to what is watched.
    SHIM.shim_prepare(
        pointer,
        more.get("watched", os.path.dirname(root)).encode(),
        FAULTS[fault],
        at,
        at + 1 if to is None else to,
        error,
        ctypes.c_long(part),
        int(more.get("dry", True)),
        int(more.get("gated", False)),
    )
    inner, outer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(outer)
        return Child(pid, memory, pointer, inner)
    signal.alarm(60)
    SHIM.shim_attach(pointer)
    try:
        said = {"end": "done", "value": act(root, action)}
    except StoreError as error:
        said = {"end": "StoreError", "text": str(error)}
    except BaseException as error:
        said = {"end": type(error).__name__, "text": repr(error)}
    SHIM.shim_done()
    os.write(outer, json.dumps(said).encode())
    os._exit(0)


def trial(root, action, **fault):
    """A child alone, with a fault or without."""
    return spawn(root, action, **fault).wait()


def arrived(child):
    """The state in which a gated child has stopped."""
    while (state := SHIM.shim_wait(child.pointer)) < 0:
        if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return "done"
    return STATES[state]


def pending(child):
    """The call that a gated child has stopped before."""
    return SHIM.shim_pending(child.pointer).decode()


def together(root, actions, schedule, tokens, stops=()):
    """Children that take turns, and a plain reader that looks after every event.

    A turn ends before the child's next event, or, with ``stops``, before its next one
    of those calls.  After the schedule each goes on to its end, the first one first;
    one that waits for another lets that one go on.

    Returns:
      How the children ended, who ended in which order, and what the reader saw, without
      repetitions.
    """
    children = [spawn(root, action, gated=True) for action in actions]
    states = [arrived(child) for child in children]
    reader = PlainFolder(root)
    seen, finished, idle, last = [], [], 0, None

    def watch():
        """Looks at what is there, if a byte of it has changed."""
        nonlocal last
        there = {name: reader.get(name) for name in reader.names("")}
        if there != last:
            last, now = there, look(reader, tokens)
            if now not in seen[-1:]:
                seen.append(now)

    def step(who):
        SHIM.shim_go(children[who].pointer)
        states[who] = arrived(children[who])
        if states[who] == "done":
            finished.append(who)
        watch()

    watch()
    for who in schedule:
        while states[who] != "done":
            step(who)
            stopped = states[who] == "blocked" or not stops
            if stopped or pending(children[who]) in stops:
                break
    while left := [n for n, state in enumerate(states) if state != "done"]:
        who = next((n for n in left if states[n] == "waiting"), left[idle % len(left)])
        idle = idle + 1 if states[who] == "blocked" else 0
        if idle > 50:
            for one in left:
                os.kill(children[one].pid, signal.SIGKILL)
            break
        step(who)
    ends = [child.wait() for child in children]
    return {"ends": ends, "finished": finished, "seen": seen}


def main():
    commands = {"trial": trial, "together": together}
    for line in sys.stdin:
        command = json.loads(line)
        answer = commands[command.pop("do")](**command)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
