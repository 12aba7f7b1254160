"""How do generator and discriminator hang together? Two encoders, one token table (ELECTRA sections 2 and 3.2)."""

import dataclasses

import flax.linen as nn
from jaxtyping import Array, Float, Int
from ml_collections import FrozenConfigDict

from electra_jax.models.bert import Bert
from electra_jax.models.transformer import TransformerConfig


def make_generator_config(discriminator: TransformerConfig, config_generator: FrozenConfigDict) -> TransformerConfig:
  """The generator: narrower layers, the discriminator's embedding width (it is projected, footnote 3)."""
  sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
  return dataclasses.replace(discriminator, **{size: config_generator[size] for size in sizes})


class Electra(nn.Module):
  """The pair. The shared token table belongs to the discriminator, the part that is kept.

  Differs from the released code: it also shares the position and segment tables and the embeddings' layer norm;
  the paper shares "only the token embeddings".
  """

  discriminator_config: TransformerConfig
  generator_config: TransformerConfig
  tie_token_embeddings: bool

  def setup(self):
    self.discriminator = Bert(self.discriminator_config, head_names=("rtd_head",))
    self.generator = Bert(self.generator_config, head_names=("mlm_head",))

  def generator_logits(self, batch: dict[str, Array], train: bool) -> Float[Array, "batch predictions vocab"]:
    """The generator reads the masked sequence and predicts at the masked positions."""
    table = self.discriminator.token_table() if self.tie_token_embeddings else None
    return self.generator.mlm_logits(batch, batch["masked_input_ids"], train, table)

  def discriminator_logits(self, batch: dict[str, Array], corrupted_ids: Int[Array, "batch length"],
                           train: bool) -> Float[Array, "batch length"]:
    """The discriminator reads the corrupted sequence and judges every token."""
    return self.discriminator.rtd_logits(batch, corrupted_ids, train)

  def __call__(self, batch: dict[str, Array]) -> None:
    """Touches every parameter once, for initialisation."""
    self.generator_logits(batch, train=False)
    self.discriminator_logits(batch, batch["input_ids"], train=False)
