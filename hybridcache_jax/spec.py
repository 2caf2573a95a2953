"""CacheSpec: from layer records to groups, pools, grid, bytes and fingerprint."""

import dataclasses
import enum
import functools
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from hybridcache_jax._whole import whole
from hybridcache_jax.entry import Entry
from hybridcache_jax.forms import RULES, Form, Geometry
from hybridcache_jax.layer_references import check_references
from hybridcache_jax.layers import LayerSpec

DEFAULT_BLOCK_TOKENS = 32


class Part(enum.StrEnum):
    """The part of a layer that a pool stores."""

    LOCAL = "local"
    ENTRIES = "entries"
    ENTRIES_RAW = "entries_raw"
    INDEX = "index"
    INDEX_RAW = "index_raw"
    STATE = "state"


# Which owner field says whose part a layer reads.
_OWNER_OF = {
    Part.LOCAL: "kv_owner",
    Part.ENTRIES: "kv_owner",
    Part.INDEX: "index_owner",
}


@dataclasses.dataclass(frozen=True)
class PoolSpec:
    """One form of one group: the unit that has its own memory and free list.

    Attributes:
      name: for people and metrics, unique in a spec, for example ``swa_window.0``
        (form and group).
      form: label of every block of the pool.
      part: the part of its layers that it stores.
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
    part: Part
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
    """Layers that keep the same things, in the same layout.

    Attributes:
      kind: the layer record that they share, but for what they read of others:
        selection and owners of index keys and selections are left out.
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
        block_tokens: int | Mapping[Form, int] | None = None,
    ) -> "CacheSpec":
        """Groups layers and lays out their pools.

        Args:
          layers: one record per model layer.
          block_tokens: tokens per block; one number, or a mapping from form to
            number for the forms that shall differ from the default: the least
            multiple of the compression ratio that is at least 32.

        Raises:
          ValueError: for no layers, an owner that is not an earlier layer which
            owns entries, a selection that nothing ranks, or a block size that a
            compression ratio does not divide.
        """
        layers = tuple(layers)
        if isinstance(block_tokens, Mapping):
            for form in block_tokens:
                if not isinstance(form, Form):
                    raise ValueError(
                        f"block_tokens names {form!r}, which is no form; expected "
                        "members of hybridcache_jax.Form, such as Form.FULL_KV."
                    )
        if not layers:
            raise ValueError("A CacheSpec needs at least one layer, got none.")
        check_references(layers)
        by_kind: dict[LayerSpec, list[int]] = {}
        for index, layer in enumerate(layers):
            by_kind.setdefault(_kept(layer), []).append(index)
        groups, pools = [], []
        for number, (kind, members) in enumerate(by_kind.items()):
            first = len(pools)
            for part in _forms_left_by(kind):
                size = _block_size(block_tokens, part)
                pools.append(
                    PoolSpec(
                        name=f"{part.form.name.lower()}.{number}{part.suffix}",
                        form=part.form,
                        part=part.part,
                        group=number,
                        layers=tuple(members),
                        entry=part.entry,
                        geometry=part.geometry,
                        entry_tokens=size
                        if _one_per_block(part)
                        else part.entry_tokens,
                        block_tokens=size,
                    )
                )
            groups.append(
                GroupSpec(kind, tuple(members), tuple(range(first, len(pools))))
            )
        return cls(layers, tuple(groups), tuple(pools))

    @classmethod
    def from_hf_config(
        cls,
        config: str | os.PathLike[str] | Mapping[str, Any],
        *,
        cache_format: str = "bfloat16",
        block_tokens: int | Mapping[Form, int] | None = None,
    ) -> "CacheSpec":
        """The spec of a published model.

        Args:
          config: a ``config.json``, its folder, or its parsed content.
          cache_format: a dtype for all entries, or a quantised format by its name
            where the family has one (``"fp8"``, ``"fp8_fp4"``).
          block_tokens: as for :meth:`from_layers`.

        Raises:
          CheckpointError: if the file cannot be read, or describes a model that is
            not known.
          ValueError: for a cache format that the family does not have.
        """
        from hybridcache_jax.configs.registry import load_config

        layers = load_config(config).layers(cache_format)
        return cls.from_layers(layers, block_tokens=block_tokens)

    @functools.cached_property
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

    def find(self, layer: int, part: Part) -> tuple[int, int] | None:
        """Where a part that ``layer`` reads lies.

        Args:
          layer: model layer.
          part: the part.

        Returns:
          The pool and the position on its layer axis, following ``kv_owner`` and
          ``index_owner``; None if the layer has no such part.

        Raises:
          ValueError: if there is no such layer.
        """
        if not 0 <= layer < len(self.layers):
            raise ValueError(
                f"Layer {layer} does not exist; this model has {len(self.layers)} "
                f"layers, 0 to {len(self.layers) - 1}."
            )
        owner = getattr(self.layers[layer], _OWNER_OF.get(part, ""), None)
        layer = layer if owner is None else owner
        for index, pool in enumerate(self.pools):
            if pool.part == part and layer in pool.layers:
                return index, pool.layers.index(layer)
        return None


@dataclasses.dataclass(frozen=True)
class _Part:
    part: Part
    form: Form
    entry: Entry
    geometry: Geometry = Geometry()
    entry_tokens: int = 1

    @property
    def suffix(self) -> str:
        """Tells apart the two tails that one group can have."""
        return ".index" if self.part == Part.INDEX_RAW else ""


def _kept(layer: LayerSpec) -> LayerSpec:
    """The record without what the layer only reads of others."""
    return dataclasses.replace(layer, select=None, index_owner=None, select_owner=None)


def _forms_left_by(kind: LayerSpec):
    """Yields one part for each form that a layer kind leaves behind."""
    if kind.local is not None:
        geometry = Geometry(local=kind.local)
        yield _Part(Part.LOCAL, Form.SWA_WINDOW, kind.local.entry, geometry)
    if kind.global_ is not None:
        form = Form.FULL_KV if kind.global_.ratio == 1 else Form.COMPRESSED_KV
        yield from _history_parts(form, kind.global_, Part.ENTRIES, Part.ENTRIES_RAW)
    if kind.index is not None:
        form = Form.INDEXER_STATE
        yield from _history_parts(form, kind.index, Part.INDEX, Part.INDEX_RAW)
    if kind.recurrent is not None:
        yield _Part(Part.STATE, Form.RECURRENT_STATE, kind.recurrent.state)


def _history_parts(form: Form, history, part: Part, raw_part: Part):
    """The entries of a history, and the raw rows behind its boundary if any."""
    geometry = Geometry(ratio=history.ratio)
    yield _Part(part, form, history.entry, geometry, entry_tokens=history.ratio)
    if history.raw is not None:
        halo = history.overlap * history.ratio
        geometry = Geometry(ratio=history.ratio, halo=halo)
        yield _Part(raw_part, Form.UNCOMPRESSED_TAIL, history.raw, geometry)


def _one_per_block(part: _Part) -> bool:
    """A checkpoint stands for the whole block at whose end it was taken."""
    return RULES[part.form].exact


def _most_rows(pool: PoolSpec) -> int:
    """Most rows of a bounded form that are in use at once.

    The token that is being run is counted: a window holds it, a compressor pools it.
    """
    reach = RULES[pool.form].reach(pool.geometry)
    return 1 if RULES[pool.form].exact else reach + 1


def _block_size(wanted: int | Mapping[Form, int] | None, part: _Part) -> int:
    """Tokens per block of one pool."""
    per_entry = part.entry_tokens
    default = -(-DEFAULT_BLOCK_TOKENS // per_entry) * per_entry
    size = default if wanted is None else wanted
    if isinstance(wanted, Mapping):
        size = wanted.get(part.form, default)
    size = whole(f"block_tokens for {part.form.name}", size, least=1)
    if size % per_entry:
        raise ValueError(
            f"block_tokens for {part.form.name} must be a positive multiple of its "
            f"compression ratio {per_entry}, got {size}."
        )
    return size


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
