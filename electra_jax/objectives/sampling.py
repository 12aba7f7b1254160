"""Sampling of replacements: x̂ ~ p_G at the masked positions (ELECTRA section 2)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from electra_jax import sharding
from electra_jax.models import dropout
from electra_jax.models.attention import MASK_BIAS

SAMPLING_BLOCK = 128  # ids of a block, see `sample_ids`


def proposal_logits(logits: Float[Array, "batch predictions vocab"], temperature: float = 1.0,
                    excluded_ids: Int[Array, "batch predictions"] | None = None
                    ) -> Float[Array, "batch predictions vocab"]:
  """The logits of the distribution to draw from: with a temperature, and without one id per position (Appendix F).

  In float32, except for logits that stay unchanged: in 16 bits passes over them take half the memory traffic.

  >>> logits = jnp.array([[[2.0, 4.0, 6.0]]])
  >>> softened = jax.nn.softmax(proposal_logits(logits, temperature=2.0, excluded_ids=jnp.array([[2]])))
  >>> [round(x, 4) for x in softened[0, 0].tolist()]  # 1 / (1 + e), e / (1 + e)
  [0.2689, 0.7311, 0.0]
  """
  if excluded_ids is None and temperature == 1:
    return logits
  logits = logits.astype(jnp.float32) / temperature
  if excluded_ids is None:
    return logits
  return jnp.where(jnp.arange(logits.shape[-1]) == excluded_ids[..., None], MASK_BIAS, logits)


def sample_ids(rng: Array, logits: Float[Array, "batch predictions vocab"]) -> Int[Array, "batch predictions"]:
  """One draw per position from softmax(logits), without a gradient.

  Inverts the distribution function in two steps: first a block of ids, then an id within it. This takes one pass over
  the logits and two random numbers per position, where the Gumbel trick takes two logarithms per logit. A TPU would
  copy all logits for it; there the trick, with bits from a hash, takes two fifths of the time.

  >>> logits = jnp.array([[[0.0, 50.0, 0.0]]])
  >>> sample_ids(jax.random.key(0), logits).tolist()
  [[1]]
  """
  logits = jax.lax.stop_gradient(logits)
  if sharding.platform() == "tpu":
    return jnp.argmax(logits.astype(jnp.float32) + _gumbel(rng, logits.shape), axis=-1).astype(jnp.int32)
  padding = -logits.shape[-1] % SAMPLING_BLOCK
  if padding:
    logits = jnp.pad(logits, ((0, 0), (0, 0), (0, padding)), constant_values=MASK_BIAS)
  blocks = logits.reshape(*logits.shape[:2], -1, SAMPLING_BLOCK)  # [batch, predictions, blocks, ids of a block]
  highest = blocks.max((-2, -1), keepdims=True).astype(jnp.float32)
  block_rng, id_rng = jax.random.split(rng)
  block = _invert(block_rng, jnp.exp(blocks.astype(jnp.float32) - highest).sum(-1))
  chosen = jnp.take_along_axis(blocks, block[..., None, None], axis=2)[:, :, 0]  # [batch, predictions, ids of a block]
  within = _invert(id_rng, jnp.exp(chosen.astype(jnp.float32) - highest[:, :, 0]))
  return (block * SAMPLING_BLOCK + within).astype(jnp.int32)


def _gumbel(rng: Array, shape: tuple[int, ...]) -> Float[Array, "batch predictions vocab"]:
  """-log(-log(u)), u uniform over 2**23 values between 0 and 1."""
  seeds = dropout.child_seeds(dropout.seeds_of(rng), dropout.positions(shape[:2])[..., None])
  bits = dropout.bits(seeds, dropout.positions(shape[2:]))
  return -jnp.log(-jnp.log((bits >> 9).astype(jnp.float32) * 2.0**-23 + 2.0**-24))


def _invert(rng: Array, shares: Float[Array, "batch predictions parts"]) -> Int[Array, "batch predictions"]:
  """The first part with a share of its own at which the running sum exceeds a uniform share of the total."""
  running = jnp.cumsum(shares, axis=-1)
  uniform = jax.random.uniform(rng, shares.shape[:-1], maxval=1 - 2.0**-20)  # the rounded product is below the total
  return jnp.argmax((running > uniform[..., None] * running[..., -1:]) & (shares > 0), axis=-1)


def replace_ids(ids: Int[Array, "batch length"], positions: Int[Array, "batch predictions"],
                new_ids: Int[Array, "batch predictions"],
                weights: Float[Array, "batch predictions"]) -> Int[Array, "batch length"]:
  """REPLACE(x, m, x̂): new ids at positions of weight 1; slots of weight 0 change nothing.

  >>> replace_ids(jnp.array([[7, 8, 9]]), jnp.array([[1, 0]]), jnp.array([[5, 5]]), jnp.array([[1.0, 0.0]])).tolist()
  [[7, 5, 9]]
  """
  rows = jnp.arange(ids.shape[0])[:, None]
  targets = jnp.where(weights > 0, positions, ids.shape[1])  # beyond the end: dropped
  return ids.at[rows, targets].set(new_ids, mode="drop")  # [batch, length]
