"""How are the norms of hundreds of tensors taken in a few dozen kernels? For clipping, LAMB's ratios and the logs."""

import itertools

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from electra_jax import sharding

MOST_OPERANDS = 64  # of one kernel


def squares(arrays: list[Array]) -> list[Float[Array, ""]]:
  """The sum of the squares of each array, in float32.

  A GPU needs about as long to start a kernel as to add up a bias or the partial sums of a matrix. There the rows of
  each matrix are added up by one kernel, and all sums that are equally many by a common one. Elsewhere, and where
  devices hold parts of the parameters, each array is left to the compiler.
  """
  squared = [jnp.square(array.astype(jnp.float32)) for array in arrays]
  if jax.default_backend() == "gpu" and sharding.keeps_parameters_whole():
    return in_common(squared)
  return [jnp.sum(array) for array in squared]


def in_common(arrays: list[Float[Array, "..."]]) -> list[Float[Array, ""]]:
  """The sum of each array: along the rows of each, then of all vectors of one length together.

  >>> [float(total) for total in in_common([jnp.ones(3), jnp.ones((3, 4)), jnp.ones(()), jnp.ones((2, 1))])]
  [3.0, 12.0, 1.0, 2.0]
  """
  vectors = [array.sum(-1).reshape(-1) if array.ndim > 1 else array.reshape(-1) for array in arrays]
  totals: dict[int, Array] = {}
  by_length = sorted(range(len(vectors)), key=lambda index: vectors[index].size)
  for _, alike in itertools.groupby(by_length, key=lambda index: vectors[index].size):
    alike = list(alike)
    for start in range(0, len(alike), MOST_OPERANDS):
      some = alike[start:start + MOST_OPERANDS]
      totals |= dict(zip(some, jnp.stack([vectors[index] for index in some]).sum(-1), strict=True))
  return [totals[index] for index in range(len(vectors))]


def global_norm(tree: PyTree) -> Float[Array, ""]:
  """The norm of all arrays taken as one vector."""
  return jnp.sqrt(sum(squares(jax.tree.leaves(tree))))


def clip_by_global_norm(max_norm: float) -> optax.GradientTransformation:
  """Scales gradients down to this global norm; shorter ones stay. optax's rule with the norm of this module."""

  def update(updates, _):
    norm = global_norm(updates)
    return jax.tree.map(lambda x: jnp.where(norm < max_norm, x, (x / norm.astype(x.dtype)) * max_norm), updates)

  return optax.stateless(update)


def scale_by_trust_ratio() -> optax.GradientTransformation:
  """Each update times |parameter| / |update|, or 1 where either is zero (LAMB). optax's takes every norm twice."""

  def update(updates, params):
    leaves, structure = jax.tree.flatten(updates)
    norms = jnp.sqrt(jnp.stack(squares([*leaves, *jax.tree.leaves(params)]))).reshape(2, -1)
    ratios = jnp.where((norms == 0).any(0), 1.0, norms[1] / norms[0])
    return structure.unflatten([leaf * ratio for leaf, ratio in zip(leaves, ratios, strict=True)])

  return optax.stateless(update)
