"""What changes in training? step, params, opt_state: created sharded, so no device ever holds the whole model."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from electra_jax import loss_scaling, sharding


class TrainState(NamedTuple):
  """`step` counts finished optimizer updates. No random state: every key is folded from (seed, step).

  The last three are None, and in no checkpoint, where the config does not ask for them.
  """

  step: Array
  params: PyTree
  opt_state: PyTree
  ema_params: PyTree = None  # train.ema_decay: the moving average of params
  loss_scale: loss_scaling.LossScale | None = None  # train.compute_dtype=float16
  skipped_in_a_row: Array | None = None  # int32, up to this step; where updates that are not finite are left out


def parts(config_train) -> dict:
  """The options of `abstract_state` and `init_state`, by the `train` branch of a resolved config."""
  is_half = config_train.compute_dtype == "float16"
  return {"ema": config_train.ema_decay > 0, "loss_scale": config_train.initial_loss_scale if is_half else None,
          "counts_skips": config_train.on_nonfinite != "stop" or is_half}


def abstract_state(init_params, tx: optax.GradientTransformation, mesh: Mesh, **options) -> TrainState:
  """Shapes, dtypes and shardings of the state (jax.ShapeDtypeStruct leaves), without an array being made.

  `init_params()` is traced only. Moments of the optimizer and averages live where their parameters do.

  Args:
    options: `parts` of the config; none = step, params and opt_state only.
  """
  with jax.set_mesh(mesh):
    shapes = jax.eval_shape(_creator(init_params, tx, **options))
  replicated = NamedSharding(mesh, PartitionSpec())
  params = sharding.parameter_shardings(shapes.params, mesh)
  opt_state = optax.tree_map_params(tx, lambda _, place: place, shapes.opt_state, params,
                                    transform_non_params=lambda _: replicated)
  ema = None if shapes.ema_params is None else params
  counts = jax.tree.map(lambda _: replicated, (shapes.loss_scale, shapes.skipped_in_a_row))
  return jax.tree.map(lambda shape, place: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=place),
                      shapes, TrainState(replicated, params, opt_state, ema, *counts))


def init_state(init_params, tx: optax.GradientTransformation, mesh: Mesh, **options) -> TrainState:
  """A new state, computed in place on its devices; options as in `abstract_state`."""
  shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract_state(init_params, tx, mesh, **options))
  with jax.set_mesh(mesh):
    return jax.jit(_creator(init_params, tx, **options), out_shardings=shardings)()


@functools.lru_cache(maxsize=1)
def _creator(init_params, tx: optax.GradientTransformation, **options) -> Callable[[], TrainState]:
  """`_create` of these, the same object each time: jax traces an object once, and a large model takes a second."""
  return functools.partial(_create, init_params, tx, **options)


def _create(init_params, tx: optax.GradientTransformation, ema: bool = False, loss_scale: float | None = None,
            counts_skips: bool = False) -> TrainState:
  params = init_params()
  return TrainState(jnp.zeros((), jnp.int32), params, tx.init(params), params if ema else None,
                    None if loss_scale is None else loss_scaling.start(loss_scale),
                    jnp.zeros((), jnp.int32) if counts_skips else None)


def with_params(state: TrainState, params: PyTree) -> TrainState:
  """The state with other parameters to start from; the average starts there, too, in arrays of its own."""
  return state._replace(params=params, ema_params=state.ema_params and jax.tree.map(jnp.copy, params))


def enter(phase, state: TrainState) -> TrainState:
  """The state as a phase of an objective wants it at its beginning."""
  return state._replace(params=phase.on_enter(state.params),
                        ema_params=state.ema_params and phase.on_enter(state.ema_params))


def evaluated_params(state: TrainState, ema: bool) -> PyTree:
  """The parameters that are evaluated (`eval.ema_params`): the last ones, or their average."""
  return state.ema_params if ema else state.params


def count_parameters(params: PyTree) -> int:
  """Number of parameters; shared tables count once because they exist once."""
  return sum(leaf.size for leaf in jax.tree.leaves(params))
