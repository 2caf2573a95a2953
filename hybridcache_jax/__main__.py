"""``python -m hybridcache_jax`` is the ``hybridcache`` command."""

import sys

from hybridcache_jax.cli import main

sys.exit(main())
