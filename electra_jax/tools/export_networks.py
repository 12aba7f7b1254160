"""Networks of a checkpoint as transformers stores them, with their heads and labels."""

import os
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from electra_jax.data import tokenizers
from electra_jax.errors import UserError
from electra_jax.exchange import hf, hf_config, mapping, model_card
from electra_jax.exchange.initial import EMBEDDINGS, GENERATOR
from electra_jax.exchange.mapping import Weights
from electra_jax.files import read_json
from electra_jax.models.bert import SENTENCE_HEADS
from electra_jax.tasks.base import HEADS


class ExportedRun(NamedTuple):
  """A checkpoint and what belongs to it."""

  workdir: str
  config: ConfigDict  # resolved
  step: int
  tokenizer: tokenizers.Tokenizer
  params: dict[str, np.ndarray]  # path -> array
  publication: model_card.Publication = model_card.UNPUBLISHED


def networks_of(source: ExportedRun) -> tuple[dict[str, Weights], list[str]]:
  """({network: weights}, heads left out); each network is complete, with the embeddings that it shares.

  An encoder that is both networks (weight_tying=all) is written twice, each time with one head.

  Raises:
    UserError: no class of transformers computes it.
  """
  by_network: dict[str, dict[str, np.ndarray]] = {}
  for path, value in source.params.items():
    network, below = path.split("/", 1)
    by_network.setdefault(network, {})[below] = value
  main = next(name for name in by_network if name != GENERATOR)
  if GENERATOR in by_network:
    shared = {path: value for path, value in by_network[main].items() if path.startswith(EMBEDDINGS)}
    by_network[GENERATOR] = shared | by_network[GENERATOR]
  elif "rtd_head/output/bias" in by_network[main] and "mlm_head/output_bias" in by_network[main]:
    by_network[GENERATOR] = {p: v for p, v in by_network[main].items() if not p.startswith("rtd_head/")}
    by_network[main] = {p: v for p, v in by_network[main].items() if not p.startswith("mlm_head/")}
  networks, left_out, (pooler, labels, is_multi) = {}, [], fine_tuning_of(source)
  for name, params in by_network.items():
    model = source.config.model.to_dict() | (source.config.generator.to_dict() if name == GENERATOR else {})
    heads = {path.split("/")[0] for path in params if path.split("/")[0].endswith("_head")}
    check_heads(heads, source.config.task.pooling)
    # A generator as wide as its embeddings has no projection, but as one of a pair it is an ELECTRA, too.
    is_pair = name in ("discriminator", GENERATOR)
    family = hf_config.family_of(model, heads | ({"rtd_head"} if is_pair else set()), pooler)
    for head in heads & set(SENTENCE_HEADS) if pooler == "gelu" else ():
      if f"{head}/dense/kernel" not in params:
        params = hf.with_gelu_layer(params, head, model["hidden_size"])
    exported = {path.split("/")[0] for path in mapping.FAMILIES[family][1]}
    left_out += sorted(f"{name}/{head}" for head in heads - exported)
    params = {path: value for path, value in params.items() if path.split("/")[0] not in heads - exported}
    networks[name] = hf.make_weights(family, model, params, source.tokenizer, labels)
    if is_multi:
      networks[name].config["problem_type"] = "multi_label_classification"
  return networks, left_out


def check_heads(heads: set[str], pooling: str) -> None:
  """Raises a UserError for a head that no class of transformers computes and that the model cannot do without."""
  what = "No class of transformers has this head"
  if "joint_span_head" in heads:
    raise UserError(what, got="joint_span_head: the end depends on the start",
                    allowed="a span_head, whose start and end are independent, for AutoModelForQuestionAnswering",
                    fix="fine-tune with --config.task.span_head=independent, use --format=msgpack, or answer with "
                    "electra_jax.tools.predict --task=question")
  read = heads & set(SENTENCE_HEADS)
  if read and pooling != "cls":
    raise UserError(what, got=f"{', '.join(read)} over task.pooling={pooling}",
                    allowed="one over [CLS], for AutoModelForSequenceClassification and AutoModelForMultipleChoice",
                    fix="fine-tune with --config.task.pooling=cls, use --format=msgpack, or answer with "
                    "electra_jax.tools.predict --task=classify or --task=choose")


def fine_tuning_of(source: ExportedRun) -> tuple[str, list[str], bool]:
  """(activation of the export's layer over [CLS], names of the labels, whether several can be true together)."""
  if not source.config.task.name:
    return "tanh", [], False
  labels = read_json(os.path.join(source.workdir, "labels.json"))
  reads_cls = HEADS[labels["head"]][0][0] in SENTENCE_HEADS
  # A linear head becomes two layers with a GELU between them; without a head over [CLS] nothing depends on this.
  pooler = {"none": "gelu"}.get(source.config.task.pooler, source.config.task.pooler) if reads_cls else "tanh"
  return pooler, labels["label_names"], labels["head"] == "multi_label"
