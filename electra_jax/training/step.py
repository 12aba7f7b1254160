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
from electra_jax.optim import flat_biases, norms
from electra_jax.training import nonfinite
from electra_jax.training.train_state import TrainState


def make_train_step(state: TrainState, **update_arguments) -> jax.stages.Wrapped:
  """`update` for each batch along a leading axis, one program; the metrics have that axis, too.

  A small model's kernels take less time than their launches: so many updates (`train.steps_per_dispatch`) follow each
  other without the host. The new state takes the place of the old one, in its memory and with its shardings.
  """
  shardings = jax.tree.map(lambda leaf: leaf.sharding, state)

  def update_each(state: TrainState, batches: Batch) -> tuple[TrainState, dict]:
    num_updates = len(jax.tree.leaves(batches)[0])
    layout = choose_layout(state.params, num_updates, update_arguments["phase"], update_arguments.get("shared_dtype"))
    flat_state, metrics = jax.lax.scan(functools.partial(update, layout=layout, **update_arguments),
                                       layout.flatten(state), batches)
    return layout.unflatten(flat_state), metrics

  return jax.jit(update_each, donate_argnums=0, out_shardings=(shardings, None))


def choose_layout(params: PyTree, num_updates: int, phase: Phase, shared_dtype: jnp.dtype | None
                   ) -> flat_biases.Layout:
  """What the state looks like while so many updates follow each other: on a GPU, all biases are one vector.

  Not where devices keep parts of the parameters or a phase leaves some alone; nor for a single update, which would
  have to cut each bias and its moments out again.
  """
  is_whole = sharding.keeps_parameters_whole() and shared_dtype is None and phase.trainable == ".*"
  is_gpu = sharding.platform() == "gpu"
  return flat_biases.make(params) if is_gpu and is_whole and num_updates > 1 else flat_biases.PLAIN


def update(state: TrainState, batch: Batch, *, objective: Objective, phase: Phase, tx: optax.GradientTransformation,
           rng: Array, accumulation_steps: int, shared_dtype: jnp.dtype | None = None,
           layout: flat_biases.Layout = flat_biases.PLAIN) -> tuple[TrainState, dict]:
  """One optimizer update over the global batch: (state, batch) -> (state, metrics as (sum, weight) pairs).

  The state comes and goes in `layout`.

  With `shared_dtype` (`optimizer.shard_state`) devices share the update (ZeRO, Rajbhandari et al. 2020): each keeps and
  updates a part of the parameters, and all are gathered once, the kernels in this type.
  """
  num_targets = jax.tree.map(lambda count: jnp.maximum(count, 1), objective.count_targets(batch))
  step_rng = jax.random.fold_in(rng, state.step)
  params = sharding.gather_parameters(layout.unflatten(state.params), shared_dtype)
  (loss, pairs), gradients = accumulate(phase.loss, params, batch, step_rng, num_targets, accumulation_steps)
  gradients = sharding.split_gradients(gradients, shared_dtype)
  gradients = layout.flatten(keep_trainable(gradients, phase.trainable))
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
