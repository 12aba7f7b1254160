"""Ensembles of fine-tuned runs: the mean of their probabilities (RoBERTa section 5.1: 5 to 7 runs a task)."""

import functools
import math
import os
from collections.abc import Callable, Sequence

import numpy as np

from electra_jax import config as config_lib
from electra_jax.data import tokenizers
from electra_jax.errors import UserError
from electra_jax.tasks import features, joint_spans
from electra_jax.tasks.base import Example, Outputs, Task

# Heads whose outputs are averaged as they are. For a span's logits this is the geometric mean of the probabilities.
AS_THEY_ARE = ("regression", "multi_label", "multiple_choice", "ranking", "answer_ranking", "phrase", "span")
WITH_FEATURES = ("tagging", "ranking", "phrase", "span", "joint_span")  # heads whose decoding needs the features


def average(outputs: Sequence[Outputs], head: str) -> Outputs:
  """Mean over runs without NaN: of probabilities (returned as logs), of scores as they are, of the spans found.

  >>> rows = [np.array([[2.0, 0.0]], np.float32), np.array([[0.0, 1.0]], np.float32)]
  >>> average([{"classification_head": row} for row in rows], "classification")["classification_head"].argmax()
  np.int64(0)
  """
  from scipy.special import softmax
  finite = [run for run in outputs if all(np.isfinite(x).all() for x in run.values())] or list(outputs)[:1]

  def mean(name: str, transform: Callable[[np.ndarray], np.ndarray] = np.asarray) -> np.ndarray:
    return np.mean([transform(run[name]) for run in finite], axis=0)

  if head in AS_THEY_ARE:
    return {name: mean(name) for name in finite[0]}
  if head == "joint_span":
    return {"joint_span_head": joint_spans.average([run["joint_span_head"] for run in finite]),
            "answerable_head": mean("answerable_head")}
  return {name: np.log(np.maximum(mean(name, functools.partial(softmax, axis=-1)), 1e-30)) for name in finite[0]}


def load_outputs(workdir: str, seed: int, split: str) -> Outputs:
  """The outputs of a finished seed for a split."""
  with np.load(os.path.join(workdir, "seeds", f"{seed}.npz")) as arrays:
    return {name.removeprefix(f"{split}/"): arrays[name] for name in arrays.files if name.startswith(f"{split}/")}


def answer(task: Task, members: Sequence[tuple[str, int]], split: str) -> tuple[list, list[Example]]:
  """(predictions, examples) of an ensemble of (workdir, seed), or of one run.

  Raises:
    UserError: a run has no answers to the split, or not one for each example.
  """
  examples, rows = task.read(split), []
  if task.head in WITH_FEATURES:
    folder = members[0][0]
    tokenizer = tokenizers.load_tokenizer(os.path.join(folder, "tokenizer"))
    rows = features.of_examples(task, examples, tokenizer, config_lib.load(folder).task.max_length)
  outputs = [load_outputs(workdir, seed, split) for workdir, seed in members]
  for (workdir, seed), outputs_of in zip(members, outputs):
    count, wanted = len(next(iter(outputs_of.values()))) if outputs_of else 0, len(rows or examples)
    if count != wanted:
      raise UserError(f"A run has not answered the split {split}",
                      got=f"{count} answers of seed {seed} in {workdir} for {wanted} examples",
                      allowed="an answer to each", fix="run it in a new workdir with "
                      "--config.task.write_test_predictions and the same data")
  return task.decode(average(outputs, task.head), rows, examples), examples


def score(task: Task, members: Sequence[tuple[str, int]]) -> dict[str, float]:
  """Metrics of an ensemble of (workdir, seed) on the first dev split; {} for fewer than two runs."""
  return task.score(*answer(task, members, task.splits[1])) if len(members) > 1 else {}


def choose(runs: Sequence[tuple[str, dict]], metric: str, size: int) -> list[tuple[str, int]]:
  """(workdir, seed) of the `size` runs with the best dev scores, the best first; runs without one are left out."""
  ranked = sorted((run for run in runs if math.isfinite(run[1]["scores"][metric])),
                  key=lambda run: -run[1]["scores"][metric])
  return [(workdir, run["seed"]) for workdir, run in ranked[:size]]
