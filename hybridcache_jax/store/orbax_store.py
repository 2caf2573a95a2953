"""The store that users take by default: prefixes as objects, whole caches by Orbax.

Prefixes lie beside the snapshots, each by its tokens (:mod:`objects`).  A snapshot is
one cache with everything that is claimed of it.  It lies where Orbax users look for
it: steps of a ``CheckpointManager``, which every tool of Orbax opens, with the items

- ``cache``: all arrays of the cache, by the names of their fields;
- ``prefixes``: the arrays of the claims (:mod:`hybridcache_jax.saved_claims`);
- ``metadata``: JSON, what each array must be (:mod:`snapshot_manifest`).

Arrays are saved whole, from host memory, so no topology is part of a snapshot.
"""

import contextlib
import dataclasses
import fcntl
import math
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import jax

from hybridcache_jax._whole import whole
from hybridcache_jax.capacity import CapacityPlan
from hybridcache_jax.identity import Identity
from hybridcache_jax.saved_claims import SavedClaims
from hybridcache_jax.state import HybridCache
from hybridcache_jax.store import trust
from hybridcache_jax.store.objects import ObjectStore
from hybridcache_jax.store.prefix_store import SNAPSHOTS
from hybridcache_jax.store.sizes import OnProgress
from hybridcache_jax.store.snapshot_arrays import (
    cache_leaves,
    cache_of,
    claim_arrays,
    claim_leaves,
    expected,
    flat,
    layout_difference,
    record,
)
from hybridcache_jax.store.snapshot_checks import (
    check_layouts,
    check_names,
    copied,
    refuse,
    storable,
    verified,
)
from hybridcache_jax.store.snapshot_claims import check_claim_sizes, check_claims
from hybridcache_jax.store.snapshot_folder import locked, make_lasting
from hybridcache_jax.store.snapshot_manifest import (
    Said,
    SnapshotError,
    decode,
    encode,
    plan_differences,
)
from pallas_kernels.dtypes import named_dtype

_ITEMS = ("cache", "prefixes")
# In the names of folders that Orbax has not finished.
_BEGUN = ".orbax-checkpoint-tmp"


class Claimant(Protocol):
    """What knows the claims about a cache: a ``PrefixCache``."""

    def saved_claims(self, cache: HybridCache) -> SavedClaims:
        """Everything that is claimed of a cache."""
        ...


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """What lies under one step, without a look at its arrays.

    Attributes:
      step: its number.
      nbytes: of all arrays, before Orbax compresses them; 0 if it cannot be read.
      tokens: of the prefixes that it claims, shared parts counted once.
      plan: fields of the plan that a cache must have to restore it; the spec by its
        fingerprint.
      library: version that wrote it.
      problem: why it cannot be read; empty if it can.
    """

    step: int
    nbytes: int = 0
    tokens: int = 0
    plan: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    library: str = ""
    problem: str = ""


class OrbaxPrefixStore(ObjectStore):
    """An :class:`ObjectStore` that also keeps whole caches.

    Attributes:
      path: as it was given.
      snapshots_path: where the snapshots lie.
      max_to_keep: steps that stay.
    """

    def __init__(
        self,
        path: str | pathlib.Path,
        *,
        snapshots: str | pathlib.Path | None = None,
        max_to_keep: int | None = None,
        **options: Any,
    ):
        """Opens a store; Orbax itself is loaded by the first call for a snapshot.

        Args:
          path: as for :class:`ObjectStore`.
          snapshots: where snapshots lie; by default in ``snapshots`` below ``path``.
            A folder is always possible, beside prefixes in any bucket.  Orbax reaches
            ``gs://`` by its own means: it asks for the package gcsfs, and takes none of
            the options here.  Others it cannot write, ``s3://`` among them: there
            every call for a snapshot is refused, and prefixes are kept as ever.
          max_to_keep: steps that stay, the latest ones; None for all.
          **options: as for :class:`ObjectStore`.

        Raises:
          ValueError: for a path or an option that is none, and for ``snapshots`` in a
            bucket that Orbax cannot write.
          StoreError: if the store cannot be opened.
        """
        super().__init__(path, **options)
        if max_to_keep is not None:
            max_to_keep = whole("max_to_keep", max_to_keep, least=1)
        self.max_to_keep = max_to_keep
        text = (
            f"{self.path.rstrip('/')}/{SNAPSHOTS}" if snapshots is None else snapshots
        )
        bucket = "://" in str(text)
        self.snapshots_path = (
            str(text) if bucket else str(pathlib.Path(text).absolute())
        )
        self._in_folder = not bucket
        if snapshots is not None and not self._within_reach:
            raise ValueError(f"Snapshots cannot lie there: {self._out_of_reach}")

    @property
    def _within_reach(self) -> bool:
        """Whether Orbax writes there."""
        return self._in_folder or self.snapshots_path.startswith("gs://")

    @property
    def _out_of_reach(self) -> str:
        return (
            f"Orbax writes to folders and gs://, not to {self.snapshots_path}; give "
            "OrbaxPrefixStore(snapshots=...) a folder or gs://bucket/prefix"
        )

    def save_snapshot(
        self,
        step: int,
        cache: HybridCache,
        prefixes: Claimant,
        *,
        on_progress: OnProgress | None = None,
    ) -> None:
        """Saves a cache and all that is claimed of it, as they are at this moment.

        It waits: all is copied to host memory first, then written, and when this
        returns the snapshot survives the end of the machine.  Interrupted at any
        moment, it leaves the older steps as they were.  Prefixes that are published and
        not yet in the store are part of the snapshot alone.

        One call at a time writes into a folder, of all processes of a machine: the
        others wait for it, and are refused if it took their step.  Locks reach no other
        machine; so the metadata are read again before this returns.

        Args:
          step: its number, beyond all that there are.
          cache: the newest value of the line of ``prefixes``.
          prefixes: what knows the claims.
          on_progress: told ``("copying", bytes, total)``; Orbax says nothing of what it
            has written, so ``("writing", ...)`` comes at its begin and end alone.

        Raises:
          ValueError: for a step below 0.
          StaleCacheError: if the cache is not the newest value of its line.
          SnapshotError: if there is such a step or a later one, if another machine
            wrote the same one, if an array is spread over several processes, or if
            Orbax fails.
          StoreError: if the store fails.
        """
        import orbax.checkpoint as ocp

        step = whole("step", step)
        claims = prefixes.saved_claims(cache)
        marks = self._marks([key.identity for key in claims.keys])
        items = {
            "cache": copied(cache_leaves(cache), on_progress),
            "prefixes": claim_leaves(cache.plan, claims),
        }
        leaves = {
            item: {name: record(array) for name, array in arrays.items()}
            for item, arrays in items.items()
        }
        total = sum(array.nbytes for of in items.values() for array in of.values())
        metadata = encode(cache.plan, claims, marks, leaves)
        written = {item: storable(arrays) for item, arrays in items.items()}
        doing = f"Snapshot {step} cannot be saved"
        with self._manager(doing, saving=True) as manager:
            steps = sorted(manager.all_steps())
            if steps and steps[-1] >= step:
                raise SnapshotError(
                    f"{self.snapshots_path} has step {steps[-1]} already; give a later "
                    "one."
                )
            if on_progress is not None:
                on_progress("writing", 0, total)
            manager.save(
                step,
                args=ocp.args.Composite(
                    **{item: ocp.args.StandardSave(written[item]) for item in _ITEMS},
                    metadata=ocp.args.JsonSave(metadata),
                ),
            )
            if _metadata(manager, step) != metadata:
                raise SnapshotError(
                    "another machine wrote this step at the same time; give each its "
                    "own folder."
                )
            if self._in_folder:
                make_lasting(pathlib.Path(self.snapshots_path) / str(step))
            # Only now: the new one is safe.
            if self.max_to_keep is not None:
                for old in [*steps, step][: -self.max_to_keep]:
                    manager.delete(old)
        if on_progress is not None:
            on_progress("writing", total, total)

    def restore_snapshot(
        self,
        plan: CapacityPlan,
        step: int | None = None,
        *,
        sharding: Any = None,
        on_progress: OnProgress | None = None,
    ) -> tuple[HybridCache, SavedClaims]:
        """The cache and the claims of a snapshot, every byte of them verified.

        Give both to ``PrefixCache.adopt`` to go on from them.  Claims of producers that
        were given up in this store since are left out.

        Args:
          plan: of the cache, equal to the one that was saved.
          step: which; None for the latest.
          sharding: what ``jax.device_put`` takes for a ``HybridCache``: a sharding or a
            device for all arrays, or a ``HybridCache`` of them.  How they lay when they
            were saved does not matter.  None for where ``init`` puts them.
          on_progress: told ``("verifying", bytes, total)``; Orbax says nothing while it
            reads.

        Raises:
          SnapshotError: if there is no such step, if its plan differs (the message
            names the fields), if any leaf is not what was saved (it names the leaf), or
            if the claims are more than an index of the plan holds, or no trees.
          StoreError: if the store fails.
        """
        import orbax.checkpoint as ocp

        step = self._chosen(step)
        doing = f"Snapshot {step} in {self.snapshots_path} is refused"
        with self._manager(doing) as manager:
            said = _said(manager, step)
            if differing := plan_differences(plan, said.plan):
                raise SnapshotError(
                    "the plan differs: "
                    + "; ".join(differing)
                    + ". Restore it with the plan it was saved with."
                )
            check_names("cache", expected(plan), said.leaves["cache"])
            for name, leaf in expected(plan).items():
                refuse(
                    "cache", name, layout_difference(leaf, said.leaves["cache"][name])
                )
            check_claim_sizes(plan, said.leaves["prefixes"])
            # Before memory is asked for: what is there must look like what was saved.
            lying = manager.item_metadata(step)
            for item in _ITEMS:
                there = lying[item]
                if there is None:
                    raise SnapshotError(f"its item {item} is not there")
                check_layouts(item, flat(there.tree), said.leaves[item])
            restored = manager.restore(
                step,
                args=ocp.args.Composite(
                    **{item: ocp.args.StandardRestore() for item in _ITEMS}
                ),
            )
            leaves = verified(
                {item: flat(restored[item]) for item in _ITEMS},
                said.leaves,
                on_progress,
            )
            check_claims(plan, len(said.keys), said.contents, leaves["prefixes"])
        cache = cache_of(plan, leaves["cache"])
        marks = self._marks([key.identity for key in said.keys])
        claims = SavedClaims(
            keys=said.keys,
            versions=said.versions,
            contents=said.contents,
            stamp=int(cache.stamp),
            given_up=frozenset(
                key
                for key, now, then in zip(said.keys, marks, said.marks, strict=True)
                if now != then
            ),
            **claim_arrays(plan, leaves["prefixes"]),
        )
        return jax.device_put(cache, sharding), claims

    def snapshots(self) -> tuple[Snapshot, ...]:
        """What snapshots there are, ascending; reads their metadata alone.

        One that cannot be read says why and does not hide the others.

        Raises:
          SnapshotError: if they cannot be listed.
        """
        found = []
        with self._manager("The snapshots cannot be listed") as manager:
            for step in sorted(manager.all_steps()):
                try:
                    found.append(_summary(step, _said(manager, step)))
                # Orbax raises what its parts do.
                except Exception as error:
                    found.append(Snapshot(step, problem=str(error)))
        return tuple(found)

    def latest_step(self) -> int | None:
        """The number of the latest snapshot; None if there is none.

        Raises:
          SnapshotError: if they cannot be listed.
        """
        with self._manager("The snapshots cannot be listed") as manager:
            return manager.latest_step()

    def delete_snapshot(self, step: int) -> None:
        """Removes a snapshot.

        Raises:
          SnapshotError: if there is no such step, or it cannot be removed.
        """
        step = self._chosen(step)
        with self._manager(f"Snapshot {step} cannot be deleted") as manager:
            manager.delete(step)

    def sweep(self) -> int:
        """Removes what killed writers left, of snapshots too, while others write.

        See :meth:`ObjectStore.sweep`.  Buckets are left to Orbax's own tools.
        """
        removed, folder = super().sweep(), pathlib.Path(self.snapshots_path)
        if not self._in_folder or not folder.is_dir():
            return removed
        with locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB) as alone:
            begun = [path for path in folder.iterdir() if alone and _BEGUN in path.name]
            for path in begun:
                removed += sum(each.is_file() for each in path.rglob("*"))
                shutil.rmtree(path)
        return removed

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps other savers and sweeps out: Orbax has one name for what is begun."""
        if not self._in_folder:
            yield
            return
        folder = pathlib.Path(self.snapshots_path)
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, fcntl.LOCK_EX):
            yield

    def _chosen(self, step: int | None) -> int:
        with self._manager("The snapshots cannot be listed") as manager:
            steps = sorted(manager.all_steps())
        if not steps or (step is not None and step not in steps):
            raise SnapshotError(
                f"There is no snapshot {'' if step is None else step} in "
                f"{self.snapshots_path}; it has the steps {steps}."
            )
        return steps[-1] if step is None else step

    def _marks(self, identities: list[Identity]) -> tuple[int, ...]:
        """How often the records of producers have been given up."""
        known: dict[Identity, int] = {}
        for identity in identities:
            producer = identity.within(None)
            if producer not in known:
                known[producer] = trust.generation(self, producer)
        return tuple(known[identity.within(None)] for identity in identities)

    @contextlib.contextmanager
    def _manager(self, doing: str, *, saving: bool = False) -> Iterator[Any]:
        """Orbax's manager for one call, whose errors become ours.

        One for each call: it remembers steps that other processes may have changed.
        Who saves opens it alone, so what it remembers stays true.
        """
        if not self._within_reach:
            # It would begin a step there, and lose the bucket's name on the way.
            raise SnapshotError(f"{doing}: {self._out_of_reach}")
        # Orbax loads for seconds; who saves no snapshots does not wait for it.
        import orbax.checkpoint as ocp

        try:
            with contextlib.ExitStack() as stack:
                if saving:
                    stack.enter_context(self._alone())
                options = ocp.CheckpointManagerOptions(
                    create=saving, enable_async_checkpointing=False
                )
                handlers = {
                    **{item: ocp.StandardCheckpointHandler() for item in _ITEMS},
                    "metadata": ocp.JsonCheckpointHandler(),
                }
                yield stack.enter_context(
                    ocp.CheckpointManager(
                        self.snapshots_path, options=options, item_handlers=handlers
                    )
                )
        # Orbax raises what its parts do, and bare exceptions for TensorStore's.
        except Exception as error:
            raise SnapshotError(f"{doing}: {error}") from error


def _metadata(manager: Any, step: int) -> Any:
    import orbax.checkpoint as ocp

    args = ocp.args.Composite(metadata=ocp.args.JsonRestore())
    return manager.restore(step, args=args).metadata


def _said(manager: Any, step: int) -> Said:
    return decode(_metadata(manager, step))


def _summary(step: int, said: Said) -> Snapshot:
    records = [each for of in said.leaves.values() for each in of.values()]
    return Snapshot(
        step=step,
        nbytes=sum(
            math.prod(each["shape"]) * named_dtype(each["dtype"]).itemsize
            for each in records
        ),
        tokens=said.leaves["prefixes"]["tokens"]["shape"][0],
        plan=said.plan,
        library=said.library,
    )
