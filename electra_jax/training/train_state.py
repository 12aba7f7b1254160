"""The training state: step, params, opt_state; created sharded, so no device ever holds the whole model."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from electra_jax import sharding


class TrainState(NamedTuple):
  """`step` counts finished optimizer updates. No random state: every key is folded from (seed, step)."""

  step: Any  # int32 []; of every field an array, or in a tree of the same form its shape or place
  params: PyTree
  opt_state: PyTree
  skipped_in_a_row: Any = np.zeros((), np.int32)  # updates up to this step that were not finite


def abstract_state(init_params: Callable[[], PyTree], tx: optax.GradientTransformation, mesh: Mesh,
                   shard_state: bool = False) -> TrainState:
  """Shapes, dtypes and shardings of the state (jax.ShapeDtypeStruct leaves), without an array being made.

  `init_params()` is traced only. Moments of the optimizer live where their parameters do, see
  `sharding.parameter_shardings` with and without `shard_state`.
  """
  with jax.set_mesh(mesh):
    shapes = jax.eval_shape(_creator(init_params, tx))  # ty: ignore[invalid-argument-type] - it is hashable
  replicated = NamedSharding(mesh, PartitionSpec())
  params = sharding.parameter_shardings(shapes.params, mesh, shard_state)
  opt_state = optax.tree_map_params(tx, lambda _, place: place, shapes.opt_state, params,
                                    transform_non_params=lambda _: replicated)
  return jax.tree.map(lambda shape, place: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=place),
                      shapes, TrainState(replicated, params, opt_state, replicated))


def init_state(init_params: Callable[[], PyTree], tx: optax.GradientTransformation, mesh: Mesh,
               shard_state: bool = False) -> TrainState:
  """A new state, computed in place on its devices; see `abstract_state`."""
  shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract_state(init_params, tx, mesh, shard_state))
  with jax.set_mesh(mesh):
    create = _creator(init_params, tx)  # ty: ignore[invalid-argument-type]
    return jax.jit(create, out_shardings=shardings)()


@functools.lru_cache(maxsize=1)
def _creator(init_params: Callable[[], PyTree], tx: optax.GradientTransformation) -> Callable[[], TrainState]:
  """`_create` of these, the same object each time: jax traces an object once, and a large model takes a second."""
  return functools.partial(_create, init_params, tx)


def _create(init_params: Callable[[], PyTree], tx: optax.GradientTransformation) -> TrainState:
  params = init_params()
  return TrainState(jnp.zeros((), jnp.int32), params, tx.init(params), jnp.zeros((), jnp.int32))


def count_parameters(params: PyTree) -> int:
  """Number of parameters; shared tables count once because they exist once."""
  return sum(leaf.size for leaf in jax.tree.leaves(params))
