"""What do several fine-tuned runs answer together? The mean of their probabilities (RoBERTa: 5 to 7 runs a task)."""

import math
import os
from collections.abc import Sequence

import numpy as np

from electra_jax.tasks.contract import Outputs, Task

AS_THEY_ARE = ("regression", "multiple_choice")  # heads whose outputs are averaged as scores


def average(outputs: Sequence[Outputs], head: str) -> Outputs:
  """Mean over runs, NaN runs left out: of log-softmax probabilities, of scores as they are.

  >>> rows = [np.array([[2.0, 0.0]], np.float32), np.array([[0.0, 1.0]], np.float32)]
  >>> average([{"classification_head": row} for row in rows], "classification")["classification_head"].argmax()
  np.int64(0)
  """
  sound = [one for one in outputs if all(np.isfinite(x).all() for x in one.values())] or list(outputs)[:1]
  if head in AS_THEY_ARE:
    return {name: np.mean([one[name] for one in sound], axis=0) for name in sound[0]}
  return {name: np.log(np.maximum(np.mean([_softmax(one[name]) for one in sound], axis=0), 1e-30))
          if sound[0][name].ndim > 1 else np.mean([one[name] for one in sound], axis=0) for name in sound[0]}


def _softmax(logits: np.ndarray) -> np.ndarray:
  shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
  return shifted / shifted.sum(axis=-1, keepdims=True)


def load_outputs(workdir: str, seed: int, split: str) -> Outputs:
  """The outputs of a finished seed for a split."""
  with np.load(os.path.join(workdir, "seeds", f"{seed}.npz")) as arrays:
    return {name.removeprefix(f"{split}/"): arrays[name] for name in arrays.files if name.startswith(f"{split}/")}


def score(task: Task, workdir: str, seeds: Sequence[int]) -> dict[str, float]:
  """Metrics of the seeds' ensemble on the first dev split; {} for heads that need more than their outputs."""
  if task.head not in ("classification", *AS_THEY_ARE) or len(seeds) < 2:
    return {}
  return score_outputs(task, [load_outputs(workdir, seed, task.splits[1]) for seed in seeds])


def score_outputs(task: Task, outputs: Sequence[Outputs]) -> dict[str, float]:
  """Metrics of an ensemble on the first dev split, read anew."""
  examples = task.read(task.splits[1])
  return task.score(task.decode(average(outputs, task.head), [], examples), examples)


def choose(runs: Sequence[tuple[str, dict]], metric: str, size: int) -> list[tuple[str, int]]:
  """(workdir, seed) of the `size` runs with the best dev scores; runs without one are left out."""
  ranked = sorted((run for run in runs if math.isfinite(run[1]["scores"][metric])),
                  key=lambda run: -run[1]["scores"][metric])
  return [(workdir, run["seed"]) for workdir, run in ranked[:size]]
