"""Norms of parameter trees: global, per array, per group; for clipping, LAMB's ratios and the logs."""

import itertools
import re

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from electra_jax import sharding

MOST_OPERANDS = 64  # of one kernel
LARGE = 2**20  # entries: reading so many takes longer than starting a kernel


def squares(arrays: list[Array]) -> list[Float[Array, ""]]:
  """The sum of the squares of each array, in float32.

  A GPU needs longer to start a kernel than to add up a bias or a small matrix, so there arrays of one shape share
  kernels. Elsewhere, and where devices hold parts of the parameters, each array is left to the compiler.
  """
  squared = [jnp.square(array.astype(jnp.float32)) for array in arrays]
  if jax.default_backend() == "gpu" and sharding.keeps_parameters_whole():
    return in_common(squared)
  return [jnp.sum(array) for array in squared]


def in_common(arrays: list[Float[Array, "..."]]) -> list[Float[Array, ""]]:
  """The sum of each array: all of one shape together, of large ones first the rows of each.

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


def group_of(path: str) -> str:
  """The group of a parameter: its network and the part of it.

  >>> group_of("discriminator/layer_07/attention/query/kernel"), group_of("generator/embeddings_project/bias")
  ('discriminator_layers', 'generator_embeddings')
  >>> group_of("generator/mlm_head/output_bias")
  'generator_heads'
  """
  network, _, rest = path.partition("/")
  part = "layers" if re.match(r"layer_\d", rest) else "embeddings" if rest.startswith("embeddings") else "heads"
  return f"{network}_{part}"


def by_group(tree: PyTree, name: str) -> dict[str, tuple[Array, Array]]:
  """{NAME/GROUP: (norm, 1)}: each array is read once, and a number a group is kept."""
  named = jax.tree_util.tree_leaves_with_path(tree)
  totals: dict[str, Array] = {}
  for (path, _), square in zip(named, squares([leaf for _, leaf in named]), strict=True):
    group = group_of(sharding.path_name(path))
    totals[group] = totals.get(group, 0.0) + square
  return {f"{name}/{group}": (jnp.sqrt(total), jnp.ones(())) for group, total in totals.items()}


def of_update(gradients: PyTree, updates: PyTree, per_group: bool) -> dict[str, tuple[Array, Array]]:
  """Metric pairs of an update: the norm of its gradients; with `per_group` also those of each group."""
  pairs = {"train/gradient_norm": (global_norm(gradients), jnp.ones(()))}
  if per_group:
    pairs |= by_group(gradients, "gradient_norm") | by_group(updates, "update_norm")
  return pairs
