"""Saved on one mesh, loaded on another: records hold whole blocks, whoever wrote them.

Meshes need devices, so one side or both are in a process that has four; "one device" is
in this one.
"""

import json
import math
import os
import pathlib
import subprocess
import sys

import mesh_worker
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridcache_jax as hc
from hybridcache_jax.store.inventory import take_inventory
from hybridcache_jax.testing import toy

pytestmark = pytest.mark.slow
HERE = "one device"


@pytest.fixture(scope="module")
def ask():
    """Asks the process with four devices, or this one."""
    root = str(pathlib.Path(hc.__file__).parents[1])
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
    }
    with subprocess.Popen(
        [sys.executable, mesh_worker.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def there(*request):
            asked.write(json.dumps(request) + "\n")
            asked.flush()
            return json.loads(answers.readline())

        def anywhere(what, folder, layout, *more):
            if layout == HERE:
                answer = getattr(mesh_worker, what)(str(folder), layout, *more)
                return json.loads(json.dumps(answer))
            return there(what, str(folder), layout, *more)

        anywhere.there = there
        yield anywhere
        asked.close()


def cold(prompt):
    """The prompt and what follows it, in plain Python."""
    tokens = list(prompt)
    for _ in range(mesh_worker.DECODED):
        reads = toy.cold(mesh_worker.model(), tokens).reads[:, -1]
        tokens.append(mesh_worker.following(reads))
    return tokens


def expect_spread(answer, layout):
    """Every device has its part of each plane, and no more, from first to last."""
    assert not answer["moved"]
    parts = mesh_worker.LAYOUTS[layout]
    devices = math.prod(size for _, size in parts)
    planes = [
        plane.shape
        for planes in mesh_worker.model().empty.pools
        for _, plane in sorted(planes.items())
    ]
    divided = 0
    for shape, held in zip(planes, answer["spread"], strict=True):
        shape = list(shape)
        for axis, size in parts:
            if axis is not None and shape[axis] % size == 0:
                shape[axis] //= size
                divided += 1
        assert held == [[device, *shape] for device in range(devices)]
    # Of four planes two have one number a row, which nobody can divide.
    assert divided >= 2 * sum(axis is not None for axis, _ in parts)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("width over 4", HERE),
        (HERE, "width over 4"),
        ("width over 2", "blocks over 4"),
        ("blocks over 4", "width over 2"),
        ("blocks over 2, width over 2", "slots over 2"),
        ("slots over 2", "blocks over 2, width over 2"),
        ("layers over 2", "copies on 4"),
        ("copies on 4", "layers over 2"),
        ("blocks over 4", HERE),
        (HERE, "blocks over 2, width over 2"),
    ],
)
def test_what_one_mesh_saved_another_resumes(ask, tmp_path, before, after):
    saved = ask("save", tmp_path, before, mesh_worker.PROMPT)
    expect_spread(saved, before)
    assert (saved["tokens"], saved["differs"]) == (cold(mesh_worker.PROMPT), [])
    (record,) = take_inventory(hc.ObjectStore(tmp_path)).records
    assert record.stop == 16
    # What was decoded is saved too, and the prompt goes on from that.
    prompt = [*saved["tokens"], 7, 7]
    loaded = ask("load", tmp_path, after, prompt)
    expect_spread(loaded, after)
    assert loaded["ready"]
    assert loaded["waits"] == ["NEEDS_IO", 16]
    assert loaded["found"] == ["RESUMABLE", 16]
    assert loaded["blocks"].items() <= saved["blocks"].items()
    # Four blocks of the history, and the last one of the windows of 3.
    assert len(loaded["blocks"]) == 5
    assert (loaded["tokens"], loaded["differs"]) == (cold(prompt), [])


@pytest.mark.kind("K12")
@pytest.mark.on_disk("K12")
@settings(max_examples=6)
@given(
    before=st.sampled_from(sorted(mesh_worker.LAYOUTS)),
    after=st.sampled_from(sorted(mesh_worker.LAYOUTS)),
    prompt=st.lists(st.integers(0, 9), min_size=8, max_size=14),
    other=st.integers(0, 9),
)
def test_any_mesh_resumes_what_any_other_saved_and_nothing_else(
    ask, tmp_path_factory, before, after, prompt, other
):
    """Bit for bit, of as many tokens as are the same; a record is read without any."""
    folder = tmp_path_factory.mktemp("meshes")
    saved = ask("save", folder, before, prompt)
    assert (saved["tokens"], saved["differs"]) == (cold(prompt), [])
    records = take_inventory(hc.ObjectStore(folder)).records
    assert max(record.stop for record in records) == len(saved["tokens"]) // 4 * 4
    # Another last token of what was saved: the grid points before it are left.
    asked = [*prompt[:-1], other, 7]
    same = len(prompt) - 1 + (prompt[-1] == other)
    loaded = ask("load", folder, after, asked)
    assert loaded["waits"] == ["NEEDS_IO", same // 4 * 4]
    assert loaded["ready"]
    # Where windows are not kept they are replayed.
    assert loaded["found"][1] == same // 4 * 4
    assert loaded["blocks"].items() <= saved["blocks"].items()
    assert (loaded["tokens"], loaded["differs"]) == (cold(asked), [])


@pytest.mark.parametrize(
    "layout", [name for name, parts in mesh_worker.LAYOUTS.items() if parts]
)
def test_copies_of_blocks_leave_the_pool_where_it_lies(ask, layout):
    """On no device more than a few batches beside its own part, which is written in."""
    out, back = ask.there("copies", layout)
    for here, besides, _ in (out, back):
        assert besides < here / 50
    assert back[2] == back[0]
    assert out[2] == 0
