"""LAMB: AdamW's direction, rescaled per parameter to the parameter's own norm (ELECTRA Appendix A)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from electra_jax.optim import norms, stacks
from electra_jax.optim.adamw import adamw


def lamb(config_optimizer: ConfigDict, decay_mask: Callable) -> optax.GradientTransformation:
  """AdamW's direction u times |parameter| / |u| for parameters that decay; u for the others.

  A parameter or a direction of norm zero has ratio 1: a table that starts at zero can still move.

  Differs from optax.lamb, whose mask covers only the decay, so that layer-norm scales and biases move by their own
  norm. The LAMB authors' code excludes them from both.
  """
  return optax.chain(adamw(config_optimizer, decay_mask), optax.masked(scale_by_trust_ratio(), decay_mask))


def scale_by_trust_ratio() -> optax.GradientTransformation:
  """Each update times |parameter| / |update|, or 1 if either is zero (LAMB). optax's computes every norm twice."""

  def update(updates, params):
    leaves, structure = jax.tree.flatten(updates)
    squares = norms.squares_of_rows if stacks.is_stacked(params) else norms.squares
    lengths = [jnp.sqrt(square) for square in squares([*leaves, *jax.tree.leaves(params)])]
    ratios = [jnp.where((update == 0) | (parameter == 0), 1.0, parameter / update)
              for update, parameter in zip(lengths[:len(leaves)], lengths[len(leaves):], strict=True)]
    return structure.unflatten([leaf * ratio for leaf, ratio in zip(leaves, ratios, strict=True)])

  return optax.stateless(update)
