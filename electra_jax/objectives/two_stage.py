"""Two-stage training: a generator, then a discriminator that starts as its copy (ELECTRA 3.2, Figure 3 right)."""

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from electra_jax.models import initial
from electra_jax.objectives import generators, rtd
from electra_jax.objectives.base import Objective, Parts, Phase


def start_as_generator(params: PyTree) -> PyTree:
  """Copies the generator's encoder into the discriminator, whose head stays new.

  As copies, because an array in two places of the state cannot be donated to a train step.
  """
  generator, discriminator = params["generator"], params["discriminator"]
  copied = {name: jax.tree.map(jnp.copy, generator[name]) for name in discriminator if name in generator}
  return params | {"discriminator": discriminator | copied}


def make(parts: Parts) -> Objective:
  """`generator_steps` updates of the generator, then the discriminator against the frozen generator.

  Both networks have the same sizes and share nothing. Each stage has a warm-up, decay and bias correction of its own
  (the paper does not say): with those of a run halfway through, the discriminator's first updates would be up to six
  times as long as its learning rate.
  """
  model = generators.make_model(parts)
  generate = generators.make(model, parts)

  def generator_loss(params, batch, rng, train, num_targets):
    loss, metrics, _ = generate(params, batch, *jax.random.split(rng), train)
    return loss / num_targets["mlm"], metrics

  discriminator_loss = rtd.make_loss(model, generate, mlm_weight=0.0, rtd_weight=parts.objective.rtd_weight)
  generator_steps = parts.objective.generator_steps
  phases = (
    Phase(generator_steps, generator_loss, trainable="generator/.*"),
    Phase(parts.num_steps - generator_steps, discriminator_loss, trainable="discriminator/.*",
          on_enter=start_as_generator),
  )
  return Objective(initial.init_of(model), rtd.count_targets, phases)
