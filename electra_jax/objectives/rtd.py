"""ELECTRA's objective: a generator fills the masks, a discriminator finds what it replaced (ELECTRA section 2)."""

import jax
import jax.numpy as jnp

from electra_jax.models.electra import Electra, make_generator_config
from electra_jax.models.transformer import TransformerConfig
from electra_jax.objectives import losses, sampling
from electra_jax.objectives.contract import Objective, Phase


def make_model(transformer: TransformerConfig, config_generator, config_objective) -> Electra:
  """Generator and discriminator of these sizes; `transformer` describes the discriminator."""
  return Electra(transformer, make_generator_config(transformer, config_generator),
                 tie_token_embeddings=config_objective.weight_tying == "token_embeddings")


def make(transformer: TransformerConfig, config_generator, config_objective, num_steps: int) -> Objective:
  """Joint training of both networks; parameters live under `discriminator/` and `generator/`."""
  model = make_model(transformer, config_generator, config_objective)
  mlm_weight, rtd_weight = config_objective.mlm_weight, config_objective.rtd_weight

  def init(rng, batch):
    return model.init(rng, batch)["params"]

  def count_targets(batch):
    return {"mlm": batch["masked_weights"].sum(), "rtd": batch["attention_mask"].sum()}

  def loss(params, batch, rng, train, num_targets):
    generator_rng, sample_rng, discriminator_rng = jax.random.split(rng, 3)
    logits = model.apply({"params": params}, batch, train, method="generator_logits",
                         rngs={"dropout": generator_rng})
    mlm_loss, mlm_correct = losses.cross_entropy(logits, batch["masked_ids"], batch["masked_weights"])
    sampled_ids = sampling.sample_ids(sample_rng, logits, config_objective.sampling_temperature)
    corrupted_ids = sampling.replace_ids(batch["input_ids"], batch["masked_positions"], sampled_ids,
                                         batch["masked_weights"])
    is_replaced = corrupted_ids != batch["input_ids"]  # a sample that equals the original is "real"
    rtd_logits = model.apply({"params": params}, batch, corrupted_ids, train, method="discriminator_logits",
                             rngs={"dropout": discriminator_rng})
    real = batch["attention_mask"].astype(jnp.float32)
    rtd_loss = losses.binary_cross_entropy(rtd_logits, is_replaced, real)
    total = mlm_weight * mlm_loss / num_targets["mlm"] + rtd_weight * rtd_loss / num_targets["rtd"]
    metrics = {
      "mlm/loss": (mlm_loss, batch["masked_weights"].sum()),
      "mlm/accuracy": (mlm_correct, batch["masked_weights"].sum()),
      "rtd/loss": (rtd_loss, real.sum()),
      **losses.detection_metrics(rtd_logits, is_replaced, real),
    }
    if not train:  # the histogram is a scatter: evaluation only
      metrics["rtd/auc"] = losses.auc_histograms(rtd_logits, is_replaced, real)
    return total, metrics

  return Objective(init, count_targets, (Phase(num_steps, loss),), encoder_path="discriminator")
