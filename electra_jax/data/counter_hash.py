"""Randomness of the data by hashing counters: no generator state, so nothing to save, replay or share.

A random number is `mix` (the output function of SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom
number generators", 2014) of everything it may depend on. It is therefore the same on every host, in every thread,
whatever else is in the batch, and after every restart.
"""

import enum

import numpy as np
from jaxtyping import UInt64

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # SplitMix64's increment: 2^64 over the golden ratio, odd
_FIRST_SHIFT = np.uint64(30)
_STEPS = ((np.uint64(0xBF58476D1CE4E5B9), np.uint64(27)), (np.uint64(0x94D049BB133111EB), np.uint64(31)))


class Purpose(enum.IntEnum):
  """What a number is drawn for: two purposes never share a number."""

  ORDER = 1
  MASKED_POSITION = 2
  MASK_ACTION = 3
  RANDOM_TOKEN = 4
  PACKING = 5
  SPAN_LENGTH = 6


def mix(values: UInt64[np.ndarray, "..."]) -> UInt64[np.ndarray, "..."]:
  """A bijection of the 64-bit numbers that looks random.

  >>> mix(np.array([0, 1, 2], np.uint64)).tolist()
  [0, 6238072747940578789, 15839785061582574730]
  """
  values = values ^ (values >> _FIRST_SHIFT)  # a new array; the rest works in place, with one more for scratch
  scratch = np.empty_like(values)
  for factor, shift in _STEPS:
    np.multiply(values, factor, out=values)
    np.right_shift(values, shift, out=scratch)
    np.bitwise_xor(values, scratch, out=values)
  return values


def fold(*counters: int | np.ndarray) -> UInt64[np.ndarray, "..."]:
  """One hash of several counters, each an int or an integer array (they broadcast); order matters.

  >>> fold(0, 1).tolist() == fold(1, 0).tolist()
  False
  >>> fold(7, np.arange(3)).shape
  (3,)
  """
  key = np.zeros(1, np.uint64)
  for counter in counters:
    if isinstance(counter, int):
      counter = np.array([counter & 0xFFFFFFFFFFFFFFFF], np.uint64)  # negative and huge seeds are fine
    key = mix((key ^ counter.astype(np.uint64)) + GOLDEN)
  return key


def derive(keys: UInt64[np.ndarray, "..."], purpose: Purpose) -> UInt64[np.ndarray, "..."]:
  """The keys of one purpose, from those of the rows that the numbers are drawn for."""
  return mix(keys + np.array([int(purpose)], np.uint64) * GOLDEN)


def draws(keys: UInt64[np.ndarray, "batch"], number: int) -> UInt64[np.ndarray, "batch number"]:
  """The first `number` outputs of one SplitMix64 stream per key.

  >>> draws(fold(np.arange(2)), 3).shape
  (2, 3)
  """
  return mix(keys[:, None] + np.arange(1, number + 1, dtype=np.uint64) * GOLDEN)
