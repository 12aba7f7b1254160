"""Heads on top of an encoder: for pre-training (masked LM, replaced tokens, ...) and for fine-tuning."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from electra_jax.models import fused
from electra_jax.models.attention import MASK_BIAS
from electra_jax.models.transformer import Dropout, TransformerConfig


def select_positions(x: Float[Array, "batch length hidden"],
                     positions: Int[Array, "batch predictions"]) -> Float[Array, "batch predictions hidden"]:
  """The vectors at the masked positions, by a one-hot product, whose gradient is a product and not a scatter."""
  one_hot = jax.nn.one_hot(positions, x.shape[1], dtype=x.dtype)  # [batch, predictions, length]
  return jnp.einsum("bpl,blh->bph", one_hot, x, precision=jax.lax.Precision.HIGHEST)


class MaskedLMHead(nn.Module):
  """Dense, GELU, layer norm, then the tied token table and a bias (BERT; ELECTRA's generator).

  Differs from the preprint's formula, softmax(e(x)^T h) (section 2): the hidden layer and the bias are those of BERT
  and of the released code.
  """

  config: TransformerConfig

  @nn.compact
  def __call__(self, x: Float[Array, "batch predictions hidden"],
               token_table: Float[Array, "vocab embed"]) -> Float[Array, "batch predictions vocab"]:
    c = self.config
    x = c.layer_norm("layer_norm")(c.dense_gelu(c.embedding_size, "dense", x))
    bias = self.param("output_bias", nn.initializers.zeros, (c.vocab_size,))
    # In bfloat16, as the logits are the largest array of the step; their consumers compute in float32.
    logits = jnp.einsum("bpe,ve->bpv", x, token_table.astype(c.dtype), preferred_element_type=c.dtype)
    padding_bias = jnp.where(jnp.arange(c.vocab_size) < c.num_tokens, 0.0, MASK_BIAS)  # rows that are not tokens
    return fused.add_bias(logits, bias + padding_bias)


def phrase_score(logits: Float[Array, "batch predictions vocab"],
                 ids: Int[Array, "batch predictions"]) -> Float[Array, "batch"]:
  """Mean log-probability of a phrase's tokens, float32; -1 is no token (Kocijan et al. 2019; RoBERTa section 5.1)."""
  log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
  chosen = jnp.take_along_axis(log_probs, jnp.maximum(ids, 0)[..., None], axis=-1)[..., 0]  # [batch, predictions]
  return jnp.sum(chosen * (ids >= 0), axis=-1) / jnp.maximum(jnp.sum(ids >= 0, axis=-1), 1)


class ReplacedTokenHead(nn.Module):
  """Dense, GELU, one logit per token: positive means "replaced" (the paper's D is its complement, "original").

  Differs from the preprint's formula, D = sigmoid(w^T h) (section 2): the hidden layer is that of the released code.
  """

  config: TransformerConfig

  @nn.compact
  def __call__(self, x: Float[Array, "batch length hidden"]) -> Float[Array, "batch length"]:
    c = self.config
    x = c.dense_gelu(c.hidden_size, "dense", x)
    return c.dense(1, name="output")(x)[..., 0].astype(jnp.float32)  # [batch, length]


class NextSentenceHead(nn.Module):
  """[CLS], a dense layer with tanh (BERT's "pooler"), then two logits: B follows A, B is from another document."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x: Float[Array, "batch length hidden"]) -> Float[Array, "batch 2"]:
    c = self.config
    pooled = jnp.tanh(c.dense(c.hidden_size, name="pooler")(x[:, 0]))  # [batch, hidden]
    return c.dense(2, name="output")(pooled).astype(jnp.float32)


class LinearHead(nn.Module):
  """w^T h + b: one logit per position, for a "sigmoid layer" (ELECTRA section 3.5) or a baseline (Appendix D)."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x: Float[Array, "batch positions hidden"]) -> Float[Array, "batch positions"]:
    return self.config.dense(1, name="output")(x)[..., 0].astype(jnp.float32)  # [batch, positions]


def mean_state(x: Float[Array, "batch length hidden"],
               attention_mask: Bool[Array, "batch length"]) -> Float[Array, "batch hidden"]:
  """The mean state of all tokens but padding, as in sentence-transformers; zeros for a row of padding alone."""
  mask = attention_mask.astype(jnp.float32)[..., None]  # [batch, length, 1]
  total = (x.astype(jnp.float32) * mask).sum(axis=1)
  return (total / jnp.maximum(mask.sum(axis=1), 1)).astype(x.dtype)


# task.pooling -> (states, attention mask) -> the sentence as one vector.
POOLINGS = {"mean": mean_state, "cls": lambda x, attention_mask: x[:, 0]}


class ClassificationHead(nn.Module):
  """The sentence's vector (POOLINGS), a dense layer (`config.pooler`), dropout, then `config.num_labels` outputs.

  The dense layer is BERT's and RoBERTa's; ELECTRA has "simple linear classifiers" (section 3.1).
  """

  config: TransformerConfig

  @nn.compact
  def __call__(self, x: Float[Array, "batch length hidden"], train: bool = False) -> Float[Array, "batch labels"]:
    c = self.config
    x = x[:, 0]  # [batch, hidden]
    if c.pooler != "none":
      x = POOLER_ACTIVATIONS[c.pooler](c.dense(c.hidden_size, name="dense")(x))
    x = Dropout(c.hidden_dropout_prob, name="dropout")(x, train)
    return c.dense(c.num_labels, name="output")(x).astype(jnp.float32)


POOLER_ACTIVATIONS = {"tanh": jnp.tanh, "gelu": lambda x: nn.gelu(x, approximate=False)}


class TokenHead(nn.Module):
  """Dropout, then `num_outputs` outputs per token; 0 stands for `config.num_labels`."""

  config: TransformerConfig
  num_outputs: int = 0

  @nn.compact
  def __call__(self, x: Float[Array, "batch length hidden"],
               train: bool = False) -> Float[Array, "batch length outputs"]:
    c = self.config
    x = Dropout(c.hidden_dropout_prob, name="dropout")(x, train)
    return c.dense(self.num_outputs or c.num_labels, name="output")(x).astype(jnp.float32)
