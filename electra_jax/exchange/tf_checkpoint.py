"""Released TensorFlow checkpoints: google-research/bert and google-research/electra, by variable name.

The names follow from the table in `mapping`: what Hugging Face calls `encoder.layer.7.output.LayerNorm.weight` is
`encoder/layer_7/output/LayerNorm/gamma` here. Kernels are [in, out], so reading transposes them.
"""

import glob
import os
import pathlib
import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from electra_jax.errors import UserError, named
from electra_jax.exchange import hf_config, mapping
from electra_jax.exchange.mapping import Weights

# Last part of our path -> of the TensorFlow name; a layer norm's bias is `beta`.
ENDINGS = {"kernel": "/kernel", "scale": "/gamma", "bias": "/bias", "output_bias": "/bias", "embedding": ""}

# Hugging Face's names that do not follow the rule.
IRREGULAR = {
  "cls.predictions.bias": "cls/predictions/output_bias",
  "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
  "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
  "generator_lm_head.bias": "generator_predictions/output_bias",
  "discriminator_predictions.dense_prediction.weight": "discriminator_predictions/dense_1/kernel",
  "discriminator_predictions.dense_prediction.bias": "discriminator_predictions/dense_1/bias",
}

# Moments of the optimizer (the released code's, tf.train.Adam's, LAMB's) and scalars of the training loop.
TRAINING_STATE = re.compile(
  r".*/(adam_[mv]|lamb_[mv]|Adam(_1)?|AdamWeightDecayOptimizer(_1)?)|(.*/)?(global_step|beta[12]_power|loss_scale|"
  r"good_steps|temperature)")


class Scopes(NamedTuple):
  """The variable scopes of a network."""

  scopes: tuple[str, ...]  # of layers and of embeddings: the first that exists of each
  heads: tuple[str, ...]  # a head is there with all its variables or not at all


# A generator as large as the discriminator (the released small++) still has its own scope. With untied_generator=false
# it is the discriminator; a masked LM of that code (electra_objective=false) has these names, too.
NETWORKS = {
  "bert": {"encoder": Scopes(("bert",), ("cls/predictions", "cls/seq_relationship", "bert/pooler"))},
  "electra": {"discriminator": Scopes(("electra",), ("discriminator_predictions",)),
              "generator": Scopes(("generator", "electra"), ("generator_predictions",))},
}
# Keys of the configuration next to a checkpoint that variables do not show.
GIVEN = ("num_attention_heads", "hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob",
         "initializer_range")
COMPLETE = "the .index file and every .data file of a TensorFlow checkpoint, complete"


def find(path: str) -> str | None:
  """The prefix of the checkpoint that a path stands for (prefix, .index file or folder); None if there is none.

  Raises:
    UserError: the folder holds several and its `checkpoint` file names none of them.
  """
  prefix = re.sub(r"\.(index|meta|data-\d+-of-\d+)$", "", path)
  if os.path.isfile(prefix + ".index"):
    return prefix
  if not os.path.isdir(path):
    return None
  names = sorted(name.removesuffix(".index") for name in os.listdir(path) if name.endswith(".index"))
  state = pathlib.Path(path, "checkpoint")  # names one, in released files by a path of its authors' machine
  text = state.read_text("utf-8", "replace") if state.is_file() else ""
  match = re.search(r'^model_checkpoint_path: "(.*)"', text, re.MULTILINE)
  chosen = [name for name in names if match and name == os.path.basename(match[1])] or names
  if len(chosen) > 1:
    raise UserError("The folder holds several TensorFlow checkpoints", got=f"{path}: {named(names)}",
                    allowed="one, or a file `checkpoint` that names one",
                    fix=f"name it: {os.path.join(path, names[-1])}")
  return os.path.join(path, chosen[0]) if chosen else None


def read(prefix: str) -> dict[str, Weights]:
  """The networks of a released checkpoint: BERT's "encoder"; ELECTRA's "discriminator" and "generator".

  Each gets a copy of embeddings that both share. The optimizer's state is left out; a warning names other variables
  outside the model (a fine-tuned head).

  Raises:
    UserError: the checkpoint cannot be read, or variables of the model are missing or unknown.
  """
  reader = _open(prefix)
  shapes = {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()
            if not TRAINING_STATE.fullmatch(name)}
  family = _family(shapes, prefix)
  present = {name: network for name, network in NETWORKS[family].items()
             if name == "encoder" or any(_under(head, shapes) for head in network.heads)}
  present = present or {"discriminator": NETWORKS[family]["discriminator"]}  # fine-tuned: no pre-training head
  names = {name: _names_of(shapes, family, network) for name, network in present.items()}
  _check_names(shapes, {theirs for of_network in names.values() for theirs in of_network.values()}, prefix)
  given = _given_config(os.path.dirname(prefix))
  weights = {}
  for name, of_network in names.items():
    tensors = {hf: _tensor(reader, theirs, prefix) for hf, theirs in of_network.items()}
    # A bert_config.json describes the kept encoder; the sizes of a generator follow from its variables.
    config = hf_config.from_shapes(family, tensors, **({} if name == "generator" else given))
    weights[name] = Weights(config, tensors)
  return weights


def _open(prefix: str):
  import tensorflow as tf  # takes seconds

  if glob.has_magic(prefix):
    raise UserError("TensorFlow cannot read a checkpoint under this path", got=prefix,
                    allowed="a path without [ ] * ?, which TensorFlow takes for a pattern",
                    fix="rename the folder, or make a link to it")
  try:
    return tf.train.load_checkpoint(prefix)
  except Exception as error:  # TensorFlow's own error classes, or RuntimeError
    raise mapping.damaged(prefix, error, COMPLETE) from error


def _tensor(reader, name: str, prefix: str) -> np.ndarray:
  """A variable as Hugging Face stores it: kernels [out, in]."""
  try:
    value = np.asarray(reader.get_tensor(name), np.float32)
  except Exception as error:  # as above
    raise mapping.damaged(f"{name} in {prefix}", error, COMPLETE) from error
  return value.T if name.endswith("/kernel") else value


def _family(shapes: dict[str, tuple[int, ...]], prefix: str) -> str:
  for family, networks in NETWORKS.items():
    scopes = {scope for layers, *_ in networks.values() for scope in layers}
    if any(name.startswith(f"{scope}/encoder/layer_0/") for scope in scopes for name in shapes):
      return family
  is_newer = "_CHECKPOINTABLE_OBJECT_GRAPH" in shapes
  raise UserError("The TensorFlow checkpoint holds no model that can be imported",
                  got=f"{prefix} with {', '.join(sorted(shapes)[:3])}, ..." if shapes else f"{prefix}, empty",
                  allowed="variables named as google-research/bert (bert/encoder/...) or google-research/electra "
                  "(electra/encoder/..., generator/encoder/...) name them",
                  fix="check which model it is" if not is_newer else
                  "convert this object-based TensorFlow 2 checkpoint to Hugging Face's format with its own code first")


def tf_name(ours: str, hf: str) -> str:
  """The TensorFlow name, below its scope, of a parameter, from our path and Hugging Face's name.

  >>> tf_name("layer_7/feed_forward/layer_norm/scale", "encoder.layer.7.output.LayerNorm.weight")
  'encoder/layer_7/output/LayerNorm/gamma'
  """
  if hf in IRREGULAR:
    return IRREGULAR[hf]
  parent, last = ours.rsplit("/", 1)
  ending = "/beta" if last == "bias" and parent.endswith("layer_norm") else ENDINGS[last]
  return re.sub(r"/layer/(?=\d)", "/layer_", hf.rsplit(".", 1)[0].replace(".", "/")) + ending


def _under(scope: str, shapes: Iterable[str]) -> bool:
  return any(name.startswith(f"{scope}/") for name in shapes)


def _names_of(shapes: dict[str, tuple[int, ...]], family: str, network: Scopes) -> dict[str, str]:
  """Hugging Face's name -> TensorFlow's, for every variable that the network must have."""
  prefix, heads = mapping.FAMILIES[family]
  scope = next(scope for scope in network.scopes if _under(f"{scope}/encoder", shapes))
  tables = next((scope for scope in network.scopes if _under(f"{scope}/embeddings", shapes)), scope)
  names = {}
  for ours, hf in mapping.encoder_rows(mapping.num_layers(shapes, rf"^{scope}/encoder/layer_(\d+)/")).items():
    if not ours.startswith("embeddings_project/") or _under(f"{scope}/embeddings_project", shapes):
      names[f"{prefix}.{hf}"] = f"{tables if ours.startswith('embeddings/') else scope}/{tf_name(ours, hf)}"
  for head in network.heads:
    if _under(head, shapes):
      names |= {hf: theirs for ours, hf in heads.items() if (theirs := tf_name(ours, hf)).startswith(f"{head}/")}
  return names


def _check_names(shapes: dict[str, tuple[int, ...]], wanted: set[str], prefix: str) -> None:
  """Raises if variables are missing or unknown; only those outside the model may be left over."""
  scopes = {scope for networks in NETWORKS.values() for network in networks.values() for scope in network.scopes}
  extra = sorted(shapes.keys() - wanted)
  faults = [f"{name} is missing" for name in sorted(wanted - shapes.keys())]
  faults += [f"{name} {shapes[name]} is unknown" for name in extra
             if name.split("/")[0] in scopes and "/pooler/" not in name]
  mapping.check_names("The variables of the TensorFlow checkpoint are not those of a BERT or ELECTRA", prefix,
                      "every variable of the encoder, and no other in its scope", faults, extra)


def _given_config(folder: str) -> dict:
  """The keys of GIVEN in a bert_config.json or config.json next to the checkpoint; {} without one."""
  paths = (os.path.join(folder, name) for name in ("bert_config.json", "config.json"))
  path = next(filter(os.path.isfile, paths), None)
  config = {} if path is None else hf_config.read(path)
  return {key: config[key] for key in GIVEN if key in config}
