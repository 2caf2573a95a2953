"""Parameters of a Flax module by name: their shapes, a module made of given ones."""

import functools
from collections.abc import Callable, Mapping
from typing import TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from hybridcache_jax.models.checkpoint import check_tensors

Make = Callable[..., nnx.Module]
"""``Make(config, rngs=..., param_dtype=...)``: a model class."""

Model = TypeVar("Model", bound=nnx.Module)


def parameter_shapes(make: Make, config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter, found without allocating any."""
    return {name: leaf.shape for name, leaf in parameter_structs(make, config).items()}


def parameter_structs(
    make: Make, config, param_dtype=jnp.float32
) -> dict[str, jax.ShapeDtypeStruct]:
    """Name, shape and dtype of every parameter, found without allocating any.

    A model may keep some parameters in a dtype of their own, whatever
    ``param_dtype``.
    """
    _, state = _abstract(make, config, param_dtype)
    return {
        _name(path): jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        for path, leaf in nnx.to_flat_state(state)
    }


def from_params(
    make: Callable[..., Model],
    config,
    params: Mapping[str, jax.Array],
    *,
    param_dtype=jnp.float32,
) -> Model:
    """A model made of given parameters; no random ones are ever allocated.

    Args:
      make: the model class.
      config: its settings.
      params: one array per name of :func:`parameter_shapes`.
      param_dtype: dtype in which floating-point parameters are kept; integer ones
        keep their own.

    Raises:
      CheckpointError: if a parameter is missing, unknown or of another shape.
    """
    graph, state = _abstract(make, config, param_dtype)
    check_tensors(
        _shapes(state),
        {name: tuple(array.shape) for name, array in params.items()},
        "the parameters given",
    )

    def fill(path, leaf):
        return leaf.replace(jnp.asarray(params[_name(path)], leaf.dtype))

    return nnx.merge(graph, nnx.map_state(fill, state))


# Loading asks for it several times, and tracing a large model takes seconds.
@functools.lru_cache(maxsize=2)
def _abstract(
    make: Callable[..., Model], config, param_dtype
) -> tuple[nnx.GraphDef[Model], nnx.State]:
    """The model's structure, and its state with shapes in place of arrays."""
    return nnx.split(
        nnx.eval_shape(lambda: make(config, rngs=nnx.Rngs(0), param_dtype=param_dtype))
    )


def _shapes(state: nnx.State) -> dict[str, tuple[int, ...]]:
    return {_name(path): tuple(leaf.shape) for path, leaf in nnx.to_flat_state(state)}


def _name(path) -> str:
    return ".".join(str(part) for part in path)
