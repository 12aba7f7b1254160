"""How does a published model become one that answers? Its weights, sizes and vocabulary as parts of a run."""

import os
import tempfile
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from ml_collections import FrozenConfigDict

from electra_jax import sharding
from electra_jax.data import tokenizers
from electra_jax.errors import UserError
from electra_jax.exchange import fairseq, formats, mapping
from electra_jax.exchange.weights import Weights
from electra_jax.models.bert import Bert
from electra_jax.models.transformer import TransformerConfig
from electra_jax.objectives import networks

# Hugging Face's names of activations -> ours.
ACTIVATION_NAMES = {"gelu": "gelu", "gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_new"}

HEADS = ("mlm_head", "rtd_head")  # of pre-training, that answer; a head is there with its last bias
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
         "max_position_embeddings", "type_vocab_size")
# What a config.json may leave out, with Hugging Face's values.
DEFAULTS = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "hidden_dropout_prob": 0.1, "pad_token_id": 1,
            "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02, "position_embedding_type": "absolute"}


class Published(NamedTuple):
  """The parts of an `inference.Run`."""

  config: FrozenConfigDict  # the branches that answering reads
  tokenizer: tokenizers.Tokenizer
  params: PyTree  # on the first device
  network: networks.Network


def load(path: str) -> Published:
  """Reads any of `formats.FORMATS` with the vocabulary beside it.

  Raises:
    UserError: weights or vocabulary are missing, damaged, of another model, or do not fit each other.
  """
  weights = formats.read(path)
  tokenizer = load_tokenizer(path)
  encoders, params = [], {}
  for name, one in weights.items():
    encoder = make_encoder(name, one, tokenizer.vocab_size, path)
    encoders.append(encoder)
    params[name] = make_params(encoder, one)
  return Published(_config(encoders, tokenizer), tokenizer, jax.device_put(params), networks.separate(*encoders))


def make_encoder(name: str, weights: Weights, num_tokens: int, path: str) -> networks.Encoder:
  """The encoder that a config.json describes, with the heads whose tensors are there.

  Raises:
    UserError: a size is missing, it has parts that are not built here, or the vocabulary is too large for it.
  """
  c = DEFAULTS | weights.config
  family, activation, positions = c["model_type"], c["hidden_act"], c["position_embedding_type"]
  missing = [key for key in SIZES if key not in c]
  if missing or activation not in ACTIVATION_NAMES or positions != "absolute":
    raise UserError("The model's configuration does not describe an encoder that is built here",
                    got=f"{path}: no {', '.join(missing)}" if missing else
                    f"{path}: hidden_act={activation!r}, position_embedding_type={positions!r}",
                    allowed=f"{', '.join(SIZES)}; hidden_act of {', '.join(ACTIVATION_NAMES)}; absolute positions",
                    fix="use a BERT, RoBERTa or ELECTRA")
  if num_tokens > c["vocab_size"]:
    raise UserError("The vocabulary has more entries than the model's token table has rows",
                    got=f"{num_tokens} entries for {c['vocab_size']} rows in {path}", allowed="at most as many",
                    fix="put the model's own vocabulary beside its weights")
  rates = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")  # of training
  transformer = TransformerConfig(
    **{key: c[key] for key in (*SIZES, *rates)}, num_tokens=num_tokens,
    embedding_size=weights.tensors[mapping.their_name("embeddings/token/embedding", family)].shape[1],
    position_offset=c["pad_token_id"] + 1 if family == "roberta" else 0,
    hidden_act=ACTIVATION_NAMES[activation], layer_norm_eps=c["layer_norm_eps"],
    # CPUs have no bfloat16 units worth the lost digits.
    dtype=jnp.dtype("float32" if jax.default_backend() == "cpu" else "bfloat16"))
  names = mapping.FAMILIES[family][1]
  heads = tuple(head for head in HEADS if any(
    ours.startswith(f"{head}/") and theirs in weights.tensors for ours, theirs in names.items()))
  return networks.Encoder(name, transformer, heads)


def make_params(encoder: networks.Encoder, weights: Weights) -> PyTree:
  """Our parameters of one encoder, float32, from Hugging Face's tensors.

  Raises:
    UserError: names every tensor that is missing or has another shape.
  """
  model = Bert(encoder.transformer, head_names=encoder.head_names)
  ids = jnp.zeros((1, 8), jnp.int32)
  batch = {"input_ids": ids, "token_type_ids": ids, "attention_mask": jnp.ones((1, 8), bool)}
  shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), batch, method=lambda module, batch: module.touch(
    batch, module.token_table())))["params"]
  paths = {sharding.path_name(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)}
  found = mapping.from_hf(weights.tensors, paths, weights.config["model_type"])
  return jax.tree_util.tree_map_with_path(lambda path, _: np.asarray(found[sharding.path_name(path)], np.float32),
                                          shapes)


def load_tokenizer(path: str) -> tokenizers.Tokenizer:
  """The vocabulary beside the weights: in their folder, in that of a pair's first network, or fairseq's three files.

  Raises:
    UserError: there is none, or it cannot be read.
  """
  folder = path if os.path.isdir(path) else os.path.dirname(path)
  parts = [os.path.join(folder, name) for name in ("dict.txt", "encoder.json", "vocab.bpe")]
  if os.path.exists(parts[0]):
    with tempfile.TemporaryDirectory() as converted:
      for name, content in fairseq.vocabulary(*parts).items():
        with open(os.path.join(converted, name), "wb") as file:
          file.write(content)
      return tokenizers.load_tokenizer(converted)
  places = [folder, *(os.path.join(folder, name) for name in ("tokenizer", "discriminator", "encoder"))]
  names = ("tokenizer_facts.json", "vocab.txt", "vocab.json", "tokenizer.json")
  for place in places:
    if os.path.isdir(place) and any(name in names or name.endswith(".model") for name in os.listdir(place)):
      return tokenizers.load_tokenizer(place)
  raise UserError("The published model has no vocabulary beside it", got=folder,
                  allowed=f"{', '.join(names[1:])}, *.model, or dict.txt with encoder.json and vocab.bpe",
                  fix="copy the model's vocabulary into the folder")


def _config(encoders: list[networks.Encoder], tokenizer: tokenizers.Tokenizer) -> FrozenConfigDict:
  """What answering reads of a run's config, with the papers' masking."""
  t = encoders[0].transformer
  heads = {head for encoder in encoders for head in encoder.head_names}
  length = t.max_position_embeddings - t.position_offset
  return FrozenConfigDict({
    "model": {"vocab_size": t.vocab_size},
    "generator": {"kind": "learned" if "mlm_head" in heads else "none"},
    "objective": {"name": "rtd" if "rtd_head" in heads else "mlm" if "mlm_head" in heads else "none",
                  "sampling_temperature": 1.0, "sampling_excludes_original": False},
    "data": {"sequence_length": length, "text_field": "text",
             "masking": {"rate": 0.15, "mask_share": 1.0, "random_share": 0.0, "unit": "token", "num_static_masks": 0,
                         "max_predictions": -(-length * 15 // 100)}},
  })
