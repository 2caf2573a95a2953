"""Small mistakes in the library's own code, each with a test that must fail.

Every text stands exactly once in its file; ``python -m tests.mutations`` applies them
one by one to a copy and runs the named tests there.
"""

from .blocks import BLOCKS
from .claims import CLAIMS
from .deadlines import DEADLINES
from .leases import LEASES
from .numbers import NUMBERS
from .replays import REPLAYS
from .retention import RETENTION
from .scopes import SCOPES
from .shadow import SHADOW
from .steps import STEPS
from .tiers import TIERS
from .verdicts import VERDICTS

MUTATIONS = (
    *BLOCKS,
    *LEASES,
    *DEADLINES,
    *STEPS,
    *VERDICTS,
    *NUMBERS,
    *CLAIMS,
    *REPLAYS,
    *RETENTION,
    *SCOPES,
    *SHADOW,
    *TIERS,
)

MACHINE: tuple[str, ...] = ()
"""Names of those that random operations find, without any test for them."""
