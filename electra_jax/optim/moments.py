"""How are Adam's moments kept in half of the memory? Each update computes in float32 and stores in bfloat16."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree


def stored_as(adam: optax.GradientTransformation, first_dtype: str,
              second_dtype: str) -> optax.GradientTransformation:
  """`adam` with moments of these types between its updates; the update itself sees what float32 gives.

  The first moment changes by a tenth of its distance (1 - beta1) and is rounded to the nearest. The second changes by
  a hundredth or a thousandth, less than the 1/256 from one bfloat16 to the next: rounded to the nearest it would never
  fall. It is rounded up or down at random, right on average, by bits that are a function of the step alone.
  """

  def store(state: optax.ScaleByAdamState, nu: PyTree) -> optax.ScaleByAdamState:
    return state._replace(mu=optax.tree.cast(state.mu, first_dtype), nu=nu)

  def init(params):
    state = adam.init(params)
    return store(state, optax.tree.cast(state.nu, second_dtype))

  def update(gradients, state, params=None):
    wide = state._replace(mu=optax.tree.cast(state.mu, jnp.float32), nu=optax.tree.cast(state.nu, jnp.float32))
    direction, new = adam.update(gradients, wide, params)
    return direction, store(new, new.nu if second_dtype == "float32" else _round_tree(new.nu, new.count))

  return optax.GradientTransformation(init, update)


def _round_tree(tree: PyTree, step: Array) -> PyTree:
  leaves, structure = jax.tree.flatten(tree)
  # threefry, whose bits are the same under every sharding
  key = jax.random.fold_in(jax.random.key(0, impl="threefry2x32"), step)
  return structure.unflatten([round_at_random(leaf, jax.random.fold_in(key, index))
                              for index, leaf in enumerate(leaves)])


def round_at_random(x: Float[Array, "*shape"], key: Array) -> Float[Array, "*shape"]:
  """One of the two bfloat16 around each float32, the nearer one more often: the expectation is x.

  >>> rounded = round_at_random(jnp.full(10_000, 1 + 1 / 512), jax.random.key(0))  # 1/4 of the way from 1 to 1 + 1/128
  >>> sorted(set(rounded.tolist())), abs(float((rounded > 1).mean()) - 0.25) < 0.02
  ([1.0, 1.0078125], True)
  """
  bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
  bits += jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)  # carries into the half that is kept
  return jax.lax.bitcast_convert_type((bits >> 16).astype(jnp.uint16), jnp.bfloat16)
