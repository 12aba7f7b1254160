"""How are a softmax's logits kept from drifting away? Its normaliser Z is held near 1 (PaLM section 5; off by default).

The cross-entropy does not change when a constant is added to all logits; in 16 bits large ones lose their digits.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from electra_jax.objectives.contract import Metrics


def squared_log_z(logits: Float[Array, "batch predictions vocab"],
                  weights: Float[Array, "batch predictions"]) -> Float[Array, ""]:
  """Sum of (log Z)^2, Z the sum of exp(logit), over the positions of weight 1, in float32.

  >>> float(squared_log_z(jnp.full((1, 2, 4), 1 - jnp.log(4.0)), jnp.array([[1.0, 0.0]]))).__round__(4)  # log Z = 1
  1.0
  """
  return jnp.sum(weights * jnp.square(jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1)))


def add(loss: Float[Array, ""], metrics: Metrics, logits: Float[Array, "batch predictions vocab"],
        weights: Float[Array, "batch predictions"], z_loss_weight: float,
        name: str = "mlm") -> tuple[Float[Array, ""], Metrics]:
  """A sum of cross-entropies with `objective.z_loss_weight` times the sum of (log Z)^2, which the metrics show, too.

  The metric of the cross-entropy stays what it was: perplexities are comparable. A weight of 0 computes nothing.
  """
  if not z_loss_weight:
    return loss, metrics
  penalty = squared_log_z(logits, weights)
  return loss + z_loss_weight * penalty, {**metrics, f"{name}/z_loss": (penalty, weights.sum())}
