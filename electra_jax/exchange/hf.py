"""Hugging Face folders, read and written: model.safetensors (or pytorch_model.bin) and config.json."""

import json
import os
import re
from collections.abc import Sequence

import numpy as np
import safetensors.numpy
from absl import logging

from electra_jax import files
from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.errors import UserError, listed
from electra_jax.exchange import hf_config, mapping, torch_files
from electra_jax.exchange.mapping import Weights

FILES = ("model.safetensors", "pytorch_model.bin")  # in order of preference
STATE_DICTS = ("model", "state_dict", "model_state_dict", "module")  # where training checkpoints keep the tensors
PAIR = ("discriminator", "encoder", "generator")  # folders that tools/export makes for a run with two networks

# No parameters: some versions of transformers store them, all compute them.
BUFFERS = re.compile(r"(.*\.)?embeddings\.(position_ids|token_type_ids)")
# Second copies of tied arrays -> what they must equal.
TABLE = "embeddings.word_embeddings.weight"
TIED = {
  "bert": {"cls.predictions.decoder.weight": f"bert.{TABLE}", "cls.predictions.decoder.bias": "cls.predictions.bias"},
  "roberta": {"lm_head.decoder.weight": f"roberta.{TABLE}", "lm_head.decoder.bias": "lm_head.bias"},
  "electra": {"generator_lm_head.weight": f"electra.{TABLE}"},
}
KEPT_NAMES = {"rtd_head": "discriminator", "mlm_head": "generator"}  # an ELECTRA's head -> the network's name


def find(path: str) -> str | None:
  """The folder that a path stands for: a model's, or that of a pair's two folders (PAIR); None if there is none."""
  if os.path.isfile(path) and os.path.basename(path) in FILES:
    path = os.path.dirname(path) or "."
  folders = [path, *(os.path.join(path, name) for name in PAIR)]
  return path if any(_is_model(folder) for folder in folders) else None


def _is_model(folder: str) -> bool:
  if any(os.path.isfile(os.path.join(folder, name)) for name in FILES):
    return True
  try:
    with open(os.path.join(folder, "config.json"), "rb") as file:
      return "model_type" in json.load(file)
  except (OSError, ValueError, TypeError):
    return False


def read(folder: str) -> dict[str, Weights]:
  """The networks of a folder: "encoder", or for an ELECTRA "discriminator" and "generator", whichever are there.

  Names are those of the newest transformers, whatever version wrote the files; half precision becomes float32. Copies
  of tied arrays and buffers are left out. A warning names tensors outside the encoder that no table has.

  Raises:
    UserError: a file is missing or damaged, holds objects other than tensors, or the model is not supported.
  """
  if _is_model(folder):
    weights = read_network(folder)
    heads = mapping.heads_in(weights.tensors, weights.config["model_type"])
    is_electra = weights.config["model_type"] == "electra"
    return {next((KEPT_NAMES[h] for h in heads if is_electra and h in KEPT_NAMES), "encoder"): weights}
  return {name: read_network(os.path.join(folder, name)) for name in PAIR if _is_model(os.path.join(folder, name))}


def read_network(folder: str) -> Weights:
  """One network. Raises as `read`."""
  path = os.path.join(folder, "config.json")
  config = hf_config.read(path)
  if config.get("model_type", "bert") not in list(mapping.FAMILIES):
    raise UserError("The weights are of a family that is not supported",
                    got=f"model_type={config['model_type']!r} in {path}", allowed=", ".join(mapping.FAMILIES),
                    fix="use a BERT, RoBERTa or ELECTRA")
  stored = _read_tensors(folder)
  if "model_type" not in config:  # transformers before 2.5 did not write it
    config["model_type"] = next((name for name in mapping.FAMILIES if any(key.startswith(f"{name}.")
                                                                          for key in stored)), "bert")
  model = hf_config.to_model(config, path)
  family = config["model_type"]
  tensors = _check_names(_normalise(stored, family), config, folder)
  # Keys that config.json omits are filled in, so that no reader has to know transformers' defaults.
  config |= {key: model[key] for key in hf_config.SAME}
  if family == "roberta":
    config["pad_token_id"] = model["position_offset"] - 1
  num_layers = mapping.num_layers(tensors)
  if num_layers != config["num_hidden_layers"]:  # further ones would be left out; building the model checks other sizes
    raise UserError("config.json and the weights disagree about the number of layers",
                    got=f"num_hidden_layers={config['num_hidden_layers']}, {num_layers} layers in {folder}",
                    allowed="equal numbers", fix="use the config.json that belongs to the weights")
  return Weights(config, tensors)


# ---- reading tensors ----


def _read_tensors(folder: str) -> dict[str, np.ndarray]:
  """Every tensor of the folder, as stored."""
  name = next((name for name in FILES if os.path.isfile(os.path.join(folder, name))), None)
  if name is None:
    raise UserError("The folder has no weights", got=f"{folder}: {', '.join(sorted(os.listdir(folder))[:8])}",
                    allowed=" or ".join(FILES), fix="download them; weights in several parts, of TensorFlow "
                    "(tf_model.h5) or of Flax (flax_model.msgpack) are saved in one file with transformers first")
  path = os.path.join(folder, name)
  if not name.endswith(".safetensors"):
    return _read_bin(path)
  try:
    return safetensors.numpy.load_file(path)
  except Exception as error:  # SafetensorError, OSError, KeyError of an unknown type
    raise mapping.damaged(path, error) from error


def _read_bin(path: str) -> dict[str, np.ndarray]:
  """A state dict written by torch.save, or the one inside a training checkpoint."""
  content = torch_files.load(path)
  if isinstance(content, dict):
    content = next((content[key] for key in STATE_DICTS if isinstance(content.get(key), dict)), content)
  others = [f"{name!r}, a {type(value).__name__}" for name, value in content.items() if not hasattr(value, "numpy")
            ] if isinstance(content, dict) else [f"a {type(content).__name__}"]
  if others:
    raise UserError("The weights are not a table of tensors", got=f"{path} holds{listed(others, most=5)}",
                    allowed="{name: tensor}, also below one of " + ", ".join(map(repr, STATE_DICTS)),
                    fix="save the state dict alone: torch.save(model.state_dict(), 'pytorch_model.bin')")
  return {name: (value.float() if value.is_floating_point() else value).numpy() for name, value in content.items()}


# ---- names ----


def _normalise(tensors: dict[str, np.ndarray], family: str) -> dict[str, np.ndarray]:
  """Names as in the newest transformers: older versions say gamma and beta, a bare encoder has no prefix."""
  renamed, is_bare = {}, "embeddings.LayerNorm.weight" in tensors or "embeddings.LayerNorm.gamma" in tensors
  for name, value in tensors.items():
    if BUFFERS.fullmatch(name):
      continue
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
    if is_bare and name.startswith(("embeddings.", "embeddings_project.", "encoder.", "pooler.")):
      name = f"{family}.{name}"
    renamed[name] = np.asarray(value, np.float32)
  return renamed


def _check_names(tensors: dict[str, np.ndarray], config: dict, folder: str) -> dict[str, np.ndarray]:
  """The tensors without tied copies. Raises if the encoder has unknown ones or a head is incomplete; a warning names
  unknown tensors outside the encoder.
  """
  family = config["model_type"]
  prefix = mapping.FAMILIES[family][0]
  if not any(name.startswith(f"{prefix}.") for name in tensors):
    other = [name for name in mapping.FAMILIES if any(key.startswith(f"{name}.") for key in tensors)]
    raise UserError(f"The weights are not those of the {family} that config.json names",
                    got=f"{folder}: {', '.join(sorted(tensors)[:3]) or 'no tensor'}",
                    allowed=f"tensors named {prefix}.*",
                    fix=f"set model_type to {other[0]!r}" if other else "use the config.json of these weights")
  faults = []
  for copy, original in TIED[family].items():
    if copy in tensors:
      value = tensors.pop(copy)
      tensors.setdefault(original, value)  # some versions store the array under its second name only
      # A copy that training has changed would be lost silently.
      if not np.array_equal(value, tensors[original]):
        faults.append(f"{copy} differs from {original}, to which it should be tied")
  unknown = sorted(name for name in tensors if not mapping.is_known(name, family))
  # Some versions store poolers that no head of the family reads.
  inside = [n for n in unknown if n.startswith(f"{prefix}.") and ".pooler." not in n]
  faults += [f"{name} {tensors[name].shape} is unknown" for name in inside]
  faults += [f"{name} is missing" for name in hf_config.missing_of_heads(config, tensors)]
  mapping.check_names(f"The weights are not those of a plain {family} model", folder,
                      "the encoder's own tensors, whole heads, an output table tied to the tokens'", faults, unknown)
  return {name: value for name, value in tensors.items() if name not in unknown}


# ---- writing ----


def with_gelu_layer(params: dict[str, np.ndarray], head: str, hidden_size: int) -> dict[str, np.ndarray]:
  """A linear head over [CLS] (ELECTRA's, section 3.1) as transformers' two layers, which compute the same.

  gelu(z) - gelu(-z) = z: the hidden layer computes each output and its negative, the second layer subtracts them.

  >>> two = with_gelu_layer({"h/output/kernel": np.eye(4)[:, :2], "h/output/bias": np.ones(2)}, "h", 4)
  >>> two["h/dense/kernel"].shape, two["h/output/kernel"].T.tolist()
  ((4, 4), [[1.0, 0.0, -1.0, 0.0], [0.0, 1.0, 0.0, -1.0]])
  """
  kernel, bias = params[f"{head}/output/kernel"], params[f"{head}/output/bias"]
  num_outputs = len(bias)
  if 2 * num_outputs > hidden_size:
    raise UserError("A linear head has too many outputs for transformers' two layers", got=f"{num_outputs} labels",
                    allowed=f"at most {hidden_size // 2}, half of the hidden size",
                    fix="fine-tune with --config.task.pooler=gelu, or use --format=msgpack")
  dense, dense_bias = np.zeros((hidden_size, hidden_size), kernel.dtype), np.zeros(hidden_size, bias.dtype)
  dense[:, :2 * num_outputs] = np.concatenate([kernel, -kernel], axis=1)
  dense_bias[:2 * num_outputs] = np.concatenate([bias, -bias])
  output = np.zeros((hidden_size, num_outputs), kernel.dtype)
  output[:num_outputs] = np.eye(num_outputs)
  output[num_outputs:2 * num_outputs] -= np.eye(num_outputs, dtype=kernel.dtype)
  return params | {f"{head}/dense/kernel": dense, f"{head}/dense/bias": dense_bias,
                   f"{head}/output/kernel": output, f"{head}/output/bias": np.zeros_like(bias)}


def make_weights(family: str, model: dict, params: dict[str, np.ndarray], tokenizer: Tokenizer,
                 labels: Sequence[str] | None = None) -> Weights:
  """A network as Hugging Face stores it: without the vocabulary's padding rows and without tied copies.

  Args:
    model: our `config.model` keys, with the network's own sizes.
    params: path below the network -> array, with its token table even if that belongs to another network.
    labels: names of a classification or tagging head's outputs; None: LABEL_0, LABEL_1, ...

  Differs from transformers where model.hidden_act is gelu_new: the masked LMs of its RoBERTa and ELECTRA have the exact
  GELU built in; their layers, BERT's head and the replaced-token head obey the key. An export warns of it. At 2,422
  masked positions of Wikipedia, the logits of a trained ELECTRA-Small generator, whose standard deviation is 3.7,
  changed by 0.0007 (root mean square) and at most 0.005; the loss stayed at 3.934 and every prediction the same.
  """
  cut = {path: value[:tokenizer.vocab_size] if path in ("embeddings/token/embedding", "mlm_head/output_bias") else value
         for path, value in params.items()}
  heads = tuple(dict.fromkeys(path.split("/")[0] for path in params if path.split("/")[0].endswith("_head")))
  outputs = params.get("classification_head/output/bias", params.get("tagging_head/output/bias"))
  if outputs is not None:
    labels = labels or [f"LABEL_{i}" for i in range(len(outputs))]
  if model["hidden_act"] == "gelu_new" and "mlm_head" in heads and family != "bert":
    logging.warning("The masked LM of transformers' %s has the exact GELU whatever hidden_act is, the run's has "
                    "gelu_new: its logits change by about a thousandth of their spread; all else agrees.",
                    hf_config.ARCHITECTURES[family]["mlm_head"])
  config = hf_config.make(family, model, heads, tokenizer, labels)
  return Weights(config, mapping.to_hf(cut, family))


def write_network(folder: str, weights: Weights) -> None:
  """Writes config.json and model.safetensors, float32, to an existing folder; raises OSError if the disk refuses."""
  files.write_json(os.path.join(folder, "config.json"), weights.config)
  # The format "pt" tells transformers that kernels are [out, in].
  tensors = {name: np.ascontiguousarray(value, np.float32) for name, value in weights.tensors.items()}
  try:
    safetensors.numpy.save_file(tensors, os.path.join(folder, FILES[0]), metadata={"format": "pt"})
  except safetensors.SafetensorError as error:  # a full disk
    raise OSError(str(error)) from error
