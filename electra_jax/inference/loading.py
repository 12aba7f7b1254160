"""Loading of trained models: a run's workdir, a fine-tuned one, or published weights become a TrainedModel."""

import os
from typing import NamedTuple

import jax
from jaxtyping import PyTree
from ml_collections import FrozenConfigDict

from electra_jax import config as config_lib
from electra_jax.data import tokenizers
from electra_jax.errors import UserError
from electra_jax.exchange import formats, hf_config, hub, published
from electra_jax.exchange.mapping import Weights
from electra_jax.files import read_json
from electra_jax.finetuning import results
from electra_jax.models.bert import make_transformer_config, with_task
from electra_jax.objectives import predictors
from electra_jax.objectives.predictors import Predictor
from electra_jax.tasks import HEADS
from electra_jax.training import checkpoints

LABELS_FILE = "labels.json"  # next to the checkpoints of a fine-tuned run: task, head, num_labels, label_names


class TrainedModel(NamedTuple):
  """A trained run, ready to answer."""

  config: FrozenConfigDict
  tokenizer: tokenizers.Tokenizer
  step: int | None  # optimizer updates so far; None for published weights, which do not say
  params: PyTree
  network: Predictor
  folder: str = ""  # of published weights


def load(workdir: str, step: int | None = None) -> TrainedModel:
  """Reads a run's config, tokenizer and parameters (of its newest or a given checkpoint) onto the first device.

  In place of a workdir it takes an export or published weights in any of `exchange.formats`, or their name on the
  Hugging Face hub; these have no step.

  Raises:
    UserError: there is no run or no such checkpoint, or a part of it is damaged.
  """
  workdir = hub.fetch(workdir)
  if formats.is_published(workdir):
    if step is not None:
      raise UserError("Published weights have no steps", got=f"--step={step} of {workdir}", allowed="no --step",
                      fix="leave --step out, or give the workdir of a run")
    return _load_published(workdir)
  config = config_lib.load(workdir)
  step, params = checkpoints.load_params(workdir, step=step)
  tokenizer = tokenizers.load_tokenizer(os.path.join(workdir, "tokenizer"), config.data.tokenizer)
  # On CPUs bfloat16 is not fast enough to be worth the lost digits.
  dtype = "float32" if jax.default_backend() == "cpu" else config.train.compute_dtype
  transformer = make_transformer_config(config.model, num_tokens=tokenizer.vocab_size, dtype=dtype)
  if os.path.exists(os.path.join(workdir, LABELS_FILE)):
    facts = _read_labels(workdir)
    transformer = with_task(transformer, config.task, facts["num_labels"])
    network = predictors.separate(predictors.Encoder("encoder", transformer, HEADS[facts["head"]][0]))
    return TrainedModel(_fine_tuned_config(workdir, config, facts), tokenizer, step, params, network)
  network = predictors.make(transformer, config.generator, config.objective)
  return TrainedModel(config, tokenizer, step, params, network)


def _read_labels(workdir: str) -> dict:
  """What fine-tuning recorded about the head: task, head, num_labels, label_names."""
  path = os.path.join(workdir, LABELS_FILE)
  try:
    facts = read_json(path)
    return {"task": str(facts["task"]), "head": next(head for head in HEADS if head == facts["head"]),
            "num_labels": int(facts["num_labels"]), "label_names": tuple(facts["label_names"])}
  except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
    raise UserError("The labels of the fine-tuned run cannot be read", got=f"{path}: {error!r}",
                    allowed="the file as fine-tuning wrote it", fix="restore it from a backup") from error


def _fine_tuned_config(workdir: str, config: FrozenConfigDict, facts: dict) -> FrozenConfigDict:
  """The config of a fine-tuned run with what `task_heads` must know about its head."""
  branches = config.to_dict()
  keys = ("window_stride", "max_question_length")
  # As in published models, several labels at once are a classification whose logits have a sigmoid each.
  scores = {"classification": "softmax", "multi_label": "sigmoid"}.get(facts["head"], "none")
  head = "classification" if scores == "sigmoid" else facts["head"]
  branches["fine_tuned"] = {"head": head, "scores": scores, "labels": facts["label_names"],
                         **{key: branches["task"][key] for key in keys},
                         "is_answerable_known": facts["task"] == "squad_v2.0",  # v1.1 does not train that head
                         "null_odds_threshold": results.null_odds_threshold(workdir)}
  branches["objective"]["name"], branches["generator"]["kind"] = facts["task"], "none"
  return FrozenConfigDict(branches)


def _load_published(path: str) -> TrainedModel:
  """Weights in any of `formats.FORMATS`, with the vocabulary next to them."""
  weights = formats.read(path)
  tokenizer = published.load_tokenizer(path)
  encoders, params = [], {}
  for name, network in weights.items():
    encoders.append(published.make_encoder(name, network, tokenizer.vocab_size, path))
    params[name] = published.make_params(encoders[-1], network)
  config = _published_config(encoders, next(iter(weights.values())))
  return TrainedModel(config, tokenizer, None, jax.device_put(params), predictors.separate(*encoders), path)


def _published_config(encoders: list[predictors.Encoder], weights: Weights) -> FrozenConfigDict:
  """The keys of a run's config that prediction reads, with the papers' mask rate."""
  t = encoders[0].transformer
  heads = {head for encoder in encoders for head in encoder.head_names}
  labels = {int(i): label for i, label in (weights.config.get("id2label") or {}).items()}
  head = next((head.removesuffix("_head") for head in encoders[0].head_names if head in hf_config.FINE_TUNING), "")
  scores = "none"
  if head == "classification":
    scores = hf_config.scores_of(weights.config, t.num_labels)
    head = "regression" if scores == "none" else head
  return FrozenConfigDict({
    "model": {"vocab_size": t.vocab_size},
    "fine_tuned": {"head": head, "scores": scores,
                   "labels": tuple(str(labels.get(i, f"LABEL_{i}")) for i in range(t.num_labels)),
                   "window_stride": 128, "max_question_length": 64,  # BERT's SQuAD code
                   "is_answerable_known": False, "null_odds_threshold": 0.0},
    "generator": {"kind": "learned" if "mlm_head" in heads else "none"},
    "objective": {"name": "rtd" if "rtd_head" in heads else "mlm" if "mlm_head" in heads else "none",
                  "sampling_temperature": 1.0, "sampling_excludes_original": False},
    "data": {"sequence_length": t.max_position_embeddings - t.position_offset, "text_field": "text",
             "masking": {"rate": 0.15}},
    "task": {"text_fields": "text"},
  })
