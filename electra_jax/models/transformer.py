"""What is one post-layer-norm Transformer layer? (Vaswani et al. 2017, as BERT, RoBERTa and ELECTRA use it.)"""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from electra_jax import sharding

# Finite, so that a row without any real token has a uniform softmax instead of NaN; half of the smallest float32,
# so that two biases can be added without overflow.
MASK_BIAS = float(jnp.finfo(jnp.float32).min) / 2

ACTIVATIONS = {
  "gelu": functools.partial(nn.gelu, approximate=False),
  "gelu_new": functools.partial(nn.gelu, approximate=True),
}


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
  """Everything that decides the shape and arithmetic of one encoder; sizes are counts, rates are in [0, 1]."""

  vocab_size: int  # rows of the token table, padded
  num_tokens: int  # entries of the tokenizer; logits of the rows above are masked out
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
  remat: bool = False
  num_labels: int = 0  # outputs of a fine-tuning head
  pooler: str = "none"  # layer between [CLS] and a fine-tuning head's outputs: none | tanh | gelu

  @property
  def head_dim(self) -> int:
    """Width of one attention head: 64 in both papers."""
    return self.hidden_size // self.num_attention_heads

  def dense(self, features: int, name: str | None = None) -> "Dense":
    """A linear map with BERT's initialisation."""
    return Dense(features, self, name=name)

  def layer_norm(self, name: str | None = None) -> nn.LayerNorm:
    """Layer norm; the exact variance, since E[x^2] - E[x]^2 loses the digits that parity tests need."""
    return nn.LayerNorm(epsilon=self.layer_norm_eps, dtype=self.dtype, use_fast_variance=False, name=name)

  @property
  def initializer(self):
    """Truncated normal of `initializer_range` (BERT)."""
    return nn.initializers.truncated_normal(self.initializer_range)

  @property
  def activation(self):
    """The feed-forward non-linearity."""
    return ACTIVATIONS[self.hidden_act]


class Dense(nn.Module):
  """x @ kernel + bias over the last axis.

  The other axes are flattened first: a product with a single contracted axis is what every backend does fast; on CPU
  the kernel's gradient takes a third of the time that it takes over [batch, length] (which nn.Dense would do).
  """

  features: int
  config: TransformerConfig

  @nn.compact
  def __call__(self, x: Float[Array, "*rows inputs"]) -> Float[Array, "*rows outputs"]:
    dtype = self.config.dtype
    kernel = self.param("kernel", self.config.initializer, (x.shape[-1], self.features))
    bias = self.param("bias", nn.initializers.zeros, (self.features,))
    rows = x.astype(dtype).reshape(-1, x.shape[-1])  # [rows, inputs]
    return (rows @ kernel.astype(dtype) + bias.astype(dtype)).reshape(*x.shape[:-1], self.features)


class Dropout(nn.Module):
  """Dropout that draws 8 random bits an element instead of 32: the draws are most of its cost.

  Differs from the papers: the rate is rounded to a multiple of 1/256 (0.1 becomes 26/256 = 0.1016); the scale uses
  the rounded rate, so expectations are exact.
  """

  rate: float

  def __call__(self, x: Float[Array, "..."], train: bool) -> Float[Array, "..."]:
    threshold = round(self.rate * 256)
    if not train or threshold == 0:
      return x
    keep = jax.random.bits(self.make_rng("dropout"), x.shape, jnp.uint8) >= threshold
    return jnp.where(keep, x * (256 / (256 - threshold)), 0).astype(x.dtype)


class Attention(nn.Module):
  """Multi-head self-attention over the real tokens, then dropout, residual and layer norm."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x: Float[Array, "batch length hidden"], attention_mask: Bool[Array, "batch length"],
               train: bool) -> Float[Array, "batch length hidden"]:
    c = self.config
    split = (*x.shape[:2], c.num_attention_heads, c.head_dim)

    def heads(name: str) -> Float[Array, "batch length heads head_dim"]:
      projected = c.dense(c.hidden_size, name=name)(x).reshape(split)  # [batch, length, heads, head_dim]
      return sharding.constrain(projected, "batch", None, "heads", None)

    query, key, value = heads("query"), heads("key"), heads("value")
    dropout = Dropout(c.attention_probs_dropout_prob, name="dropout")
    if _flash_attention_fits(c) and not (train and c.attention_probs_dropout_prob):
      context = _flash_attention(query, key, value, attention_mask)
    else:
      scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32) * c.head_dim**-0.5
      bias = jnp.where(attention_mask, 0.0, MASK_BIAS)[:, None, None, :]  # [batch, 1, 1, length]
      weights = dropout(jax.nn.softmax(scores + bias, axis=-1).astype(c.dtype), train)
      context = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
    y = c.dense(c.hidden_size, name="output")(context.reshape(x.shape))  # [batch, length, hidden]
    return c.layer_norm("layer_norm")(x + Dropout(c.hidden_dropout_prob, name="output_dropout")(y, train))


def _flash_attention_fits(c: TransformerConfig) -> bool:
  """cuDNN's kernel wants bf16 and heads that are a multiple of 8 and at most 128 wide; it has no usable dropout."""
  return jax.default_backend() == "gpu" and c.dtype == jnp.bfloat16 and c.head_dim % 8 == 0 and c.head_dim <= 128


def _flash_attention(query, key, value, attention_mask):
  lengths = attention_mask.sum(-1, dtype=jnp.int32)  # rows are padded on the right only
  return jax.nn.dot_product_attention(query, key, value, query_seq_lengths=lengths, key_value_seq_lengths=lengths,
                                      implementation="cudnn")


class FeedForward(nn.Module):
  """Two linear maps with a GELU between, then dropout, residual and layer norm."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x: Float[Array, "batch length hidden"], train: bool) -> Float[Array, "batch length hidden"]:
    c = self.config
    y = c.activation(c.dense(c.intermediate_size, name="intermediate")(x))  # [batch, length, mlp]
    y = sharding.constrain(y, "batch", None, "mlp")
    y = c.dense(c.hidden_size, name="output")(y)
    return c.layer_norm("layer_norm")(x + Dropout(c.hidden_dropout_prob, name="dropout")(y, train))


class Layer(nn.Module):
  """One encoder layer."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x: Float[Array, "batch length hidden"], attention_mask: Bool[Array, "batch length"],
               train: bool) -> Float[Array, "batch length hidden"]:
    x = Attention(self.config, name="attention")(x, attention_mask, train)
    x = FeedForward(self.config, name="feed_forward")(x, train)
    return sharding.constrain(x, "batch", None, None)
