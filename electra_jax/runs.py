"""How is what was trained read back? A run's workdir, a fine-tuned one, or published weights become a Run."""

import json
import os
from typing import NamedTuple

import jax
from jaxtyping import PyTree
from ml_collections import FrozenConfigDict

from electra_jax import checkpoints, published
from electra_jax import config as config_lib
from electra_jax.data import tokenizers
from electra_jax.errors import UserError
from electra_jax.exchange import formats
from electra_jax.models.bert import make_transformer_config
from electra_jax.objectives import networks
from electra_jax.objectives.networks import Network

LABELS_FILE = "labels.json"  # beside the checkpoints of a fine-tuned run: task, head, label names
FINE_TUNED_HEADS = {"classification": "classification_head", "regression": "classification_head"}  # others: + _head


class Run(NamedTuple):
  """A trained run, ready to answer."""

  config: FrozenConfigDict
  tokenizer: tokenizers.Tokenizer
  step: int | None  # optimizer updates behind the parameters; None: published weights do not say
  params: PyTree
  network: Network


def load(workdir: str, step: int | None = None) -> Run:
  """Reads a run's config, parameters (of its newest or a given checkpoint; on the first device) and tokenizer.

  In place of a workdir it takes an export or published weights, of any of `exchange.formats`; these have no step.

  Raises:
    UserError: there is no run or no such checkpoint, or a part of it is damaged.
  """
  workdir = os.fspath(workdir)
  if formats.find(workdir):
    if step is not None:
      raise UserError("Published weights have no steps", got=f"--step={step} of {workdir}", allowed="no --step",
                      fix="leave --step out, or give the workdir of a run")
    config, tokenizer, params, network = published.load(workdir)
    return Run(config, tokenizer, None, params, network)
  config = config_lib.load(workdir)
  step, params = checkpoints.load_params(workdir, step=step)
  tokenizer = tokenizers.load_tokenizer(os.path.join(workdir, "tokenizer"), config.data.tokenizer)
  # CPUs have no bfloat16 units worth the lost digits.
  dtype = "float32" if jax.default_backend() == "cpu" else config.train.compute_dtype
  transformer = make_transformer_config(config.model, num_tokens=tokenizer.vocab_size, dtype=dtype)
  if os.path.exists(os.path.join(workdir, LABELS_FILE)):
    network = networks.separate(networks.Encoder("encoder", transformer, ()))
    return Run(_fine_tuned_config(workdir, config), tokenizer, step, params, network)
  network = networks.make(transformer, config.generator, config.objective)
  return Run(config, tokenizer, step, params, network)


def _fine_tuned_config(workdir: str, config: FrozenConfigDict) -> FrozenConfigDict:
  """The config of a fine-tuned run with what `fine_tuned` must know of its head."""
  path = os.path.join(workdir, LABELS_FILE)
  try:
    with open(path, encoding="utf-8") as file:
      facts = json.load(file)
    head, labels = FINE_TUNED_HEADS.get(facts["head"], f"{facts['head']}_head"), tuple(facts["label_names"])
    task = facts["task"]
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise UserError("The labels of the fine-tuned run cannot be read", got=f"{path}: {error!r}",
                    allowed="the file as fine-tuning wrote it", fix="restore it from a backup") from error
  known = config.to_dict()
  known["fine_tuned"] = {"head": head, "network": "encoder", "labels": labels, "activation": config.task.pooler}
  known["objective"]["name"], known["generator"]["kind"] = task, "none"
  return FrozenConfigDict(known)
