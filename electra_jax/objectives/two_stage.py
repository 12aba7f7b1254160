"""Two-stage training: a generator, then a discriminator that starts as its copy (ELECTRA 3.2, Figure 3 right)."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from ml_collections import ConfigDict

from electra_jax.models import initial
from electra_jax.models.transformer import TransformerConfig
from electra_jax.objectives import generators, rtd
from electra_jax.objectives.base import Objective, Phase


def start_as_generator(params: PyTree) -> PyTree:
  """Copies the generator's encoder into the discriminator, whose head stays new.

  As copies, because an array in two places of the state cannot be donated to a train step.
  """
  generator, discriminator = params["generator"], params["discriminator"]
  copied = {name: jax.tree.map(jnp.copy, generator[name]) for name in discriminator if name in generator}
  return params | {"discriminator": discriminator | copied}


def make(transformer: TransformerConfig, config_generator: ConfigDict, config_objective: ConfigDict, num_steps: int,
         token_counts: np.ndarray | None = None) -> Objective:
  """`generator_steps` updates of the generator, then the discriminator against the frozen generator.

  Both networks have the same sizes and share nothing. Each stage has a warm-up, decay and bias correction of its own
  (the paper does not say): with those of a run halfway through, the discriminator's first updates would be up to six
  times as long as its learning rate.
  """
  model = generators.make_model(transformer, config_generator, config_objective)
  generate = generators.make(model, config_generator, config_objective, token_counts)

  def generator_loss(params, batch, rng, train, num_targets):
    loss, metrics, _ = generate(params, batch, *jax.random.split(rng), train)
    return loss / num_targets["mlm"], metrics

  discriminator_loss = rtd.make_loss(model, generate, mlm_weight=0.0, rtd_weight=config_objective.rtd_weight)
  generator_steps = config_objective.generator_steps
  phases = (
    Phase(generator_steps, generator_loss, trainable="generator/.*"),
    Phase(num_steps - generator_steps, discriminator_loss, trainable="discriminator/.*", on_enter=start_as_generator),
  )
  return Objective(initial.init_of(model), rtd.count_targets, phases, encoder_path="discriminator")
