"""How do ids become vectors? Token + position + segment tables, layer norm, dropout (BERT; RoBERTa's offset)."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from electra_jax.models.transformer import Dropout, TransformerConfig


class Table(nn.Module):
  """A lookup table; calling it returns the whole table, so that an output layer can be tied to it."""

  num_rows: int
  features: int
  config: TransformerConfig

  @nn.compact
  def __call__(self) -> Float[Array, "rows features"]:
    return self.param("embedding", self.config.initializer, (self.num_rows, self.features))


def lookup(table: Float[Array, "vocab embed"], ids: Int[Array, "batch length"]) -> Float[Array, "batch length embed"]:
  """Rows of a table. The gather is done in float32, so its gradient is summed in float32 too."""
  return jnp.take(table, ids, axis=0, mode="clip")  # [batch, length, embed]


def position_ids(attention_mask: Bool[Array, "batch length"], offset: int) -> Int[Array, "batch length"]:
  """Rows of the position table: offset, offset + 1, ... for real tokens; padding reads row offset - 1 (RoBERTa).

  >>> position_ids(jnp.array([[True, True, True, False]]), offset=2).tolist()
  [[2, 3, 4, 1]]
  >>> position_ids(jnp.array([[True, True, True, False]]), offset=0).tolist()
  [[0, 1, 2, 3]]
  """
  if offset == 0:  # BERT and ELECTRA count padding too
    return jnp.broadcast_to(jnp.arange(attention_mask.shape[1]), attention_mask.shape)
  return jnp.where(attention_mask, offset - 1 + jnp.cumsum(attention_mask, axis=1), offset - 1)


class Embeddings(nn.Module):
  """Sum of the three tables, normalised. The token table may be another network's (ELECTRA section 3.2)."""

  config: TransformerConfig

  def setup(self):
    c = self.config
    self.token = Table(c.vocab_size, c.embedding_size, c)
    self.position = Table(c.max_position_embeddings, c.embedding_size, c)
    self.token_type = Table(c.type_vocab_size, c.embedding_size, c)
    self.layer_norm = c.layer_norm()
    self.dropout = Dropout(c.hidden_dropout_prob)

  def __call__(self, ids: Int[Array, "batch length"], token_type_ids: Int[Array, "batch length"],
               attention_mask: Bool[Array, "batch length"], token_table: Float[Array, "vocab embed"],
               train: bool) -> Float[Array, "batch length embed"]:
    c = self.config
    positions = position_ids(attention_mask, c.position_offset)
    x = lookup(token_table, ids) + lookup(self.position(), positions)
    # A model with one segment row (RoBERTa) reads it for both segments: the clip in lookup.
    x = x + lookup(self.token_type(), token_type_ids)
    return self.dropout(self.layer_norm(x.astype(c.dtype)), train)
