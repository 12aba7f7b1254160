"""Dropout by a hash of (key, position), so that no mask is ever stored or sent.

An element gets the same bits on every device, under every sharding, and in the backward pass. Compilers fuse the hash
with the code around it; bits from a random number generator are written to memory and read twice.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, UInt32


def seeds_of(rng: Array) -> UInt32[Array, "2"]:
  """The 64 bits of a key that `bits` is seeded with."""
  return jax.random.key_data(rng)[-2:]  # both halves of an rbg key are hashes of the same history


def bits(seeds: Any, index: Any) -> Any:
  """32 random bits for each 32-bit index: three rounds of shift and multiply, with the second seed after the first.

  `seeds` is anything with two uint32 entries, including scalars within a GPU kernel. The constants are those of the
  "triple32" hash (Wellons 2018), which has hardly more bias than a random permutation.

  >>> x = bits(jnp.array([1, 2], jnp.uint32), jnp.arange(1 << 16, dtype=jnp.uint32))
  >>> round(float((x >> 31).mean()), 2)
  0.5
  """
  x = index ^ seeds[0]
  x = (x ^ (x >> np.uint32(17))) * np.uint32(0xED5AD4BB)
  x = ((x ^ (x >> np.uint32(11))) + seeds[1]) * np.uint32(0xAC4C1B51)
  x = (x ^ (x >> np.uint32(15))) * np.uint32(0x31848BAB)
  return x ^ (x >> np.uint32(14))


def threshold(rate: float) -> np.uint32:
  """The number below which an element's bits mean that it is dropped."""
  return np.uint32(min(round(rate * 2**32), 2**32 - 1))


def positions(shape: tuple[int, ...]) -> UInt32[Array, "..."]:
  """The row-major index of each element, modulo 2**32."""
  strides = np.cumprod((1, *shape[:0:-1]))[::-1]
  return functools.reduce(jnp.add, (
    jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * np.uint32(stride % 2**32)
    for axis, stride in enumerate(strides)))


def keep_mask(seeds: UInt32[Array, "2"], shape: tuple[int, ...], rate: float) -> Bool[Array, "..."]:
  """True where an element stays."""
  return bits(seeds, positions(shape)) >= threshold(rate)


def child_seeds(seeds: Any, index: Any) -> tuple:
  """The two seeds of part `index` (uint32 of any shape) of what has the seeds `seeds`."""
  return bits(seeds, index), bits((seeds[1], seeds[0]), index)


# Dropout of attention: the hash takes much of its kernels' time, so one word of 32 bits serves four pairs of a row and
# a column, a byte each: two rows and two columns that are eight apart, which one thread of a matrix product holds.
COLUMN_STEP = np.uint32(0x9E3779B9)  # of the Weyl sequence that gives the columns of a row their words


def pair_rate(rate: float) -> float:
  """The rate at which pairs are really dropped, in 256ths, as a byte decides: 0.1 becomes 0.1016.

  Differs from the papers, whose rate is exactly 0.1; what stays is divided by the share that really stays.

  >>> [pair_rate(rate) * 256 for rate in (0.0, 0.0001, 0.1, 0.5)]
  [0.0, 1.0, 26.0, 128.0]
  """
  return min(max(1, round(rate * 256)), 255) / 256 if rate else 0.0


def pair_groups(places: Any) -> Any:
  """The number of each row's or column's group, whose two members differ only in bit 3.

  >>> pair_groups(np.arange(24, dtype=np.uint32)).tolist()
  [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
  """
  return ((places >> np.uint32(4)) << np.uint32(3)) | (places & np.uint32(7))


def pair_words(places: Any, row_seeds: Any) -> Any:
  """The word of each group of pairs, from the `bits` of groups of rows and these plus COLUMN_STEP times the groups of
  columns (`places`).
  """
  x = (places ^ (places >> np.uint32(16))) * np.uint32(0x7FEB352D) + row_seeds  # rows that meet here part again
  return (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)


def pair_byte(row_bit: Any, column_bit: Any) -> Any:
  """Which byte of the word, counted from the lowest, belongs to a pair, by bit 3 of its row and of its column."""
  return 2 * row_bit + column_bit


def kept_bytes(words: Any, rate: float) -> Any:
  """For all four bytes at once: the highest bit of each says whether its pair stays. `rate` is a `pair_rate`."""
  dropped = round(rate * 256)
  low = words & np.uint32(0x7F7F7F7F)
  if dropped <= 128:
    return (low + np.uint32((128 - dropped) * 0x01010101)) | words
  return (low + np.uint32((256 - dropped) * 0x01010101)) & words


def keep_pairs(seeds: Any, rows: Any, columns: Any, rate: float) -> Any:
  """True where (row, column) stays: [..., rows, columns] from uint32 [..., rows] and [..., columns].

  `rate` is a `pair_rate`.
  """
  row_seeds = bits(seeds, pair_groups(rows))[..., :, None]
  words = pair_words(row_seeds + (pair_groups(columns) * COLUMN_STEP)[..., None, :], row_seeds)
  row_bit, column_bit = (rows >> np.uint32(3)) & np.uint32(1), (columns >> np.uint32(3)) & np.uint32(1)
  shift = np.uint32(24) - np.uint32(8) * pair_byte(row_bit[..., :, None], column_bit[..., None, :])
  return (words << shift) >= np.uint32(round(rate * 256) << 24)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def dropout(x: Float[Array, "..."], seeds: UInt32[Array, "2"], rate: float) -> Float[Array, "..."]:
  """x / (1 - rate) where it stays, else 0; the backward pass hashes again instead of keeping a mask.

  >>> x = dropout(jnp.ones(8), jnp.array([1, 2], jnp.uint32), 0.5)
  >>> sorted(set(x.tolist()))
  [0.0, 2.0]
  """
  return jnp.where(keep_mask(seeds, x.shape, rate), x * (1 / (1 - rate)), 0).astype(x.dtype)


def _dropout_forward(x, seeds, rate):
  return dropout(x, seeds, rate), seeds


def _dropout_backward(rate, seeds, gradient):
  return dropout(gradient, seeds, rate), None


dropout.defvjp(_dropout_forward, _dropout_backward)
