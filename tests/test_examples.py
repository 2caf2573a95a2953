"""The examples run and say what they promise."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_decode_loop():
    done = subprocess.run(
        [sys.executable, EXAMPLES / "decode_loop.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for text in ("RESUMABLE", "NEEDS_PARTIAL_RECOMPUTE", "equal tokens three times"):
        assert text in done.stdout
