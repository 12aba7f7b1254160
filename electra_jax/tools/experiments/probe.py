"""Probe for encoders of any objective: whether two halves of a held-out text belong together.

A masked LM's loss and a discriminator's AUC cannot be compared, and neither says what an encoder is good for. The
papers fine-tune on GLUE; this is a cheap substitute without labels. Held-out examples are cut in the middle, and a
linear classifier on the frozen encoder's vectors of both halves says whether they belong together. No objective of
ELECTRA Table 3 trains on this task, no input has a mask or a replaced token, and all encoders get the same pairs.

Differs from the papers: their numbers come from fine-tuning on GLUE. This probe does not change the encoder, and it
tests topic more than grammar.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from absl import flags
from jaxtyping import Float, Int
from sklearn import linear_model, pipeline, preprocessing

from electra_jax import main as main_lib
from electra_jax.data import shards
from electra_jax.data.sentences import Sentence
from electra_jax.data.shards import corpus
from electra_jax.errors import UserError
from electra_jax.files import write_json
from electra_jax.inference import pretraining_heads
from electra_jax.tools.experiments.results import PROBE_FILE, read_probe
from electra_jax.tools.import_weights import initial_params
from electra_jax.training import checkpoints

FLAGS = flags.FLAGS
RIDGE = 0.01  # times the number of pairs: keeps thousands of features from memorising them
MAX_EXAMPLES = 8192  # held-out examples of the probe; half of them fit the classifier
MIN_EXAMPLES = 40

USAGE = """Probes every checkpoint of a pre-training, and its initial parameters: accuracies in WORKDIR/probe.json.

  python -m electra_jax.tools.experiments.probe --workdir=runs/base"""


class Score(NamedTuple):
  """An accuracy and its standard error over the judged pairs; guessing gives 0.5."""

  value: float
  error: float


def measure(run: pretraining_heads.TrainedModel, workdir: str) -> Score:
  """Accuracy of a classifier on the frozen encoder: is the second half that of the first, or of another example?

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
  tokenizer = run.tokenizer
  halves = [Sentence("", [tokenizer.cls_id, *half.tolist(), tokenizer.sep_id], [], [])
            for pair in split_examples(ids, num_tokens, tokenizer.special_ids) for half in pair]
  vectors = np.stack(pretraining_heads.embed(run, halves, "mean"))
  return classify(vectors[0::2], vectors[1::2])


def split_examples(ids: Int[np.ndarray, "examples length"], num_tokens: Int[np.ndarray, "examples"],
                   special_ids: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
  """The ordinary tokens of each example's first and second half.

  >>> split_examples(np.array([[2, 11, 12, 3, 13, 3, 0]]), np.array([6]), (0, 2, 3))
  [(array([11]), array([12, 13]))]
  """
  rows = [row[:length][~np.isin(row[:length], special_ids)] for row, length in zip(ids, num_tokens)]
  return [(row[:len(row) // 2], row[len(row) // 2:]) for row in rows]


def classify(first: Float[np.ndarray, "examples hidden"], second: Float[np.ndarray, "examples hidden"]) -> Score:
  """Test accuracy of a linear classifier on (u, v, |u - v|, u v), the features of sentence-pair probes.

  Ridge regression on +1 and -1: it has one solution, and no learning rate that might suit one encoder better. It is
  fitted on the first half of the examples and scored on the second; a false pair has the second half of the example
  that is half of such a set away.
  """
  border = len(first) // 2
  (x, y), (x_test, y_test) = (_pairs(first[part], second[part]) for part in (slice(border), slice(border, None)))
  probe = pipeline.make_pipeline(preprocessing.StandardScaler(),
                                 linear_model.RidgeClassifier(RIDGE * len(x), fit_intercept=False))
  right = float(probe.fit(x, y).score(x_test, y_test))
  return Score(right, float(np.sqrt(right * (1 - right) / len(x_test))))


def _pairs(first, second):
  """(features, labels) of each example's own halves, and of as many false pairs."""
  first, second = first.astype(np.float64), second.astype(np.float64)
  other = np.roll(second, len(second) // 2, axis=0)
  u, v = np.concatenate([first, first]), np.concatenate([second, other])
  return np.concatenate([u, v, abs(u - v), u * v], axis=1), np.repeat([1.0, -1.0], len(first))


def probe(workdir: str) -> dict[int, list[float]]:
  """Step -> (accuracy, standard error) of the initial parameters and of every checkpoint; known points are kept."""
  points, steps = read_probe(workdir), checkpoints.saved_steps(workdir)
  for step in (0, *steps):
    if step not in points:
      run = pretraining_heads.load(workdir, step or None)
      if not step:  # what the probe finds without any training
        run = run._replace(params=jax.jit(initial_params(run.config, run.tokenizer))())
      points[step] = list(measure(run, workdir))
      print(f"step {step:,}: {points[step][0]:.4f} ± {points[step][1]:.4f}", flush=True)
      write_json(os.path.join(workdir, PROBE_FILE), points)
  return points


def main(argv: list[str]) -> None:
  """Entry point."""
  del argv
  if not FLAGS.workdir:
    raise UserError("--workdir is missing", got="nothing", allowed="the workdir of a pre-training", fix="see --help")
  main_lib.start_jax()
  probe(FLAGS.workdir)


if __name__ == "__main__":
  main_lib.run(main, USAGE)
