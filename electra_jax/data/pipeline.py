"""Batches of training and evaluation: made from the shards, one a step; tf.data or threads run ahead.

A `BatchSource` is pure NumPy and depends on the step alone, so both readers give the same bytes and a run can start at
any step; that of fine-tuning is read in the same way. This is the only file that imports TensorFlow, and only when its
reader is used.
"""

import collections
import concurrent.futures
import contextlib
import functools
import itertools
import os
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from electra_jax import config
from electra_jax.config_rules import SHORT_EXAMPLES
from electra_jax.data import masking as masking_lib
from electra_jax.data import order
from electra_jax.data.examples import NO_NSP
from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.errors import NoAnswerError, UserError

Batch = dict[str, np.ndarray]

MAX_GROUP_STEPS = 8  # made together at most, so that the reader does not run far ahead of the loop
PREFETCH_BATCHES = 4  # made ahead of the step
LONGEST_SECONDS = 300  # for a batch; the slowest that we know, the first of a cold object store, take seconds
IMPORTER = "tensorflow"  # name of the thread that imports it
GROUP_TOKENS = 1 << 17  # of a group at most: beyond, the time for each call no longer counts, and caches overflow

# What a batch holds. Rows are those of this process. Formats with NSP add nsp_label, int32 [batch]: 0 where segment B
# follows A in its document, 1 where it is another document's, -1 in empty rows.
BATCH_DTYPES = {
  "input_ids": np.int32,  # [batch, length] the originals
  "token_type_ids": np.int32,  # [batch, length] 0 = segment A and padding, 1 = segment B
  "attention_mask": np.bool_,  # [batch, length] True = real token
  "masked_input_ids": np.int32,  # [batch, length] input_ids after the masking policy
  "masked_positions": np.int32,  # [batch, predictions] ascending; unused slots 0
  "masked_ids": np.int32,  # [batch, predictions] the originals; unused slots 0
  "masked_weights": np.float32,  # [batch, predictions] 1, or 0 in unused slots
}


def batch_shapes(config_data: ConfigDict, batch_size: int) -> dict[str, tuple[tuple[int, ...], type]]:
  """Name -> (shape, dtype) of the arrays of a global batch of full rows."""
  length, slots = config_data.sequence_length, config_data.masking.max_predictions
  shapes: dict[str, tuple[tuple[int, ...], type]] = {
    name: ((batch_size, slots if name.startswith("masked_") and name != "masked_input_ids" else length), dtype)
    for name, dtype in BATCH_DTYPES.items()}
  if config_data.format in ("SEGMENT-PAIR", "SENTENCE-PAIR"):
    shapes["nsp_label"] = ((batch_size,), np.int32)
  return shapes


class BatchSource(NamedTuple):
  """The batches of a run, each a pure function of its step."""

  make: Callable[[range], Batch]  # the batches of consecutive steps, one behind the other
  group_steps: int = 1  # that are best made together: small ones, for what NumPy and tf.data spend on each call

  def batches(self, start: int, stop: int) -> list[Batch]:
    """Those of the steps start, ..., stop - 1; equal bytes, whatever is made together."""
    return split(self.make(range(start, stop)), stop - start)

  def __call__(self, step: int) -> Batch:
    """That of one step."""
    return self.make(range(step, step + 1))


def make_batch_at(examples, config_data: ConfigDict, tokenizer: Tokenizer, *, batch_size: int, seed: int,
                  process_index: int = 0,
                  process_count: int = 1) -> BatchSource:
  """This process's rows of the global batch of each step.

  Args:
    examples: ShardedExamples of the training split.
    config_data: the config.data branch. In the formats of SHORT_EXAMPLES the batches have more and shorter rows where
      the examples are short, as `order.TokenBatches` says.
    tokenizer: anything with special_ids, mask_id and vocab_size, and continues_word if `masking.unit` is not "token".
    batch_size: of the global batch; the process holds rows [index, index + 1) * batch_size / process_count.
    seed: of order and masks.

  Raises:
    UserError: the batch does not divide between the processes, or there is no example.
  """
  local_rows(batch_size, process_index, process_count)  # a batch that does not divide says so now
  if not len(examples):
    raise UserError("There is no training example", got="0 examples in the shards", allowed="at least 1",
                    fix="prepare the shards again from a larger corpus")
  odds = None
  if config_data.masking.rarity_exponent:
    odds = masking_lib.token_odds(examples.token_counts(tokenizer.vocab_size), config_data.masking.rarity_exponent)
  make_batch = functools.partial(_make_batch, examples, masking=config_data.masking, tokenizer=tokenizer, seed=seed,
                                 token_odds=odds)

  rows = functools.partial(local_rows, process_index=process_index, process_count=process_count)
  if config_data.format in SHORT_EXAMPLES:
    order_at = make_order_at(examples, config_data, batch_size=batch_size, seed=seed)

    def make_one(steps: range) -> Batch:
      example_ids, epochs, length = order_at(steps[0])
      own = rows(len(example_ids))
      return make_batch(example_ids[own], epochs[own], length=length)

    return BatchSource(make_one)
  own = np.arange(batch_size)[rows(batch_size)]

  def make_group(steps: range) -> Batch:
    numbers = np.array(steps, np.int64)[:, None] * batch_size + own  # [steps, batch]
    example_ids, epochs = order.stream_order(numbers.ravel(), len(examples), seed)
    return make_batch(example_ids, epochs, length=examples.sequence_length)

  tokens = len(own) * examples.sequence_length
  return BatchSource(make_group, max(1, min(MAX_GROUP_STEPS, GROUP_TOKENS // tokens)))


def split(batch: Batch, number: int) -> list[Batch]:
  """The batches that stand one behind the other in `batch`, as views."""
  if number == 1:
    return [batch]
  parts = {name: array.reshape(number, -1, *array.shape[1:]) for name, array in batch.items()}
  return [{name: array[i] for name, array in parts.items()} for i in range(number)]


def steps_per_epoch(examples, config_data: ConfigDict, batch_size: int) -> float:
  """Steps of one pass over the examples."""
  if config_data.format in SHORT_EXAMPLES:
    return order.TokenBatches(examples.lengths(), examples.sequence_length, batch_size, seed=0).steps_per_epoch
  return len(examples) / batch_size


def make_order_at(examples, config_data: ConfigDict, *, batch_size: int, seed: int
                  ) -> Callable[[int], tuple[np.ndarray, np.ndarray, int]]:
  """A function from the step to (example_ids, epochs, length of the rows) of its global batch."""
  if config_data.format in SHORT_EXAMPLES:
    batches = order.TokenBatches(examples.lengths(), examples.sequence_length, batch_size, seed)
    return batches.at
  return lambda step: (*order.example_order(step, batch_size, len(examples), seed), examples.sequence_length)


def local_rows(batch_size: int, process_index: int, process_count: int) -> slice:
  """The rows of a global batch that a process reads: contiguous blocks, in the order of the processes.

  >>> local_rows(8, process_index=1, process_count=4)
  slice(2, 4, None)

  Raises:
    UserError: the batch does not divide.
  """
  if batch_size % process_count:
    raise UserError("The batch cannot be divided between the processes",
                    got=f"batch size {batch_size}, {process_count} processes",
                    allowed=f"a multiple of {process_count}",
                    fix=f"set the batch size to {-(-batch_size // process_count) * process_count}")
  local = batch_size // process_count
  return slice(process_index * local, (process_index + 1) * local)


def _make_batch(examples, example_ids, epochs, *, masking: ConfigDict, tokenizer: Tokenizer, seed, length: int,
                token_odds=None) -> Batch:
  """Rows of `length` tokens, which no example exceeds; ids of -1, at the end, become rows of padding."""
  missing = int((example_ids < 0).sum())
  if missing:
    example_ids, epochs = example_ids[:-missing], epochs[:-missing]
  input_ids, num_tokens, second_segment_start = examples.read(example_ids)
  input_ids = input_ids[:, :length]
  positions = np.arange(input_ids.shape[1], dtype=np.int32)
  attention_mask = positions < num_tokens[:, None]  # [batch, length]
  token_type_ids = (attention_mask & (positions >= second_segment_start[:, None])).astype(np.int32)
  masked = masking_lib.mask_batch(input_ids, num_tokens, example_ids, epochs, seed=seed, masking=masking,
                                  special_ids=masking_lib.protected_ids(tokenizer, masking.never_mask),
                                  mask_id=tokenizer.mask_id,
                                  vocab_size=tokenizer.vocab_size,
                                  continues_word=None if masking.unit == "token" else tokenizer.continues_word,
                                  token_odds=token_odds)
  if length < examples.sequence_length:  # fewer tokens have fewer predictions
    slots = config.num_slots(masking, length)
    masked |= {name: masked[name][:, :slots] for name in ("masked_positions", "masked_ids", "masked_weights")}
  batch = {"input_ids": input_ids, "token_type_ids": token_type_ids, "attention_mask": attention_mask, **masked}
  if examples.has_nsp_labels:
    batch["nsp_label"] = examples.nsp_labels(example_ids)
  return _fill(batch, missing, examples.pad_id) if missing else batch


def _fill(batch: Batch, missing: int, pad_id: int) -> Batch:
  """Adds rows of padding."""
  fill = {"input_ids": pad_id, "masked_input_ids": pad_id, "nsp_label": NO_NSP}
  return {name: np.concatenate([array, np.full((missing, *array.shape[1:]), fill.get(name, 0), array.dtype)])
          for name, array in batch.items()}


def eval_batches(examples, config_data: ConfigDict, tokenizer: Tokenizer, *, batch_size: int, max_examples: int = 0,
                 seed: int, process_index: int = 0, process_count: int = 1) -> Generator[Batch, None, None]:
  """Every held-out example (or the first `max_examples`) once, in order, with the masks of epoch 0.

  The last batch is filled up with rows of padding (attention_mask False, weights 0), so all batches have one shape, no
  example is lost, and sums over batches are exact. All processes yield equally many batches. They come from
  `config_data.reader`, as those of training.

  Raises:
    UserError: the batch does not divide between the processes.
    NoAnswerError: a batch takes longer than LONGEST_SECONDS.
  """
  rows = local_rows(batch_size, process_index, process_count)
  total = min(len(examples), max_examples) if max_examples else len(examples)

  def make_one(steps: range) -> Batch:
    example_ids = np.arange(steps[0] * batch_size, (steps[0] + 1) * batch_size)[rows]
    return _eval_batch(examples, example_ids, total, config_data.masking, tokenizer, seed)

  return read_batches(BatchSource(make_one), 0, -(-total // batch_size), config_data.reader, what="held-out batches")


def _eval_batch(examples, example_ids, total, masking: ConfigDict, tokenizer: Tokenizer, seed) -> Batch:
  example_ids = np.where(example_ids < total, example_ids, -1)
  return _make_batch(examples, example_ids, np.zeros_like(example_ids), masking=masking, tokenizer=tokenizer, seed=seed,
                     length=examples.sequence_length)


# ---- readers: (batch_at, start_step, stop_step, prefetch_batches) -> the batches of the steps, in order ----


def start_import(reader: str) -> None:
  """Imports TensorFlow, which takes seconds, in a thread: while the first programs are compiled."""
  if reader != "threads":
    threading.Thread(target=_import_meanwhile, name=IMPORTER).start()


def read_batches(batch_at: BatchSource, start_step: int, num_steps: int, reader: str,
                 prefetch_batches: int = PREFETCH_BATCHES, what: str = "training batches"
                 ) -> Generator[Batch, None, None]:
  """The batches of steps start_step, ..., num_steps - 1, made ahead of their use; their shapes may differ.

  Args:
    batch_at: from `make_batch_at`, or any other.
    start_step: the number of updates already made: 0, or that of a checkpoint.
    num_steps: of the whole run (config.train.num_steps), not what is left.
    reader: "tf" (tf.data), "threads" (no TensorFlow needed), or "auto" (tf if it is installed, as soon as an import
      that `start_import` began has ended). Same bytes.
    prefetch_batches: how many batches wait at most (rounded up to whole groups of `BatchSource`).
    what: they are called in an error.

  Raises:
    UserError: the reader "tf" without TensorFlow; whatever `batch_at` raises arrives unchanged.
    NoAnswerError: a batch takes longer than LONGEST_SECONDS.
  """
  waiting = max(1, prefetch_batches - 1)  # one more waits in `_in_time`
  batches = READERS[reader](batch_at, start_step, num_steps, waiting)
  return _in_time(batches, what)


def _in_time(batches: Iterator[Batch], what: str) -> Generator[Batch, None, None]:
  """The same batches, made in a thread of their own, one ahead, so that waiting for one can end."""
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
                            allowed="a batch within this time (LONGEST_SECONDS in electra_jax/data/pipeline.py)",
                            fix="look whether the disk of the shards answers; the same command goes on from the last "
                            "checkpoint")
      batch = made.result()
      if batch is None:
        return
      made = pool.submit(following)
      yield batch
      number += 1
  finally:
    with contextlib.suppress(RuntimeError):  # Python is ending and has stopped the thread
      if isinstance(batches, Generator):
        pool.submit(batches.close)
      pool.shutdown(wait=not hangs)


def _groups(source: BatchSource, start_step: int, stop_step: int) -> Iterator[range]:
  size = source.group_steps
  return (range(first, min(first + size, stop_step)) for first in range(start_step, stop_step, size))


def _thread_batches(batch_at, start_step, stop_step, prefetch_batches):
  ahead = -(-prefetch_batches // batch_at.group_steps) + 1  # groups, the one that is asked for included
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
        batches = split(group.result(), len(steps))
      except Exception:
        if len(steps) > 1:
          yield from map(batch_at, steps)  # up to the faulty one, which says so by itself
        raise
      submit(1)
      yield from batches
  finally:  # also when the consumer stops early
    pool.shutdown(wait=True, cancel_futures=True)


def _tf_batches(batch_at, start_step, stop_step, prefetch_batches):
  if start_step >= stop_step:
    return
  tf = _import_tensorflow()
  faults: dict[int, Exception] = {}  # by the group's first step: tf.data would hand on their text only
  first = batch_at(start_step)  # tf.data must know the fields beforehand
  names, dtypes = list(first), [array.dtype for array in first.values()]
  group_steps = batch_at.group_steps

  def arrays_at(step):
    step = int(step)
    try:
      batch = batch_at.make(range(step, min(step + group_steps, stop_step)))
      return [batch[name] for name in names]
    except Exception as error:
      faults[step] = error
      raise

  def to_batch(step):
    return dict(zip(names, tf.numpy_function(arrays_at, [step], dtypes, stateful=False)))

  dataset = tf.data.Dataset.range(start_step, stop_step, group_steps)
  dataset = dataset.map(to_batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
  made = dataset.prefetch(-(-prefetch_batches // group_steps)).as_numpy_iterator()
  for steps in _groups(batch_at, start_step, stop_step):
    try:
      group = next(made)
    except tf.errors.OpError:
      if len(steps) > 1:
        yield from map(batch_at, steps)  # up to the faulty one, which says so by itself
      if steps[0] in faults:
        raise faults[steps[0]] from None
      raise
    yield from split(group, len(steps))


def _import_tensorflow():
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before the import: no start-up notices
  os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # its notice comes at every level, and tf.data has no use for it
  try:
    import tensorflow as tf
  except ImportError as error:
    raise UserError("The reader 'tf' needs TensorFlow", got=f"{error}", allowed="reader tf, threads or auto",
                    fix="pip install tensorflow-cpu, or set --config.data.reader=threads") from error
  tf.get_logger().setLevel("ERROR")
  with contextlib.suppress(RuntimeError):  # too late: somebody else has started TensorFlow
    for kind in ("GPU", "TPU"):  # these belong to jax, and TensorFlow would take a GPU's whole memory
      tf.config.set_visible_devices([], kind)
  return tf


def _import_meanwhile() -> None:
  with contextlib.suppress(Exception):  # the reader says it, if there is one: a run may end before the import does
    _import_tensorflow()


def _import_if_there() -> bool:
  try:
    _import_tensorflow()
  except UserError:
    return False
  return True


def _auto_batches(batch_at, start_step, stop_step, prefetch_batches):
  importers = [thread for thread in threading.enumerate() if thread.name == IMPORTER]
  while start_step < stop_step and any(thread.is_alive() for thread in importers):
    yield batch_at(start_step)
    start_step += 1
  read = _tf_batches if _import_if_there() else _thread_batches
  yield from read(batch_at, start_step, stop_step, prefetch_batches)


READERS = {"tf": _tf_batches, "threads": _thread_batches, "auto": _auto_batches}
