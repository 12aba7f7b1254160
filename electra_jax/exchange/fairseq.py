"""Reading of fairseq's RoBERTa: its `model.pt`, of any version of fairseq."""

import argparse
import os
import re

import numpy as np
from absl import logging

from electra_jax.errors import UserError, listed, named
from electra_jax.exchange import mapping, torch_files
from electra_jax.exchange.weights import Weights

# Hugging Face's name below `roberta.` -> fairseq's below `encoder.sentence_encoder.`; the head is called the same below
# `encoder.`. There are no token types; Hugging Face's single row of them is zero.
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
NO_PARAMETER = re.compile(r".*\.(version|_float_tensor)")  # markers of fairseq's own upgrades
HEAD_SIZE = 64  # width of one attention head of every published RoBERTa
ACTIVATIONS = {"gelu": "gelu", "gelu_accurate": "gelu_new"}  # "accurate" is the tanh approximation
DEFAULTS = {"activation_fn": "gelu", "dropout": 0.1, "attention_dropout": 0.1}  # where the options say nothing


def find(path: str) -> str | None:
  """The .pt file that a path means: itself, or `model.pt` of a folder; None where there is none."""
  if os.path.isdir(path):
    path = os.path.join(path, "model.pt")
  return path if os.path.isfile(path) and path.endswith(".pt") else None


def read(path: str) -> dict[str, Weights]:
  """{"encoder": ...} of a fairseq RoBERTa, with its masked-LM head if it has one.

  Nothing in the file is executed: tensors, plain values and the `argparse.Namespace` of its options are all that is
  let through. Classification heads are named in a warning.

  Raises:
    UserError: there is no such file, it holds other objects, it is no RoBERTa, or parameters are missing or unknown.
  """
  file = find(path)
  if file is None:
    raise UserError("There is no fairseq checkpoint", got=path, allowed="a .pt file, or a folder with model.pt",
                    fix="check the path; unpack a downloaded .tar.gz first")
  checkpoint = _load(file)
  if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("model"), dict):
    raise UserError("The file is no fairseq checkpoint", got=f"{file}: {type(checkpoint).__name__} "
                    f"{sorted(map(str, checkpoint))[:5] if isinstance(checkpoint, dict) else ''}",
                    allowed="a dict with `model` and `args` or `cfg`",
                    fix="for the weights of another code base, give its folder in Hugging Face's format")
  tensors = _normalise(checkpoint["model"])
  if TOKEN_TABLE not in tensors:
    raise UserError("The fairseq checkpoint is no RoBERTa", got=f"{file} with {', '.join(sorted(tensors)[:3])}, ...",
                    allowed="parameters below `encoder.sentence_encoder.` or `decoder.sentence_encoder.`",
                    fix="check which model it is")
  options = _options(checkpoint)
  wanted = _names_of(tensors)
  _check_names(tensors, wanted, file)
  found = {hf: np.asarray(tensors[theirs].float().numpy()) for hf, theirs in wanted.items()}
  hidden_size = found["roberta.embeddings.word_embeddings.weight"].shape[1]
  found[f"roberta.{TOKEN_TYPES}"] = np.zeros((1, hidden_size), np.float32)
  return {"encoder": Weights(_config(found, options), found)}


def _load(file: str):
  return torch_files.load(file, (argparse.Namespace,), fix="where you trust the file and have fairseq, save its "
                          "parameters alone: import torch; c = torch.load(FILE, weights_only=False); "
                          "torch.save({'model': c['model']}, NEW)")


def _normalise(model: dict) -> dict:
  """The names of the newest fairseq: older ones say decoder, emb_layer_norm, and keep q, k and v in one array."""
  found = {}
  for name, value in model.items():
    name = re.sub(r"^decoder\.", "encoder.", name).replace(".emb_layer_norm.", ".layernorm_embedding.")
    if NO_PARAMETER.fullmatch(name):
      continue
    if ".self_attn.in_proj_" in name:
      for part, third in zip("qkv", value.chunk(3)):
        found[name.replace(".in_proj_", f".{part}_proj.")] = third
    else:
      found[name] = value
  return found


def _names_of(tensors: dict) -> dict[str, str]:
  """Hugging Face's name -> fairseq's newest, of every parameter that the model must have."""
  numbers = [int(match.group(1)) for name in tensors
             if (match := re.match(r"encoder\.sentence_encoder\.layers\.(\d+)\.", name))]
  names = {}
  for ours, hf in mapping.ENCODER.items():
    if ours.startswith("embeddings_project/") or hf == TOKEN_TYPES:
      continue
    stem, kind = hf.rsplit(".", 1)
    for n in range(max(numbers, default=0) + 1) if "{n}" in hf else (0,):
      names[f"roberta.{hf}".replace("{n}", str(n))] = f"encoder.sentence_encoder.{NAMES[stem]}.{kind}".replace(
        "{n}", str(n))
  if any(name.startswith("encoder.lm_head.") for name in tensors):
    heads = mapping.FAMILIES["roberta"][1]
    names |= {hf: f"encoder.{hf}" for ours, hf in heads.items() if ours.startswith("mlm_head/")}
  return names


def _check_names(tensors: dict, wanted: dict[str, str], file: str) -> None:
  """Names what is missing and what would be left over; only classification heads may be."""
  known = {*wanted.values(), OUTPUT_TABLE}
  missing, extra = sorted(set(wanted.values()) - tensors.keys()), sorted(tensors.keys() - known)
  foreign = [name for name in extra if not name.startswith("classification_heads.")]
  faults = [f"{name} is missing" for name in missing]
  faults += [f"{name} {tuple(tensors[name].shape)} is unknown" for name in foreign]
  if OUTPUT_TABLE in tensors and not tensors[OUTPUT_TABLE].equal(tensors[TOKEN_TABLE]):
    faults.append(f"{OUTPUT_TABLE} differs from {TOKEN_TABLE} (--untie-weights-roberta)")
  if faults:
    raise UserError("The parameters of the fairseq checkpoint are not those of a RoBERTa",
                    got=f"{file}:{listed(faults)}",
                    allowed="post-layer-norm layers, learnt positions, an output table tied to the tokens'",
                    fix="check which model it is; variants with other layers cannot be imported")
  if extra:
    logging.warning("Not imported from %s, as they belong to no model here: %s", file, named(extra))


def _options(checkpoint: dict) -> dict:
  """The training options of either kind of file: `args` (a Namespace), or `cfg` saved as plain values."""
  args = checkpoint.get("args")
  if isinstance(args, argparse.Namespace):
    return vars(args)
  branch = checkpoint.get("cfg")
  branch = branch.get("model", {}) if isinstance(branch, dict) else {}
  return vars(branch) if isinstance(branch, argparse.Namespace) else dict(branch)


def _config(tensors: dict[str, np.ndarray], options: dict) -> dict:
  """Hugging Face's config.json, by the shapes of the parameters and the options that shapes do not show."""
  vocab_size, hidden_size = tensors["roberta.embeddings.word_embeddings.weight"].shape
  options = {**DEFAULTS, "encoder_attention_heads": max(1, hidden_size // HEAD_SIZE), **options}
  activation = str(options["activation_fn"])
  if activation not in ACTIVATIONS:
    raise UserError("The fairseq model has an activation that is not built here", got=activation,
                    allowed=", ".join(ACTIVATIONS), fix="import another model")
  layers = {name.split(".")[3] for name in tensors if name.startswith("roberta.encoder.layer.")}
  return {"model_type": "roberta", "vocab_size": vocab_size, "hidden_size": hidden_size,
          "intermediate_size": len(tensors["roberta.encoder.layer.0.intermediate.dense.weight"]),
          "num_hidden_layers": len(layers),
          "num_attention_heads": options["encoder_attention_heads"],
          "max_position_embeddings": len(tensors["roberta.embeddings.position_embeddings.weight"]),
          "type_vocab_size": 1, "hidden_act": ACTIVATIONS[activation],
          "hidden_dropout_prob": options["dropout"], "attention_probs_dropout_prob": options["attention_dropout"],
          "initializer_range": 0.02, "layer_norm_eps": 1e-5,  # PyTorch's default, which fairseq keeps
          "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
