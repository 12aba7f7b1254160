"""The pre-training page: from a recipe to a trained encoder, from top to bottom.

All objectives share this loop; they differ in the pure functions in `objectives/`.
"""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Generator, Iterator

import jax
import numpy as np
from jaxtyping import PyTree
from ml_collections import ConfigDict

from electra_jax import config as config_lib
from electra_jax import distributed, finetune, flops, metrics, progress, sharding
from electra_jax.data import pipeline, readers
from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.errors import Interrupted, UserError
from electra_jax.exchange import formats, hub, published
from electra_jax.finetuning import pretrained
from electra_jax.progress import is_due
from electra_jax.training import checkpoints, evaluation, inputs, memory, nonfinite, setup
from electra_jax.training import workdir as workdir_lib
from electra_jax.training.train_state import TrainState, count_parameters


def pretrain(given: ConfigDict, workdir: str, recipe: str = "") -> dict[str, float]:
  """Trains until `train.num_steps`, resuming from the workdir's checkpoint. Returns the final evaluation, maybe empty.

  Args:
    given: the recipe with its overrides (not yet resolved).
    workdir: gets config.json, tokenizer/, shards/, checkpoints/ and the logs.
    recipe: as named by --config, for the record.

  Raises:
    UserError: a mistake in the configuration, the data or the workdir; nothing that existed is harmed.
    Interrupted: a signal stopped the training; a checkpoint of the last step is written.
  """
  # ---- Set up: the config, the data, and what the run is made of.
  timer = progress.StepTimer()
  config = config_lib.resolve(given := published.fit(given, workdir))
  num_steps, updates = config.train.num_steps, config.train.steps_per_dispatch
  mesh = setup.make_mesh(config)
  workdir_lib.claim(config, workdir)
  data = inputs.open_data(config, workdir)
  timer.done("data")
  run = setup.make(config, mesh, data.tokenizer.vocab_size, data.token_counts)
  evaluate = evaluation.make(run, data)
  workdir_lib.record_config(given, config, workdir, data.text, recipe)

  # ---- Restore: the newest good checkpoint, or a new state.
  saved = checkpoints.Checkpoints(workdir, config.checkpoint, run.unstack)
  train_step_of = run.start_compiling(saved.newest_step)
  state = run.stack(restore_or_init(saved, run, data.tokenizer))
  start_step = step = int(state.step)
  writer, bar, watch = open_logs(run, data, state, workdir, timer)
  rows = readers.read_batches(data.batch_at, start_step, num_steps, config.data.reader)
  batches, window, result = on_devices(rows, updates, mesh), [], {}
  with closing(saved, writer, bar, rows), jax.set_mesh(mesh), distributed.StopRequest() as stop:
    finish_step(given, run, data, state, evaluate, workdir, writer, bar)
    for step in range(start_step + updates, num_steps + 1, updates):
      # ---- Update.
      with timer.waiting(functools.partial(is_busy, window[-1:])):
        batch = next(batches)
      phase, first_step = run.objective.phase_at(step - updates)
      if step - updates in (start_step, first_step):
        with timer.paused("start", after=state):
          state = run.enter(phase, state) if step - updates == first_step > 0 else state
          compile_step(train_step_of(phase), state, batch, bar)
      state, step_metrics = train_step_of(phase)(state, batch)
      window.append(step_metrics)
      if step - updates == start_step:
        bar.message(timer.after_first_step(step_metrics))
      timer.step(updates)
      bar.advance(step)

      # ---- Log.
      if is_due(step, config.train.log_every_steps) or step == num_steps:
        log_window(window, step, run, watch, timer, writer, bar)

      # ---- Save.
      stops, finetunes = stop.reached(step) and step < num_steps, finetune.is_due(config, step)
      with timer.paused("checkpoint", after=state if saved.is_due(step) else ()):
        saved.save_if_due(state, step, too=stops or finetunes or step == num_steps)
      if stops:
        writer.write(step, "time", timer.goodput())
        raise Interrupted(f"Stopped after step {step:,} of {num_steps:,}, as asked. The same command resumes.")

      # ---- Evaluate.
      if is_due(step, config.eval.every_steps) or step == num_steps:
        with timer.paused("evaluation", after=state):
          result = evaluation.log(evaluate(state), step, config, writer, bar)
      if finetunes:
        with timer.paused("evaluation"):
          fine_tune(given, run, data, state, workdir, writer)

    # ---- Finish.
    if step == start_step:
      saved.save_if_due(state, step, too=True)
      bar.message(f"This run is finished: {step:,} of {num_steps:,} steps are done.")
      result = evaluation.log(evaluate(state), step, config, writer, bar)
    else:
      writer.write(step, "time", timer.goodput())
      bar.message(f"time: {progress.describe_goodput(timer.goodput())}")
    bar.finish(workdir)
  return result


@contextlib.contextmanager
def closing(*things) -> Generator[None, None, None]:
  """Closes each of them at the end, the last one first, even after an error."""
  with contextlib.ExitStack() as stack:
    for thing in things:
      stack.enter_context(contextlib.closing(thing))
    yield


def finish_step(given: ConfigDict, run: setup.Setup, data: inputs.Data, state: TrainState, evaluate: Callable,
                workdir: str, writer: metrics.MetricWriter, bar: progress.Progress) -> None:
  """The evaluation and the fine-tuning that were due after the restored step, if a stop prevented them."""
  step, config = int(state.step), run.config
  if step == 0:
    return
  logged = {row["split"] for row in metrics.rows_so_far(workdir) if row["step"] == step}
  if is_due(step, config.eval.every_steps) and step < config.train.num_steps and "eval" not in logged:
    evaluation.log(evaluate(state), step, config, writer, bar)
  if finetune.is_due(config, step) and "finetune" not in logged:
    fine_tune(given, run, data, state, workdir, writer)


def fine_tune(given: ConfigDict, run: setup.Setup, data: inputs.Data, state: TrainState, workdir: str,
              writer: metrics.MetricWriter) -> None:
  """Fine-tunes this state's encoder on `eval.finetune_tasks`, and logs the dev scores."""
  step, start = int(state.step), pretrained.of_run(run.config, data.tokenizer, run.unstack(state).params)
  writer.write(step, "finetune", finetune.finetune_run(given, workdir, step, start))


def log_window(window: list[dict], step: int, run: setup.Setup, watch: nonfinite.Watch, timer: progress.StepTimer,
               writer: metrics.MetricWriter, bar: progress.Progress) -> None:
  """Logs the mean metrics of a window of updates that ends with `step`, and empties it; waits for the devices."""
  pairs = metrics.of_each_step(window)
  window.clear()
  values = watch.check(pairs, metrics.summarise(metrics.add_pairs(pairs)), step)
  values = {"train/learning_rate": run.learning_rate(step - 1)} | values | timer.read()
  writer.write(step, "train", values)
  bar.show(step, values)


def compile_step(train_step: jax.stages.Wrapped, state: TrainState, batch: PyTree, bar: progress.Progress) -> None:
  """Compiles an update for batches like this one, and prints how much memory it takes."""
  bar.message("compiling")
  bar.message(memory.at_start(train_step, state, batch))


def open_logs(run: setup.Setup, data: inputs.Data, state: TrainState, workdir: str, timer: progress.StepTimer
              ) -> tuple[metrics.MetricWriter, progress.Progress, nonfinite.Watch]:
  """The metric writer, console and watch for non-finite values; prints a header that says what is trained."""
  config, step, device = run.config, int(state.step), jax.devices()[0]
  timer.done("restore")
  workdir_lib.record_start(workdir, step, run.mesh)
  is_main = jax.process_index() == 0
  places = config.train.batch_size * config.data.sequence_length
  epochs = 1 / pipeline.steps_per_epoch(data.train, config.data, config.train.batch_size)
  writer = metrics.MetricWriter(workdir, config.log, restored_step=step, enabled=is_main, run_config=config.to_dict(),
                                per_step={"tokens": float(epochs * data.train.lengths().sum(dtype=np.int64)),
                                          "epoch": epochs})
  bar = progress.Progress(config.train.num_steps, step, enabled=is_main)
  peak = flops.HARDWARE_PEAKS.get(device.device_kind)
  timer.measure(tokens_per_step=places, flops_per_step=flops.model_flops(config).per_step,
                peak=peak and peak * jax.device_count())
  bar.message(progress.header(config, text=data.text["path"], num_parameters=count_parameters(state.params),
                              num_train=len(data.train), num_heldout=len(data.heldout), passes=epochs,
                              devices=f"{jax.device_count()} {device.device_kind} device(s)"))
  return writer, bar, nonfinite.Watch(config.train, int(state.skipped_in_a_row))


def restore_or_init(saved: checkpoints.Checkpoints, run: setup.Setup, tokenizer: Tokenizer) -> TrainState:
  """The workdir's newest good checkpoint; else a new state, maybe with another run's or published parameters."""
  state = saved.restore_newest(run.abstract_state)
  if state is not None:
    updates = run.config.train.steps_per_dispatch
    if int(state.step) % updates:
      raise UserError("This workdir's checkpoint is not at the end of a dispatch", got=f"step {int(state.step)} and "
                      f"--config.train.steps_per_dispatch={updates}", allowed="steps that it divides",
                      fix=f"set it to {math.gcd(int(state.step), updates)}")
    print(f"Resuming from this workdir's checkpoint of step {int(state.step):,}.", flush=True)
    return state
  state, init_from = run.init_state(), hub.fetch(run.config.checkpoint.init_from)
  if init_from and formats.is_published(init_from):
    params, report = published.start_params(init_from, state.params, tokenizer)
    print(report, flush=True)
    return state._replace(params=params)
  if init_from:
    wanted = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state.params)
    step, params = checkpoints.load_params(init_from, wanted)
    print(f"Starting from the parameters of {init_from}, step {step:,}.", flush=True)
    return state._replace(params=params)
  print("Starting from scratch.", flush=True)
  return state


def is_busy(step_metrics: list[dict]) -> bool:
  """Whether the devices are still computing these metrics."""
  return not all(leaf.is_ready() for leaf in jax.tree.leaves(step_metrics))


def on_devices(batches: Iterator[dict[str, np.ndarray]], updates: int, mesh: jax.sharding.Mesh
               ) -> Iterator[dict[str, jax.Array]]:
  """Groups of `updates` batches with a leading axis of updates, put on the devices one call ahead of their use."""
  groups = iter(lambda: list(itertools.islice(batches, updates)), [])
  placed = (sharding.put_batches(group, mesh) for group in groups)
  following = next(placed, None)
  while following is not None:
    batch, following = following, next(placed, None)
    yield batch
