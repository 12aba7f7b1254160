"""A masked LM of one table: the real loop, data, checkpoints and command around a model that compiles in a moment.

As a program it is `python -m electra_jax.main` with that objective: python -m tests.fake_objective --config=...
"""

import jax.numpy as jnp

from electra_jax.objectives.base import Objective, Phase

VOCABULARY = 128  # at least as many as the tokens of the corpora of the tests


def make(*_) -> Objective:
  """In place of `objectives.make`; the loss only needs to depend on the batch and to fall."""

  def loss(params, batch, rng, train, num_targets):
    del rng, train
    table = params["encoder"]["embeddings"]["token"]["embedding"]
    errors = jnp.square(table[batch["masked_ids"]] - 2.0).mean(-1) * batch["masked_weights"]
    return errors.sum() / num_targets["mlm"], {"mlm/loss": (errors.sum(), batch["masked_weights"].sum())}

  def init(rng, batch):
    del rng, batch
    return {"encoder": {"embeddings": {"token": {"embedding": jnp.ones((VOCABULARY, 8))}}}}

  return Objective(init, lambda batch: {"mlm": batch["masked_weights"].sum()}, (Phase(10**9, loss),))


if __name__ == "__main__":
  from electra_jax import main, objectives

  objectives.make = make
  main.run(main.main, main.USAGE)
