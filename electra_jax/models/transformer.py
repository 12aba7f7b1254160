"""A post-layer-norm Transformer layer (Vaswani et al. 2017, as BERT, RoBERTa and ELECTRA use it)."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, UInt32

from electra_jax import sharding
from electra_jax.models import dropout, fp8, fused, linear_gelu
from electra_jax.models.attention import attention
from electra_jax.models.fused import Stream
from electra_jax.models.kernels import triton_rows

ACTIVATIONS = ("gelu", "gelu_new")  # by the normal distribution function | by tanh, as in the released TF code


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
  """Everything that determines one encoder's shapes and arithmetic; sizes are counts, rates are in [0, 1].

  Differs from the released BERT and ELECTRA code, whose GELU is the tanh approximation ("gelu_new"): the default is the
  exact one, by the normal distribution function, as in RoBERTa's code.
  """

  vocab_size: int  # rows of the token table, padded
  num_tokens: int  # entries of the tokenizer; logits of later rows are masked out
  embedding_size: int
  hidden_size: int
  intermediate_size: int
  num_hidden_layers: int
  num_attention_heads: int
  max_position_embeddings: int
  position_offset: int
  type_vocab_size: int
  hidden_act: str
  hidden_dropout_prob: float
  attention_probs_dropout_prob: float
  layer_norm_eps: float
  initializer_range: float
  dtype: jnp.dtype  # of activations; parameters, softmax and layer-norm statistics stay float32
  position_init: str = "normal"  # initial position table: a row of embeddings.POSITION_INITS
  remat: str = "none"  # a row of bert.REMAT_POLICIES, or none
  kernels: str = "auto"  # auto | xla | triton | mosaic | pallas | interpret, see triton_rows.choose
  matmul_precision: str = "default"  # of the linear maps: default (dtype) | fp8, see `fp8.product`
  gathered: bool = False  # each device has all parameters within a step, however they are kept (optimizer.shard_state)
  num_labels: int = 0  # outputs of a fine-tuning head
  pooling: str = "cls"  # what a sentence's head reads: cls | mean, see heads.POOLINGS
  pooler: str = "none"  # activation of a fine-tuning head's hidden layer: tanh | gelu; none: no such layer

  @property
  def head_dim(self) -> int:
    """Width of one attention head: 64 in both papers."""
    return self.hidden_size // self.num_attention_heads

  def dense(self, features: int, name: str | None = None) -> "Dense":
    """A linear map with BERT's initialisation."""
    return Dense(features, self, name=name)

  def layer_norm(self, name: str | None = None) -> "LayerNorm":
    """Layer norm over the features."""
    return LayerNorm(self, name=name)

  @property
  def initializer(self):
    """Truncated normal of `initializer_range` (BERT)."""
    return nn.initializers.truncated_normal(self.initializer_range)

  def dense_gelu(self, features: int, name: str, x: Float[Array, "batch length inputs"],
                 axis: str | None = None) -> Float[Array, "batch length features"]:
    """gelu(a linear map of x), within the calling module; `axis`: logical axis of the features."""
    kernel, bias = self.dense(features, name=name).parameters(x.shape[-1])
    implementation = self.implementation()
    # `dots` keeps products, but does not see those within the kernel.
    if "dots" not in self.remat and linear_gelu.fits(implementation, x.shape, features, self.hidden_act, self.dtype):
      return linear_gelu.linear_gelu(x.astype(self.dtype), kernel.astype(self.dtype), bias, implementation)
    product = sharding.constrain(multiply(x, kernel, self.dtype, self.matmul_precision), "batch", None, axis)
    return fused.bias_gelu(product, bias, self.hidden_act, implementation, axis)

  def implementation(self) -> str:
    """The code for attention, GELU and the norms' gradients: xla | triton | mosaic | pallas | interpret."""
    return triton_rows.choose(self.kernels, self.dtype)


class Dense(nn.Module):
  """x @ kernel + bias over the last axis.

  The other axes are flattened first, as every backend is fast at a product of two matrices; on CPU the kernel's
  gradient takes a third of the time that it would over [batch, length], as in nn.Dense.
  """

  features: int
  config: TransformerConfig

  @nn.compact
  def parameters(self, num_inputs: int) -> tuple[Float[Array, "inputs outputs"], Float[Array, "outputs"]]:
    """(kernel, bias), for callers that fuse the product or the bias with something else."""
    kernel = self.param("kernel", self.config.initializer, (num_inputs, self.features))
    return kernel, self.param("bias", nn.initializers.zeros, (self.features,))

  def product(self, x: Float[Array, "*rows inputs"]) -> tuple[Float[Array, "*rows outputs"], Float[Array, "outputs"]]:
    """(x @ kernel, bias)."""
    kernel, bias = self.parameters(x.shape[-1])
    return multiply(x, kernel, self.config.dtype, self.config.matmul_precision), bias

  def __call__(self, x: Float[Array, "*rows inputs"]) -> Float[Array, "*rows outputs"]:
    return fused.add_bias(*self.product(x))


def multiply(x: Float[Array, "*rows inputs"], kernel: Float[Array, "inputs outputs"], dtype: jnp.dtype,
             precision: str = "default") -> Float[Array, "*rows outputs"]:
  """x @ kernel in a dtype or, with precision fp8 and where it `fp8.fits`, in 8 bits; see `Dense`."""
  rows, kernel = x.astype(dtype).reshape(-1, x.shape[-1]), kernel.astype(dtype)
  product = fp8.product(rows, kernel) if fp8.fits(precision, *kernel.shape) else rows @ kernel
  return product.reshape(*x.shape[:-1], kernel.shape[-1])


class LayerNorm(nn.Module):
  """Layer norm with a scale and a bias, float32 parameters and statistics."""

  config: TransformerConfig

  @nn.compact
  def parameters(self, width: int) -> tuple[Float[Array, "width"], Float[Array, "width"]]:
    """(scale, bias), for callers that fuse the norm with what comes before it."""
    return self.param("scale", nn.initializers.ones, (width,)), self.param("bias", nn.initializers.zeros, (width,))

  def __call__(self, x: Float[Array, "batch length features"]) -> Float[Array, "batch length features"]:
    c = self.config
    return fused.layer_norm(x, *self.parameters(x.shape[-1]), c.layer_norm_eps, c.implementation())


class Dropout(nn.Module):
  """Dropout in training, see `dropout.dropout`."""

  rate: float

  def seeds(self, train: bool) -> tuple[UInt32[Array, "2"], float]:
    """(seeds, rate) for callers that fuse it with something else; the rate is 0 if nothing is dropped."""
    if not train or not self.rate:
      return jnp.zeros(2, jnp.uint32), 0.0
    return dropout.seeds_of(self.make_rng("dropout")), self.rate

  def __call__(self, x: Float[Array, "..."], train: bool) -> Float[Array, "..."]:
    seeds, rate = self.seeds(train)
    return dropout.dropout(x, seeds, rate) if rate else x


class Attention(nn.Module):
  """Multi-head self-attention over the real tokens, then dropout, residual and layer norm."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, stream: Stream, attention_mask: Bool[Array, "batch length"], train: bool) -> Stream:
    c = self.config
    residual, x = stream
    heads, implementation = (c.num_attention_heads, c.head_dim), c.implementation()
    maps = [c.dense(c.hidden_size, name=name).parameters(c.hidden_size) for name in ("query", "key", "value")]
    # One product for all three, [hidden, heads, 3, head_dim]: a device of the tensor axis keeps whole heads.
    kernel = jnp.stack([kernel.astype(c.dtype).reshape(-1, *heads) for kernel, _ in maps], axis=2)
    kernel = jax.lax.optimization_barrier(kernel.reshape(c.hidden_size, -1))
    product = sharding.constrain(multiply(x, kernel, c.dtype, c.matmul_precision), "batch", None, "heads")
    product = product.reshape(*x.shape[:2], heads[0], 3, heads[1])  # [batch, length, heads, 3, head_dim]
    bias = jnp.stack([bias.reshape(heads) for _, bias in maps], axis=1)  # [heads, 3, head_dim]
    weight_dropout = Dropout(c.attention_probs_dropout_prob, name="dropout").seeds(train)
    context = attention(product, bias, attention_mask, *weight_dropout, implementation)
    y, bias = c.dense(c.hidden_size, name="output").product(context.reshape(x.shape))  # [batch, length, hidden]
    scale, offset = c.layer_norm("layer_norm").parameters(c.hidden_size)
    output_dropout = Dropout(c.hidden_dropout_prob, name="output_dropout").seeds(train)
    return fused.dropout_add_norm(residual, y, bias, scale, offset, *output_dropout, c.layer_norm_eps, implementation)


class FeedForward(nn.Module):
  """Two linear maps with a GELU between, then dropout, residual and layer norm."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, stream: Stream, train: bool) -> Stream:
    c = self.config
    residual, x = stream
    implementation = c.implementation()
    y = c.dense_gelu(c.intermediate_size, "intermediate", x, axis="mlp")  # [batch, length, mlp]
    y, bias = c.dense(c.hidden_size, name="output").product(y)
    scale, offset = c.layer_norm("layer_norm").parameters(c.hidden_size)
    output_dropout = Dropout(c.hidden_dropout_prob, name="dropout").seeds(train)
    return fused.dropout_add_norm(residual, y, bias, scale, offset, *output_dropout, c.layer_norm_eps, implementation)


class Layer(nn.Module):
  """One encoder layer."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, stream: Stream, attention_mask: Bool[Array, "batch length"], train: bool) -> Stream:
    stream = Attention(self.config, name="attention")(stream, attention_mask, train)
    stream = FeedForward(self.config, name="feed_forward")(stream, train)
    hidden, residual = (sharding.constrain(x, "batch", None, None) for x in stream)
    return hidden, residual
