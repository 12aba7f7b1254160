"""One optimizer update, and the program that makes it: gradients over micro-batches, the optimizer, metrics."""

import functools
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from electra_jax import sharding
from electra_jax.objectives.base import Batch, Objective, Phase
from electra_jax.optim import norms, stacks
from electra_jax.training import nonfinite
from electra_jax.training.train_state import TrainState


def make_train_step(state: TrainState, compiler_options: dict | None = None, **update_arguments) -> jax.stages.Wrapped:
  """`update` for each batch along a leading axis, one program; the metrics have that axis, too.

  A small model's kernels take less time than their launches: so many updates (`train.steps_per_dispatch`) follow each
  other without the host. The new state takes the place of the old one, in its memory and with its shardings.
  """
  shardings = jax.tree.map(lambda leaf: leaf.sharding, state)

  def update_each(state: TrainState, batches: Batch) -> tuple[TrainState, dict]:
    return jax.lax.scan(functools.partial(update, **update_arguments), state, batches)

  return jax.jit(update_each, donate_argnums=0, out_shardings=(shardings, None), compiler_options=compiler_options)


def choose_layout(params: PyTree, num_updates: int, phases: tuple[Phase, ...], shared_dtype: jnp.dtype | None
                  ) -> stacks.Layout:
  """How updates take the state: on a GPU, parameters of one shape are one array.

  Only where a program makes so many updates that it is bound by the number of its kernels, devices hold all parameters
  and all are trained from the first update to the last.
  """
  is_whole = sharding.keeps_parameters_whole() and shared_dtype is None
  is_trained = [phase.trainable for phase in phases] == [".*"]
  is_small = sharding.platform() == "gpu" and num_updates > 1
  return stacks.make(params) if is_small and is_whole and is_trained else stacks.PLAIN


def update(state: TrainState, batch: Batch, *, objective: Objective, phase: Phase, tx: optax.GradientTransformation,
           rng: Array, accumulation_steps: int, shared_dtype: jnp.dtype | None = None,
           layout: stacks.Layout = stacks.PLAIN) -> tuple[TrainState, dict]:
  """One optimizer update over the global batch: (state, batch) -> (state, metrics as (sum, weight) pairs).

  The state comes and goes in `layout`.

  With `shared_dtype` (`optimizer.shard_state`) devices share the update (ZeRO, Rajbhandari et al. 2020): each keeps and
  updates a part of the parameters, and all are gathered once, the kernels in this type.
  """
  num_targets = jax.tree.map(lambda count: jnp.maximum(count, 1), objective.count_targets(batch))
  step_rng = jax.random.fold_in(rng, state.step)
  params = sharding.gather_parameters(layout.unstack(state.params), shared_dtype)
  (loss, pairs), gradients = accumulate(phase.loss, params, batch, step_rng, num_targets, accumulation_steps)
  gradients = sharding.split_gradients(gradients, shared_dtype)
  gradients = layout.stack(keep_trainable(gradients, phase.trainable))
  updates, opt_state = tx.update(gradients, state.opt_state, sharding.kept_parts(state.params, shared_dtype))
  updates = keep_trainable(updates, phase.trainable)
  new = state._replace(step=state.step + 1, params=optax.apply_updates(state.params, updates), opt_state=opt_state)
  one = jnp.ones(())
  pairs = {"loss": (loss, one), **pairs, "train/gradient_norm": (norms.global_norm(gradients), one)}
  return nonfinite.skip_if_nonfinite(state, new, pairs)


def accumulate(loss: Callable, params: PyTree, batch: Batch, rng: Array, num_targets: dict[str, Array],
               num_micro_batches: int) -> tuple[tuple[Array, dict], PyTree]:
  """((loss, metrics), gradients) of a batch, the sums over its micro-batches."""
  gradients_of = jax.value_and_grad(loss, has_aux=True)
  if num_micro_batches == 1:
    return gradients_of(params, batch, rng, True, num_targets)

  def add_micro_batch(total, index_and_rows):
    index, rows = index_and_rows
    return jax.tree.map(jnp.add, total, gradients_of(params, rows, jax.random.fold_in(rng, index), True, num_targets)
                        ), None

  # Row i goes to micro-batch i mod n: each device keeps its own rows, nothing moves between devices.
  micro_batches = jax.tree.map(lambda x: x.reshape(-1, num_micro_batches, *x.shape[1:]).swapaxes(0, 1), batch)
  first = jax.tree.map(lambda x: x[0], micro_batches)
  shapes = jax.eval_shape(lambda rows: gradients_of(params, rows, rng, True, num_targets), first)
  zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, jnp.float32 if shape.dtype.itemsize < 4 else shape.dtype),
                       shapes)
  return jax.lax.scan(add_micro_batch, zeros, (jnp.arange(num_micro_batches), micro_batches))[0]


def keep_trainable(tree: PyTree, trainable: str) -> PyTree:
  """Zeros for every parameter that a phase leaves alone; zero gradients by themselves would still decay."""
  pattern = re.compile(trainable)
  return jax.tree_util.tree_map_with_path(
    lambda path, leaf: leaf if pattern.fullmatch(sharding.path_name(path)) else jnp.zeros_like(leaf), tree)
