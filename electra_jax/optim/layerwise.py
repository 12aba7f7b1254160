"""Layer-wise learning-rate decay of fine-tuning (ELECTRA Table 5, Appendix B)."""

import re

import jax
import optax
from jaxtyping import PyTree

from electra_jax import sharding


def factor(path: str, num_layers: int, decay: float) -> float:
  """The factor of a parameter's learning rate: 1 for a head, `decay` for the top layer of n, `decay` ** (n + 1) for the
  embeddings.

  Differs from the released ELECTRA code, which leaves one level unused between its head and the top layer, so that
  everything but the head learns at `decay` times this learning rate; the paper names a decay from layer to layer.

  Raises:
    ValueError: the path belongs to no head, layer or embedding.

  >>> [factor(f"encoder/{p}/kernel", 2, 0.5) for p in ("x_head/output", "layer_01/a", "layer_00/a", "embeddings/a")]
  [1.0, 0.5, 0.25, 0.125]
  """
  if re.search(r"(^|/)\w+_head/", path):
    return 1.0
  layer = re.search(r"(^|/)layer_(\d+)/", path)
  if layer:
    below_top = num_layers - 1 - int(layer.group(2))
  elif re.search(r"(^|/)embeddings(_project)?/", path):
    below_top = num_layers
  else:
    raise ValueError(f"The parameter {path} belongs to no head, layer or embedding; add it to optim/layerwise.py.")
  return decay ** (below_top + 1)


def factors(params: PyTree, num_layers: int, decay: float) -> PyTree:
  """`factor` of every parameter."""
  return jax.tree_util.tree_map_with_path(
    lambda path, _: factor(sharding.path_name(path), num_layers, decay), params)


def scale_by_layer(num_layers: int, decay: float) -> optax.GradientTransformation:
  """Multiplies each update by its parameter's factor; it has no state."""
  return optax.stateless(lambda updates, _: jax.tree.map(
    lambda update, times: update * times, updates, factors(updates, num_layers, decay)))
