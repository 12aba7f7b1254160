"""One optimizer update, and the program that makes it: gradients over micro-batches, the optimizer, metrics."""

import functools
import re

import jax
import jax.numpy as jnp
import optax

from electra_jax import averaging, dispatches, loss_scaling, nonfinite, norms, sharding, wall_clock
from electra_jax.train_state import TrainState


def make_train_step(state: TrainState, num_updates: int = 1, **update_arguments):
  """`update`, compiled; the new state takes the place of the old one, in its memory and with its shardings.

  With more than one update, batch and metrics have a leading axis of updates.
  """
  shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
  step = functools.partial(update, **update_arguments)
  return jax.jit(step if num_updates == 1 else dispatches.one_after_another(step), donate_argnums=0,
                 out_shardings=(shardings, None))


def step_options(config) -> dict:
  """What the config asks of `update` besides its parts."""
  return {"skip_nonfinite": config.train.on_nonfinite != "stop", "ema_decay": config.train.ema_decay,
          "growth_steps": config.train.loss_scale_growth_steps, "norms_per_group": config.log.norms_per_group}


def update(state: TrainState, batch, seconds=None, *, objective, phase, tx, rng, accumulation_steps: int,
           skip_nonfinite: bool = False, ema_decay: float = 0.0, growth_steps: int = 2000,
           norms_per_group: bool = False):
  """One optimizer update over the global batch: (state, batch) -> (state, metrics as (sum, weight) pairs).

  `seconds`, of `wall_clock.Budget`, is what a rate that goes by time needs; the other options are those of the config.
  """
  num_targets = jax.tree.map(lambda count: jnp.maximum(count, 1), objective.count_targets(batch))
  step_rng = jax.random.fold_in(rng, state.step)
  gradients_of = jax.value_and_grad(loss_scaling.scaled(phase.loss, state.loss_scale), has_aux=True)

  def add_micro_batch(total, index_and_rows):
    index, rows = index_and_rows
    micro_rng = jax.random.fold_in(step_rng, index)
    return jax.tree.map(jnp.add, total, gradients_of(state.params, rows, micro_rng, True, num_targets)), None

  if accumulation_steps == 1:
    (loss, pairs), gradients = gradients_of(state.params, batch, step_rng, True, num_targets)
  else:
    # Row i goes to micro-batch i mod n: each device keeps its own rows, nothing moves between devices.
    micro_batches = jax.tree.map(lambda x: x.reshape(-1, accumulation_steps, *x.shape[1:]).swapaxes(0, 1), batch)
    first = jax.tree.map(lambda x: x[0], micro_batches)
    shapes = jax.eval_shape(lambda rows: gradients_of(state.params, rows, step_rng, True, num_targets), first)
    zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    numbered = (jnp.arange(accumulation_steps), micro_batches)
    ((loss, pairs), gradients), _ = jax.lax.scan(add_micro_batch, zeros, numbered)

  loss, gradients = loss_scaling.unscaled((loss, gradients), state.loss_scale)
  gradients = keep_trainable(gradients, phase.trainable)
  timing = {} if seconds is None else {"seconds": seconds}
  updates, opt_state = tx.update(gradients, state.opt_state, state.params, **timing)
  updates = keep_trainable(updates, phase.trainable)
  params = optax.apply_updates(state.params, updates)
  one = jnp.ones(())
  pairs = {"loss": (loss, one), **pairs, "train/gradient_norm": (norms.global_norm(gradients), one)}
  pairs |= {} if seconds is None else wall_clock.pairs(opt_state)
  if norms_per_group:
    pairs |= norms.by_group(gradients, "gradient_norm") | norms.by_group(updates, "update_norm")
  new = state._replace(step=state.step + 1, params=params, opt_state=opt_state)
  if state.ema_params is not None:
    new = new._replace(ema_params=averaging.follow(state.ema_params, params, ema_decay, state.step))
  if skip_nonfinite or state.loss_scale is not None:
    new, pairs = nonfinite.skip_if_nonfinite(state._replace(step=new.step), new, pairs)
    was_skipped = pairs[nonfinite.SKIPPED][0] > 0
  if state.skipped_in_a_row is not None:
    new = new._replace(skipped_in_a_row=nonfinite.count_in_a_row(state.skipped_in_a_row, was_skipped))
  if state.loss_scale is not None:
    new = new._replace(loss_scale=loss_scaling.adjusted(state.loss_scale, was_skipped, growth_steps))
    pairs["train/loss_scale"] = (state.loss_scale.scale, one)
  return new, pairs


def keep_trainable(tree, trainable: str):
  """Zeros for every parameter that a phase leaves alone; zero gradients by themselves would still decay."""
  pattern = re.compile(trainable)
  return jax.tree_util.tree_map_with_path(
    lambda path, leaf: leaf if pattern.fullmatch(sharding.path_name(path)) else jnp.zeros_like(leaf), tree)
