"""Embeddings: token + position + segment tables, layer norm, dropout (BERT; RoBERTa's offset)."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from electra_jax import sharding
from electra_jax.models.transformer import Dropout, TransformerConfig


def sinusoids(shape: tuple[int, int], scale: float) -> Float[Array, "positions embed"]:
  """Sines and cosines with wavelengths from 2 pi to almost 200 pi positions (Vaswani et al. 2017, section 3.5).

  Differs from Vaswani et al., whose base is 10,000, where this one is 100: sequences of a small model are short, and
  with their base most columns would hardly change along them. The root mean square is `scale`, as in other tables.
  """
  rows, features = shape
  wavelengths = 100.0 ** (2 * jnp.arange(-(-features // 2)) / features)  # over 2 pi
  angles = jnp.arange(rows)[:, None] / wavelengths  # [rows, half of the features]
  return scale * 2**0.5 * jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)[:, :features]


# config.model.position_init -> (shape, initializer_range) -> the initial table; None: drawn like the others.
POSITION_INITS = {"normal": None, "sinusoidal": sinusoids}


class Table(nn.Module):
  """A lookup table; calling it returns the whole table, so that an output layer can be tied to it."""

  num_rows: int
  features: int
  config: TransformerConfig
  start: str = "normal"  # a row of POSITION_INITS

  @nn.compact
  def __call__(self) -> Float[Array, "rows features"]:
    start = POSITION_INITS[self.start]
    initializer = self.config.initializer if start is None else (
      lambda key, shape: start(shape, self.config.initializer_range))
    return self.param("embedding", initializer, (self.num_rows, self.features))


def lookup(table: Float[Array, "vocab embed"], ids: Int[Array, "batch length"],
           gathered: bool = False) -> Float[Array, "batch length embed"]:
  """Rows of a table. The gather is done in float32, so its gradient is summed in float32 too.

  Each device gathers whole rows for its own examples. Without a constraint the partitioner would keep the table's split
  in the rows, and have every device compute all of them, forwards and backwards. A table that is whole anyway
  (`gathered`, or a mesh of the data axis alone) has none, so that the gradients of several lookups are summed at once.
  """
  if sharding.axis_size("vocab") > 1 or (sharding.axis_size("embed") > 1 and not gathered):
    table = sharding.constrain(table, None, None)
  return sharding.constrain(jnp.take(table, ids, axis=0, mode="clip"), "batch", None, None)  # [batch, length, embed]


def position_vectors(table: Float[Array, "positions embed"], attention_mask: Bool[Array, "batch length"],
                     offset: int) -> Float[Array, "#batch length embed"]:
  """Rows offset, offset + 1, ... of the position table; RoBERTa's padding reads row offset - 1, BERT's counts on.

  A slice in place of a gather: padding is only on the right, so every row of the batch reads the same positions.

  >>> rows = jnp.arange(6.0)[:, None]
  >>> position_vectors(rows, jnp.array([[True, True, True, False]]), offset=2)[..., 0].tolist()
  [[2.0, 3.0, 4.0, 1.0]]
  >>> position_vectors(rows, jnp.array([[True, True, True, False]]), offset=0)[..., 0].tolist()
  [[0.0, 1.0, 2.0, 3.0]]
  """
  length = attention_mask.shape[1]
  if offset + length > table.shape[0]:
    raise ValueError(f"{length} tokens from position row {offset} do not fit a table of {table.shape[0]} rows; raise "
                     "model.max_position_embeddings or shorten data.sequence_length")
  vectors = table[None, offset : offset + length]  # [1, length, embed]
  return vectors if offset == 0 else jnp.where(attention_mask[..., None], vectors, table[offset - 1])


def segment_vectors(table: Float[Array, "types embed"],
                    token_type_ids: Int[Array, "batch length"]) -> Float[Array, "#batch #length embed"]:
  """Rows of a short table, chosen by comparison, whose gradient is a sum over each segment instead of a scatter.

  A model with a single segment row (RoBERTa) reads it for both segments.
  """
  vectors = table[0][None, None]
  for row in range(1, table.shape[0]):
    vectors = jnp.where((token_type_ids == row)[..., None], table[row], vectors)
  return vectors


class Embeddings(nn.Module):
  """Sum of the three tables, normalised. The token table may be another network's (ELECTRA section 3.2)."""

  config: TransformerConfig

  def setup(self):
    c = self.config
    self.token = Table(c.vocab_size, c.embedding_size, c)
    self.position = Table(c.max_position_embeddings, c.embedding_size, c, c.position_init)
    self.token_type = Table(c.type_vocab_size, c.embedding_size, c)
    self.layer_norm = c.layer_norm()
    self.dropout = Dropout(c.hidden_dropout_prob)

  def __call__(self, ids: Int[Array, "batch length"], token_type_ids: Int[Array, "batch length"],
               attention_mask: Bool[Array, "batch length"], token_table: Float[Array, "vocab embed"],
               train: bool) -> Float[Array, "batch length embed"]:
    c = self.config
    x = lookup(token_table, ids, c.gathered) + position_vectors(self.position(), attention_mask, c.position_offset)
    x = x + segment_vectors(self.token_type(), token_type_ids)  # [batch, length, embed]
    return self.dropout(self.layer_norm(x.astype(c.dtype)), train)
