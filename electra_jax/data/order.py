"""Order of the examples: the global batch of step t as a pure function of (seed, t), in O(batch) memory.

Step t holds the numbers t * batch_size ... of an infinite stream; every `num_examples` of them are an epoch: one keyed
permutation of all example ids. Resuming needs only the step, and any number of hosts sees the same global batches.
A batch may cross the end of an epoch, so no example is ever dropped or repeated.

Batches of equal token counts (`TokenBatches`, RoBERTa section 4.2) are a pure function of (seed, t) as well; they take
2 bytes of memory an example besides the lengths, which may be a memory map.
"""

import math

import numpy as np
from jaxtyping import Int64, Integer

from electra_jax.data import counter_hash

ROUNDS = 10  # of the Feistel network; with fewer, sets below about 50 are visibly unevenly shuffled

NUM_CLASSES = 4  # of lengths in TokenBatches: 512, 256, 128, 64
MIN_CLASS_LENGTH = 16
BLOCK_EXAMPLES = 1 << 16  # places in a block fit in 2 bytes

MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)  # odd, with well spread bits; any such number will do


def example_order(step: int, batch_size: int, num_examples: int,
                  seed: int) -> tuple[Int64[np.ndarray, "batch"], Int64[np.ndarray, "batch"]]:
  """(example_ids, epochs) of the global batch of a step.

  >>> ids, epochs = zip(*(example_order(step, 4, 6, seed=0) for step in range(3)))
  >>> np.concatenate(epochs).tolist()
  [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
  >>> sorted(np.concatenate(ids)[:6].tolist()), sorted(np.concatenate(ids)[6:].tolist())
  ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5])
  """
  return stream_order(np.arange(batch_size, dtype=np.int64) + step * batch_size, num_examples, seed)


def stream_order(numbers: Int64[np.ndarray, "rows"], num_examples: int,
                 seed: int) -> tuple[Int64[np.ndarray, "rows"], Int64[np.ndarray, "rows"]]:
  """(example_ids, epochs) of any numbers of the stream; those of step t begin with t * batch_size."""
  epochs, index = np.divmod(numbers, num_examples)
  return permute(index, num_examples, seed, epochs), epochs


class TokenBatches:
  """Global batches with more rows where examples are shorter, so that each has batch_size * sequence_length places.

  The examples are sorted into at most NUM_CLASSES classes by length: those of up to a half, a quarter, an eighth of
  `sequence_length` make batches of two, four, eight times as many rows, each that much shorter. XLA compiles one
  program a class. An epoch is the batches of all classes in a keyed random order, each class in a random order of its
  own; the last batch of a class is filled up with empty rows, so every example comes once an epoch.

  Differs from the paper, which only says that it "dynamically increase[s] the batch size": a batch holds one class.

  Attributes:
    steps_per_epoch: batches in an epoch.
    classes: (length, rows) of each class.
  """

  def __init__(self, lengths: Integer[np.ndarray, "examples"], sequence_length: int, batch_size: int, seed: int):
    limits = [sequence_length]
    while len(limits) < NUM_CLASSES and limits[0] % 2 == 0 and limits[0] // 2 >= MIN_CLASS_LENGTH:
      limits.insert(0, limits[0] // 2)
    self._by_length = ExamplesByLength(lengths, limits)
    sizes = self._by_length.sizes
    self._numbers = np.flatnonzero(sizes).tolist()  # of the classes with examples
    self._sizes = [int(sizes[number]) for number in self._numbers]
    self.classes = [(limits[number], batch_size * sequence_length // limits[number]) for number in self._numbers]
    counts = [-(-size // rows) for (_, rows), size in zip(self.classes, self._sizes)]
    self._first_batches = np.cumsum([0, *counts])
    self.steps_per_epoch = int(self._first_batches[-1])
    self._seeds = [int(key) for key in counter_hash.fold(seed, np.arange(len(counts) + 1))]

  def at(self, step: int) -> tuple[Int64[np.ndarray, "rows"], Int64[np.ndarray, "rows"], int]:
    """(example_ids, epochs, length) of the global batch of a step; the id of an empty row is -1.

    >>> batches = TokenBatches(np.array([9, 64, 60, 14, 20]), sequence_length=64, batch_size=1, seed=0)
    >>> for step in range(batches.steps_per_epoch):
    ...   ids, _, length = batches.at(step)
    ...   print(ids, length)
    [ 4 -1] 32
    [ 3  0 -1 -1] 16
    [2] 64
    [1] 64
    """
    epoch, index = divmod(step, self.steps_per_epoch)
    batch = int(permute(np.array([index]), self.steps_per_epoch, self._seeds[-1], np.array([epoch]))[0])
    number = int(np.searchsorted(self._first_batches, batch, side="right")) - 1
    (length, rows), size = self.classes[number], self._sizes[number]
    first = (batch - self._first_batches[number]) * rows
    index = np.arange(first, min(first + rows, size))
    index = permute(index, size, self._seeds[number], np.full(index.size, epoch))
    example_ids = np.full(rows, -1, np.int64)
    example_ids[:index.size] = self._by_length.ids(self._numbers[number], index)
    return example_ids, np.full(rows, epoch), length


class ExamplesByLength:
  """The examples of each class of lengths in order of ids, found without sorting them all.

  Counting the classes of each block of ids takes a tenth of a second for 100 million examples. A block is sorted when
  one of its ids is first asked for. Safe to use from several threads, which at worst sort a block twice.

  Attributes:
    sizes: how many examples each class has.

  >>> by_length = ExamplesByLength(np.array([9, 64, 60, 14, 20]), limits=[16, 32, 64])
  >>> by_length.sizes.tolist(), by_length.ids(2, np.array([1, 0])).tolist()
  ([2, 1, 2], [2, 1])
  """

  def __init__(self, lengths: Integer[np.ndarray, "examples"], limits: list[int]):
    self._lengths, self._limits = np.asarray(lengths), limits
    blocks = -(-len(lengths) // BLOCK_EXAMPLES)
    ends = [[np.count_nonzero(self._block(block) <= limit) for limit in limits] for block in range(blocks)]
    ends = np.array(ends, np.int64).reshape(blocks, len(limits)).T  # of the classes in their sorted block
    self._starts = np.concatenate([np.zeros_like(ends[:1]), ends[:-1]])  # [classes, blocks]
    before = np.cumsum(ends - self._starts, axis=1)
    self._before = np.concatenate([np.zeros_like(ends[:, :1]), before], axis=1)  # examples of earlier blocks
    self.sizes: Int64[np.ndarray, "classes"] = self._before[:, -1]
    self._sorted = np.empty(len(lengths), np.uint16)  # place in the block
    self._is_sorted = np.zeros(blocks, bool)

  def ids(self, number: int, index: Int64[np.ndarray, "rows"]) -> Int64[np.ndarray, "rows"]:
    """The ids of the index-th examples of a class."""
    before = self._before[number]
    block = np.searchsorted(before, index, side="right") - 1
    for unsorted in np.unique(block[~self._is_sorted[block]]).tolist():
      self._sort(unsorted)
    first = block * BLOCK_EXAMPLES
    return first + self._sorted[first + self._starts[number, block] + index - before[block]]

  def _block(self, block: int) -> np.ndarray:
    return self._lengths[block * BLOCK_EXAMPLES:(block + 1) * BLOCK_EXAMPLES]

  def _sort(self, block: int) -> None:
    lengths = self._block(block)
    classes = np.searchsorted(self._limits, lengths).astype(np.uint8)
    first = block * BLOCK_EXAMPLES
    self._sorted[first:first + len(lengths)] = np.argsort(classes, kind="stable")
    self._is_sorted[block] = True  # after its entries: another thread may look now


def permute(index: Int64[np.ndarray, "batch"], size: int, seed: int,
            epochs: Int64[np.ndarray, "batch"]) -> Int64[np.ndarray, "batch"]:
  """Where the keyed permutation of (seed, epoch) sends each index; a bijection of range(size) for every size >= 1.

  A Feistel network permutes the slightly larger set of pairs (left, right) with left < ceil(sqrt(size)); an output
  outside range(size) is sent through again until it falls inside ("cycle walking": Black and Rogaway, 2002).

  >>> permute(np.arange(5), 5, seed=0, epochs=np.zeros(5, np.int64)).tolist()
  [1, 2, 4, 3, 0]
  """
  left_size = max(1, math.isqrt(size - 1) + 1)  # ceil(sqrt(size))
  right_size = -(-size // left_size)
  keys = counter_hash.derive(counter_hash.fold(seed, epochs), counter_hash.Purpose.ORDER)
  result = _feistel(index, left_size, right_size, keys)
  outside = np.flatnonzero(result >= size)
  while outside.size:
    result[outside] = _feistel(result[outside], left_size, right_size, keys[outside])
    outside = outside[result[outside] >= size]
  return result


def _feistel(index: np.ndarray, left_size: int, right_size: int, keys: np.ndarray) -> np.ndarray:
  """A bijection of range(left_size * right_size): each round adds a hash of one half to the other, modulo its size."""
  right, left = np.divmod(index.astype(np.uint64), np.uint64(left_size))
  for number in range(ROUNDS):
    if number % 2:
      right = (right + _round_hash(keys, left, number)) % np.uint64(right_size)
    else:
      left = (left + _round_hash(keys, right, number)) % np.uint64(left_size)
  return (right * np.uint64(left_size) + left).astype(np.int64)


def _round_hash(keys: np.ndarray, half: np.ndarray, number: int) -> np.ndarray:
  """32 random bits for each (key, round, half): a sum with them cannot overflow."""
  bits = (half * np.uint64(ROUNDS) + np.uint64(number)) * counter_hash.GOLDEN
  bits += keys
  bits ^= bits >> np.uint64(32)  # lighter than `counter_hash.mix`: the rounds mix, too
  bits *= MULTIPLIER
  return bits >> np.uint64(32)
