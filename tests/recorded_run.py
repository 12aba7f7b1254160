"""`python -m electra_jax.main` with the model of fake_objective, written down: batches, states, and an end at will.

Each of several processes that train together is one of these. What to do is in environment variables:

  RECORD        folder for STEP.PROCESS.npz (the rows of a batch) and restored.npz, saved.STEP.npz (whole states)
  STOP_AFTER    the step after which the run stops, as a signal would stop it
  END           STEP.PROCESS.SIGNAL: after the step and the first checkpoint, the process sends itself this signal
  HEARTBEAT     seconds, in place of distributed.HEARTBEAT_SECONDS
  HANG_AFTER    calls that make batches (of several steps each) before one that never returns; it is noticed after 2 s
  REAL_MODEL    any value: the recipe's own model
"""

import itertools
import os
import signal
import time

import jax
import numpy as np

from electra_jax import distributed, main, objectives
from electra_jax.data import pipeline, readers
from electra_jax.sharding import path_name
from electra_jax.training import checkpoints
from tests import fake_objective


def record(name: str, arrays: dict) -> None:
  np.savez(os.path.join(os.environ["RECORD"], name), **arrays)


def record_state(name: str, state) -> None:
  from jax.experimental import multihost_utils

  named = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
  whole = multihost_utils.process_allgather(named, tiled=True) if jax.process_count() > 1 else jax.device_get(named)
  if jax.process_index() == 0:
    record(name, whole)


def install() -> None:
  from electra_jax import pretrain, sharding

  put_batches, restore, save = sharding.put_batches, pretrain.restore_or_init, checkpoints.Checkpoints.save
  reached, steps = distributed.StopRequest.reached, None

  def put_and_record(batches, mesh):
    for batch in batches:
      record(f"{next(steps)}.{jax.process_index()}", batch)
    return put_batches(batches, mesh)

  def restore_and_record(*arguments):
    nonlocal steps
    state = restore(*arguments)
    steps = itertools.count(int(state.step))
    record_state("restored", state)
    return state

  def save_and_record(self, state, step):
    record_state(f"saved.{step}", state)
    save(self, state, step)

  def reached_or_end(self, step):
    end = [int(part) for part in os.environ.get("END", "-1.0.9").split(".")]
    if end[:2] == [step, jax.process_index()]:
      while not checkpoints.saved_steps(main.FLAGS.workdir):  # it is written while the loop continues
        time.sleep(0.01)
      os.kill(os.getpid(), end[2])
    return reached(self, step) or step == int(os.environ.get("STOP_AFTER", "-1"))

  if "HANG_AFTER" in os.environ:
    readers.LONGEST_SECONDS, make_batch = 2, pipeline._make_batch
    calls = itertools.count(1)

    def make_or_hang(*arguments, **options):
      while next(calls) > int(os.environ["HANG_AFTER"]):
        time.sleep(10**6)
      return make_batch(*arguments, **options)

    pipeline._make_batch = make_or_hang
  sharding.put_batches, pretrain.restore_or_init = put_and_record, restore_and_record
  checkpoints.Checkpoints.save, distributed.StopRequest.reached = save_and_record, reached_or_end


def run_main(argv):
  del argv
  main.start_jax()  # before the modules that touch the devices; main's own call is left out
  main.start_jax = lambda: None
  install()
  main.main(["main"])


if __name__ == "__main__":
  distributed.HEARTBEAT_SECONDS = int(os.environ.get("HEARTBEAT", distributed.HEARTBEAT_SECONDS))
  if "REAL_MODEL" not in os.environ:
    objectives.make = fake_objective.make
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  main.run(run_main, main.USAGE)
