"""Checkpoints of fairseq's RoBERTa: its `model.pt`, of any version of fairseq."""

import argparse
import os
import re

import numpy as np

from electra_jax.errors import UserError
from electra_jax.exchange import hf_config, mapping, torch_files
from electra_jax.exchange.mapping import Weights

# Hugging Face's name below `roberta.` -> fairseq's below `encoder.sentence_encoder.`; the head has the same names below
# `encoder.`. fairseq has no token types; Hugging Face's single row of them is zero.
NAMES = {
  "embeddings.word_embeddings": "embed_tokens",
  "embeddings.position_embeddings": "embed_positions",
  "embeddings.LayerNorm": "layernorm_embedding",
  **{f"encoder.layer.{{n}}.attention.self.{part}": f"layers.{{n}}.self_attn.{part[0]}_proj"
     for part in ("query", "key", "value")},
  "encoder.layer.{n}.attention.output.dense": "layers.{n}.self_attn.out_proj",
  "encoder.layer.{n}.attention.output.LayerNorm": "layers.{n}.self_attn_layer_norm",
  "encoder.layer.{n}.intermediate.dense": "layers.{n}.fc1",
  "encoder.layer.{n}.output.dense": "layers.{n}.fc2",
  "encoder.layer.{n}.output.LayerNorm": "layers.{n}.final_layer_norm",
}
TOKEN_TYPES = "embeddings.token_type_embeddings.weight"
TOKEN_TABLE = "encoder.sentence_encoder.embed_tokens.weight"
OUTPUT_TABLE = "encoder.lm_head.weight"  # the same array, saved twice
LAYER = r"^encoder\.sentence_encoder\.layers\.(\d+)\."
NO_PARAMETER = re.compile(r".*\.(version|_float_tensor)")  # markers of fairseq's own upgrades
ACTIVATIONS = {"gelu": "gelu", "gelu_accurate": "gelu_new"}  # "accurate" is the tanh approximation
OPTIONS = {"encoder_attention_heads": "num_attention_heads", "dropout": "hidden_dropout_prob",
           "attention_dropout": "attention_probs_dropout_prob"}  # fairseq's -> config.json's


def find(path: str) -> str | None:
  """The .pt file that a path stands for: itself, or `model.pt` in a folder; None if there is none."""
  if os.path.isdir(path):
    path = os.path.join(path, "model.pt")
  return path if os.path.isfile(path) and path.endswith(".pt") else None


def read(file: str) -> dict[str, Weights]:
  """{"encoder": ...} from a fairseq RoBERTa, with its masked-LM head if it has one.

  Nothing in the file is executed: only tensors, plain values and the `argparse.Namespace` of its options are accepted.
  A warning names classification heads, which are left out.

  Raises:
    UserError: the file holds other objects or another model, or parameters are missing or unknown.
  """
  checkpoint = torch_files.load(file, (argparse.Namespace,), fix="if you trust the file and have fairseq, save its "
                                "parameters alone: import torch; c = torch.load(FILE, weights_only=False); "
                                "torch.save({'model': c['model']}, NEW)")
  if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("model"), dict):
    raise UserError("The file is no fairseq checkpoint", got=f"{file}: {type(checkpoint).__name__} "
                    f"{sorted(map(str, checkpoint))[:5] if isinstance(checkpoint, dict) else ''}",
                    allowed="a dict with `model` and `args` or `cfg`",
                    fix="for the weights of another code base, give its folder in Hugging Face's format")
  params = _normalise(checkpoint["model"])
  names = _names_of(params)
  _check_names(params, names, file)
  tensors = {hf: np.asarray(params[theirs].float().numpy()) for hf, theirs in names.items()}
  tensors[f"roberta.{TOKEN_TYPES}"] = np.zeros((1, params[TOKEN_TABLE].shape[1]), np.float32)
  options = _options(checkpoint)  # what the shapes of the parameters do not show
  activation = options.get("activation_fn", "gelu")
  config = hf_config.from_shapes(
    "roberta", tensors, hidden_act=ACTIVATIONS.get(activation, activation), layer_norm_eps=1e-5,  # PyTorch's default
    bos_token_id=0, pad_token_id=1, eos_token_id=2,
    **{hf: options[theirs] for theirs, hf in OPTIONS.items() if theirs in options})
  return {"encoder": Weights(config, tensors)}


def _normalise(model: dict) -> dict:
  """Names as in the newest fairseq: older versions say decoder and emb_layer_norm, and keep q, k, v in one array."""
  params = {}
  for name, value in model.items():
    name = re.sub(r"^decoder\.", "encoder.", name).replace(".emb_layer_norm.", ".layernorm_embedding.")
    if NO_PARAMETER.fullmatch(name):
      continue
    if ".self_attn.in_proj_" in name:
      for part, third in zip("qkv", value.chunk(3)):
        params[name.replace(".in_proj_", f".{part}_proj.")] = third
    else:
      params[name] = value
  return params


def _names_of(params: dict) -> dict[str, str]:
  """Hugging Face's name -> the newest fairseq's, for every parameter that the model must have."""
  names = {}
  for ours, hf in mapping.encoder_rows(max(1, mapping.num_layers(params, LAYER))).items():
    if ours.startswith("embeddings_project/") or hf == TOKEN_TYPES:
      continue
    stem, kind = hf.rsplit(".", 1)
    number = re.search(r"\d+", stem)
    theirs = NAMES[re.sub(r"\d+", "{n}", stem)].replace("{n}", number[0] if number else "")
    names[f"roberta.{hf}"] = f"encoder.sentence_encoder.{theirs}.{kind}"
  if any(name.startswith("encoder.lm_head.") for name in params):
    heads = mapping.FAMILIES["roberta"][1]
    names |= {hf: f"encoder.{hf}" for ours, hf in heads.items() if ours.startswith("mlm_head/")}
  return names


def _check_names(params: dict, names: dict[str, str], file: str) -> None:
  """Raises if parameters are missing or unknown; only classification heads may be left over."""
  extra = sorted(params.keys() - {*names.values(), OUTPUT_TABLE})
  faults = [f"{name} is missing" for name in sorted(set(names.values()) - params.keys())]
  faults += [f"{name} {tuple(params[name].shape)} is unknown" for name in extra
             if not name.startswith("classification_heads.")]
  if not faults and OUTPUT_TABLE in params and not params[OUTPUT_TABLE].equal(params[TOKEN_TABLE]):
    faults.append(f"{OUTPUT_TABLE} differs from {TOKEN_TABLE} (--untie-weights-roberta)")
  mapping.check_names("The parameters of the fairseq checkpoint are not those of a RoBERTa", file,
                      "post-layer-norm layers, learnt positions, an output table tied to the tokens'", faults, extra)


def _options(checkpoint: dict) -> dict:
  """The training options of either kind of file: `args` (a Namespace), or `cfg` saved as plain values."""
  args = checkpoint.get("args")
  if isinstance(args, argparse.Namespace):
    return vars(args)
  config = checkpoint.get("cfg")
  branch = config.get("model", {}) if isinstance(config, dict) else {}
  return vars(branch) if isinstance(branch, argparse.Namespace) else dict(branch)
