"""Runs the machine in short episodes until one of them fails; shrinks nothing.

The machine knows no mutation and no test: it draws operations and compares with its
oracle, so what it finds in a copy with a mistake it would have found by itself.
"""

import argparse
import sys
from pathlib import Path

import jax

from hybridcache_jax.testing.soak.run import operations, replay, rooms_of
from hybridcache_jax.testing.toy_models import SOAKED

DIFFERS = 3
"""Exit code for a difference; 1 is that of a run that could not begin."""

EPISODE = 250
"""Operations drawn in an episode: a run has many with every kind of tier."""


def main() -> int:
    """Draws operations and compares: 0 or ``DIFFERS``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=SOAKED)
    parser.add_argument("count", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--store", action="store_true")
    arguments = parser.parse_args()
    folder = Path.cwd() / ".pytest_cache" / "jax"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    model = SOAKED[arguments.model]()
    store = arguments.store
    for episode in range(-(-arguments.count // EPISODE)):
        count = min(EPISODE, arguments.count - episode * EPISODE)
        drawn = operations(arguments.seed, episode, count, store=store)
        message = replay(model, drawn, rooms_of(episode, store=store))
        if message:
            print(f"episode {episode}, {' '.join(message.split())}")
            return DIFFERS
    return 0


if __name__ == "__main__":
    sys.exit(main())
