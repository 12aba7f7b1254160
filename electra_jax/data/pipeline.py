"""Batches of training and evaluation, made from the shards, one a step; `readers` makes them ahead of their use."""

import functools
from collections.abc import Callable, Generator

import numpy as np
from ml_collections import ConfigDict

from electra_jax import config
from electra_jax.config_rules import SHORT_EXAMPLES
from electra_jax.data import masking as masking_lib
from electra_jax.data import order
from electra_jax.data.examples import NO_NSP
from electra_jax.data.packing import NSP_FORMATS
from electra_jax.data.readers import Batch, BatchSource, read_batches
from electra_jax.data.shards.reading import ShardedExamples
from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.errors import UserError

MAX_GROUP_STEPS = 8  # made together at most, so that the reader does not run far ahead of the loop
GROUP_TOKENS = 1 << 17  # in a group at most: beyond it the overhead of a call does not matter, and caches overflow

# What a batch holds: the rows of this process. Formats with NSP add nsp_label, int32 [batch]: 0 where segment B follows
# A in its document, 1 where it is another document's, -1 in empty rows.
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
  length = config_data.sequence_length
  slots = config.num_predictions(config_data.masking.rate, length)
  shapes: dict[str, tuple[tuple[int, ...], type]] = {
    name: ((batch_size, slots if name.startswith("masked_") and name != "masked_input_ids" else length), dtype)
    for name, dtype in BATCH_DTYPES.items()}
  if config_data.format in NSP_FORMATS:
    shapes["nsp_label"] = ((batch_size,), np.int32)
  return shapes


def make_batch_at(examples: ShardedExamples, config_data: ConfigDict, tokenizer: Tokenizer, *, batch_size: int,
                  seed: int, process_index: int = 0, process_count: int = 1) -> BatchSource:
  """This process's rows of the global batch of each step.

  Args:
    examples: ShardedExamples of the training split.
    config_data: the config.data branch. In the formats of SHORT_EXAMPLES the batches have more and shorter rows where
      the examples are short, as `order.TokenBatches` says.
    tokenizer: anything with special_ids, mask_id and vocab_size, and continues_word if `masking.unit` is not "token".
    batch_size: of the global batch; the process holds rows [index, index + 1) * batch_size / process_count.
    seed: of order and masks.

  Raises:
    UserError: the batch does not divide between the processes.
  """
  local_rows(batch_size, process_index, process_count)  # fails now if the batch does not divide
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


def steps_per_epoch(examples: ShardedExamples, config_data: ConfigDict, batch_size: int) -> float:
  """Steps of one pass over the examples."""
  if config_data.format in SHORT_EXAMPLES:
    return order.TokenBatches(examples.lengths(), examples.sequence_length, batch_size, seed=0).steps_per_epoch
  return len(examples) / batch_size


def make_order_at(examples: ShardedExamples, config_data: ConfigDict, *, batch_size: int, seed: int
                  ) -> Callable[[int], tuple[np.ndarray, np.ndarray, int]]:
  """A function from the step to (example_ids, epochs, length of the rows) of its global batch."""
  if config_data.format in SHORT_EXAMPLES:
    return order.TokenBatches(examples.lengths(), examples.sequence_length, batch_size, seed).at
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
                                  tokenizer=tokenizer, token_odds=token_odds)
  batch = {"input_ids": input_ids, "token_type_ids": token_type_ids, "attention_mask": attention_mask, **masked}
  if examples.has_nsp_labels:
    batch["nsp_label"] = examples.nsp_labels(example_ids)
  return _fill(batch, missing, examples.pad_id) if missing else batch


def _fill(batch: Batch, missing: int, pad_id: int) -> Batch:
  """Adds rows of padding."""
  fill = {"input_ids": pad_id, "masked_input_ids": pad_id, "nsp_label": NO_NSP}
  return {name: np.concatenate([array, np.full((missing, *array.shape[1:]), fill.get(name, 0), array.dtype)])
          for name, array in batch.items()}


def eval_batches(examples: ShardedExamples, config_data: ConfigDict, tokenizer: Tokenizer, *, batch_size: int,
                 max_examples: int = 0, seed: int, process_index: int = 0, process_count: int = 1
                 ) -> Generator[Batch, None, None]:
  """Every held-out example (or the first `max_examples`) once, in order, with the masks of epoch 0.

  The last batch is filled up with rows of padding (attention_mask False, weights 0), so all batches have one shape, no
  example is lost, and sums over batches are exact. All processes yield equally many batches, read by
  `config_data.reader` as in training.

  Raises:
    UserError: the batch does not divide between the processes.
    NoAnswerError: a batch takes longer than LONGEST_SECONDS.
  """
  rows = local_rows(batch_size, process_index, process_count)
  total = min(len(examples), max_examples) if max_examples else len(examples)

  def make_one(steps: range) -> Batch:
    example_ids = np.arange(steps[0] * batch_size, (steps[0] + 1) * batch_size)[rows]
    example_ids = np.where(example_ids < total, example_ids, -1)
    return _make_batch(examples, example_ids, np.zeros_like(example_ids), masking=config_data.masking,
                       tokenizer=tokenizer, seed=seed, length=examples.sequence_length)

  return read_batches(BatchSource(make_one), 0, -(-total // batch_size), config_data.reader, what="held-out batches")
