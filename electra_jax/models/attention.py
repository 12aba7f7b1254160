"""Attention, softmax(Q K^T / sqrt(d)) V with dropout on the weights, by one of several implementations."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, UInt32

from electra_jax import sharding
from electra_jax.models import dropout
from electra_jax.models.fused import add_bias
from electra_jax.models.kernels import mosaic_attention, tpu_attention, triton_attention, xla_attention

# Finite, so that a row without any real token has a uniform softmax and no NaN; half the lowest float32, so that two
# biases can be added without overflow.
MASK_BIAS = float(jnp.finfo(jnp.float32).min) / 2


@jax.named_scope("weights")
def attention(product: Float[Array, "batch length heads 3 head_dim"], bias: Float[Array, "heads 3 head_dim"],
              attention_mask: Bool[Array, "batch length"], seeds: UInt32[Array, "2"], rate: float,
              kernels: str) -> Float[Array, "batch length heads head_dim"]:
  """Context vectors of every query over the real keys.

  Args:
    product: of the query, key and value maps, without their biases.
    bias: of these maps, float32.
    attention_mask: True for real tokens, which come first in a row.
    seeds: of the dropout, unused at rate 0.
    rate: of the dropout on the attention weights, rounded by `dropout.pair_rate`.
    kernels: xla | triton | mosaic | pallas, see `triton_rows.choose`; in tests recompute (xla's way on TPUs) |
      interpret | interpret_mosaic | interpret_pallas.
      The kernels hold no [length, length] array in memory, and all drop the same weights. Triton's take what Mosaic's
      cannot, `xla_attention` what the TPU's cannot. If the tensor axis cannot share the heads out whole, the compiler
      splits plain code.
  """
  has_whole_heads = product.shape[2] % sharding.axis_size("heads") == 0  # each device, as every kernel needs
  kernels = kernels if has_whole_heads else "xla"
  rate = dropout.pair_rate(rate)
  lengths = attention_mask.sum(-1, dtype=jnp.int32)
  if mosaic_attention.fits(kernels, product.shape, product.dtype):
    return _fused(product, bias, lengths, seeds, rate, mosaic_attention, kernels == "interpret_mosaic")
  if tpu_attention.fits(kernels, product.shape, product.dtype, sharding.axis_size("heads")):
    return _fused(product, bias, lengths, seeds, rate, tpu_attention, kernels == "interpret_pallas")
  is_long = not triton_attention.adds_bias(product.shape[1])
  uses_cudnn = kernels in ("triton", "mosaic") and not rate and is_long and product.shape[-1] % 8 == 0
  if triton_attention.fits(kernels, product.shape) and not uses_cudnn:
    return _fused(product, bias, lengths, seeds, rate, triton_attention, kernels == "interpret")
  if kernels == "recompute" or (has_whole_heads and sharding.platform() == "tpu"):
    return _fused(product, bias, lengths, seeds, rate, xla_attention, False)
  qkv = add_bias(product, bias)
  query, key, value = (qkv[:, :, :, place] for place in range(3))  # [batch, length, heads, head_dim]
  if uses_cudnn:  # its dropout has a fixed seed; without dropout it is faster than ours over several blocks
    lengths = jnp.maximum(lengths, 1)  # a row of padding alone attends to itself: no sum of weights is zero
    return jax.nn.dot_product_attention(query, key, value, query_seq_lengths=lengths, key_value_seq_lengths=lengths,
                                        implementation="cudnn")
  scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32) * query.shape[-1] ** -0.5
  hidden = jnp.where(attention_mask, 0.0, MASK_BIAS)[:, None, None, :]  # [batch, 1, 1, length]
  weights = jax.nn.softmax(scores + hidden, axis=-1).astype(query.dtype)
  if rate:
    weights = _drop(weights, seeds, rate)
  return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _drop(weights, seeds, rate):
  """Dropout with the kernels' hash: a pair of seeds for each example and head, then query and key."""
  of_head = dropout.child_seeds(seeds, dropout.positions(weights.shape[:2])[..., None])  # [batch, heads, 1]
  place = dropout.positions(weights.shape[-1:])
  keep = dropout.keep_pairs(of_head, place, place, rate)
  return jnp.where(keep, weights * (1 / (1 - rate)), 0).astype(weights.dtype)


_drop.defvjp(lambda weights, seeds, rate: (_drop(weights, seeds, rate), seeds),
             lambda rate, seeds, gradient: (_drop(gradient, seeds, rate), None))


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def _fused(product, bias, lengths, seeds, rate, backend, interpret):
  """By the kernels of a module with `adds_bias`, `forward` and `backward`."""
  return _fused_forward(product, bias, lengths, seeds, rate, backend, interpret)[0]


def _fused_forward(product, bias, lengths, seeds, rate, backend, interpret):
  if not backend.adds_bias(product.shape[1]):
    product = add_bias(_columns(product), bias.reshape(-1)).reshape(product.shape)
  call = functools.partial(backend.forward, num_heads=product.shape[2], rate=rate, interpret=interpret)
  context, log_sums = _on_local_heads(call, seeds, {"b": lengths, "bshtd": product, "htd": bias}, ("bshd", "bhs"))
  context = context.reshape(*product.shape[:3], product.shape[4])
  return context, (product, bias, lengths, seeds, context, log_sums)


def _fused_backward(rate, backend, interpret, residuals, gradient):
  product, bias, lengths, seeds, context, log_sums = residuals
  call = functools.partial(backend.backward, num_heads=product.shape[2], rate=rate, interpret=interpret)
  arrays = {"b": lengths, "bshtd": product, "htd": bias, "bshd": context, "bhs": log_sums, "bshd ": gradient}
  d_product, sums = _on_local_heads(call, seeds, arrays, ("bshtd", "bphtd"))
  return d_product.reshape(product.shape), sums.sum((0, 1)).astype(bias.dtype), None, None


_fused.defvjp(_fused_forward, _fused_backward)


def _columns(x: Float[Array, "batch length *columns"]) -> Float[Array, "batch length all_columns"]:
  """All heads side by side: a TPU stores an array that ends in dimensions of 3 and 64 in another order, and would
  transpose it for every kernel.
  """
  return x.reshape(*x.shape[:2], -1)


def _on_local_heads(call, seeds, arrays, out_letters):
  """Runs a kernel, which the compiler cannot split, on each device's examples and heads.

  `arrays` and `out_letters` name the dimensions: b batch, s sequence, h heads, t query, key or value, d head_dim.
  Results that begin with bsh may be returned as `_columns`.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.size == 1:
    return call(jnp.concatenate([seeds, jnp.zeros(2, jnp.uint32)]), *arrays.values())
  axes = {"b": sharding.batch_axes(mesh, arrays["b"].shape[0]), "h": sharding.RULES["heads"]}
  tails = [x.shape[3:] if letters.startswith("bsh") else None for letters, x in arrays.items()]

  def spec(letters):
    return PartitionSpec(*(axes.get(letter) for letter in letters.strip()[:3]))

  def local(seeds, *arguments):
    arguments = [x if tail is None else x.reshape(*x.shape[:2], -1, *tail)
                 for x, tail in zip(arguments, tails, strict=True)]
    examples, _, heads = arguments[1].shape[:3]
    first = (jax.lax.axis_index(axes["b"]) * examples if axes["b"] else jnp.zeros((), jnp.int32),
             jax.lax.axis_index(axes["h"]) * heads)
    out = call(jnp.concatenate([seeds, jnp.stack(first).astype(jnp.uint32)]), *arguments)
    return tuple(_columns(x) if letters.startswith("bsh") else x for letters, x in zip(out_letters, out, strict=True))

  return jax.shard_map(local, in_specs=(spec(""), *map(spec, arrays)), out_specs=tuple(map(spec, out_letters)),
                       check_vma=False)(seeds, *(x if tail is None else _columns(x)
                                                 for x, tail in zip(arrays.values(), tails, strict=True)))
