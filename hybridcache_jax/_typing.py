"""Names for arrays in annotations."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

# An array of a pytree that the host fills with NumPy and a step sees traced.
AnyArray = jax.Array | np.ndarray

# An array whose own namespace (``__array_namespace__``) does the work: NumPy on the
# host, JAX inside a compiled step.  No static type describes both.
Array = Any

# Token ids as the host passes them around.
TokenIds = Sequence[int] | np.ndarray
