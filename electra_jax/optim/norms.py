"""Norms of parameter trees: global and per array, for clipping, LAMB's ratios and the logs."""

import itertools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from electra_jax import sharding

MOST_OPERANDS = 64  # of one kernel
LARGE = 2**20  # entries, which take longer to read than a kernel takes to start


def squares(arrays: list[Array]) -> list[Float[Array, ""]]:
  """The sum of the squares of each array, in float32.

  A GPU takes longer to start a kernel than to add up a bias or a small matrix, so there arrays of one shape share
  kernels. On other devices, and if each holds only a part of the parameters, arrays are left to the compiler.
  """
  squared = [jnp.square(array.astype(jnp.float32)) for array in arrays]
  if sharding.platform() == "gpu" and sharding.keeps_parameters_whole():
    return in_common(squared)
  return [jnp.sum(array) for array in squared]


def squares_of_rows(arrays: list[Float[Array, "rows ..."]]) -> list[Float[Array, "rows ..."]]:
  """The sum of the squares of each row of each array, in float32, with axes of one entry behind the rows'."""
  return [jnp.sum(jnp.square(array.astype(jnp.float32)), range(1, array.ndim), keepdims=True) for array in arrays]


def in_common(arrays: list[Float[Array, "..."]]) -> list[Float[Array, ""]]:
  """The sum of each array: those of one shape together, after the rows of large ones have been summed.

  >>> [float(total) for total in in_common([jnp.ones(3), jnp.ones((3, 4)), jnp.ones(()), jnp.ones((2, 1))])]
  [3.0, 12.0, 1.0, 2.0]
  """
  parts = [array.sum(-1) if array.size > LARGE else array for array in arrays]
  totals: dict[int, Array] = {}
  by_shape = sorted(range(len(parts)), key=lambda index: parts[index].shape)
  for _, alike in itertools.groupby(by_shape, key=lambda index: parts[index].shape):
    alike = list(alike)
    for start in range(0, len(alike), MOST_OPERANDS):
      some = alike[start:start + MOST_OPERANDS]
      stacked = jnp.stack([parts[index] for index in some]).reshape(len(some), -1)
      totals |= dict(zip(some, stacked.sum(-1), strict=True))
  return [totals[index] for index in range(len(parts))]


def global_norm(tree: PyTree) -> Float[Array, ""]:
  """The norm of all arrays taken as one vector."""
  return jnp.sqrt(sum(squares(jax.tree.leaves(tree))))
