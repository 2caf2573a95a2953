"""What a server is told the moment it happens, beside the reports and the counters."""

import dataclasses
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hybridcache_jax.forms import Form
from hybridcache_jax.observe.declarations import Why

if TYPE_CHECKING:
    from hybridcache_jax.offload.loads import LoadReport

_LOG = logging.getLogger("hybridcache_jax")


@dataclasses.dataclass(frozen=True)
class Hooks:
    """Functions of a server, called between compiled steps by who calls the cache.

    They must be quick and must not call the ``PrefixCache`` again.  One that raises
    costs nothing but its own work: the error goes to the logger ``hybridcache_jax``.

    Attributes:
      on_ready: told of a load whose blocks lie on the device: match again and acquire.
      on_failed: told of a load that is over without: plan again.
      on_evicted: told of stored blocks that left the device: their form, how many, and
        why.
    """

    on_ready: "Callable[[LoadReport], None] | None" = None
    on_failed: "Callable[[LoadReport], None] | None" = None
    on_evicted: Callable[[Form, int, Why], None] | None = None

    def reported(self, report: "LoadReport") -> None:
        """A poll reported on a load."""
        if report.ready:
            _call(self.on_ready, report)
        elif report.failed:
            _call(self.on_failed, report)

    def evicted(self, form: Form, blocks: int, why: Why) -> None:
        """Stored blocks of a form left the device."""
        _call(self.on_evicted, form, blocks, why)


def _call(hook: Callable[..., None] | None, *said: Any) -> None:
    if hook is None:
        return
    try:
        hook(*said)
    except Exception:
        # The caller would lose the cache whose memory was donated on the way.
        _LOG.exception("A hook failed.")
