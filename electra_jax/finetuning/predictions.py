"""Predictions of several seeds' fine-tuned networks, and their scores: every example counts exactly once."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree
from ml_collections import ConfigDict

from electra_jax import sharding, tasks
from electra_jax.data import readers
from electra_jax.finetuning import pretrained
from electra_jax.models.bert import Bert
from electra_jax.objectives import base
from electra_jax.tasks import batches, features
from electra_jax.training import nonfinite

PER_CHOICE = ("input_ids", "token_type_ids", "attention_mask", "masked_positions", "masked_ids")  # a row a choice


class Split(NamedTuple):
  """A split with its features; `features[i]["_example"]` is the number of its example."""

  examples: list[tasks.Example]
  features: list[tasks.Feature]


class FineTuneSetup(NamedTuple):
  """What all seeds share."""

  config: ConfigDict
  task: tasks.Task
  start: pretrained.PretrainedEncoder
  model: Bert
  tx: optax.GradientTransformation
  learning_rate: Callable[[int], Any]  # of an update, from 0; of the layer that learns fastest
  mesh: jax.sharding.Mesh


def apply(run: FineTuneSetup, params: PyTree, batch: dict[str, Array], train: bool,
          rngs: dict[str, Array] | None = None) -> dict[str, Array]:
  """The outputs of one seed's heads; the choices of a question are rows of the encoder's batch."""
  shape = batch["input_ids"].shape
  flat = {**batch, **{name: batch[name].reshape(-1, batch[name].shape[-1]) for name in PER_CHOICE if name in batch}}
  outputs = base.apply(run.model, params["encoder"], flat, train, method="task_outputs", rngs=rngs)
  return {name: x.reshape(shape[:-1]) for name, x in outputs.items()} if len(shape) == 3 else outputs


def task_outputs(params: PyTree, batch: dict[str, Array], *, run: FineTuneSetup) -> dict[str, Array]:
  """Outputs [seeds, rows, ...] for one batch that all seeds read."""
  return jax.vmap(lambda seed_params: apply(run, seed_params, batch, train=False))(params)


def put(batch: dict[str, np.ndarray], mesh: jax.sharding.Mesh, row_axis: int) -> dict[str, Array]:
  """A batch, of which every process holds all rows, split over the mesh's data axes."""
  place = NamedSharding(mesh, PartitionSpec(*[None] * row_axis, *sharding.partition_spec("batch")))
  return {name: jax.make_array_from_callback(x.shape, place, lambda index, x=x: x[index]) for name, x in batch.items()}


def predict(run: FineTuneSetup, split: Split, outputs_of: Callable, params: PyTree) -> list[dict[str, np.ndarray]]:
  """For each seed the outputs for every feature, in their order; none is dropped or counted twice.

  Features of similar length share a batch; outputs per token are padded with zeros to `task.max_length`.
  """
  size, rows, max_length = run.config.eval.batch_size, split.features, run.config.task.max_length
  chunks = batches.by_length(rows, size)
  gathered: dict[str, np.ndarray] = {}  # head -> [seeds, features, ...]

  def make_one(steps: range) -> readers.Batch:
    chosen = chunks[steps[0]]
    length = batches.length_of([rows[chosen[-1]]], run.config.task)
    return batches.collate([rows[i] for i in chosen], size, length, run.start.tokenizer.pad_id, run.task.head)

  read = readers.read_batches(readers.BatchSource(make_one), 0, len(chunks), run.config.data.reader,
                               what="batches of a dev split")
  computed = (outputs_of(params, put(batch, run.mesh, row_axis=0)) for batch in read)
  for chosen, outputs in zip(chunks, batches.one_ahead(computed), strict=True):
    for name, x in jax.device_get(outputs).items():
      if name in ("tagging_head", "span_head"):  # per token: [seeds, rows, length, ...]
        x = np.pad(x, [(0, 0), (0, 0), (0, max_length - x.shape[2]), (0, 0)])
      if name not in gathered:
        gathered[name] = np.empty((len(x), len(rows), *x.shape[2:]), np.float32)
      gathered[name][:, chosen] = x[:, :len(chosen)]
  return [{name: x[seed] for name, x in gathered.items()} for seed in range(len(next(iter(gathered.values()))))]


def evaluate(run: FineTuneSetup, data: dict[str, Split], outputs_of: Callable, params: PyTree
             ) -> tuple[list[dict[str, float]], dict]:
  """(metrics of each seed, {split: (split, outputs of each seed)}) for all splits but train.

  A task with several dev splits has metrics `matched/accuracy`, ... and the first split's `accuracy`. All are NaN for a
  seed whose parameters are not finite, although its constant answers would have an accuracy, too.
  """
  splits = run.task.splits[1:]
  outputs_of_split = {split: predict(run, data[split], outputs_of, params) for split in splits}
  everywhere = NamedSharding(run.mesh, PartitionSpec())
  is_finite = jax.device_get(jax.jit(nonfinite.finite_seeds, out_shardings=everywhere)(params))
  scores = []
  for seed in range(len(outputs_of_split[splits[0]])):
    row = {}
    for split in splits:
      predictions = run.task.decode(outputs_of_split[split][seed], data[split].features, data[split].examples)
      values = run.task.score(predictions, data[split].examples)
      if len(splits) > 1:
        row |= {f"{split.removeprefix('dev_')}/{name}": value for name, value in values.items()}
      row = values | row if split == splits[0] else row
    scores.append(row if is_finite[seed] else dict.fromkeys(row, math.nan))
  return scores, {split: (data[split], outputs) for split, outputs in outputs_of_split.items()}


def predict_tests(run: FineTuneSetup, outputs_of: Callable, params: PyTree) -> dict:
  """{test split: (split, outputs of each seed)}."""
  predicted = {}
  for name in run.task.test_splits:
    examples = run.task.read(name)
    rows = features.of_examples(run.task, examples, run.start.tokenizer, run.config.task.max_length)
    split = Split(examples, rows)
    predicted[name] = (split, predict(run, split, outputs_of, params))
  return predicted
