"""Forward passes of a trained run without dropout, for prediction, by objective."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, PyTree
from ml_collections import ConfigDict

from electra_jax.models.bert import Bert
from electra_jax.models.electra import Electra
from electra_jax.models.transformer import TransformerConfig
from electra_jax.objectives import all_tokens_mlm, generators, replace_mlm, table
from electra_jax.objectives.base import Batch, Parts, apply


class Predictor(NamedTuple):
  """Functions of a run's parameters; None for what the run cannot compute."""

  mlm_logits: Any  # (params, batch) -> float32 [batch, predictions, vocab]
  rtd_logits: Any  # (params, batch, ids) -> float32 [batch, length]
  encode: Callable[[PyTree, Batch, Array], Array]  # the kept encoder: (params, batch, ids) -> [batch, length, hidden]
  task_outputs: Any = None  # of a fine-tuned model: (params, batch) -> its heads' outputs by name


class Encoder(NamedTuple):
  """An encoder that shares nothing with others."""

  name: str  # of its subtree in the parameters
  transformer: TransformerConfig
  head_names: tuple[str, ...]

  def apply(self, params: PyTree, method: str, *arguments) -> Any:
    """A pass of the encoder without dropout by a method of `Bert`."""
    model = Bert(self.transformer, head_names=self.head_names)
    return apply(model, params[self.name], *arguments, False, method=method)


@functools.cache
def separate(*encoders: Encoder) -> Predictor:
  """The passes of separate encoders, as in published models; the first is the kept one. An encoder with a fine-tuning
  head is the only one, and has no other heads.
  """
  owners = {head: encoder for encoder in reversed(encoders) for head in encoder.head_names}
  mlm, rtd = owners.get("mlm_head"), owners.get("rtd_head")
  return Predictor(
    mlm and (lambda params, batch: mlm.apply(params, "mlm_logits", batch, batch["masked_input_ids"])
             .astype(jnp.float32)),
    rtd and (lambda params, batch, ids: rtd.apply(params, "rtd_logits", batch, ids)),
    lambda params, batch, ids: encoders[0].apply(params, "encode", batch, ids),
    (lambda params, batch: encoders[0].apply(params, "task_outputs", batch)) if owners and not (mlm or rtd) else None)


@functools.cache  # equal sizes give the same functions, so a run's second checkpoint compiles nothing
def make(transformer: TransformerConfig, config_generator: ConfigDict, config_objective: ConfigDict) -> Predictor:
  """The passes of `config_objective.name`; `transformer` describes the kept encoder."""
  predictor = PREDICTORS[table.ROWS[config_objective.name].predictor]
  return predictor(Parts(transformer, config_generator, config_objective))


def _masked_lm(parts: Parts) -> Predictor:
  return separate(Encoder("encoder", parts.transformer, ("mlm_head",)))


def _electra(parts: Parts) -> Predictor:
  """ELECTRA and its relatives, without heads that only training needs."""
  return _pair(generators.make_model(parts), "discriminator_logits")


def _replace_mlm(parts: Parts) -> Predictor:
  """The generator fills masks, as the kept encoder has never seen one."""
  return _pair(replace_mlm.make_model(parts), None)


def _all_tokens_mlm(parts: Parts) -> Predictor:
  """As above; a token that the copy gate does not trust counts as replaced."""
  return _pair(all_tokens_mlm.make_model(parts), all_tokens_mlm.replaced_logits)


def _pair(model: Electra, judge: Callable | str | None) -> Predictor:
  """The passes of a generator and a kept encoder; `judge` is the method that gives `rtd_logits`."""
  def mlm_logits(params, batch):
    return apply(model, params, batch, False, method="generator_logits").astype(jnp.float32)

  def rtd_logits(params, batch, ids):
    return apply(model, params, batch, ids, False, method=judge)

  def encode(params, batch, ids):
    return apply(model, params, batch, ids, method=lambda module, batch, ids: module.encoder.encode(batch, ids, False))

  reads_text = model.generator_config is not None  # not if it is made of token counts
  return Predictor(mlm_logits if reads_text else None, rtd_logits if judge else None, encode)


PREDICTORS = {
  "masked_lm": _masked_lm,
  "electra": _electra,
  "replace_mlm": _replace_mlm,
  "all_tokens_mlm": _all_tokens_mlm,
}
