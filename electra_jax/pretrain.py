"""The pre-training page: from a resolved config to a trained encoder. Read it from `pretrain` at the top downwards.

Every objective shares this loop; what differs between them is the pure functions in `objectives/`.
"""

import contextlib
import functools
import gc
import re
from collections.abc import Iterable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax

from electra_jax import (
  averaging,
  batch_schedule,
  checkpoints,
  dispatches,
  distributed,
  evaluation,
  finetune,
  flops,
  inputs,
  loss_scaling,
  memory,
  metrics,
  nonfinite,
  norms,
  objectives,
  optim,
  pretrained,
  progress,
  published,
  rollbacks,
  sharding,
  train_state,
  wall_clock,
)
from electra_jax import config as config_lib
from electra_jax import workdir as workdir_lib
from electra_jax.data import pipeline
from electra_jax.errors import Interrupted
from electra_jax.models.bert import make_transformer_config
from electra_jax.objectives import electra_mlm
from electra_jax.train_state import TrainState, count_parameters


def pretrain(given, workdir: str) -> dict[str, float]:
  """`train`, started anew after each rollback that `train.on_nonfinite` asks for; exceptions as there."""
  while True:
    try:
      return train(given, workdir)
    except nonfinite.Diverged as diverged:
      detour = rollbacks.go_back(workdir, config_lib.resolve(given), diverged)
      print(f"Rolling back: {diverged}. Going on from step {detour.step} with the data behind step {detour.resume_at}.",
            flush=True)
    gc.collect()  # the state that diverged makes room for the next


def train(given, workdir: str) -> dict[str, float]:
  """Trains until `train.num_steps`, or goes on from where the workdir stands. Returns the final evaluation.

  It is empty where nothing is held out (`data.heldout_share`).

  Args:
    given: the recipe with its overrides (not yet resolved).
    workdir: config.json, tokenizer/, shards/, checkpoints/ and the logs live here.

  Raises:
    UserError: a mistake in the configuration, the data or the workdir; nothing that existed is harmed.
    Interrupted: Ctrl-C or SIGTERM came while it trained; a checkpoint of the last step is written.
    Diverged: too many updates in a row were no numbers, and `train.on_nonfinite` is rollback.
  """
  start_up = progress.StartUp()
  config = config_lib.resolve(given)
  mesh = sharding.make_mesh(config.mesh)
  inputs.check_batch_sizes(config, mesh)
  workdir_lib.claim(config, workdir)
  data = inputs.open_data(config, workdir)
  start_up.done("data")

  transformer = make_transformer_config(config.model, num_tokens=data.tokenizer.vocab_size,
                                        dtype=config.train.compute_dtype, remat=config.train.remat,
                                        kernels=config.train.kernels)
  objective = objectives.make(transformer, config.generator, config.objective, config.train.num_steps,
                              data.token_counts)
  tx, learning_rate = optim.make(config.optimizer, config.train.num_steps, max_hours=config.train.max_hours)
  key = jax.random.key(config.seed, impl=prng_impl(config.train.prng_impl))
  init_rng, train_rng, eval_rng = jax.random.split(key, 3)
  example_batch = jax.tree.map(lambda rows: jnp.zeros((1, *rows.shape[1:]), rows.dtype), data.batch_at(0))
  init_params = functools.partial(objective.init, init_rng, example_batch)
  workdir_lib.record_config(given, config, workdir)
  saved = checkpoints.Checkpoints(workdir, config.checkpoint)
  state = restore_or_init(saved, config, init_params, tx, mesh, data.tokenizer)
  start_step = int(state.step)
  workdir_lib.record_start(workdir, start_step, mesh)
  start_up.done("restore")

  main_process = jax.process_index() == 0
  writer = metrics.MetricWriter(workdir, config.log, restored_step=start_step, enabled=main_process,
                                run_config=config.to_dict())
  cost = flops.model_flops(config)
  bar = progress.Progress(config.train.num_steps, start_step, enabled=main_process, work=cost.of_first)
  timer = progress.StepTimer(tokens_per_step=config.train.batch_size * config.data.sequence_length,
                             flops_per_step=cost.per_step, num_devices=jax.device_count(),
                             device_kind=jax.devices()[0].device_kind, already=sum(start_up.seconds.values()))
  bar.message(f"{config.objective.name}: {count_parameters(state.params):,} parameters, "
              f"{len(data.train):,} training and {len(data.heldout):,} held-out examples of "
              f"{config.data.sequence_length} tokens, {jax.device_count()} {jax.devices()[0].device_kind} device(s)")

  evaluated = functools.partial(train_state.evaluated_params, ema=config.eval.ema_params)
  eval_step = jax.jit(functools.partial(evaluation.evaluate_batch, objective=objective, rng=eval_rng))
  mlm_accuracy = electra_mlm.make_accuracy(transformer, config)
  evaluate = functools.partial(evaluation.evaluate, eval_step, config, data, mesh,
                               mlm_accuracy=mlm_accuracy and jax.jit(mlm_accuracy))
  batches = pipeline.train_batches(data.batch_at, start_step, config.train.num_steps, config.data.reader,
                                   config.data.prefetch_batches)
  window, evaluated_step, train_steps = [], None, {}
  watch = nonfinite.Watch(config.train, len(rollbacks.read(workdir)), int(state.skipped_in_a_row or 0))
  budget = wall_clock.Budget(config.train.max_hours, state.opt_state, mesh)
  done, last_step = start_step, start_step if budget.is_spent() else config.train.num_steps
  dispatched = dispatches.ranges(start_step, last_step, config.train.steps_per_dispatch,
                                 functools.partial(host_acts, config, objective, data, saved))
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
        (phase, first_step), stage = objective.phase_at(steps[0] - 1), data.schedule.stage(steps[0] - 1)
        if first_step == steps[0] - 1:
          state = train_state.enter(phase, state)
        train_step = train_steps.get(of_shape := (first_step, stage, len(steps)))
        if train_step is None:
          train_step = train_steps[of_shape] = make_train_step(
            state, len(steps), objective=objective, phase=phase, tx=tx, rng=train_rng,
            accumulation_steps=batch_schedule.micro_batches(stage.batch_size, config.train), **step_options(config))
          jax.block_until_ready(state)
          with timer.paused("start"):
            bar.message(memory.at_start(train_step, state, batch, *budget.now()))
        state, step_metrics = train_step(state, batch, *budget.now())
        window.append(step_metrics)
        with timer.waiting(functools.partial(is_busy, step_metrics)):
          following = next(coming, None)  # here, so that the devices find it where the host has waited for them
        if done == start_step:
          jax.block_until_ready(step_metrics)  # compilation is not training time
          start_up.done("compilation")
          bar.message(str(start_up))
        timer.step(stage.batch_size / config.train.batch_size, cost.stages[stage] / cost.per_step, len(steps))
        bar.advance(step)
        done, ends = step, budget.is_spent(step_metrics) or step == config.train.num_steps

        if dispatches.is_due(step, config.train.log_every_steps) or ends:
          window = metrics.of_each_step(window)
          values = watch.check(window, metrics.summarise(metrics.add_pairs(window)), step)  # waits for the devices
          window = []
          values = {"train/learning_rate": float(learning_rate(step - 1))} | values | timer.read()
          writer.write(step, "train", values)
          bar.show(step, values)
        evaluates = dispatches.is_due(step, config.eval.every_steps)
        if evaluates or saved.is_due(step):
          jax.block_until_ready(state)  # what the devices still do is steps, not evaluation
        if evaluates:
          with timer.paused("evaluation"):
            evaluation.log(evaluate(evaluated(state)), step, writer, bar, is_last_phase=phase is objective.phases[-1])
            evaluated_step = step
        with timer.paused("checkpoint"):
          saved.save_if_due(state, step)
        if finetune.is_due(config, step, is_last=ends):
          saved.save(state, step)  # a stop during the fine-tuning goes on from here
          with timer.paused("evaluation"):
            kept = pretrained.of_run(config, data.tokenizer, evaluated(state))
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
    if done == start_step or done < config.train.num_steps:
      hours = f" within train.max_hours of {config.train.max_hours:g}" * (done < config.train.num_steps)
      bar.message(f"This run is finished: {done} of {config.train.num_steps} steps are done{hours}.")
    with timer.paused("evaluation"):
      result = evaluate(evaluated(state))
      if evaluated_step != done:
        evaluation.log(result, done, writer, bar)
    if start_step < done:
      writer.write(done, "time", timer.goodput() | start_up.values())
      bar.message(f"time: {progress.describe_goodput(timer.goodput())}")
  return result


def prng_impl(name: str) -> str:
  """`auto`: threefry on CPU, where runs are compared bit for bit; rbg on accelerators, where it is far faster."""
  if name == "auto":
    return "threefry2x32" if jax.default_backend() == "cpu" else "rbg"
  return name


def restore_or_init(saved: checkpoints.Checkpoints, config, init_params, tx, mesh, tokenizer) -> TrainState:
  """The newest good checkpoint of the workdir; else the parameters of another run or published; else a new start."""
  parts, init_from = train_state.parts(config.train), config.checkpoint.init_from
  state = saved.restore_newest(train_state.abstract_state(init_params, tx, mesh, **parts))
  if state is not None:
    print(f"Going on from this workdir's checkpoint of step {int(state.step)}.", flush=True)
    return state
  state = train_state.init_state(init_params, tx, mesh, **parts)
  if init_from and published.is_published(init_from):
    params, report = published.start_params(init_from, state.params, tokenizer)
    print(report, flush=True)
    return train_state.with_params(state, params)
  if init_from:
    wanted = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state.params)
    step, params = checkpoints.load_params(init_from, wanted)
    print(f"Starting from the parameters of {init_from}, step {step}.", flush=True)
    return train_state.with_params(state, params)
  print("Starting from scratch.", flush=True)
  return state


def is_busy(step_metrics: dict) -> bool:
  """Whether the devices still work on the updates that gave these."""
  return not all(leaf.is_ready() for leaf in jax.tree.leaves(step_metrics))


def host_acts(config, objective, data: inputs.Data, saved: checkpoints.Checkpoints, step: int) -> bool:
  """Whether the host has something to do after this update that must not wait for later ones (`dispatches`)."""
  return (dispatches.is_due(step, config.train.log_every_steps) or dispatches.is_due(step, config.eval.every_steps)
          or step == config.train.num_steps or saved.is_due(step)
          or finetune.is_due(config, step, is_last=False)
          or objective.phase_at(step)[1] == step or data.schedule.stage(step).first_step == step
          or config.data.batch_unit == "tokens")  # each batch may have another number of rows than the one before


def make_train_step(state: TrainState, num_updates: int = 1, **update_arguments):
  """`update`, compiled; the new state takes the place of the old one, in its memory and with its shardings.

  With more than one update, batch and metrics have a leading axis of updates.
  """
  shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
  step = functools.partial(update, **update_arguments)
  return jax.jit(step if num_updates == 1 else dispatches.one_after_another(step), donate_argnums=0,
                 out_shardings=(shardings, None))


def step_options(config) -> dict:
  """What the config asks of `update` besides its parts."""
  return {"skip_nonfinite": config.train.on_nonfinite != "stop", "ema_decay": config.train.ema_decay,
          "growth_steps": config.train.loss_scale_growth_steps, "norms_per_group": config.log.norms_per_group}


def update(state: TrainState, batch, seconds=None, *, objective, phase, tx, rng, accumulation_steps: int,
           skip_nonfinite: bool = False, ema_decay: float = 0.0, growth_steps: int = 2000,
           norms_per_group: bool = False):
  """One optimizer update over the global batch: (state, batch) -> (state, metrics as (sum, weight) pairs).

  `seconds`, of `wall_clock.Budget`, is what a rate that goes by time needs; the other options are those of the config.
  """
  num_targets = jax.tree.map(lambda count: jnp.maximum(count, 1), objective.count_targets(batch))
  step_rng = jax.random.fold_in(rng, state.step)
  gradients_of = jax.value_and_grad(loss_scaling.scaled(phase.loss, state.loss_scale), has_aux=True)

  def add_micro_batch(total, index_and_rows):
    index, rows = index_and_rows
    micro_rng = jax.random.fold_in(step_rng, index)
    return jax.tree.map(jnp.add, total, gradients_of(state.params, rows, micro_rng, True, num_targets)), None

  if accumulation_steps == 1:
    (loss, pairs), gradients = gradients_of(state.params, batch, step_rng, True, num_targets)
  else:
    # Row i goes to micro-batch i mod n: each device keeps its own rows, nothing moves between devices.
    micro_batches = jax.tree.map(lambda x: x.reshape(-1, accumulation_steps, *x.shape[1:]).swapaxes(0, 1), batch)
    first = jax.tree.map(lambda x: x[0], micro_batches)
    shapes = jax.eval_shape(lambda rows: gradients_of(state.params, rows, step_rng, True, num_targets), first)
    zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    numbered = (jnp.arange(accumulation_steps), micro_batches)
    ((loss, pairs), gradients), _ = jax.lax.scan(add_micro_batch, zeros, numbered)

  loss, gradients = loss_scaling.unscaled((loss, gradients), state.loss_scale)
  gradients = keep_trainable(gradients, phase.trainable)
  timing = {} if seconds is None else {"seconds": seconds}
  updates, opt_state = tx.update(gradients, state.opt_state, state.params, **timing)
  updates = keep_trainable(updates, phase.trainable)
  params = optax.apply_updates(state.params, updates)
  one = jnp.ones(())
  pairs = {"loss": (loss, one), **pairs, "train/gradient_norm": (norms.global_norm(gradients), one)}
  pairs |= {} if seconds is None else wall_clock.pairs(opt_state)
  if norms_per_group:
    pairs |= norms.by_group(gradients, "gradient_norm") | norms.by_group(updates, "update_norm")
  new = state._replace(step=state.step + 1, params=params, opt_state=opt_state)
  if state.ema_params is not None:
    new = new._replace(ema_params=averaging.follow(state.ema_params, params, ema_decay, state.step))
  if skip_nonfinite or state.loss_scale is not None:
    new, pairs = nonfinite.skip_if_nonfinite(state._replace(step=new.step), new, pairs)
    was_skipped = pairs[nonfinite.SKIPPED][0] > 0
  if state.skipped_in_a_row is not None:
    new = new._replace(skipped_in_a_row=nonfinite.count_in_a_row(state.skipped_in_a_row, was_skipped))
  if state.loss_scale is not None:
    new = new._replace(loss_scale=loss_scaling.adjusted(state.loss_scale, was_skipped, growth_steps))
    pairs["train/loss_scale"] = (state.loss_scale.scale, one)
  return new, pairs


def keep_trainable(tree, trainable: str):
  """Zeros for every parameter that a phase leaves alone; zero gradients by themselves would still decay."""
  pattern = re.compile(trainable)
  return jax.tree_util.tree_map_with_path(
    lambda path, leaf: leaf if pattern.fullmatch(sharding.path_name(path)) else jnp.zeros_like(leaf), tree)


def on_devices(batches: Iterator[dict[str, np.ndarray]], dispatched: Iterable[range], mesh
               ) -> Iterator[tuple[range, dict[str, jax.Array]]]:
  """(updates, their batch) of each dispatch; several updates have one batch, with a leading axis of updates."""
  for steps in dispatched:
    yield steps, sharding.put_batches([next(batches) for _ in steps], mesh)
