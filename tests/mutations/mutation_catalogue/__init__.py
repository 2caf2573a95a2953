"""Small mistakes in the library's own code, each with a test that must fail.

Every text stands exactly once in its file; ``python -m tests.mutations`` applies them
one by one to a copy and runs the named tests there.
"""

from .blocks import BLOCKS
from .claims import CLAIMS
from .deadlines import DEADLINES
from .folders import FOLDERS
from .keeping import KEEPING
from .kernels import KERNELS
from .leases import LEASES
from .numbers import NUMBERS
from .record import Soaked
from .replays import REPLAYS
from .retention import RETENTION
from .saves import SAVES
from .scopes import SCOPES
from .shadow import SHADOW
from .steps import STEPS
from .stores import STORES
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
    *STORES,
    *SAVES,
    *FOLDERS,
    *KEEPING,
    *KERNELS,
)

MACHINE = {
    **dict.fromkeys(
        (
            "pin-missing",
            "pin-not-returned",
            "allocated-without-a-pin",
            "pinned-blocks-are-evictable",
            "epoch-not-bumped-on-free",
            "epoch-not-bumped-on-allocation",
            "digest-not-compared",
            "layout-of-loads-not-compared",
            "what-failed-is-not-set-aside",
            "loaded-place-not-dropped",
            "half-a-load-registered",
            "deadline-one-tick-late",
            "place-epoch-not-bumped",
            "pending-plans-unprotected",
            "nothing-left-to-run",
            "older-values-accepted",
            "mismatch-not-counted",
            "rewind-keeps-a-block-too-many",
            "claims-not-checked",
            "fork-does-not-pin",
            "unstored-blocks-stay",
            "window-one-key-short",
            "free-stack-overwritten",
            "scope-not-narrowed",
            "overdue-one-tick-early",
            "released-by-any-receipt",
            "label-not-cleared",
            "position-not-cleared",
            "no-second-check",
            "epoch-not-compared",
            "claims-of-a-cut-publication-stay",
        ),
        Soaked(),
    ),
    # What only models with open compression blocks can show.
    "halo-forgotten": Soaked("csa"),
    **dict.fromkeys(
        (
            "records-not-given-up",
            "saves-outlive-their-scope",
            "damaged-packs-asked-again",
            "requests-share-records",
            "loads-forget-where-blocks-lie",
            "claims-not-checked-before-a-save",
            "store-begins-like-memory",
        ),
        Soaked(store=True),
    ),
}
"""Names of those that random operations find, without any test for them, and how."""
