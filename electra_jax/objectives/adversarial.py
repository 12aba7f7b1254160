"""Adversarial generator: REINFORCE with a learned baseline against the discriminator (ELECTRA Appendix D).

The generator is never told which token was right: its reward is what the discriminator gets wrong.

Differs from the formulas as printed, in the sign: section 2 and Appendix D write L_Disc without its minus, so that read
literally the generator would help the discriminator. We follow the words, "train G to maximize the discriminator loss":
the loss is -R, and ascent on it is descent on E[R].
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from electra_jax.models import heads, initial
from electra_jax.models.electra import Electra
from electra_jax.objectives import generators, losses, rtd
from electra_jax.objectives.base import Batch, Objective, Parts, Phase, apply


def generate(model: Electra, batch: Batch, train: bool) -> tuple[Array, Array]:
  """The generator's logits [batch, predictions, vocab] and the baseline's [batch, predictions] from one pass.

  No gradient of the baseline reaches h_G: it makes the policy's gradient less noisy and must not change its direction.
  """
  hidden = model.generator.encode(batch, batch["masked_input_ids"], train, model.generator_embed())
  hidden = heads.select_positions(hidden, batch["masked_positions"])  # [batch, predictions, hidden]
  baseline = model.generator.baseline_head(jax.lax.stop_gradient(hidden))
  return model.generator.mlm_head(hidden, model.generator_table()), baseline


def rewards(rtd_logits: Float[Array, "batch length"], positions: Int[Array, "batch predictions"],
            is_replaced: Bool[Array, "batch predictions"]) -> Float[Array, "batch predictions"]:
  """R(x̂_t, x): the log-probability that the discriminator gives to the truth about the drawn token.

  >>> found = rewards(jnp.log(jnp.array([[3.0, 1.0]])), jnp.array([[0, 0]]), jnp.array([[True, False]]))
  >>> [round(x, 4) for x in jnp.exp(found)[0].tolist()]  # sigmoid(ln 3) = 3/4
  [0.75, 0.25]
  """
  logits = jnp.take_along_axis(rtd_logits, positions, axis=1)  # [batch, predictions]; positive means "replaced"
  return jax.lax.stop_gradient(-jax.nn.softplus(jnp.where(is_replaced, -logits, logits)))


def policy_loss(log_probabilities: Float[Array, "batch predictions"], reward: Float[Array, "batch predictions"],
                baseline_logits: Float[Array, "batch predictions"],
                weights: Float[Array, "batch predictions"]) -> Float[Array, ""]:
  """A sum whose gradient estimates that of E[R] from one draw: log p_G(x̂) (R - b), with b = log sigmoid(w^T h_G).

  Its value means nothing. b does not depend on the draw, so it changes the gradient's variance but not its mean.
  """
  advantage = jax.lax.stop_gradient(reward - jax.nn.log_sigmoid(baseline_logits))
  return jnp.sum(weights * log_probabilities * advantage)


def baseline_loss(baseline_logits: Float[Array, "batch predictions"], reward: Float[Array, "batch predictions"],
                  weights: Float[Array, "batch predictions"]) -> Float[Array, ""]:
  """Cross-entropy of sigmoid(w^T h_G) against the probability exp(R): minimal if b is the log of its mean.

  >>> round(float(baseline_loss(jnp.zeros((1, 1)), jnp.log(jnp.full((1, 1), 0.3)), jnp.ones((1, 1)))), 4)  # ln 2
  0.6931
  """
  target = jnp.exp(reward)
  return -jnp.sum(weights * (target * jax.nn.log_sigmoid(baseline_logits)
                             + (1 - target) * jax.nn.log_sigmoid(-baseline_logits)))


def make(parts: Parts) -> Objective:
  """ELECTRA's discriminator against a generator whose masked-LM loss is logged but not trained on.

  The paper gives no weights besides λ: ours are `mlm_weight` for the policy and 1 for the baseline, both for means over
  masked positions.
  """
  model = generators.make_model(parts, generator_heads=("mlm_head", "baseline_head"))

  def loss(params, batch, rng, train, num_targets):
    dropout_rng, sample_rng, discriminator_rng = jax.random.split(rng, 3)
    logits, baseline_logits = apply(model, params, batch, train, method=generate, rngs={"dropout": dropout_rng})
    corruption = generators.corrupt(sample_rng, logits, batch, parts.objective)
    rtd_logits = apply(model, params, batch, corruption.ids, train, method="discriminator_logits",
                       rngs={"dropout": discriminator_rng})
    real, masked = batch["attention_mask"].astype(jnp.float32), batch["masked_weights"]
    rtd_loss, rtd_metrics = rtd.discriminator_loss(rtd_logits, corruption.is_replaced, real, train)
    reward = rewards(rtd_logits, batch["masked_positions"], corruption.sampled_ids != batch["masked_ids"])
    proposal = generators.proposal_logits(logits, batch, parts.objective)
    log_probabilities = losses.log_probability(proposal, corruption.sampled_ids)
    policy = policy_loss(log_probabilities, reward, baseline_logits, masked)
    baseline = baseline_loss(baseline_logits, reward, masked)
    total = (parts.objective.rtd_weight * rtd_loss / num_targets["rtd"]
             + parts.objective.mlm_weight * policy / num_targets["mlm"]
             + baseline / num_targets["mlm"])
    _, mlm_metrics = losses.masked_lm_loss(logits, batch)
    metrics = {**mlm_metrics, **rtd_metrics, "adversarial/reward": (jnp.sum(masked * reward), masked.sum()),
               "adversarial/baseline_loss": (baseline, masked.sum())}
    return total, metrics

  return Objective(initial.init_of(model), rtd.count_targets, (Phase(parts.num_steps, loss),))
