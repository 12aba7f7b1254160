"""Hugging Face's names and layouts of parameters: one table per family, read in both directions."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from absl import logging

from electra_jax.errors import UserError, listed, named


class Weights(NamedTuple):
  """A network as Hugging Face would store it. Readers give {"encoder": ...}, or for an ELECTRA pair
  {"discriminator": ..., "generator": ...}.
  """

  config: dict  # as in config.json: model_type, vocab_size, hidden_size, ...
  tensors: dict[str, np.ndarray]  # as in model.safetensors, with kernels [out, in], but without tied copies


def _dense(ours: str, theirs: str) -> dict[str, str]:
  """Rows of a linear map."""
  return {f"{ours}/kernel": f"{theirs}.weight", f"{ours}/bias": f"{theirs}.bias"}


def _norm(ours: str, theirs: str) -> dict[str, str]:
  """Rows of a layer norm."""
  return {f"{ours}/scale": f"{theirs}.weight", f"{ours}/bias": f"{theirs}.bias"}


# Our name (below the encoder's path) -> Hugging Face's, below the family's prefix. `{n}` is the layer number. Hugging
# Face stores a kernel [in, out] transposed, a table as it is.
ENCODER = {
  "embeddings/token/embedding": "embeddings.word_embeddings.weight",
  "embeddings/position/embedding": "embeddings.position_embeddings.weight",
  "embeddings/token_type/embedding": "embeddings.token_type_embeddings.weight",
  **_norm("embeddings/layer_norm", "embeddings.LayerNorm"),
  **_dense("embeddings_project", "embeddings_project"),
  **_dense("layer_{n}/attention/query", "encoder.layer.{n}.attention.self.query"),
  **_dense("layer_{n}/attention/key", "encoder.layer.{n}.attention.self.key"),
  **_dense("layer_{n}/attention/value", "encoder.layer.{n}.attention.self.value"),
  **_dense("layer_{n}/attention/output", "encoder.layer.{n}.attention.output.dense"),
  **_norm("layer_{n}/attention/layer_norm", "encoder.layer.{n}.attention.output.LayerNorm"),
  **_dense("layer_{n}/feed_forward/intermediate", "encoder.layer.{n}.intermediate.dense"),
  **_dense("layer_{n}/feed_forward/output", "encoder.layer.{n}.output.dense"),
  **_norm("layer_{n}/feed_forward/layer_norm", "encoder.layer.{n}.output.LayerNorm"),
}

# One linear layer over every token, with the same name in every family: an answer's start and end; a label per token.
TOKEN_HEADS = _dense("span_head/output", "qa_outputs") | _dense("tagging_head/output", "classifier")

# family -> (prefix of the encoder, names of the heads). The output matrix is the token table, so it has no row.
# In fine-tuning heads `dense` is the hidden layer over [CLS] (tanh for BERT and RoBERTa, GELU for ELECTRA). Some share
# names, but a network has only one of them.
FAMILIES = {
  "bert": ("bert", {
    **_dense("mlm_head/dense", "cls.predictions.transform.dense"),
    **_norm("mlm_head/layer_norm", "cls.predictions.transform.LayerNorm"),
    "mlm_head/output_bias": "cls.predictions.bias",
    **_dense("nsp_head/pooler", "bert.pooler.dense"), **_dense("nsp_head/output", "cls.seq_relationship"),
    **_dense("classification_head/dense", "bert.pooler.dense"), **_dense("classification_head/output", "classifier"),
    **_dense("multiple_choice_head/dense", "bert.pooler.dense"), **_dense("multiple_choice_head/output", "classifier"),
    **TOKEN_HEADS,
  }),
  "roberta": ("roberta", {
    **_dense("mlm_head/dense", "lm_head.dense"), **_norm("mlm_head/layer_norm", "lm_head.layer_norm"),
    "mlm_head/output_bias": "lm_head.bias",
    **_dense("classification_head/dense", "classifier.dense"),
    **_dense("classification_head/output", "classifier.out_proj"),
    **_dense("multiple_choice_head/dense", "roberta.pooler.dense"),
    **_dense("multiple_choice_head/output", "classifier"),
    **TOKEN_HEADS,
  }),
  "electra": ("electra", {
    **_dense("mlm_head/dense", "generator_predictions.dense"),
    **_norm("mlm_head/layer_norm", "generator_predictions.LayerNorm"),
    "mlm_head/output_bias": "generator_lm_head.bias",
    **_dense("rtd_head/dense", "discriminator_predictions.dense"),
    **_dense("rtd_head/output", "discriminator_predictions.dense_prediction"),
    **_dense("classification_head/dense", "classifier.dense"),
    **_dense("classification_head/output", "classifier.out_proj"),
    **_dense("multiple_choice_head/dense", "sequence_summary.summary"),
    **_dense("multiple_choice_head/output", "classifier"),
    **TOKEN_HEADS,
  }),
}


def their_name(path: str, family: str) -> str:
  """The Hugging Face name of one of our parameters; `path` is below the encoder's own path.

  >>> their_name("layer_07/attention/query/kernel", "electra")
  'electra.encoder.layer.7.attention.self.query.weight'
  """
  prefix, heads = FAMILIES[family]
  number = re.match(r"layer_(\d+)/", path)
  template = re.sub(r"^layer_\d+/", "layer_{n}/", path)
  if template in ENCODER:
    return f"{prefix}.{ENCODER[template]}".replace("{n}", str(int(number.group(1))) if number else "")
  return heads[template]


def is_known(name: str, family: str) -> bool:
  """Whether a Hugging Face tensor is in the family's table, in any layer."""
  prefix, heads = FAMILIES[family]
  template = re.sub(r"\.layer\.\d+\.", ".layer.{n}.", name)
  return name in heads.values() or template in {f"{prefix}.{theirs}" for theirs in ENCODER.values()}


def encoder_rows(num_layers: int) -> dict[str, str]:
  """ENCODER with every layer written out: our name (layer_7) -> theirs."""
  return {ours.replace("{n}", str(n)): theirs.replace("{n}", str(n)) for ours, theirs in ENCODER.items()
          for n in (range(num_layers) if "{n}" in ours else (0,))}


def num_layers(names: Iterable[str], pattern: str = r"\.encoder\.layer\.(\d+)\.") -> int:
  """The number of layers, by the names of their tensors: one more than the largest match of the pattern's group."""
  return max((int(match[1]) + 1 for name in names if (match := re.search(pattern, name))), default=0)


def head_rows(family: str) -> dict[str, set[str]]:
  """Our head -> Hugging Face's names of its tensors, in the order of the table."""
  rows: dict[str, set[str]] = {}
  for ours, theirs in FAMILIES[family][1].items():
    rows.setdefault(ours.split("/")[0], set()).add(theirs)
  return rows


def check_names(what: str, where: str, allowed: str, faults: Sequence[str], left_over: Sequence[str]) -> None:
  """Logs a warning that names the tensors of a checkpoint that no model here has.

  Raises:
    UserError: there are faults: tensors that are missing, unknown within the model, or untied.
  """
  if faults:
    raise UserError(what, got=f"{where}:{listed(list(faults))}", allowed=allowed,
                    fix="check which model it is; variants with other layers cannot be imported")
  if left_over:
    logging.warning("Not imported from %s, as they belong to no model here: %s", where, named(left_over))


def damaged(where: str, cause: object, allowed: str = "a complete file") -> UserError:
  """The error for weights that cannot be read, with the first line of its cause."""
  lines = str(cause).strip().splitlines() or [type(cause).__name__]
  return UserError("The weights cannot be read", got=f"{where}: {lines[0][:200]}", allowed=allowed,
                   fix="download or copy it again")


def heads_in(tensors: Iterable[str], family: str) -> tuple[str, ...]:
  """The heads whose tensors are all there, by our names, in the order of the table.

  >>> heads_in(["qa_outputs.weight", "qa_outputs.bias", "classifier.bias"], "electra")
  ('span_head',)
  """
  names = set(tensors)
  return tuple(head for head, wanted in head_rows(family).items() if wanted <= names)


def to_hf(params: dict[str, np.ndarray], family: str) -> dict[str, np.ndarray]:
  """Our flat {path: array} of one encoder with its heads as a Hugging Face state dict (kernels transposed)."""
  return {their_name(path, family): value.T if path.endswith("/kernel") else value for path, value in params.items()}


def from_hf(tensors: dict[str, np.ndarray], paths: dict[str, tuple[int, ...]], family: str) -> dict[str, np.ndarray]:
  """The parameters at our `paths` (with their shapes) from a Hugging Face state dict.

  Raises:
    UserError: names every tensor that is missing or has another shape.
  """
  params, faults = {}, []
  for path, shape in paths.items():
    name = their_name(path, family)
    value = tensors.get(name)
    if value is None:
      faults.append(f"{name} is missing")
      continue
    value = value.T if path.endswith("/kernel") else value
    if value.shape != shape:
      faults.append(f"{name} has shape {tensors[name].shape}, which does not give {shape} for {path}")
    params[path] = value
  if faults:
    raise UserError(f"The weights are not those of this {family} model", got=listed(faults),
                    allowed="every tensor of the model with its shape",
                    fix="set the config.model sizes to those of the weights' config.json")
  return params
