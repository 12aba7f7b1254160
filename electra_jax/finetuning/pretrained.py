"""Encoders that fine-tuning starts from: those of a run, of a fine-tuned run, or of published weights."""

import functools
import hashlib
import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from ml_collections import ConfigDict

from electra_jax import config as config_lib
from electra_jax import sharding
from electra_jax.data import tokenizers
from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.errors import UserError
from electra_jax.exchange import formats, hub, published
from electra_jax.models.bert import SENTENCE_HEADS, Bert
from electra_jax.models.transformer import TransformerConfig
from electra_jax.training import checkpoints

ENCODERS = ("discriminator", "encoder")  # names of the kept network in a run's parameters
MASKED_LM = "mlm_head"  # the only pre-training head that a task continues with (tasks/winograd.py)
POOLER = "bert.pooler.dense"  # name elsewhere of the layer over [CLS] with which BERT's fine-tuning continues


class PretrainedEncoder(NamedTuple):
  """An encoder with its sizes, tokenizer and pooler."""

  model: dict  # the `model` branch of the config: sizes, vocab_size
  tokenizer: tokenizers.Tokenizer
  encoder: PyTree  # host arrays, without heads except its masked LM's (`mlm_head`), if it has one
  pooler: dict[str, np.ndarray] | None  # kernel and bias, if there is one
  is_fine_tuned: bool = False  # by this code: its layers have learnt a task


def load(path: str) -> PretrainedEncoder:
  """Reads a workdir's newest checkpoint or any of `exchange.formats`, on this machine or the Hugging Face hub.

  Raises:
    UserError: there is no such thing, or it is damaged.
  """
  path = hub.fetch(path)
  if formats.is_published(path):
    return _load_published(path)
  config = config_lib.load(path)
  _, params = checkpoints.load_params(path)
  name = next(name for name in ENCODERS if name in params)
  tokenizer = tokenizers.load_tokenizer(os.path.join(path, "tokenizer"))
  network = jax.device_get(params[name])
  encoder = _without_heads(network)
  pooler = network.get("nsp_head", {}).get("pooler") or network.get("classification_head", {}).get("dense")
  return PretrainedEncoder(config.model.to_dict(), tokenizer, encoder, pooler, bool(config.task.name))


def weights_checksum(start: PretrainedEncoder) -> str:
  """A hash of the parameters."""
  digest = hashlib.blake2b(digest_size=16)
  for path, leaf in sharding.by_path((start.encoder, start.pooler)).items():
    digest.update(path.encode())
    digest.update(np.ascontiguousarray(leaf).data)
  return digest.hexdigest()


def of_run(config: ConfigDict, tokenizer: Tokenizer, params: PyTree) -> PretrainedEncoder:
  """The kept encoder of a run that is still training, as whole arrays in every process."""
  name = next(name for name in ENCODERS if name in params)
  return PretrainedEncoder(config.model.to_dict(), tokenizer, sharding.gather(_without_heads(params[name])), None)


def _without_heads(network: PyTree) -> PyTree:
  return {part: value for part, value in network.items() if not part.endswith("_head") or part == MASKED_LM}


def _load_published(path: str) -> PretrainedEncoder:
  weights = formats.read(path)
  name = next((name for name in weights if name != "generator"), "generator")
  tokenizer = published.load_tokenizer(path)
  encoder = published.make_encoder(name, weights[name], tokenizer.vocab_size, path)
  encoder = encoder._replace(head_names=tuple({MASKED_LM} & {*encoder.head_names}))
  params = published.make_params(encoder, weights[name])
  t, tensors = encoder.transformer, weights[name].tensors
  keys = ("vocab_size", *published.ARCHITECTURE, "initializer_range")
  pooler = None
  if f"{POOLER}.weight" in tensors:
    pooler = {"kernel": np.asarray(tensors[f"{POOLER}.weight"], np.float32).T,
              "bias": np.asarray(tensors[f"{POOLER}.bias"], np.float32)}
  return PretrainedEncoder({key: getattr(t, key) for key in keys}, tokenizer, params, pooler)


def init_params(rng: Array, transformer: TransformerConfig, head_names: tuple[str, ...],
                pretrained: PretrainedEncoder | None, fresh_layers: int = 0) -> PyTree:
  """{"encoder": ...} with fresh heads; encoder and masked LM are those of `pretrained`, or fresh if that is None.

  Args:
    fresh_layers: how many of the top layers are fresh, too.

  Raises:
    UserError: a masked LM is needed and missing, or there are fewer layers than `fresh_layers`.
  """
  if fresh_layers > transformer.num_hidden_layers:
    raise UserError("More layers are to start fresh than the encoder has", got=f"task.fresh_layers={fresh_layers}",
                    allowed=f"0 to {transformer.num_hidden_layers}", fix="lower --config.task.fresh_layers")
  if pretrained is None:
    return {"encoder": _init_parts(rng, transformer, head_names)}
  if MASKED_LM in head_names and MASKED_LM not in pretrained.encoder:
    raise UserError("The task needs a masked LM, which this encoder lacks",
                    got="an encoder without mlm_head, such as ELECTRA's discriminator",
                    allowed="BERT and RoBERTa with the head of their pre-training",
                    fix="set --config.task.init_from to one, or use --config.task.name=wnli_ranking")
  encoder = {name: value for name, value in pretrained.encoder.items() if name != MASKED_LM or name in head_names}
  heads = [name for name in head_names if name != MASKED_LM]
  layers = range(transformer.num_hidden_layers - fresh_layers, transformer.num_hidden_layers)
  fresh = _init_parts(rng, transformer, head_names, (*heads, *(f"layer_{i:02d}" for i in layers)))
  for name in SENTENCE_HEADS:
    if pretrained.pooler is not None and "dense" in fresh.get(name, {}):
      fresh[name]["dense"] = pretrained.pooler
  return {"encoder": {**encoder, **fresh}}


@functools.partial(jax.jit, static_argnames=("transformer", "head_names", "names"))
def _init_parts(rng, transformer: TransformerConfig, head_names: tuple[str, ...],
                names: tuple[str, ...] | None = None) -> PyTree:
  """New parameters of the named parts (None: of all). One small program for all seeds, rather than one an array."""
  ids = jnp.zeros((1, 8), jnp.int32)
  batch = {**dict.fromkeys(("input_ids", "token_type_ids", "masked_positions", "masked_ids"), ids),
           **dict.fromkeys(("attention_mask", "may_start", "may_end"), jnp.ones((1, 8), bool))}
  params = Bert(transformer, head_names=head_names).init(rng, batch, False, method="task_outputs")["params"]
  return params if names is None else {name: params[name] for name in names}
