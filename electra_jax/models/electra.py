"""Generator and kept encoder: two encoders and the weights that they share (ELECTRA sections 2 and 3.2)."""

import dataclasses
import functools
from collections.abc import Callable

import flax.linen as nn
from jaxtyping import Array, Float, Int
from ml_collections import ConfigDict

from electra_jax.models.bert import Bert
from electra_jax.models.transformer import TransformerConfig


def make_generator_config(encoder: TransformerConfig, config_generator: ConfigDict) -> TransformerConfig:
  """The generator: narrower layers, the kept encoder's embedding width, projected (footnote 3)."""
  own = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
  return dataclasses.replace(encoder, **{name: config_generator[name] for name in own})


class Electra(nn.Module):
  """The pair. Shared weights belong to the encoder that is kept: ELECTRA's discriminator.

  Objectives add heads to either network and run them through `apply(..., method=a function of this module)`.

  Differs from the released code, which also shares the position and segment tables and the layer norm after them (the
  ICLR version: "both the token and positional embeddings"), so that the discriminator reads positions learnt by the
  masked LM: that is `embeddings`; the default is `token_embeddings`, as in the preprint's section 3.2.
  """

  encoder_config: TransformerConfig
  generator_config: TransformerConfig | None  # None: replacements come from no network
  weight_tying: str  # none | token_embeddings | embeddings | all (one encoder with the heads of both)
  encoder_name: str = "discriminator"  # of the kept encoder's subtree in the parameters
  encoder_heads: tuple[str, ...] = ("rtd_head",)
  generator_heads: tuple[str, ...] = ("mlm_head",)

  def setup(self):
    is_shared = self.weight_tying == "all"
    heads = self.encoder_heads + (self.generator_heads if is_shared else ())
    self.encoder = Bert(self.encoder_config, head_names=heads, name=self.encoder_name)
    if is_shared:
      self.generator = self.encoder
    elif self.generator_config is not None:
      self.generator = Bert(self.generator_config, head_names=self.generator_heads)

  @property
  def config(self) -> TransformerConfig:
    """The kept encoder's description; only sizes differ in the generator's."""
    return self.encoder_config

  def generator_table(self) -> Float[Array, "vocab embed"]:
    """The token embeddings that the generator reads and predicts with."""
    owner = self.generator if self.weight_tying == "none" else self.encoder
    return owner.token_table()

  def generator_embed(self) -> Callable:
    """The generator's `Bert.embed`, with the tables that belong to the kept encoder."""
    if self.weight_tying == "token_embeddings":
      return functools.partial(self.generator.embed, token_table=self.encoder.token_table())
    return (self.generator if self.weight_tying == "none" else self.encoder).embed

  def generator_logits(self, batch: dict[str, Array], train: bool) -> Float[Array, "batch predictions vocab"]:
    """The generator reads the masked sequence and predicts at the masked positions."""
    return self.generator.mlm_logits(batch, batch["masked_input_ids"], train, self.generator_table(),
                                     self.generator_embed())

  def discriminator_logits(self, batch: dict[str, Array], corrupted_ids: Int[Array, "batch length"],
                           train: bool) -> Float[Array, "batch length"]:
    """The discriminator reads the corrupted sequence and judges every token."""
    return self.encoder.rtd_logits(batch, corrupted_ids, train)

  def __call__(self, batch: dict[str, Array]) -> None:
    """Touches every parameter once, for initialisation."""
    self.encoder.touch(batch, self.encoder.token_table())
    if self.generator_config is not None and self.weight_tying != "all":
      self.generator.touch(batch, self.generator_table(), self.generator_embed())
