"""CacheSpec: from layer records to groups, pools, grid, bytes and fingerprint."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence

import numpy as np

from hybridcache_jax.forms import RULES, Form, Geometry
from hybridcache_jax.layers import Entry, LayerSpec, named_dtype

DEFAULT_BLOCK_TOKENS = 32

# What the layer that an owner field names must own.
_OWNED = {
    "kv_owner": ("local", "global_"),
    "index_owner": ("index",),
    "select_owner": ("select",),
}


@dataclasses.dataclass(frozen=True)
class PoolSpec:
    """One form of one group: the unit that has its own memory and free list.

    Attributes:
      name: for people and metrics, unique in a spec, for example ``swa_window.0``
        (form and group).
      form: label of every block of the pool.
      group: index of the group it belongs to.
      layers: model layers whose entries it stores, ascending; the position in this
        tuple is the layer axis of the pool.
      entry: layout of one entry.
      geometry: ratio, halo and window, for the form's retention rule.
      entry_tokens: tokens that one entry stands for.
      block_tokens: token positions covered by one block.
    """

    name: str
    form: Form
    group: int
    layers: tuple[int, ...]
    entry: Entry
    geometry: Geometry
    entry_tokens: int
    block_tokens: int

    @property
    def block_entries(self) -> int:
        """Entries in one block."""
        return self.block_tokens // self.entry_tokens

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers of the pool."""
        return len(self.layers) * self.block_entries * self.entry.nbytes


@dataclasses.dataclass(frozen=True)
class GroupSpec:
    """Layers of equal kind and geometry.

    Attributes:
      kind: the layer record that they share.
      layers: model layers, ascending.
      pools: indices into ``CacheSpec.pools``, one per form the kind leaves.
    """

    kind: LayerSpec
    layers: tuple[int, ...]
    pools: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class CacheSpec:
    """Everything static about the cache of one model.  Hashable.

    Attributes:
      layers: one record per model layer.
      groups: layers of equal kind, in order of first appearance.
      pools: one per form of each group.
    """

    layers: tuple[LayerSpec, ...]
    groups: tuple[GroupSpec, ...]
    pools: tuple[PoolSpec, ...]

    def __hash__(self) -> int:
        # Every call of a jitted function hashes its static fields; equality looks at
        # all of the spec, so a part of it is enough here.
        return hash(tuple((pool.layers, pool.block_tokens) for pool in self.pools))

    @classmethod
    def from_layers(
        cls,
        layers: Sequence[LayerSpec],
        *,
        block_tokens: int | Mapping[Form, int] = DEFAULT_BLOCK_TOKENS,
    ) -> "CacheSpec":
        """Groups layers and lays out their pools.

        Args:
          layers: one record per model layer.
          block_tokens: tokens per block; one number, or a mapping from form to
            number for the forms that shall differ from the default.

        Raises:
          ValueError: for no layers, an owner that is not an earlier layer which
            owns entries, or a block size that a compression ratio does not divide.
        """
        layers = tuple(layers)
        if not layers:
            raise ValueError("A CacheSpec needs at least one layer, got none.")
        for index, layer in enumerate(layers):
            _check_owners(layers, index, layer)
        by_kind: dict[LayerSpec, list[int]] = {}
        for index, layer in enumerate(layers):
            by_kind.setdefault(layer, []).append(index)
        groups, pools = [], []
        for number, (kind, members) in enumerate(by_kind.items()):
            first = len(pools)
            for part in _forms_left_by(kind):
                size = (
                    block_tokens
                    if isinstance(block_tokens, int)
                    else block_tokens.get(part.form, DEFAULT_BLOCK_TOKENS)
                )
                _check_block(part.form, size, part.geometry.ratio)
                pools.append(
                    PoolSpec(
                        name=f"{part.form.name.lower()}.{number}{part.suffix}",
                        form=part.form,
                        group=number,
                        layers=tuple(members),
                        entry=part.entry,
                        geometry=part.geometry,
                        entry_tokens=part.entry_tokens,
                        block_tokens=size,
                    )
                )
            groups.append(
                GroupSpec(kind, tuple(members), tuple(range(first, len(pools))))
            )
        return cls(layers, tuple(groups), tuple(pools))

    @property
    def grid(self) -> int:
        """Tokens between resume points: lcm of block sizes and ratios."""
        return math.lcm(
            *(pool.block_tokens for pool in self.pools),
            *(pool.geometry.ratio for pool in self.pools),
        )

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256 of the whole spec; equal specs give equal fingerprints."""
        return hashlib.sha256(
            json.dumps(_plain(self), sort_keys=True).encode()
        ).hexdigest()

    def bytes_per_token(self) -> float:
        """Bytes that one more token of history adds, over all layers.

        Windows, tails and states do not grow and are not counted;
        :meth:`fixed_bytes` has them.
        """
        return sum(
            len(pool.layers) * pool.entry.nbytes / pool.entry_tokens
            for pool in self.pools
            if RULES[pool.form].grows
        )

    def fixed_bytes(self) -> int:
        """Most bytes of windows, tails and states that one sequence needs."""
        return sum(
            len(pool.layers) * _most_rows(pool) * pool.entry.nbytes
            for pool in self.pools
            if not RULES[pool.form].grows
        )

    def place(self, layer: int) -> tuple[tuple[int, int], ...]:
        """Where the entries that ``layer`` reads lie.

        Args:
          layer: model layer.

        Returns:
          Pairs ``(pool, position on the pool's layer axis)``, following
          ``kv_owner``.

        Raises:
          ValueError: if there is no such layer.
        """
        if not 0 <= layer < len(self.layers):
            raise ValueError(
                f"Layer {layer} does not exist; this model has {len(self.layers)} "
                f"layers, 0 to {len(self.layers) - 1}."
            )
        owner = self.layers[layer].kv_owner
        layer = layer if owner is None else owner
        return tuple(
            (index, pool.layers.index(layer))
            for index, pool in enumerate(self.pools)
            if layer in pool.layers
        )


def storage_dtype(name: str, backend: str) -> np.dtype:
    """The dtype in which a backend holds a plane; values are bit-cast at the edge.

    XLA's CPU backend converts a whole pool on every scatter into bfloat16 or
    float8 and writes unsigned integers of the same width in place (measured), so
    on CPU those are held as integers.

    Args:
      name: logical dtype.
      backend: ``"cpu"``, ``"gpu"`` or ``"tpu"``.

    Returns:
      A dtype of the same width.
    """
    dtype = named_dtype(name)
    if backend == "cpu" and dtype.isbuiltin == 2:
        return np.dtype(f"uint{8 * dtype.itemsize}")
    return dtype


@dataclasses.dataclass(frozen=True)
class _Part:
    form: Form
    entry: Entry
    geometry: Geometry = Geometry()
    entry_tokens: int = 1
    suffix: str = ""


def _forms_left_by(kind: LayerSpec):
    """Yields one part for each form that a layer kind leaves behind."""
    if kind.local is not None:
        yield _Part(Form.SWA_WINDOW, kind.local.entry, Geometry(local=kind.local))
    if kind.global_ is not None:
        form = Form.FULL_KV if kind.global_.ratio == 1 else Form.COMPRESSED_KV
        yield from _history_parts(form, kind.global_, "")
    if kind.index is not None:
        yield from _history_parts(Form.INDEXER_STATE, kind.index, ".index")
    if kind.recurrent is not None:
        yield _Part(Form.RECURRENT_STATE, kind.recurrent.state)


def _history_parts(form: Form, part, suffix: str):
    """The entries of a history, and the raw rows behind its boundary if any."""
    geometry = Geometry(ratio=part.ratio)
    yield _Part(form, part.entry, geometry, entry_tokens=part.ratio)
    if part.raw is not None:
        geometry = Geometry(ratio=part.ratio, halo=part.overlap * part.ratio)
        yield _Part(Form.UNCOMPRESSED_TAIL, part.raw, geometry, suffix=suffix)


def _most_rows(pool: PoolSpec) -> int:
    """Most rows of a bounded form that one sequence holds."""
    if RULES[pool.form].exact:
        return 1
    if pool.geometry.local is not None:
        return pool.geometry.local.size
    return pool.geometry.halo + pool.geometry.ratio - 1


def _check_owners(layers, index: int, layer: LayerSpec) -> None:
    for field, parts in _OWNED.items():
        owner = getattr(layer, field)
        if owner is None:
            continue
        if not 0 <= owner < index:
            raise ValueError(
                f"Layer {index}: {field}={owner} must be an earlier layer, "
                f"0 to {index - 1}."
            )
        if getattr(layers[owner], field) is not None:
            raise ValueError(
                f"Layer {index}: {field}={owner} is itself not an owner; name layer "
                f"{getattr(layers[owner], field)} instead."
            )
        if not any(getattr(layers[owner], part) for part in parts):
            raise ValueError(
                f"Layer {index}: {field}={owner} owns none of {', '.join(parts)}; name "
                f"a layer that does."
            )


def _check_block(form: Form, size: int, ratio: int) -> None:
    if size < 1 or size % ratio:
        raise ValueError(
            f"block_tokens for {form.name} must be a positive multiple of its "
            f"compression ratio {ratio}, got {size}."
        )


def _plain(value):
    """Dataclasses, enums and tuples as JSON data, with the type's name kept."""
    if dataclasses.is_dataclass(value):
        fields = {
            field.name: _plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
        return {"type": type(value).__name__, **fields}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
