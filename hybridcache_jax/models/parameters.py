"""Parameters of a Flax module by name: their shapes, and a module made of given ones."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from hybridcache_jax.models.checkpoint import check_tensors

Make = Callable[..., nnx.Module]
"""``Make(config, rngs=..., param_dtype=...)``: a model class."""


def parameter_shapes(make: Make, config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter, found without allocating any."""
    return _shapes(nnx.split(_abstract(make, config, jnp.float32))[1])


def from_params(
    make: Make, config, params: Mapping[str, jax.Array], *, param_dtype=jnp.float32
):
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
    graph, state = nnx.split(_abstract(make, config, param_dtype))
    check_tensors(
        _shapes(state),
        {name: tuple(array.shape) for name, array in params.items()},
        "the parameters given",
    )

    def fill(path, leaf):
        return leaf.replace(jnp.asarray(params[_name(path)], leaf.dtype))

    return nnx.merge(graph, nnx.map_state(fill, state))


def _abstract(make: Make, config, param_dtype):
    """The model with shapes in place of arrays."""
    return nnx.eval_shape(
        lambda: make(config, rngs=nnx.Rngs(0), param_dtype=param_dtype)
    )


def _shapes(state: nnx.State) -> dict[str, tuple[int, ...]]:
    return {_name(path): tuple(leaf.shape) for path, leaf in nnx.to_flat_state(state)}


def _name(path) -> str:
    return ".".join(str(part) for part in path)
