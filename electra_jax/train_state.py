"""What changes in training? step, params, opt_state: created sharded, so no device ever holds the whole model."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from electra_jax import sharding


class TrainState(NamedTuple):
  """`step` counts finished optimizer updates. No random state: every key is folded from (seed, step)."""

  step: Array
  params: PyTree
  opt_state: PyTree


def abstract_state(init_params, tx: optax.GradientTransformation, mesh: Mesh) -> TrainState:
  """Shapes, dtypes and shardings of the state (jax.ShapeDtypeStruct leaves), without an array being made.

  `init_params()` is traced only. Moments of the optimizer live where their parameters do.
  """
  shapes = jax.eval_shape(lambda: _create(init_params, tx))
  replicated = NamedSharding(mesh, PartitionSpec())
  params = sharding.parameter_shardings(shapes.params, mesh)
  opt_state = optax.tree_map_params(tx, lambda _, place: place, shapes.opt_state, params,
                                    transform_non_params=lambda _: replicated)
  return jax.tree.map(lambda shape, place: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=place),
                      shapes, TrainState(replicated, params, opt_state))


def init_state(init_params, tx: optax.GradientTransformation, mesh: Mesh) -> TrainState:
  """A new state, computed in place on its devices."""
  shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract_state(init_params, tx, mesh))
  with jax.set_mesh(mesh):
    return jax.jit(lambda: _create(init_params, tx), out_shardings=shardings)()


def _create(init_params, tx: optax.GradientTransformation) -> TrainState:
  params = init_params()
  return TrainState(jnp.zeros((), jnp.int32), params, tx.init(params))


def count_parameters(params: PyTree) -> int:
  """Number of parameters; shared tables count once because they exist once."""
  return sum(leaf.size for leaf in jax.tree.leaves(params))
