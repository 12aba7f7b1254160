"""Readers: batches made ahead of their use, by tf.data or by threads.

A `BatchSource` is pure NumPy and depends on the step alone, so all readers give the same bytes and can start at any
step; training, held-out evaluation and fine-tuning read through them. This is the only file that imports TensorFlow,
and only when its reader is used.
"""

import collections
import concurrent.futures
import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from electra_jax.errors import NoAnswerError, UserError

Batch = dict[str, np.ndarray]

PREFETCH_BATCHES = 3  # wait for the step (rounded up to whole groups); one more waits in `_in_time`
LONGEST_SECONDS = 300  # for a batch; the slowest known, the first ones from a cold object store, take seconds
IMPORTER = "tensorflow"  # name of the thread that imports it


class BatchSource(NamedTuple):
  """The batches of a run, each a pure function of its step."""

  make: Callable[[range], Batch]  # the batches of consecutive steps, concatenated; equal bytes for any grouping
  group_steps: int = 1  # best made together: several if they are small, as each call of NumPy and tf.data costs time

  def __call__(self, step: int) -> Batch:
    """The batch of one step."""
    return self.make(range(step, step + 1))


def _split(batch: Batch, number: int) -> list[Batch]:
  """The batches that are concatenated in `batch`, as views."""
  if number == 1:
    return [batch]
  parts = {name: array.reshape(number, -1, *array.shape[1:]) for name, array in batch.items()}
  return [{name: array[i] for name, array in parts.items()} for i in range(number)]


# ---- readers: (batch_at, start_step, stop_step) -> the batches of the steps, in order ----


def start_import(reader: str) -> None:
  """Imports TensorFlow, which takes seconds, in a thread, while the first programs are compiled."""
  if reader != "threads":
    threading.Thread(target=_import_meanwhile, name=IMPORTER).start()


def read_batches(batch_at: BatchSource, start_step: int, num_steps: int, reader: str,
                 what: str = "training batches") -> Generator[Batch, None, None]:
  """The batches of steps start_step, ..., num_steps - 1, made ahead of their use; their shapes may differ.

  Args:
    batch_at: from `make_batch_at`, or any other.
    start_step: the number of updates already made: 0, or that of a checkpoint.
    num_steps: of the whole run (config.train.num_steps), not what is left.
    reader: "tf" (tf.data), "threads" (no TensorFlow needed), or "auto" (tf if it is installed, as soon as an import
      that `start_import` began has ended). Same bytes.
    what: the batches' name in an error.

  Raises:
    UserError: the reader "tf" without TensorFlow; whatever `batch_at` raises arrives unchanged.
    NoAnswerError: a batch takes longer than LONGEST_SECONDS.
  """
  return _in_time(READERS[reader](batch_at, start_step, num_steps), what)


def _in_time(batches: Generator[Batch, None, None], what: str) -> Generator[Batch, None, None]:
  """The same batches, made one ahead in a thread of their own, so that the wait for one can end."""
  pool, number, hangs = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reader"), 0, False

  def following() -> Batch | None:
    return next(batches, None)

  made = pool.submit(following)
  try:
    while True:
      hangs = not concurrent.futures.wait([made], timeout=LONGEST_SECONDS).done
      if hangs:
        raise NoAnswerError(f"The reader of {what} does not answer",
                            got=f"nothing for {LONGEST_SECONDS:g} s, after {number} batches",
                            allowed="a batch within this time (LONGEST_SECONDS in electra_jax/data/readers.py)",
                            fix="check that the disk of the shards answers; the same command resumes from the last "
                            "checkpoint")
      batch = made.result()
      if batch is None:
        return
      made = pool.submit(following)
      yield batch
      number += 1
  finally:
    with contextlib.suppress(RuntimeError):  # Python is ending and has stopped the thread
      pool.submit(batches.close)
      pool.shutdown(wait=not hangs)


def _groups(source: BatchSource, start_step: int, stop_step: int) -> Iterator[range]:
  size = source.group_steps
  return (range(first, min(first + size, stop_step)) for first in range(start_step, stop_step, size))


def _thread_batches(batch_at, start_step, stop_step):
  ahead = -(-PREFETCH_BATCHES // batch_at.group_steps) + 1  # groups, the one that is asked for included
  pool = ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1, ahead), thread_name_prefix="batch")
  waiting = collections.deque()

  def submit(number):
    for steps in itertools.islice(groups, number):
      waiting.append((steps, pool.submit(batch_at.make, steps)))

  try:
    groups = _groups(batch_at, start_step, stop_step)
    submit(ahead)
    while waiting:
      steps, group = waiting.popleft()
      try:
        batches = _split(group.result(), len(steps))
      except Exception:
        yield from map(batch_at, steps)  # up to the faulty one, which says so by itself
        raise
      submit(1)
      yield from batches
  finally:  # also when the consumer stops early
    pool.shutdown(wait=True, cancel_futures=True)


def _tf_batches(batch_at, start_step, stop_step):
  if start_step >= stop_step:
    return
  tf = _import_tensorflow()
  first = batch_at(start_step)  # tf.data must know the fields beforehand
  names, dtypes = list(first), [array.dtype for array in first.values()]
  group_steps = batch_at.group_steps

  def arrays_at(step):
    step = int(step)
    batch = batch_at.make(range(step, min(step + group_steps, stop_step)))
    return [batch[name] for name in names]

  def to_batch(step):
    return dict(zip(names, tf.numpy_function(arrays_at, [step], dtypes, stateful=False)))

  dataset = tf.data.Dataset.range(start_step, stop_step, group_steps)
  dataset = dataset.map(to_batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
  made = dataset.prefetch(-(-PREFETCH_BATCHES // group_steps)).as_numpy_iterator()
  for steps in _groups(batch_at, start_step, stop_step):
    try:
      group = next(made)
    except tf.errors.OpError:  # has only the text of the fault
      yield from map(batch_at, steps)  # up to the faulty one, which says so by itself
      raise
    yield from _split(group, len(steps))


def _import_tensorflow():
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before the import: no start-up notices
  os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # its notice comes at every level, and tf.data has no use for it
  try:
    import tensorflow as tf
  except Exception as error:  # a broken installation raises anything
    raise UserError("The reader 'tf' needs TensorFlow", got=f"{type(error).__name__}: {error}",
                    allowed="reader tf, threads or auto", fix="pip install tensorflow-cpu, or "
                    "set --config.data.reader=threads") from error
  tf.get_logger().setLevel("ERROR")
  with contextlib.suppress(RuntimeError):  # too late: TensorFlow is in use already
    for kind in ("GPU", "TPU"):  # these belong to jax, and TensorFlow would take a GPU's whole memory
      tf.config.set_visible_devices([], kind)
  return tf


def _import_meanwhile() -> None:
  with contextlib.suppress(Exception):  # the reader reports it, if there is one: a run may end before the import does
    _import_tensorflow()


def _auto_batches(batch_at, start_step, stop_step):
  importers = [thread for thread in threading.enumerate() if thread.name == IMPORTER]
  while start_step < stop_step and any(thread.is_alive() for thread in importers):
    yield batch_at(start_step)
    start_step += 1
  read = _tf_batches
  try:
    _import_tensorflow()
  except UserError:  # it is not installed, or broken
    read = _thread_batches
  yield from read(batch_at, start_step, stop_step)


READERS = {"tf": _tf_batches, "threads": _thread_batches, "auto": _auto_batches}
