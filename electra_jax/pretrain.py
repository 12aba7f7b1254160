"""The pre-training page: from a resolved config to a trained encoder. Read it from `pretrain` at the top downwards.

Every objective shares this loop; what differs between them is the pure functions in `objectives/`.
"""

import contextlib
import functools
from collections.abc import Iterable, Iterator

import jax
import numpy as np

from electra_jax import (
  checkpoints,
  dispatches,
  distributed,
  evaluation,
  finetune,
  flops,
  inputs,
  memory,
  metrics,
  nonfinite,
  pretrained,
  progress,
  published,
  sharding,
  train_state,
)
from electra_jax import config as config_lib
from electra_jax import workdir as workdir_lib
from electra_jax.data import pipeline
from electra_jax.errors import Interrupted
from electra_jax.objectives import electra_mlm
from electra_jax.train_state import TrainState, count_parameters
from electra_jax.training import setup


def pretrain(given, workdir: str) -> dict[str, float]:
  """Trains until `train.num_steps`, or goes on from where the workdir stands. Returns the final evaluation.

  It is empty where nothing is held out (`data.heldout_share`).

  Args:
    given: the recipe with its overrides (not yet resolved).
    workdir: config.json, tokenizer/, shards/, checkpoints/ and the logs live here.

  Raises:
    UserError: a mistake in the configuration, the data or the workdir; nothing that existed is harmed.
    Interrupted: Ctrl-C or SIGTERM came while it trained; a checkpoint of the last step is written.
  """
  start_up = progress.StartUp()
  config = config_lib.resolve(given)
  mesh = sharding.make_mesh(config.mesh)
  inputs.check_batch_sizes(config, mesh)
  workdir_lib.claim(config, workdir)
  data = inputs.open_data(config, workdir)
  start_up.done("data")

  run = setup.make(config, mesh, num_tokens=data.tokenizer.vocab_size, token_counts=data.token_counts)
  objective = run.objective
  workdir_lib.record_config(given, config, workdir, data.text)
  saved = checkpoints.Checkpoints(workdir, config.checkpoint)
  state = restore_or_init(saved, run, data.tokenizer)
  start_step = int(state.step)
  workdir_lib.record_start(workdir, start_step, mesh)
  start_up.done("restore")

  main_process = jax.process_index() == 0
  writer = metrics.MetricWriter(workdir, config.log, restored_step=start_step, enabled=main_process,
                                run_config=config.to_dict())
  cost = flops.model_flops(config)
  bar = progress.Progress(config.train.num_steps, start_step, enabled=main_process)
  timer = progress.StepTimer(tokens_per_step=config.train.batch_size * config.data.sequence_length,
                             flops_per_step=cost.per_step, num_devices=jax.device_count(),
                             device_kind=jax.devices()[0].device_kind, already=sum(start_up.seconds.values()))
  bar.message(f"{config.objective.name}: {count_parameters(state.params):,} parameters, "
              f"{len(data.train):,} training and {len(data.heldout):,} held-out examples of "
              f"{config.data.sequence_length} tokens, {jax.device_count()} {jax.devices()[0].device_kind} device(s)")

  eval_step = jax.jit(functools.partial(evaluation.evaluate_batch, objective=objective, rng=run.eval_key))
  mlm_accuracy = electra_mlm.make_accuracy(run.transformer, config)
  evaluate = functools.partial(evaluation.evaluate, eval_step, config, data, mesh,
                               mlm_accuracy=mlm_accuracy and jax.jit(mlm_accuracy))
  batches = pipeline.train_batches(data.batch_at, start_step, config.train.num_steps, config.data.reader,
                                   config.data.prefetch_batches)
  window, evaluated_step, train_steps = [], None, {}
  watch = nonfinite.Watch(config.train, int(state.skipped_in_a_row))
  done = start_step
  dispatched = dispatches.ranges(start_step, config.train.num_steps, config.train.steps_per_dispatch,
                                 functools.partial(host_acts, config, objective, saved))
  coming = on_devices(batches, dispatched, mesh)
  with (contextlib.closing(saved), contextlib.closing(writer), contextlib.closing(bar),  # also after an error
        contextlib.closing(batches), jax.set_mesh(mesh)):
    with distributed.StopRequest() as stop:
      with timer.waiting():
        following = next(coming, None)
      start_up.done("first_batch")
      while following is not None:
        steps, batch = following
        step = steps[-1]  # counts this update as done
        phase, first_step = objective.phase_at(steps[0] - 1)
        if first_step == steps[0] - 1:
          state = train_state.enter(phase, state)
        train_step = train_steps.get(of_shape := (first_step, len(steps)))
        if train_step is None:
          train_step = train_steps[of_shape] = run.train_step(phase, len(steps))
          jax.block_until_ready(state)
          with timer.paused("start"):
            bar.message(memory.at_start(train_step, state, batch))
        state, step_metrics = train_step(state, batch)
        window.append(step_metrics)
        with timer.waiting(functools.partial(is_busy, step_metrics)):
          following = next(coming, None)  # here, so that the devices find it where the host has waited for them
        if done == start_step:
          jax.block_until_ready(step_metrics)  # compilation is not training time
          start_up.done("compilation")
          bar.message(str(start_up))
        timer.step(len(steps))
        bar.advance(step)
        done, ends = step, step == config.train.num_steps

        if dispatches.is_due(step, config.train.log_every_steps) or ends:
          window = metrics.of_each_step(window)
          values = watch.check(window, metrics.summarise(metrics.add_pairs(window)), step)  # waits for the devices
          window = []
          values = {"train/learning_rate": float(run.learning_rate(step - 1))} | values | timer.read()
          writer.write(step, "train", values)
          bar.show(step, values)
        evaluates = dispatches.is_due(step, config.eval.every_steps)
        if evaluates or saved.is_due(step):
          jax.block_until_ready(state)  # what the devices still do is steps, not evaluation
        if evaluates:
          with timer.paused("evaluation"):
            evaluation.log(evaluate(state.params), step, writer, bar, is_last_phase=phase is objective.phases[-1])
            evaluated_step = step
        with timer.paused("checkpoint"):
          saved.save_if_due(state, step)
        if finetune.is_due(config, step, is_last=ends):
          saved.save(state, step)  # a stop during the fine-tuning goes on from here
          with timer.paused("evaluation"):
            kept = pretrained.of_run(config, data.tokenizer, state.params)
            writer.write(step, "finetune", finetune.finetune_run(given, workdir, step, kept))
        if any(map(stop.reached, steps)) and not ends:
          saved.save(state, step)
          writer.write(step, "time", timer.goodput() | start_up.values())
          raise Interrupted(f"Stopped after step {step} of {config.train.num_steps}, as asked. Its checkpoint is "
                            "complete; the same command goes on from there.")
        if ends:
          break

    with timer.paused("checkpoint"):
      saved.save(state, done)
    if done == start_step:
      bar.message(f"This run is finished: {done} of {config.train.num_steps} steps are done.")
    with timer.paused("evaluation"):
      result = evaluate(state.params)
      if evaluated_step != done:
        evaluation.log(result, done, writer, bar)
    if start_step < done:
      writer.write(done, "time", timer.goodput() | start_up.values())
      bar.message(f"time: {progress.describe_goodput(timer.goodput())}")
  return result


def restore_or_init(saved: checkpoints.Checkpoints, run: setup.Setup, tokenizer) -> TrainState:
  """The newest good checkpoint of the workdir; else the parameters of another run or published; else a new start."""
  init_from = run.config.checkpoint.init_from
  state = saved.restore_newest(run.abstract_state)
  if state is not None:
    print(f"Going on from this workdir's checkpoint of step {int(state.step)}.", flush=True)
    return state
  state = run.init_state()
  if init_from and published.is_published(init_from):
    params, report = published.start_params(init_from, state.params, tokenizer)
    print(report, flush=True)
    return state._replace(params=params)
  if init_from:
    wanted = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state.params)
    step, params = checkpoints.load_params(init_from, wanted)
    print(f"Starting from the parameters of {init_from}, step {step}.", flush=True)
    return state._replace(params=params)
  print("Starting from scratch.", flush=True)
  return state


def is_busy(step_metrics: dict) -> bool:
  """Whether the devices still work on the updates that gave these."""
  return not all(leaf.is_ready() for leaf in jax.tree.leaves(step_metrics))


def host_acts(config, objective, saved: checkpoints.Checkpoints, step: int) -> bool:
  """Whether the host has something to do after this update that must not wait for later ones (`dispatches`)."""
  return (dispatches.is_due(step, config.train.log_every_steps) or dispatches.is_due(step, config.eval.every_steps)
          or step == config.train.num_steps or saved.is_due(step)
          or finetune.is_due(config, step, is_last=False)
          or objective.phase_at(step)[1] == step
          or config.data.batch_unit == "tokens")  # each batch may have another number of rows than the one before


def on_devices(batches: Iterator[dict[str, np.ndarray]], dispatched: Iterable[range], mesh
               ) -> Iterator[tuple[range, dict[str, jax.Array]]]:
  """(updates, their batch) of each dispatch; several updates have one batch, with a leading axis of updates."""
  for steps in dispatched:
    yield steps, sharding.put_batches([next(batches) for _ in steps], mesh)
