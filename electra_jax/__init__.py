"""Pre-training and fine-tuning of text encoders as in the RoBERTa and ELECTRA papers. Read `pretrain.py` first.

These functions answer from a trained model; they do most of what `tools/predict` does:

  run = electra_jax.load("runs/mine")
  electra_jax.fill_mask(run, ["A sentence with a [MASK] in it."])

They import jax only when called, so that `import electra_jax` takes no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from electra_jax.inference.loading import TrainedModel

__version__ = "0.1.0"


def load(path: str, step: int | None = None) -> TrainedModel:
  """Loads a trained model: a run's workdir (its newest checkpoint, or that of a step), an export or published weights,
  from this machine or by their name on the Hugging Face hub.

  Raises:
    UserError: there is no model, or it cannot be read.

  >>> load("runs/mine").step, load("runs/mine", step=20).step
  (40, 20)
  """
  from electra_jax.inference import loading
  return loading.load(path, step)


def fill_mask(run: TrainedModel, texts: Sequence[str], top_k: int = 5) -> list:
  """For each text and each [MASK] in it the `top_k` likeliest tokens, as (text, token_id, probability).

  >>> first_mask, second_mask = fill_mask(load("runs/mine"), ["the [MASK] sat on the [MASK]."], top_k=3)[0]
  >>> len(first_mask), first_mask[0].probability >= first_mask[1].probability
  (3, True)
  """
  from electra_jax.inference import pretraining_heads
  return pretraining_heads.fill_mask(run, texts, top_k)


def detect_replaced(run: TrainedModel, texts: Sequence[str]) -> list:
  """For each text its tokens, with the probability that each was replaced, by an ELECTRA's discriminator.

  >>> text = "the cat sat"
  >>> [text[token.start:token.end] for token in detect_replaced(load("runs/mine"), [text])[0]]
  ['the', 'cat', 'sat']
  """
  from electra_jax.inference import pretraining_heads
  return pretraining_heads.detect_replaced(run, texts)


def embed(run: TrainedModel, texts: Sequence[str], pooling: str | None = None) -> list:
  """A vector float32 [hidden] for each text; `pooling` is mean or cls, by default the model's own.

  >>> [vector.shape for vector in embed(load("runs/mine"), ["One text.", "Another."])]
  [(64,), (64,)]
  """
  from electra_jax.inference import pretraining_heads
  return pretraining_heads.embed(run, texts, pooling)


def classify(run: TrainedModel, texts: Sequence[str | tuple[str, str]]) -> list[dict[str, float]]:
  """{label: probability} for each text or pair of texts, by a fine-tuned model; {"score": value} by a regression.

  >>> [list(found) for found in classify(load("runs/labels"), ["a film", ("a film", "a review")])]
  [['bad', 'good'], ['bad', 'good']]
  """
  from electra_jax.inference import task_heads
  asked = [task_heads.encode_texts(run, *([text] if isinstance(text, str) else text)) for text in texts]
  return [dict(zip(prediction.value.labels or ("score",), map(float, prediction.value.values), strict=True))
          for prediction in task_heads.classify(run, asked)]


def answer(run: TrainedModel, question: str, context: str):
  """The stretch of the context that answers the question, with its rivals, by a model fine-tuned on SQuAD.

  >>> found = answer(load("runs/squad"), "a b", "c d e f")
  >>> found.text == found.candidates[0].text and found.text in "c d e f"
  True
  """
  from electra_jax.inference import task_heads
  return task_heads.answer_questions(run, [task_heads.encode_question(run, question, context)])[0].value
