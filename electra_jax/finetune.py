"""The fine-tuning page: from a pre-trained encoder to a table of dev scores. Read it from `finetune` downwards.

Several seeds train at once in one program (`jax.vmap` over seeds), as one small task leaves an accelerator idle.
Everything that a seed owns (parameters, moments, dropout, order of the data) has a leading axis `seeds`.
"""

import contextlib
import functools
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree
from ml_collections import ConfigDict

from electra_jax import config as config_lib
from electra_jax import distributed, metrics, optim, progress, sharding, tasks
from electra_jax.data import readers
from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.errors import Interrupted
from electra_jax.finetuning import losses, predictions, pretrained, report, results
from electra_jax.finetuning.predictions import FineTuneSetup, Split
from electra_jax.models.bert import Bert, with_task
from electra_jax.optim import layerwise
from electra_jax.tasks import batches, features
from electra_jax.training import checkpoints, setup
from electra_jax.training import workdir as workdir_lib


def finetune(given: ConfigDict, workdir: str, start: pretrained.PretrainedEncoder | None = None, recipe: str = ""
             ) -> dict[str, dict[str, float]]:
  """Trains `task.num_seeds` runs, or those that the workdir lacks. Returns {metric: summary over the seeds}.

  Args:
    given: the recipe with its overrides (not yet resolved).
    workdir: config.json, seeds/, the best run's checkpoint, results.md and curves.png live here.
    start: the encoder to start from; `task.init_from` is then only its name. None: read it from there.
    recipe: the name given as --config, for the record.

  Raises:
    UserError: a mistake in the configuration, the data or the workdir.
    Interrupted: Ctrl-C or SIGTERM stopped the training; a checkpoint of the last step is written.
  """
  config_lib.resolve(given)  # faults that can be found without any file come first
  start = start or pretrained.load(given.task.init_from)
  task = tasks.make(given.task)
  config_lib.resolve(complete(given, start, num_features=1))  # faults of the sizes, before minutes of reading
  data = read_data(task, start.tokenizer, given.task.max_length, given.task.max_train_examples)
  for split in task.test_splits if given.task.write_test_predictions else ():
    task.read(split)  # its faults are reported before the training, not after it
  config = config_lib.resolve(complete(given, start, len(data["train"].features)))
  mesh = sharding.make_mesh(config.mesh)
  sharding.check_batch_size(config.train.batch_size, mesh, "train.batch_size")
  sharding.check_batch_size(config.eval.batch_size, mesh, "eval.batch_size")
  examples = {split: part.examples for split, part in data.items()}
  checksums = {"examples": results.checksum_of(examples),
               "start": "" if given.task.from_scratch else pretrained.weights_checksum(start)}
  results.claim(config, workdir, checksums)
  workdir_lib.record_config(given, config, workdir, recipe=recipe)
  workdir_lib.record_start(workdir, 0, mesh)
  results.save_tokenizer_and_labels(workdir, start.tokenizer, task, checksums)
  run = make_run(config, task, start, mesh)
  say = (lambda text: print(progress.wrapped(text), flush=True)) if jax.process_index() == 0 else lambda line: None
  say(describe(config, task, data))
  results.introduce(task, examples, workdir, say)
  for seeds in groups(config, results.finished_seeds(workdir)):
    train_group(run, data, seeds, workdir)
  summary = results.conclude(config, task, workdir, say)
  say(report.next_steps(task, workdir))
  return summary


class SeedsState(NamedTuple):
  """`TrainState` of several seeds (leading axis), with the parameters of each seed's best dev score so far."""

  step: Any
  params: PyTree
  opt_state: PyTree
  best_params: PyTree
  best_score: Any  # [seeds], -inf before the first


def is_due(config: ConfigDict, step: int) -> bool:
  """Whether pre-training fine-tunes on `eval.finetune_tasks` after this step."""
  is_last = step == config.train.num_steps
  return bool(config.eval.finetune_tasks) and (is_last or progress.is_due(step, config.eval.finetune_every_steps))


def finetune_run(given: ConfigDict, workdir: str, step: int, start: pretrained.PretrainedEncoder) -> dict[str, float]:
  """Dev scores of `eval.finetune_tasks` from the parameters of a pre-training step: medians over the seeds.

  Each task follows `tasks.recipe_during` the pre-training, in the folder <workdir>/finetune/<step>/<task>.
  """
  medians = {}
  for name in given.eval.finetune_tasks.split(","):
    c = tasks.recipe_during(given, name)
    for branch in (c.train, c.eval):
      branch.batch_size = -(-branch.batch_size // jax.device_count()) * jax.device_count()
    c.task.init_from = f"{workdir} at step {step}"
    summary = finetune(c, os.path.join(workdir, "finetune", str(step), name), start)
    medians |= {f"{name}/{metric}": row["median"] for metric, row in summary.items()}
  return medians


def read_data(task: tasks.Task, tokenizer: Tokenizer, max_length: int, max_train_examples: int = 0) -> dict[str, Split]:
  """Every split to train or score on, as features; `max_train_examples` 0 = all."""
  splits = {}
  for split in task.splits:
    examples = task.read(split)
    if split == "train":
      examples = task.augment(batches.some(examples, max_train_examples))
    splits[split] = Split(examples, features.of_examples(task, examples, tokenizer, max_length))
  return splits


def complete(given: ConfigDict, start: pretrained.PretrainedEncoder, num_features: int) -> ConfigDict:
  """The recipe completed with the sizes and vocabulary of the encoder, and with the length of the training.

  Dropout rates stay the recipe's: an encoder that was pre-trained without dropout is fine-tuned with it.
  """
  c = ConfigDict(given.to_dict())
  rates = ("hidden_dropout_prob", "attention_probs_dropout_prob")
  c.model.update({key: value for key, value in start.model.items() if key not in rates})
  c.data.sequence_length = c.task.max_length
  c.data.tokenizer.update(kind=start.tokenizer.kind, lowercase=start.tokenizer.lowercase,
                          vocab_size=start.tokenizer.vocab_size)
  c.objective.name = "mlm"  # no generator
  if start.is_fine_tuned and c.task.fresh_layers is None:
    c.task.fresh_layers = 0
  c.train.num_steps = max(1, round(c.task.num_epochs * batches.steps_per_epoch(num_features, c.train.batch_size)))
  c.optimizer.warmup_steps = round(c.task.warmup_share * c.train.num_steps)
  return c


def make_run(config: ConfigDict, task: tasks.Task, start: pretrained.PretrainedEncoder, mesh: jax.sharding.Mesh
             ) -> FineTuneSetup:
  """The network with the task's heads, and the optimizer with layer-wise learning rates."""
  transformer = with_task(setup.make_transformer(config, start.tokenizer.vocab_size), config.task, task.num_labels)
  scale = layerwise.scale_by_layer(transformer.num_hidden_layers, config.task.layer_decay)
  tx, learning_rate = optim.make(config.optimizer, config.train.num_steps, scale)
  model = Bert(transformer, head_names=tasks.HEADS[task.head][0])
  return FineTuneSetup(config, task, start, model, tx, learning_rate, mesh)


def groups(config: ConfigDict, finished: Sequence[int]) -> Iterator[tuple[int, ...]]:
  """Groups of seeds that train together, without the finished ones."""
  seeds = [config.seed + i for i in range(config.task.num_seeds)]
  size = config.task.seeds_at_once or len(seeds)
  for first in range(0, len(seeds), size):
    group = tuple(seed for seed in seeds[first:first + size] if seed not in finished)
    if group:
      yield group


def train_group(run: FineTuneSetup, data: dict[str, Split], seeds: tuple[int, ...], workdir: str) -> None:
  """Trains some seeds together and records each one's dev scores, predictions and curve."""
  # ---- Set up: the programs, and when the dev split is scored.
  config, task, is_main = run.config, run.task, jax.process_index() == 0
  train, num_steps = data["train"].features, config.train.num_steps
  folder = os.path.join(workdir, "groups", "_".join(map(str, seeds)))  # checkpoints and curves of these seeds
  readers.start_import(config.data.reader)
  keys = jnp.stack([setup.random_key(seed, run.mesh) for seed in seeds])
  state = init_seeds(run, seeds)
  places = jax.tree.map(lambda x: x.sharding, state)
  train_step = jax.jit(functools.partial(update, run=run), donate_argnums=0, out_shardings=(places, None))
  outputs_of = jax.jit(functools.partial(predictions.task_outputs, run=run),
                       out_shardings=NamedSharding(run.mesh, PartitionSpec()))
  evaluate = functools.partial(predictions.evaluate, run, data, outputs_of)
  eval_steps = batches.evaluation_steps(config, len(train))

  # ---- Restore: the newest good checkpoint, or a start.
  saved = checkpoints.Checkpoints(folder, config.checkpoint)
  abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
  state = saved.restore_newest(abstract) or state
  start_step = int(state.step)
  writer = metrics.MetricWriter(folder, config.log, restored_step=start_step, enabled=is_main,
                                per_step={"epoch": config.task.num_epochs / num_steps})
  bar = progress.Progress(num_steps, start_step, enabled=is_main)
  curve = results.read_curve(folder, start_step)
  source = readers.BatchSource(lambda steps: train_batch(run, train, seeds, steps[0]))
  rows = readers.read_batches(source, start_step, num_steps, config.data.reader)
  window, evaluated = [], None  # evaluated: the last evaluation; the loop ends with one

  with (contextlib.closing(saved), contextlib.closing(writer), contextlib.closing(bar), contextlib.closing(rows),
        jax.set_mesh(run.mesh), distributed.StopRequest() as stop):
    for step in range(start_step + 1, num_steps + 1):
      # ---- Update.
      if step == start_step + 1:
        bar.message("compiling")
      state, loss = train_step(state, predictions.put(next(rows), run.mesh, row_axis=1), keys)
      window.append(loss)
      bar.advance(step)

      # ---- Log.
      if progress.is_due(step, config.train.log_every_steps) or step == num_steps:
        mean = np.mean(jax.device_get(window), axis=0)  # [seeds]
        rate = {"train/learning_rate": float(run.learning_rate(step - 1))}
        writer.write(step, "train", {f"loss/seed_{seed}": value for seed, value in zip(seeds, mean)} | rate)
        bar.show(step, {"loss": float(np.nanmedian(mean)) if np.isfinite(mean).any() else math.nan} | rate)
        window = []

      # ---- Evaluate.
      if step in eval_steps:
        evaluated = scores, _ = evaluate(state.params)
        curve.append({"step": step, "scores": scores})
        results.write_curve(folder, curve)
        state = keep_best(state, [row[task.metric] for row in scores])
        bar.message(results.describe_scores(task, step, num_steps, scores))

      # ---- Save.
      stops = stop.reached(step) and step < num_steps
      if step in eval_steps or stops:
        saved.save(state, step, finite=("best_params",))  # a seed that has failed does not stop the others
      if stops:
        raise Interrupted(f"Stopped after step {step:,} of {num_steps:,}, as asked. The same command resumes.")

    # ---- Finish: each seed's scores and predictions, the best one's parameters.
    params = chosen_params(state, config.task.select)
    is_known = evaluated is not None and config.task.select == "last"  # a long dev split is not scored twice
    scores, dev = evaluated if is_known else evaluate(params)
    tests = predictions.predict_tests(run, outputs_of, params) if config.task.write_test_predictions else {}
    results.keep_best_run(config, task, workdir, seeds, scores,
                          lambda row: sharding.gather(jax.tree.map(lambda x: x[row], params)))
    results.record(config, task, workdir, seeds, scores, {**dev, **tests}, curve)
  distributed.barrier(f"results in {folder}")  # every process reads what the first one has written
  if is_main:
    shutil.rmtree(os.path.join(folder, "checkpoints"), ignore_errors=True)


def init_seeds(run: FineTuneSetup, seeds: Sequence[int]) -> SeedsState:
  """Initial parameters and moments of each seed, split over the devices as in pre-training."""
  start = None if run.config.task.from_scratch else run.start
  names = run.model.head_names
  each = [pretrained.init_params(jax.random.key(seed), run.model.config, names, start, run.config.task.fresh_layers)
          for seed in seeds]
  stacked = jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf, np.float32) for leaf in leaves]), *each)
  place = shardings(run, stacked)
  params = jax.device_put(stacked, place.params)
  opt_state = jax.jit(jax.vmap(run.tx.init), out_shardings=place.opt_state)(params)
  best = jax.device_put(np.full(len(seeds), -np.inf, np.float32), place.best_score)
  return SeedsState(jax.device_put(np.int32(0), place.step), params, opt_state,
                    jax.device_put(stacked, place.best_params), best)


def shardings(run: FineTuneSetup, stacked: PyTree) -> SeedsState:
  """Where each array of the state lives: the arrays of every seed are split as in pre-training."""
  replicated = NamedSharding(run.mesh, PartitionSpec())
  seed_shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), stacked)
  params = jax.tree.map(lambda place: NamedSharding(run.mesh, PartitionSpec(None, *place.spec)),
                        sharding.parameter_shardings(seed_shapes, run.mesh))
  opt_state = optax.tree_map_params(run.tx, lambda _, place: place, jax.eval_shape(jax.vmap(run.tx.init), stacked),
                                    params, transform_non_params=lambda _: replicated)
  return SeedsState(replicated, params, opt_state, params, replicated)


def update(state: SeedsState, batch: dict[str, Array], keys: Array, *, run: FineTuneSetup) -> tuple[SeedsState, Array]:
  """One update of every seed: (state, batch [seeds, rows, ...], keys [seeds]) -> (state, loss [seeds])."""

  def update_one(params, opt_state, rows, key):
    def loss_of(params):
      outputs = predictions.apply(run, params, rows, train=True, rngs={"dropout": jax.random.fold_in(key, state.step)})
      weight = rows["row_weight"]
      return jnp.sum(losses.LOSSES[run.task.head](outputs, rows) * weight) / jnp.sum(weight)

    loss, gradients = jax.value_and_grad(loss_of)(params)
    updates, opt_state = run.tx.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss

  params, opt_state, loss = jax.vmap(update_one)(state.params, state.opt_state, batch, keys)
  return state._replace(step=state.step + 1, params=params, opt_state=opt_state), loss


def train_batch(run: FineTuneSetup, rows: Sequence[tasks.Feature], seeds: Sequence[int], step: int) -> readers.Batch:
  """The batch [seeds, rows, ...] of an update (counted from 0): a pure function of (seed, step), as each seed has its
  own order in each epoch."""
  size = run.config.train.batch_size
  epoch, number = divmod(step, batches.steps_per_epoch(len(rows), size))
  chosen = [batches.epoch_order(seed, epoch, len(rows))[number * size:(number + 1) * size] for seed in seeds]
  length = batches.length_of([rows[i] for numbers in chosen for i in numbers], run.config.task)
  each = [batches.collate([rows[i] for i in numbers], size, length, run.start.tokenizer.pad_id, run.task.head)
          for numbers in chosen]
  return {name: np.stack([batch[name] for batch in each]) for name in each[0]}


def keep_best(state: SeedsState, scores: Sequence[float]) -> SeedsState:
  """Keeps the parameters of the seeds that have improved; a NaN score is no improvement."""
  new_score = jnp.asarray(scores, jnp.float32)
  better = new_score > state.best_score
  chosen = jax.tree.map(lambda new, old: jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old),
                        state.params, state.best_params)
  return state._replace(best_params=chosen, best_score=jnp.where(better, new_score, state.best_score))


def chosen_params(state: SeedsState, select: str) -> PyTree:
  """Each seed's parameters after the last update, or those with the best dev score.

  A seed that never had a score gets its last ones rather than its initial ones: its result must be "failed".
  """
  if select == "last":
    return state.params
  scored = jnp.isfinite(state.best_score)
  return jax.tree.map(lambda best, last: jnp.where(scored.reshape(-1, *[1] * (best.ndim - 1)), best, last),
                      state.best_params, state.params)


def describe(config: ConfigDict, task: tasks.Task, data: dict[str, Split]) -> str:
  """The line that is printed before the training."""
  sizes = ", ".join(f"{len(data[split].examples):,} {split}" for split in task.splits)
  cut = sum(feature.get("_was_cut", False) for split in data.values() for feature in split.features)
  note = f"; {cut:,} texts were cut to {config.task.max_length} tokens" if cut else ""
  note += f"; {results.describe_left_out(task)}" if task.left_out else ""
  return (f"{task.name}: {sizes} examples, {config.train.num_steps:,} updates of {config.train.batch_size}, seeds "
          f"{config.seed} to {config.seed + config.task.num_seeds - 1}, {'random ' * config.task.from_scratch}"
          f"start from {config.task.init_from}{note}")
