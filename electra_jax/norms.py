"""Which part of the networks moves how much? Norms of gradients and updates by group, for the logs."""

import re

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from electra_jax import sharding


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
  squares: dict[str, Array] = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    group = group_of(sharding.path_name(path))
    squares[group] = squares.get(group, 0.0) + jnp.sum(jnp.square(leaf.astype(jnp.float32)))
  return {f"{name}/{group}": (jnp.sqrt(square), jnp.ones(())) for group, square in squares.items()}
