"""Which of two encoders is better? One number for encoders of every objective, from held-out text alone.

A masked LM's loss and a discriminator's AUC cannot be compared, and neither says what an encoder is worth afterwards.
The papers fine-tune on GLUE. `continuation` is the cheap substitute that needs no labels: held-out examples are cut in
the middle, and a linear classifier on the frozen encoder's vectors of both halves says whether they belong together.
No objective of ELECTRA Table 3 trains on this task, no input has a mask or a replaced token, and all encoders are
asked about the same pairs.

Differs from the papers: GLUE fine-tuning is what their numbers are. This probe does not change the encoder, and it
asks more for topic than for grammar.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from electra_jax import inference, objectives
from electra_jax.data import corpus, shards
from electra_jax.errors import UserError
from electra_jax.models.bert import make_transformer_config

BATCH_SIZE = 256  # halves of one forward pass
RIDGE = 0.01  # of the number of pairs: keeps thousands of features from remembering them
MAX_EXAMPLES = 8192  # held-out examples of the probe; half of them fit the classifier
MIN_EXAMPLES = 40


class Score(NamedTuple):
  """A quality in [0, 1] and the standard error that the number of judged pairs leaves."""

  value: float
  error: float


class Quality(NamedTuple):
  """A row of QUALITIES: the axis of the picture and who measures."""

  title: str
  chance: float  # what knowing nothing gives
  measure: Callable[[inference.Run, str], Score]  # (run at a checkpoint, its workdir)


def continuation(run: inference.Run, workdir: str) -> Score:
  """Accuracy of a frozen-encoder classifier: is the second half the first one's own, or another example's?

  Raises:
    UserError: too few examples are held out.
  """
  directory = corpus.shards_directory(run.config.data, workdir)
  examples = shards.open_shards(directory, "heldout")
  number = min(len(examples), MAX_EXAMPLES)
  if number < MIN_EXAMPLES:
    raise UserError("Too little text is held out to compare encoders on", got=f"{number} examples in {directory}",
                    allowed=f"at least {MIN_EXAMPLES}, better thousands",
                    fix="raise --set=data.heldout_share, or use another --out with more text")
  ids, num_tokens, _ = examples.read(np.arange(number))
  halves = split_examples(ids, num_tokens, run.tokenizer.special_ids)
  vectors = encode(run, [half for pair in halves for half in pair])
  return classify(vectors[0::2], vectors[1::2])


def split_examples(ids, num_tokens, special_ids) -> list[tuple[np.ndarray, np.ndarray]]:
  """The ordinary tokens of each example's first and second half.

  >>> split_examples(np.array([[2, 11, 12, 3, 13, 3, 0]]), np.array([6]), (0, 2, 3))
  [(array([11]), array([12, 13]))]
  """
  rows = [row[:length][~np.isin(row[:length], special_ids)] for row, length in zip(ids, num_tokens)]
  return [(row[:len(row) // 2], row[len(row) // 2:]) for row in rows]


def encode(run: inference.Run, texts: list[np.ndarray]) -> Float[np.ndarray, "texts hidden"]:
  """The mean over the tokens of the last layer, each text read by itself between [CLS] and [SEP]."""
  tokenizer = run.tokenizer
  length = max(len(text) for text in texts) + 2
  vectors = []
  for start in range(0, len(texts), BATCH_SIZE):
    ids = np.full((BATCH_SIZE, length), tokenizer.pad_id, np.int32)
    mask = np.zeros((BATCH_SIZE, length), bool)
    chunk = texts[start:start + BATCH_SIZE]
    for row, text in enumerate(chunk):
      ids[row, :len(text) + 2] = [tokenizer.cls_id, *text, tokenizer.sep_id]
      mask[row, :len(text) + 2] = True
    batch = {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "attention_mask": mask}
    vectors.append(jax.device_get(inference.pooled(run.params, batch, run.network, "mean"))[:len(chunk)])
  return np.concatenate(vectors)


def classify(first: Float[np.ndarray, "examples hidden"], second: Float[np.ndarray, "examples hidden"]) -> Score:
  """Test accuracy of a linear classifier on (u, v, |u - v|, u v), the features of sentence-pair probes.

  Ridge regression on +1 and -1: one solution, no learning rate that could suit one encoder better. The first half of
  the examples fits it, the second half judges; a false second half comes from the middle of the same half away.
  """
  border = len(first) // 2
  (x, y), (x_test, y_test) = (_pairs(first[part], second[part]) for part in (slice(border), slice(border, None)))
  mean, scale = x.mean(axis=0), x.std(axis=0) + 1e-6
  x, x_test = ((rows - mean) / scale for rows in (x, x_test))
  weights = np.linalg.solve(x.T @ x + RIDGE * len(x) * np.eye(x.shape[1]), x.T @ y)
  right = ((x_test @ weights > 0) == (y_test > 0)).mean()
  return Score(float(right), float(np.sqrt(right * (1 - right) / len(x_test))))


def _pairs(first, second):
  """(features, labels) of each example's own halves, and of as many false pairs."""
  first, second = first.astype(np.float64), second.astype(np.float64)
  other = np.roll(second, len(second) // 2, axis=0)
  u, v = np.concatenate([first, first]), np.concatenate([second, other])
  return np.concatenate([u, v, abs(u - v), u * v], axis=1), np.repeat([1.0, -1.0], len(first))


def untrained(run: inference.Run) -> inference.Run:
  """The same run with the parameters of its initialisation: what the probe finds without any training."""
  config = run.config
  transformer = make_transformer_config(config.model, num_tokens=run.tokenizer.vocab_size, dtype="float32")
  objective = objectives.make(transformer, config.generator, config.objective, max(config.train.num_steps, 2),
                              np.ones(run.tokenizer.vocab_size, np.int64))
  row = jnp.zeros((1, 8), jnp.int32)
  slot = jnp.zeros((1, 1), jnp.int32)
  batch = {"input_ids": row, "masked_input_ids": row, "token_type_ids": row, "attention_mask": row == 0,
           "masked_positions": slot, "masked_ids": slot, "masked_weights": jnp.ones((1, 1)),
           "nsp_label": jnp.zeros((1,), jnp.int32)}
  return run._replace(params=jax.jit(objective.init)(jax.random.key(config.seed), batch), step=0)


QUALITIES = {
  "continuation": Quality("accuracy: do two held-out halves belong together?", 0.5, continuation),
}
