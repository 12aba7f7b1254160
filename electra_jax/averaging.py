"""What is the moving average of the parameters? A second copy that follows them slowly and has less noise."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree


def follow(average: PyTree, params: PyTree, decay: float, step: Array) -> PyTree:
  """The average after update `step` (from 0): decay * average + (1 - decay) * params.

  Early on the decay is (1 + step) / (10 + step), if that is less: the random start is forgotten at once.

  >>> [round(float(follow(jnp.zeros(()), jnp.ones(()), 0.99, step)), 2) for step in (0, 90, 10_000)]
  [0.9, 0.09, 0.01]
  """
  rate = 1 - jnp.minimum(decay, (1 + step) / (10 + step))
  return jax.tree.map(lambda old, new: old + rate * (new - old), average, params)
