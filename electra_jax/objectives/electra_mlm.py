"""ELECTRA as a masked LM: both networks together predict the original of a masked token (Appendix E).

An optimal discriminator D = p_data (a + p_G) / (a p_data + p_G) gives p_data. The context hides one token, so each
candidate costs a pass of the discriminator over the text with the candidate in its place.
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
  """D p_G / (a (1 - D) + p_G) with a = (1 - mask_rate) / mask_rate; not normalised over candidates.

  Args:
    original: D, the probability that the token in place is the original.
    generated: p_G, the probability that the generator gives it.

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
  """The generator's best candidates at each position, and p_data of each: two arrays [batch, predictions, top].

  One pass of the discriminator judges one candidate at one position of every row: the memory is that of a single pass,
  the time that of predictions x top passes.

  Args:
    rtd_logits: ids [batch, length] -> the discriminator's logits [batch, length], positive for "replaced".
    filled_ids: what the discriminator reads at the other positions; it has never seen a [MASK].
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
  """The ids with the generator's likeliest token at every masked position."""
  best = mlm_logits.argmax(axis=-1).astype(jnp.int32)
  return sampling.replace_ids(batch["masked_input_ids"], batch["masked_positions"], best, batch["masked_weights"])


def accuracy(params: PyTree, batch: Batch, network: Predictor, temperature: float, mask_rate: float,
             num_candidates: int = NUM_CANDIDATES) -> Metrics:
  """How often the best candidate is the original, and how often the generator's first is, at the same positions.

  `electra_mlm/upper_bound` counts originals among the candidates (footnote 10: about 95 % for ELECTRA-Base).

  Differs from Appendix E, where one token is masked: here the training masks hide 15 % at once, so that the numbers
  compare with `mlm/accuracy`; at the other masked positions the discriminator reads the generator's likeliest token,
  and so knows nothing that the generator does not.
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
  """Whether Appendix E's optimum holds: the discriminator was trained on every token of corrupted texts.

  It does not if the generator never draws the original: then replacements are not distributed as p_G.
  """
  return (config.objective.name in ("rtd", "two_stage", "adversarial", "contrastive")
          and config.generator.kind == "learned" and not config.objective.sampling_excludes_original)


def corrupted_share(config: ConfigDict) -> float:
  """The share of positions that the generator fills, over all rows; `contrastive` leaves some rows unchanged."""
  unchanged = contrastive.UNCHANGED_SHARE if config.objective.name == "contrastive" else 0.0
  return config.data.masking.rate * (1 - unchanged)
