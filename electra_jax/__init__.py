"""Pre-training and fine-tuning of text encoders as in the RoBERTa and ELECTRA papers. Read `pretrain.py` first.

The functions here answer from a trained model, six lines for most of what `tools/predict` does:

  run = electra_jax.load("runs/mine")
  electra_jax.fill_mask(run, ["A sentence with a [MASK] in it."])

They import jax when they are called, so that `import electra_jax` takes no time.
"""

__version__ = "0.1.0"


def load(path: str, step: int | None = None):
  """A trained model: a run's workdir (its newest checkpoint, or of a step), an export, or published weights,
  on this machine or by their name on the Hugging Face hub.

  Raises:
    UserError: there is no model, or it cannot be read.
  """
  from electra_jax.inference import loading
  return loading.load(path, step)


def fill_mask(run, texts, top_k: int = 5) -> list:
  """For each text and each of its [MASK]s the `top_k` likeliest tokens, as (text, id, probability)."""
  from electra_jax.inference import pretraining_heads
  return pretraining_heads.fill_mask(run, texts, top_k)


def detect_replaced(run, texts) -> list:
  """For each text its tokens, with the probability that each was replaced; an ELECTRA's discriminator says so."""
  from electra_jax.inference import pretraining_heads
  return pretraining_heads.detect_replaced(run, texts)


def embed(run, texts, pooling: str | None = None) -> list:
  """A vector float32 [hidden] for each text; `pooling` is mean or cls, by default the model's own."""
  from electra_jax.inference import pretraining_heads
  return pretraining_heads.embed(run, texts, pooling)


def classify(run, texts) -> list[dict[str, float]]:
  """{label: probability} for each text or pair of texts, by a fine-tuned model; of a regression {"score": value}."""
  from electra_jax.inference import task_heads
  asked = [task_heads.encode_texts(run, *([text] if isinstance(text, str) else text)) for text in texts]
  return [dict(zip(said.found.labels or ("score",), map(float, said.found.values), strict=True))
          for said in task_heads.classify(run, asked)]


def answer(run, question: str, context: str):
  """The stretch of the context that answers the question, by a model that was fine-tuned on SQuAD."""
  from electra_jax.inference import task_heads
  return task_heads.answer_questions(run, [task_heads.encode_question(run, question, context)])[0].found
