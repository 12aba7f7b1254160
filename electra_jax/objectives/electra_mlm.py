"""ELECTRA as a masked LM: both networks together name the original of a masked token (Appendix E).

An optimal discriminator knows the data: D = p_data (a + p_G) / (a p_data + p_G), which is solved for p_data. The
context c hides one token. So each candidate costs a pass of the discriminator, over the text with it in place.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree
from ml_collections import ConfigDict

from electra_jax.objectives import contrastive, sampling
from electra_jax.objectives.base import Batch, Metrics
from electra_jax.objectives.predictors import Predictor

NUM_CANDIDATES = 100  # "we instead take the argmax over the top 100 predictions from the generator"
MASK_RATE = 0.15


def data_probability(original: Float[Array, "*positions"], generated: Float[Array, "*positions"],
                     mask_rate: float = MASK_RATE) -> Float[Array, "*positions"]:
  """D p_G / (a (1 - D) + p_G) with a = (1 - mask_rate) / mask_rate; not normalised over the candidates.

  Args:
    original: D, the probability that the token in place is the original.
    generated: p_G of this token.

  >>> p_data, p_g, a = jnp.array([0.7, 0.3]), jnp.array([0.4, 0.6]), 0.85 / 0.15
  >>> optimal = p_data * (a + p_g) / (a * p_data + p_g)
  >>> [round(x, 4) for x in data_probability(optimal, p_g).tolist()]
  [0.7, 0.3]
  """
  a = (1 - mask_rate) / mask_rate
  return original * generated / jnp.maximum(a * (1 - original) + generated, 1e-30)  # p_G = 0 next to D = 1 is 0


def rank(mlm_logits: Float[Array, "batch predictions vocab"], rtd_logits: Callable[[Array], Array],
         filled_ids: Int[Array, "batch length"], positions: Int[Array, "batch predictions"], num_candidates: int,
         mask_rate: float = MASK_RATE) -> tuple[Array, Array]:
  """The generator's best candidates of each position, and p_data of each: two arrays [batch, predictions, top].

  One position at a time is in question, and one pass of the discriminator judges one candidate of every row: memory
  is that of a single pass, time that of predictions x top passes.

  Args:
    rtd_logits: ids [batch, length] -> the discriminator's logits [batch, length], positive for "replaced".
    filled_ids: what the discriminator reads everywhere else; a mask it has never seen.
  """
  generated, ids = jax.lax.top_k(jax.nn.softmax(mlm_logits), num_candidates)
  rows = jnp.arange(len(filled_ids))

  def judge(position_and_id):
    position, new = position_and_id  # [batch] each
    logits = rtd_logits(filled_ids.at[rows, position].set(new))
    return jax.nn.sigmoid(-logits[rows, position])

  places = jnp.broadcast_to(positions[..., None], ids.shape)
  flat = [jnp.moveaxis(x, 0, -1).reshape(-1, len(rows)) for x in (places, ids)]  # [predictions * top, batch]
  original = jax.lax.map(judge, tuple(flat))
  original = jnp.moveaxis(original.reshape(*ids.shape[1:], len(rows)), -1, 0)  # [batch, predictions, top]
  return ids, data_probability(original, generated, mask_rate)


def fill(mlm_logits: Float[Array, "batch predictions vocab"], batch: Batch) -> Int[Array, "batch length"]:
  """The generator's likeliest token at every masked position: the rest of a discriminator's text, whoever is judged."""
  best = mlm_logits.argmax(axis=-1).astype(jnp.int32)
  return sampling.replace_ids(batch["masked_input_ids"], batch["masked_positions"], best, batch["masked_weights"])


def accuracy(params: PyTree, batch: Batch, network: Predictor, temperature: float, mask_rate: float,
             num_candidates: int = NUM_CANDIDATES) -> Metrics:
  """How often the best candidate is the original, next to the generator's own accuracy on the same positions.

  `electra_mlm/upper_bound` counts originals among the candidates (footnote 10: about 95 % for ELECTRA-Base).

  Differs from Appendix E, where one token is masked: here the training masks hide 15 % at once, so that the numbers
  stand next to `mlm/accuracy`; where another position is masked, the discriminator reads the generator's likeliest
  token, and so knows nothing that the generator does not.
  """
  mlm_logits = network.mlm_logits(params, batch) / temperature
  num_candidates = min(num_candidates, mlm_logits.shape[-1])
  ids, p_data = rank(mlm_logits, lambda ids: network.rtd_logits(params, batch, ids), fill(mlm_logits, batch),
                     batch["masked_positions"], num_candidates, mask_rate)
  best = jnp.take_along_axis(ids, p_data.argmax(axis=-1)[..., None], axis=-1)[..., 0]  # [batch, predictions]
  is_original = ids == batch["masked_ids"][..., None]  # [batch, predictions, top]
  weights, total = batch["masked_weights"], batch["masked_weights"].sum()
  right = {"accuracy": best == batch["masked_ids"], "generator_accuracy": is_original[..., 0],
           "upper_bound": is_original.any(axis=-1)}
  return {f"electra_mlm/{name}": (jnp.sum(weights * value), total) for name, value in right.items()}


def applies(config: ConfigDict) -> bool:
  """Whether the discriminator's optimum is the one of Appendix E: it was trained on every token of corrupted texts.

  Not where the generator never draws the original: then p_G of what it replaces is another distribution.
  """
  return (config.objective.name in ("rtd", "two_stage", "adversarial", "contrastive")
          and config.generator.kind == "learned" and not config.objective.sampling_excludes_original)


def corrupted_share(config: ConfigDict) -> float:
  """The share of positions that the generator fills, over all rows: `contrastive` leaves some rows as they are."""
  unchanged = contrastive.UNCHANGED_SHARE if config.objective.name == "contrastive" else 0.0
  return config.data.masking.rate * (1 - unchanged)
