"""Expectations of scenarios that are run, which we do not answer, and why not.

Per scenario, by step and name as ``expectations.leaves`` has them.  The tests see to
it that each is expected there and that every other one is answered.
"""

_TREE = "How a tree is cut into nodes; the index is asked for prompts, not for nodes."
_OPTIONAL = (
    "The spec says which forms a layer needs: resuming takes no list of optional ones, "
    "in which a wrong one could be named."
)
_UNIT = "The unit of an engine's hashes; the index compares tokens and has none."

NOT_ASKED: dict[str, dict[tuple[str, str], str]] = {
    "C01": {
        ("10", "order"): "The order of a free list; any free block is as good.",
    },
    "C35": {
        ("8", "num_copies"): "Blocks are never copied, so there is nothing to count.",
    },
    "T10": {(str(case), "gcd"): _UNIT for case in range(6)},
    "sgl-swa-01": {("m7", "last_segment"): _TREE},
    "sgl-swa-03": {(str(row), "expect_split"): _TREE for row in range(9, 15)},
    "sgl-rec-01": {
        ("b", "last_segment_len"): _TREE,
        ("c", "last_segment_len"): _TREE,
    },
    "trt-grp-01": {
        (step, name): _OPTIONAL for step in ("x1", "x2") for name in ("error", "active")
    },
    "iss-ckpt-01": {
        ("0", "requests_hit"): "How many of the 64 came before the first had finished "
        "is not told; a prompt is found once it was run.",
    },
}
