"""How do float16 gradients keep their small values? The loss is multiplied by a scale that follows what overflows.

float16 ends at 65 504 and loses what is below 6e-8, where many gradients lie (Micikevicius et al. 2018). Parameters,
moments and the sums of the gradients stay float32; bfloat16 has float32's range and needs none of this.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

LEAST, MOST = 1.0, 2.0**24  # a run that needs less is diverging; more would gain nothing and near float32's end


class LossScale(NamedTuple):
  """Part of the training state, so a restart goes on with the scale that has been found."""

  scale: Array  # float32, a power of two if it began as one: then scaling is exact
  good_steps: Array  # int32, updates since it last changed


def start(scale: float) -> LossScale:
  """Before the first update."""
  return LossScale(jnp.float32(scale), jnp.zeros((), jnp.int32))


def scaled(loss: Callable, loss_scale: LossScale | None) -> Callable:
  """The loss times the scale, its metrics as they are; the loss itself where there is none."""
  if loss_scale is None:
    return loss

  def scaled_loss(*arguments):
    value, pairs = loss(*arguments)
    return value * loss_scale.scale, pairs

  return scaled_loss


def unscaled(tree: PyTree, loss_scale: LossScale | None) -> PyTree:
  """The loss and the gradients of `scaled`, divided by the scale."""
  return tree if loss_scale is None else jax.tree.map(lambda x: x / loss_scale.scale, tree)


def adjusted(loss_scale: LossScale, was_skipped: Array, growth_steps: int) -> LossScale:
  """Half the scale after an overflow, twice after `growth_steps` updates without one.

  >>> scale = adjusted(start(8.0), jnp.bool_(True), growth_steps=2)
  >>> [float((scale := adjusted(scale, jnp.bool_(False), growth_steps=2)).scale) for _ in range(4)]
  [4.0, 8.0, 8.0, 16.0]
  """
  grows = ~was_skipped & (loss_scale.good_steps + 1 >= growth_steps)
  scale = loss_scale.scale * jnp.where(was_skipped, 0.5, jnp.where(grows, 2.0, 1.0))
  return LossScale(jnp.clip(scale, LEAST, MOST), jnp.where(was_skipped | grows, 0, loss_scale.good_steps + 1))
