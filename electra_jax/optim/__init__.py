"""Optimizers: one chain from gradients to a parameter update (ELECTRA Table 4, RoBERTa Table 9).

Clip by global norm -> the inner rule, decoupled weight decay and (LAMB) trust ratio -> layer-wise learning rates
(fine-tuning) -> schedule -> minus.
"""

import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree
from ml_collections import ConfigDict

from electra_jax.errors import UserError, named
from electra_jax.optim import adamw, lamb, norms, schedules

OPTIMIZERS = {"lamb": lamb.lamb, "adamw": adamw.adamw}

# Full-match regex over parameter paths -> whether it decays and LAMB has a trust ratio for it. The released BERT and
# ELECTRA code exclude biases and layer norms. Each parameter must match exactly one row.
DECAYED = {
  r"(.*/)?(kernel|embedding)": True,
  r"(.*/)?(bias|output_bias|scale)": False,
}


def make(config_optimizer: ConfigDict, num_steps: int,
         scale: optax.GradientTransformation | None = None) -> tuple[optax.GradientTransformation, Callable]:
  """The optimizer of a run and its schedule, step -> learning rate, for the logs.

  Moments keep the parameters' shardings, and XLA makes the reductions of norms and ratios global.

  Args:
    config_optimizer: the resolved `optimizer` branch of the config.
    num_steps: optimizer updates of the whole run; the schedule ends there.
    scale: a transformation between the rule and the schedule: layer-wise learning rates in fine-tuning.
  """
  schedule = schedules.SCHEDULES[config_optimizer.schedule](config_optimizer, num_steps)
  clip = clip_by_global_norm(config_optimizer.clip_norm) if config_optimizer.clip_norm > 0 else optax.identity()
  rule = OPTIMIZERS[config_optimizer.name](config_optimizer, decay_mask)
  scaled = (rule,) if scale is None else (rule, scale)
  return optax.chain(clip, *scaled, optax.scale_by_learning_rate(schedule)), schedule


def clip_by_global_norm(max_norm: float) -> optax.GradientTransformation:
  """Scales gradients down to this global norm; shorter ones stay. optax's rule with the norm from `norms`."""

  def update(updates, _):
    norm = norms.global_norm(updates)
    return jax.tree.map(lambda x: jnp.where(norm < max_norm, x, (x / norm.astype(x.dtype)) * max_norm), updates)

  return optax.stateless(update)


def decay_mask(params: PyTree) -> PyTree:
  """True for each parameter that decays (and that LAMB's trust ratio scales), in a tree like `params`.

  Raises:
    UserError: a path matches no row of `DECAYED`, or several.

  >>> decay_mask({"layer_00": {"dense": {"kernel": 0.0, "bias": 0.0}, "layer_norm": {"scale": 0.0}}})
  {'layer_00': {'dense': {'bias': False, 'kernel': True}, 'layer_norm': {'scale': False}}}
  """
  leaves, structure = jax.tree_util.tree_flatten_with_path(params)
  paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
  rows = {path: [decays for rule, decays in DECAYED.items() if re.fullmatch(rule, path)] for path in paths}
  unclear = [path for path in paths if len(rows[path]) != 1]
  if unclear:
    raise UserError("The weight-decay rules do not match every parameter exactly once", got=named(unclear),
                    allowed="paths that match one row of " + " or ".join(DECAYED),
                    fix="give the parameter such a name, or add a row to DECAYED in electra_jax/optim/__init__.py")
  return jax.tree_util.tree_unflatten(structure, [rows[path][0] for path in paths])
