"""Which elements does dropout drop? A hash of (key, position) says it, so no mask is ever stored or sent.

The same element gets the same bits on every device, under every sharding, and in the backward pass. Compilers fuse the
hash into what surrounds it; drawing the bits with a generator writes them to memory and reads them twice.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, UInt32


def seeds_of(rng: Array) -> UInt32[Array, "2"]:
  """The 64 bits of a key that `bits` is seeded with."""
  return jax.random.key_data(rng)[-2:]  # both halves of an rbg key are hashes of the same history


def bits(seeds, index):
  """32 random bits for each 32-bit index: rounds of multiply and shift, the second seed after the first of three.

  `seeds` is anything with two uint32 entries, also scalars within a GPU kernel. The constants are those of the
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
  """Elements whose bits are below it are dropped."""
  return np.uint32(min(round(rate * 2**32), 2**32 - 1))


def positions(shape: tuple[int, ...]) -> UInt32[Array, "..."]:
  """The row-major index of each element; it wraps round after 2**32 elements."""
  strides = np.cumprod((1, *shape[:0:-1]))[::-1]
  return functools.reduce(jnp.add, (
    jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * np.uint32(stride % 2**32)
    for axis, stride in enumerate(strides)))


def keep_mask(seeds: UInt32[Array, "2"], shape: tuple[int, ...], rate: float) -> Bool[Array, "..."]:
  """True where an element stays."""
  return bits(seeds, positions(shape)) >= threshold(rate)


def child_seeds(seeds, index):
  """The two seeds of part `index`, uint32 of any shape, of what `seeds` stand for."""
  return bits(seeds, index), bits((seeds[1], seeds[0]), index)


def keep_pairs(seeds, rows, columns, rate: float):
  """True where (row, column) stays: [..., rows, columns] from uint32 [..., rows] and [..., columns].

  Both are hashed alone, with half of the work left for the pair: this is the dropout of attention, whose kernels are
  busy with it.
  """
  x = bits(seeds, rows)[..., :, None] ^ bits((seeds[1], seeds[0]), columns)[..., None, :]
  x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
  x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
  return x >= threshold(rate)


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
