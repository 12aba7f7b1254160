"""Which examples make up the global batch of step t? A pure function of (seed, t), in O(batch) memory.

Step t holds the numbers t * batch_size ... of an infinite stream; every `num_examples` of them are an epoch: one keyed
permutation of all example ids. Resuming needs only the step, and any number of hosts sees the same global batches.
A batch may cross the end of an epoch, so no example is ever dropped or repeated.
"""

import math

import numpy as np
from jaxtyping import Int64

from electra_jax.data import counter_hash

ROUNDS = 10  # of the Feistel network; with fewer, which example follows which is visibly uneven in sets below about 50

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
  stream = np.arange(batch_size, dtype=np.int64) + step * batch_size
  epochs = stream // num_examples
  return permute(stream % num_examples, num_examples, seed, epochs), epochs


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
