"""Evaluation of a pre-training on held-out text: every example, as sums over all devices."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from ml_collections import ConfigDict

from electra_jax import metrics, progress, sharding
from electra_jax.data import pipeline, shards
from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.objectives.base import Objective
from electra_jax.training import setup, warning_signs
from electra_jax.training.train_state import TrainState

EVAL_FOLD = 2**31 - 1  # folded into the seed in place of a step: evaluation draws the same samples every time


def evaluate_batch(params: PyTree, batch: dict[str, Array], index: Array, *, objective: Objective, rng: Array,
                   shared_dtype: jnp.dtype | None = None) -> dict[str, tuple[Array, Array]]:
  """Metric pairs of one held-out batch, without dropout; the generator's draws depend on the batch index alone."""
  params = sharding.gather_parameters(params, shared_dtype)
  num_targets = jax.tree.map(lambda count: jnp.maximum(count, 1), objective.count_targets(batch))
  batch_rng = jax.random.fold_in(jax.random.fold_in(rng, EVAL_FOLD), index)
  _, pairs = objective.phases[-1].loss(params, batch, batch_rng, False, num_targets)
  return pairs


def make(run: setup.Setup, data: Any) -> Callable[[TrainState], dict[str, float]]:
  """state -> held-out metrics as global sums over every example, the last, partly filled batch included; {} without.

  Args:
    data: of `inputs.open_data`.
  """
  config = run.config
  eval_step = jax.jit(functools.partial(evaluate_batch, objective=run.objective, rng=run.eval_key,
                                        shared_dtype=run.shared_dtype))

  def evaluate(state: TrainState) -> dict[str, float]:
    if not len(data.heldout):
      return {}
    params = run.unstack(state).params
    batches = pipeline.eval_batches(data.heldout, config.data, data.tokenizer, seed=config.seed,
                                    batch_size=config.eval.batch_size, max_examples=config.eval.max_examples,
                                    process_index=jax.process_index(), process_count=jax.process_count())
    pairs = [eval_step(params, sharding.put_batch(batch, run.mesh), jnp.int32(index))
             for index, batch in enumerate(batches)]
    return metrics.summarise(metrics.add_pairs(pairs)) | {"eval/unigram_entropy": data.unigram_entropy}

  return evaluate


def unigram_entropy(examples: shards.ShardedExamples, max_examples: int, tokenizer: Tokenizer) -> float:
  """Entropy in nats of the evaluated tokens: the MLM loss of the best model that ignores all context."""
  counts = examples.token_counts(tokenizer.vocab_size, max_examples)
  share = counts[counts > 0] / counts.sum()
  return float(-(share * np.log(share)).sum()) if len(share) else math.nan


def log(values: dict[str, float], step: int, config: ConfigDict, writer: metrics.MetricWriter, bar: Any
        ) -> dict[str, float]:
  """Into the logs, and as one line on the console; a second one where something is wrong (`warning_signs`).

  Returns:
    the values.
  """
  if not values:
    bar.message(f"step {step:,}: nothing is held out, so nothing is evaluated. In a new workdir, set "
                "--config.data.heldout_share above 0 and take more than one paragraph of text.")
    return values
  writer.write(step, "eval", values)
  bar.message(f"step {step:,}, held-out: {progress.describe_evaluation(values)}")
  for sign in warning_signs.find(config, writer.rows())[:1]:
    bar.message(sign)
  return values
