"""The encoder of every system here: BERT = RoBERTa = ELECTRA's discriminator = its generator, by config."""

import dataclasses
import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from ml_collections import ConfigDict

from electra_jax.models import heads, joint_spans
from electra_jax.models.embeddings import Embeddings
from electra_jax.models.transformer import Layer, TransformerConfig

HEADS = {
  "mlm_head": heads.MaskedLMHead,
  "rtd_head": heads.ReplacedTokenHead,
  "sentence_head": heads.ReplacedTokenHead,  # the contrastive objective's, on [CLS] alone
  "nsp_head": heads.NextSentenceHead,
  "copy_head": heads.LinearHead,  # all-tokens MLM's gate
  "baseline_head": heads.LinearHead,  # the adversarial objective's
  # For fine-tuning, see electra_jax/tasks:
  "classification_head": heads.ClassificationHead,
  "multiple_choice_head": heads.ClassificationHead,  # one score for each choice (RoBERTa section 5.3)
  "tagging_head": heads.TokenHead,
  "span_head": functools.partial(heads.TokenHead, num_outputs=2),  # does an answer start here, does it end here?
  "joint_span_head": joint_spans.JointSpanHead,
  "answerable_head": heads.LinearHead,  # on [CLS]: has the question no answer in the text?
}

# train.remat -> what is kept of a layer for the backward pass, besides its input. A linear map is a product without
# batch dimensions (`Dense` flattens its rows), but attention's two products have them, so `dots` keeps nothing of size
# length x length.
REMAT_POLICIES: dict[str, Callable | None] = {
  "full": jax.checkpoint_policies.nothing_saveable,
  "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  "all_dots": jax.checkpoint_policies.dots_saveable,
}

SENTENCE_HEADS = ("classification_head", "multiple_choice_head")  # read one vector, chosen by task.pooling


def make_transformer_config(config_model: ConfigDict, *, num_tokens: int, dtype: str, remat: str = "none",
                            kernels: str = "auto", matmul_precision: str = "default", gathered: bool = False
                            ) -> TransformerConfig:
  """The encoder's description from the `model` branch of a resolved config, whose keys are fields of it."""
  return TransformerConfig(**config_model, num_tokens=num_tokens, dtype=jnp.dtype(dtype), remat=remat, kernels=kernels,
                           matmul_precision=matmul_precision, gathered=gathered)


def with_task(transformer: TransformerConfig, config_task: ConfigDict, num_labels: int) -> TransformerConfig:
  """The description with what fine-tuning heads need, from the `task` branch of a resolved config."""
  return dataclasses.replace(transformer, num_labels=num_labels, pooling=config_task.pooling, pooler=config_task.pooler)


class Bert(nn.Module):
  """Embeddings, an optional projection to the hidden width, the layers, and the named heads."""

  config: TransformerConfig
  head_names: tuple[str, ...] = ()

  def setup(self):
    c = self.config
    self.embeddings = Embeddings(c)
    if c.embedding_size != c.hidden_size:  # ELECTRA footnote 3
      self.embeddings_project = c.dense(c.hidden_size)
    layer = Layer if c.remat == "none" else nn.remat(
      Layer, policy=REMAT_POLICIES[c.remat], static_argnums=(3,))  # train; 0 is the module
    self.layers = [layer(c, name=f"layer_{i:02d}") for i in range(c.num_hidden_layers)]
    for name in self.head_names:
      setattr(self, name, HEADS[name](c))

  def token_table(self) -> Float[Array, "vocab embed"]:
    """This network's own token embeddings."""
    return self.embeddings.token()

  def embed(self, batch: dict[str, Array], ids: Int[Array, "batch length"], train: bool,
            token_table: Float[Array, "vocab embed"] | None = None) -> Float[Array, "batch length embed"]:
    """The embeddings before the projection, with `token_table` in place of this network's own token embeddings."""
    table = self.token_table() if token_table is None else token_table
    return self.embeddings(ids, batch["token_type_ids"], batch["attention_mask"], table, train)

  def encode(self, batch: dict[str, Array], ids: Int[Array, "batch length"], train: bool,
             embed: Callable | None = None) -> Float[Array, "batch length hidden"]:
    """Contextual vectors h(x) of `ids`; the batch supplies `token_type_ids` and `attention_mask`.

    Args:
      embed: an `embed` that reads another network's tables; None: this network's.
    """
    x = (embed or self.embed)(batch, ids, train)
    if self.config.embedding_size != self.config.hidden_size:
      x = self.embeddings_project(x)
    stream = x, x
    for layer in self.layers:
      stream = layer(stream, batch["attention_mask"], train)
    return stream[0]

  def mlm_logits(self, batch: dict[str, Array], ids: Int[Array, "batch length"], train: bool,
                 token_table: Float[Array, "vocab embed"] | None = None,
                 embed: Callable | None = None) -> Float[Array, "batch predictions vocab"]:
    """Vocabulary logits at `masked_positions` only: at every position the head would be a fifth of BERT-Base's FLOPs.

    Args:
      token_table: the output table; None: this network's token embeddings.
      embed: see `encode`.
    """
    table = self.token_table() if token_table is None else token_table
    hidden = self.encode(batch, ids, train, embed)
    return self.mlm_head(heads.select_positions(hidden, batch["masked_positions"]), table)

  def rtd_logits(self, batch: dict[str, Array], ids: Int[Array, "batch length"],
                 train: bool) -> Float[Array, "batch length"]:
    """One logit per token: is it replaced?"""
    return self.rtd_head(self.encode(batch, ids, train))

  def mlm_and_nsp_logits(self, batch: dict[str, Array], ids: Int[Array, "batch length"], train: bool
                         ) -> tuple[Float[Array, "batch predictions vocab"], Float[Array, "batch 2"]]:
    """Vocabulary logits at `masked_positions`, and logits of (segment B follows A, it does not)."""
    hidden = self.encode(batch, ids, train)
    selected = heads.select_positions(hidden, batch["masked_positions"])
    return self.mlm_head(selected, self.token_table()), self.nsp_head(hidden)

  def task_outputs(self, batch: dict[str, Array], train: bool) -> dict[str, Array]:
    """The output of each fine-tuning head, float32, by its name."""
    hidden, outputs = self.encode(batch, batch["input_ids"], train), {}
    sentence = heads.POOLINGS[self.config.pooling](hidden, batch["attention_mask"])[:, None]  # [batch, 1, hidden]
    read = dict.fromkeys(SENTENCE_HEADS, (sentence,)) | {"joint_span_head": (hidden, batch)}
    for name in self.head_names:
      head = getattr(self, name)
      if name == "mlm_head":  # of a phrase
        logits = head(heads.select_positions(hidden, batch["masked_positions"]), self.token_table())
        outputs[name] = heads.phrase_score(logits, batch["masked_ids"])
      elif name == "answerable_head":
        outputs[name] = head(hidden[:, :1])[:, 0]
      else:
        outputs[name] = head(*read.get(name, (hidden,)), train)
    return outputs

  def touch(self, batch: dict[str, Array], token_table: Float[Array, "vocab embed"],
            embed: Callable | None = None) -> None:
    """Runs every layer and head once, for initialisation."""
    hidden = self.encode(batch, batch["input_ids"], False, embed)
    for name in self.head_names:
      arguments = (hidden, token_table) if name == "mlm_head" else (hidden,)
      getattr(self, name)(*arguments)
