"""Adam with decoupled weight decay, with or without bias correction (RoBERTa section 2.4)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict


def adamw(config_optimizer: ConfigDict, decay_mask: Callable) -> optax.GradientTransformation:
  """Adam's direction plus weight_decay_rate * parameter where the mask is True, without learning rate or minus."""
  return optax.chain(adam_direction(config_optimizer),
                     optax.add_decayed_weights(config_optimizer.weight_decay_rate, mask=decay_mask))


def adam_direction(config_optimizer: ConfigDict) -> optax.GradientTransformation:
  """m / (sqrt(v) + epsilon), computed in float32; the inner rule of AdamW and LAMB.

  With `bias_correction` the moments are first divided by 1 - beta**t (the Adam paper). Without it, as in the released
  BERT and ELECTRA code, the first update is (1 - beta1) / sqrt(1 - beta2) times as long: 3.162 at 0.9 and 0.999, which
  warm-up absorbs. Both have the same state.
  """
  c = config_optimizer
  if c.bias_correction:
    return optax.scale_by_adam(c.beta1, c.beta2, c.epsilon, mu_dtype=jnp.float32)

  def update(updates, state, params=None):
    del params
    mu = jax.tree.map(lambda g, m: c.beta1 * m + (1 - c.beta1) * g, updates, state.mu)
    nu = jax.tree.map(lambda g, v: c.beta2 * v + (1 - c.beta2) * g * g, updates, state.nu)
    direction = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + c.epsilon), mu, nu)
    return direction, optax.ScaleByAdamState(optax.safe_increment(state.count), mu, nu)

  return optax.GradientTransformation(optax.scale_by_adam(mu_dtype=jnp.float32).init, update)
