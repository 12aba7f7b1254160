"""Names of parameters in Hugging Face's files: one table per family, read in both directions."""

import re
from collections.abc import Iterable, Sequence

import numpy as np
from absl import logging

from electra_jax.errors import UserError, listed, named

# Ours (below the encoder's path) -> Hugging Face's, below the family's prefix. `{n}` is the layer number; a kernel
# [in, out] is stored transposed there, a table as it is.
ENCODER = {
  "embeddings/token/embedding": "embeddings.word_embeddings.weight",
  "embeddings/position/embedding": "embeddings.position_embeddings.weight",
  "embeddings/token_type/embedding": "embeddings.token_type_embeddings.weight",
  "embeddings/layer_norm/scale": "embeddings.LayerNorm.weight",
  "embeddings/layer_norm/bias": "embeddings.LayerNorm.bias",
  "embeddings_project/kernel": "embeddings_project.weight",
  "embeddings_project/bias": "embeddings_project.bias",
  **{f"layer_{{n}}/attention/{part}/{kind}": f"encoder.layer.{{n}}.attention.self.{part}.{theirs}"
     for part in ("query", "key", "value") for kind, theirs in (("kernel", "weight"), ("bias", "bias"))},
  "layer_{n}/attention/output/kernel": "encoder.layer.{n}.attention.output.dense.weight",
  "layer_{n}/attention/output/bias": "encoder.layer.{n}.attention.output.dense.bias",
  "layer_{n}/attention/layer_norm/scale": "encoder.layer.{n}.attention.output.LayerNorm.weight",
  "layer_{n}/attention/layer_norm/bias": "encoder.layer.{n}.attention.output.LayerNorm.bias",
  "layer_{n}/feed_forward/intermediate/kernel": "encoder.layer.{n}.intermediate.dense.weight",
  "layer_{n}/feed_forward/intermediate/bias": "encoder.layer.{n}.intermediate.dense.bias",
  "layer_{n}/feed_forward/output/kernel": "encoder.layer.{n}.output.dense.weight",
  "layer_{n}/feed_forward/output/bias": "encoder.layer.{n}.output.dense.bias",
  "layer_{n}/feed_forward/layer_norm/scale": "encoder.layer.{n}.output.LayerNorm.weight",
  "layer_{n}/feed_forward/layer_norm/bias": "encoder.layer.{n}.output.LayerNorm.bias",
}

def _on_top(head: str, **layers: str) -> dict[str, str]:
  """Rows of a head's dense layers, ours -> theirs."""
  return {f"{head}/{ours}/{kind}": f"{theirs}.{ending}" for ours, theirs in layers.items()
          for kind, ending in (("kernel", "weight"), ("bias", "bias"))}


# One linear layer over every token, named alike in every family: start and end of an answer; a label a token.
TOKEN_HEADS = _on_top("span_head", output="qa_outputs") | _on_top("tagging_head", output="classifier")

# family -> (prefix of the encoder, names of the heads). The output matrix is the token table, so it has no row.
# Heads of fine-tuning: `dense` is the hidden layer over [CLS] (tanh for BERT and RoBERTa, GELU for ELECTRA), `output`
# what follows. A network has one head of fine-tuning, and NSP is none, so its names stay unique.
FAMILIES = {
  "bert": ("bert", {
    "mlm_head/dense/kernel": "cls.predictions.transform.dense.weight",
    "mlm_head/dense/bias": "cls.predictions.transform.dense.bias",
    "mlm_head/layer_norm/scale": "cls.predictions.transform.LayerNorm.weight",
    "mlm_head/layer_norm/bias": "cls.predictions.transform.LayerNorm.bias",
    "mlm_head/output_bias": "cls.predictions.bias",
    "nsp_head/pooler/kernel": "bert.pooler.dense.weight",
    "nsp_head/pooler/bias": "bert.pooler.dense.bias",
    "nsp_head/output/kernel": "cls.seq_relationship.weight",
    "nsp_head/output/bias": "cls.seq_relationship.bias",
    **_on_top("classification_head", dense="bert.pooler.dense", output="classifier"),
    **_on_top("multiple_choice_head", dense="bert.pooler.dense", output="classifier"),
    **TOKEN_HEADS,
  }),
  "roberta": ("roberta", {
    "mlm_head/dense/kernel": "lm_head.dense.weight",
    "mlm_head/dense/bias": "lm_head.dense.bias",
    "mlm_head/layer_norm/scale": "lm_head.layer_norm.weight",
    "mlm_head/layer_norm/bias": "lm_head.layer_norm.bias",
    "mlm_head/output_bias": "lm_head.bias",
    **_on_top("classification_head", dense="classifier.dense", output="classifier.out_proj"),
    **_on_top("multiple_choice_head", dense="roberta.pooler.dense", output="classifier"),
    **TOKEN_HEADS,
  }),
  "electra": ("electra", {
    "mlm_head/dense/kernel": "generator_predictions.dense.weight",
    "mlm_head/dense/bias": "generator_predictions.dense.bias",
    "mlm_head/layer_norm/scale": "generator_predictions.LayerNorm.weight",
    "mlm_head/layer_norm/bias": "generator_predictions.LayerNorm.bias",
    "mlm_head/output_bias": "generator_lm_head.bias",
    "rtd_head/dense/kernel": "discriminator_predictions.dense.weight",
    "rtd_head/dense/bias": "discriminator_predictions.dense.bias",
    "rtd_head/output/kernel": "discriminator_predictions.dense_prediction.weight",
    "rtd_head/output/bias": "discriminator_predictions.dense_prediction.bias",
    **_on_top("classification_head", dense="classifier.dense", output="classifier.out_proj"),
    **_on_top("multiple_choice_head", dense="sequence_summary.summary", output="classifier"),
    **TOKEN_HEADS,
  }),
}


def their_name(path: str, family: str) -> str:
  """The Hugging Face name of one of our parameters (`path` as below the encoder's own path).

  >>> their_name("layer_07/attention/query/kernel", "electra")
  'electra.encoder.layer.7.attention.self.query.weight'

  Raises:
    UserError: the family has no such parameter.
  """
  prefix, heads = FAMILIES[family]
  number = re.match(r"layer_(\d+)/", path)
  template = re.sub(r"^layer_\d+/", "layer_{n}/", path)
  if template in ENCODER:
    return f"{prefix}.{ENCODER[template]}".replace("{n}", str(int(number.group(1))) if number else "")
  if template in heads:
    return heads[template]
  raise UserError(f"The {family} family has no name for a parameter", got=path, allowed=", ".join(heads),
                  fix="leave the parameter out, or add a row to electra_jax/exchange/mapping.py")


def is_known(name: str, family: str) -> bool:
  """Whether a Hugging Face tensor is a row of the family's table, at any layer."""
  prefix, heads = FAMILIES[family]
  template = re.sub(r"\.layer\.\d+\.", ".layer.{n}.", name)
  return name in heads.values() or template in {f"{prefix}.{theirs}" for theirs in ENCODER.values()}


def encoder_rows(num_layers: int) -> dict[str, str]:
  """ENCODER with every layer written out: ours (layer_7) -> theirs."""
  return {ours.replace("{n}", str(n)): theirs.replace("{n}", str(n)) for ours, theirs in ENCODER.items()
          for n in (range(num_layers) if "{n}" in ours else (0,))}


def num_layers(names: Iterable[str], pattern: str = r"\.encoder\.layer\.(\d+)\.") -> int:
  """How many layers tensors are of: one more than the largest number, the pattern's group, in their names."""
  return max((int(match[1]) + 1 for name in names if (match := re.search(pattern, name))), default=0)


def head_rows(family: str) -> dict[str, set[str]]:
  """Our head -> the names of its tensors, in the order of the table."""
  rows: dict[str, set[str]] = {}
  for ours, theirs in FAMILIES[family][1].items():
    rows.setdefault(ours.split("/")[0], set()).add(theirs)
  return rows


def check_names(what: str, where: str, allowed: str, faults: Sequence[str], left_over: Sequence[str]) -> None:
  """Says in a warning which tensors of a checkpoint belong to no model here.

  Raises:
    UserError: there are faults: tensors that are missing, unknown within the model, or untied.
  """
  if faults:
    raise UserError(what, got=f"{where}:{listed(list(faults))}", allowed=allowed,
                    fix="check which model it is; variants with other layers cannot be imported")
  if left_over:
    logging.warning("Not imported from %s, as they belong to no model here: %s", where, named(left_over))


def heads_in(tensors: Iterable[str], family: str) -> tuple[str, ...]:
  """Which of our heads a network has: those of which every tensor is there, in the order of the table.

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
