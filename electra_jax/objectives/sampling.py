"""How are replacements drawn and put in place? x̂ ~ p_G at the masked positions (ELECTRA section 2)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from electra_jax.models import dropout
from electra_jax.models.attention import MASK_BIAS


def proposal_logits(logits: Float[Array, "batch predictions vocab"], temperature: float = 1.0,
                    excluded_ids: Int[Array, "batch predictions"] | None = None
                    ) -> Float[Array, "batch predictions vocab"]:
  """The distribution that is drawn from, as float32 logits: softened, and without one id a position (Appendix F).

  >>> logits = jnp.array([[[2.0, 4.0, 6.0]]])
  >>> softened = jax.nn.softmax(proposal_logits(logits, temperature=2.0, excluded_ids=jnp.array([[2]])))
  >>> [round(x, 4) for x in softened[0, 0].tolist()]  # 1 / (1 + e), e / (1 + e)
  [0.2689, 0.7311, 0.0]
  """
  logits = logits.astype(jnp.float32) / temperature
  if excluded_ids is None:
    return logits
  return jnp.where(jnp.arange(logits.shape[-1]) == excluded_ids[..., None], MASK_BIAS, logits)


def sample_ids(rng: Array, logits: Float[Array, "batch predictions vocab"]) -> Int[Array, "batch predictions"]:
  """One draw a position from softmax(logits), by the Gumbel trick. Carries no gradient.

  >>> logits = jnp.array([[[0.0, 50.0, 0.0]]])
  >>> sample_ids(jax.random.key(0), logits).tolist()
  [[1]]
  """
  bits = dropout.bits(dropout.seeds_of(rng), dropout.positions(logits.shape))
  uniform = ((bits >> 9).astype(jnp.float32) + 0.5) * 2.0**-23  # hashed where it is used: nothing is written to memory
  gumbel = -jnp.log(-jnp.log(uniform))
  return jnp.argmax(jax.lax.stop_gradient(logits) + gumbel, axis=-1).astype(jnp.int32)


def replace_ids(ids: Int[Array, "batch length"], positions: Int[Array, "batch predictions"],
                new_ids: Int[Array, "batch predictions"],
                weights: Float[Array, "batch predictions"]) -> Int[Array, "batch length"]:
  """REPLACE(x, m, x̂): new ids at the positions of weight 1; slots of weight 0 change nothing.

  >>> replace_ids(jnp.array([[7, 8, 9]]), jnp.array([[1, 0]]), jnp.array([[5, 5]]), jnp.array([[1.0, 0.0]])).tolist()
  [[7, 5, 9]]
  """
  rows = jnp.arange(ids.shape[0])[:, None]
  targets = jnp.where(weights > 0, positions, ids.shape[1])  # beyond the end: dropped
  return ids.at[rows, targets].set(new_ids, mode="drop")  # [batch, length]
