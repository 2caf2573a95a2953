"""Whether what layers read of each other exists: owners and selections."""

from collections.abc import Sequence

from hybridcache_jax.layers import LayerSpec

# What the layer that an owner field names must own.
_OWNED = {
    "kv_owner": ("local", "global_"),
    "index_owner": ("index",),
    "select_owner": ("select",),
}


def check_references(layers: Sequence[LayerSpec]) -> None:
    """Refuses layers that read what no layer keeps.

    Args:
      layers: one record per model layer.

    Raises:
      ValueError: for an owner that is not an earlier layer which owns what is read,
        or a selection without entries, without index keys, or in units that the
        ratios do not divide.
    """
    for index, layer in enumerate(layers):
        _check_owners(layers, index, layer)
        _check_selection(layers, index, layer)


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


def _check_selection(layers, index: int, layer: LayerSpec) -> None:
    """Whether there is something to select from, something to rank it by, in units."""
    entries = layer.global_
    if entries is None and layer.kv_owner is not None:
        entries = layers[layer.kv_owner].global_
    if layer.select_owner is not None:
        select = layers[layer.select_owner].select
    else:
        select = layer.select
    if select is None:
        return
    where = f"Layer {index}"
    if entries is None:
        raise ValueError(f"{where} selects, but has no entries to select from.")
    if select.unit % entries.ratio:
        raise ValueError(
            f"{where}: a unit of {select.unit} tokens must be a multiple of the "
            f"entries' ratio {entries.ratio}."
        )
    if layer.select_owner is not None:
        _check_groups(layers, index, entries, select)
        return
    keys = layer.index
    if layer.index_owner is not None:
        keys = layers[layer.index_owner].index
    if keys is None:
        raise ValueError(
            f"{where} selects, but nothing ranks its entries; give it index keys or an "
            "index_owner, or let it reuse a selection (select_owner)."
        )
    if select.unit % keys.ratio:
        raise ValueError(
            f"{where}: a unit of {select.unit} tokens must be a multiple of the index "
            f"keys' ratio {keys.ratio}."
        )


def _check_groups(layers, index: int, entries, select) -> None:
    """A selection per KV head is read by layers with as many."""
    if select.per != "kv_group":
        return
    owner = layers[layers[index].select_owner]
    kept = owner.global_ or layers[owner.kv_owner].global_
    heads = [part.entry.key_planes[0].heads for part in (entries, kept)]
    if heads[0] != heads[1]:
        raise ValueError(
            f"Layer {index} has {heads[0]} KV heads and reads a selection made for "
            f"{heads[1]}; they must be as many."
        )
