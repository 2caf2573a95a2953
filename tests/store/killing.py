"""The other end of :mod:`nursery`: trials of a save that is cut, fails or waits."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent


def shim(folder):
    """Compiles the shim; skips the test where that cannot be."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("a C compiler on Linux builds what cuts a save at its calls")
    path = folder / "fault_shim.so"
    subprocess.run(
        [
            *(compiler, "-O1", "-shared", "-fPIC", "-o", path),
            *(HERE / "fault_shim.c", "-ldl", "-lpthread"),
        ],
        check=True,
    )
    return path


def environment(path):
    """Of a process over the shim."""
    found = {**os.environ, "LD_PRELOAD": str(path), "JAX_PLATFORMS": "cpu"}
    found["PYTHONPATH"] = f"{HERE}:{HERE.parents[1]}"
    return found


class Nursery:
    """Trials, one at a time."""

    def __init__(self, path):
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", HERE / "nursery.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(path),
        )

    def ask(self, **command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def trial(self, root, action, **fault):
        return self.ask(do="trial", root=str(root), action=action, **fault)

    def together(self, root, actions, schedule, tokens, stops=()):
        return self.ask(
            do="together",
            root=str(root),
            actions=actions,
            schedule=list(schedule),
            tokens=tokens,
            stops=list(stops),
        )

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(timeout=20)


def files(root):
    """Bytes of every file, by its name."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }
