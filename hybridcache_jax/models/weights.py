"""From stored tensors to parameters: which spelling, whether all fits, one by one."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.models.checkpoint import TensorSource, refuse_misfits, shown
from hybridcache_jax.models.recipes import Recipe, renamed

Structs = Mapping[str, jax.ShapeDtypeStruct]
"""Shape and dtype by parameter name."""

Recipes = Mapping[str, Recipe]
"""How each parameter is made of stored tensors, by parameter name."""


def spellings(structs: Structs, published: Recipes) -> tuple[Recipes, ...]:
    """The ways in which a checkpoint may store the parameters.

    Args:
      structs: what the model needs.
      published: recipes of the publisher's spelling, for the parameters that it stores
        otherwise; may be empty.  A checkpoint may mix both, parameter by parameter.

    Returns:
      Recipes for all parameters: the model's own names, then the publisher's.
    """
    own = {name: renamed(name) for name in structs}
    return (own, {**own, **published}) if published else (own,)


def integer_names(structs: Structs, ways: tuple[Recipes, ...]) -> frozenset[str]:
    """Names under which parameters that are integers may be stored."""
    return frozenset(
        stored
        for recipes in ways
        for name, recipe in recipes.items()
        if jnp.issubdtype(structs[name].dtype, jnp.integer)
        for stored in recipe.names
    )


def read_parameters(
    structs: Structs,
    ways: tuple[Recipes, ...],
    source: TensorSource,
    where: str,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, jax.Array]:
    """Reads, converts and places one parameter after the other.

    Args:
      structs: what the model needs.
      ways: the spellings to try; the one that the stored names fit best is taken.
      source: the stored tensors.
      where: the checkpoint, for messages.
      on_progress: told the parameters placed so far and their number.

    Raises:
      CheckpointError: if a tensor is missing, unexpected or of a wrong shape; all of
        them are listed, and nothing has been placed yet.  Also if a tensor of integers
        holds others than the parameter can.
    """
    best = min(ways, key=lambda way: _misfits(way, source.shapes))
    recipes = _mixed(best, ways, source.shapes)
    _check(structs, recipes, source.shapes, where)
    params = {}
    for name, struct in structs.items():
        recipe = recipes[name]
        tensor = recipe.make([source.read(stored) for stored in recipe.names])
        if jnp.issubdtype(struct.dtype, jnp.integer):
            tensor = _integers(name, tensor, struct.dtype, where)
        params[name] = jnp.asarray(tensor, struct.dtype)
        on_progress(len(params), len(structs))
    return params


def _mixed(best: Recipes, ways: tuple[Recipes, ...], stored) -> Recipes:
    """The best spelling, but another where only that one's tensors are there."""
    return {
        name: next(
            (
                way[name]
                for way in (best, *ways)
                if all(part in stored for part in way[name].names)
            ),
            recipe,
        )
        for name, recipe in best.items()
    }


def _misfits(recipes: Recipes, stored: Mapping[str, tuple[int, ...]]) -> int:
    wanted = {name for recipe in recipes.values() for name in recipe.names}
    return len(wanted ^ stored.keys())


def _check(
    structs: Structs,
    recipes: Recipes,
    stored: Mapping[str, tuple[int, ...]],
    where: str,
) -> None:
    """Lists everything that does not fit in one error."""
    unexpected = dict(stored)
    missing: dict[str, None] = {}
    wrong: list[str] = []
    made: dict[tuple, tuple[int, ...] | str] = {}
    for name, struct in structs.items():
        recipe = recipes[name]
        absent = [part for part in recipe.names if part not in stored]
        for part in recipe.names:
            unexpected.pop(part, None)
        if absent:
            alone = f" {shown(struct.shape)}" if len(recipe.names) == 1 else ""
            missing.update(dict.fromkeys(part + alone for part in absent))
            continue
        # Layers are alike: what one of them makes of its tensors holds for all.
        key = (recipe.make, tuple(stored[part] for part in recipe.names))
        if key not in made:
            made[key] = _made_shape(*key)
        if made[key] != struct.shape:
            wrong.append(_complaint(name, recipe, struct.shape, made[key]))
    refuse_misfits(
        where,
        missing=tuple(missing),
        unexpected=[f"{name} {shown(shape)}" for name, shape in unexpected.items()],
        wrong=wrong,
    )


def _made_shape(make, shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...] | str:
    """Shape of what a recipe makes of tensors of these shapes, or why it cannot."""
    # Zeros that take no memory; what is made of them takes a byte per element.
    tensors = [np.broadcast_to(np.zeros((), np.int8), shape) for shape in shapes]
    try:
        return make(tensors).shape
    except (ValueError, IndexError) as error:
        return str(error)


def _complaint(
    name: str, recipe: Recipe, expected: tuple[int, ...], made: tuple[int, ...] | str
) -> str:
    count = len(recipe.names)
    parts = recipe.names[0] if count == 1 else f"{name} of {count} tensors"
    if isinstance(made, str):
        return f"{parts} cannot be made ({made}), expected {shown(expected)}"
    return f"{parts} is {shown(made)}, expected {shown(expected)}"


def _integers(name: str, tensor: np.ndarray, dtype, where: str) -> np.ndarray:
    """The tensor in the parameter's dtype, refused where that would change it."""
    converted = tensor.astype(dtype)
    if (converted != tensor).any():
        raise CheckpointError(
            f"Tensor {name!r} of {where} holds numbers that do not fit {dtype}. The "
            "file is damaged; fetch it anew."
        )
    return converted
