"""Stages of a row: data, pre-training, probe of the checkpoints, sweep over GLUE."""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ml_collections import ConfigDict

from electra_jax import config as config_lib
from electra_jax import metrics, recipes
from electra_jax.data import shards, tokenizers
from electra_jax.data.shards import corpus
from electra_jax.errors import UserError
from electra_jax.tools.experiments import finetuning, results
from electra_jax.tools.experiments.finetuning import Tuning
from electra_jax.tools.experiments.processes import Running
from electra_jax.tools.experiments.rows import Planned
from electra_jax.training import checkpoints

# Keys of data that do not change the packed examples; the run itself refuses another text in the same folder.
NOT_IN_SHARDS = ("path", "masking", "reader", "num_workers", "shards_path")


class Paths(NamedTuple):
  """Where the data is."""

  data: str  # data.path of the corpus; "" = the recipes' own, or what the shards were made from
  shards: str  # folder of the tokenizers and shards
  vocabulary: str = ""  # published vocabulary; "" = one is trained on the corpus
  glue: str = ""  # folder of GLUE's folders; "" = no fine-tuning


def tokenizer_folder(row: Planned, paths: Paths) -> str:
  """Folder of the tokenizer and of the shards with its vocabulary; equal keys of data.tokenizer share it."""
  return os.path.join(paths.shards, f"{row.config.data.tokenizer.kind}-{_digest(row.config.data.tokenizer.to_dict())}")


def shards_path(row: Planned, paths: Paths) -> str:
  """The shards of a model; equal packing shares them."""
  data = row.config.data
  branch = {key: value for key, value in data.to_dict().items() if key not in NOT_IN_SHARDS}
  return os.path.join(tokenizer_folder(row, paths), f"{data.format}-{data.sequence_length}-{_digest(branch)}", "shards")


def _digest(branch: dict) -> str:
  return hashlib.sha256(json.dumps(branch, sort_keys=True).encode()).hexdigest()[:8]


def prepare(rows: Sequence[Planned], paths: Paths) -> None:
  """Makes the tokenizers and shards that the models need, where they are missing.

  Raises:
    UserError: the corpus or the vocabulary cannot be read.
  """
  for row in rows:
    path, folder = shards_path(row, paths), tokenizer_folder(row, paths)
    if shards.exist(path):
      continue
    text = paths.data or row.config.data.path
    if not paths.data and text.startswith(("tfds:", "hf:")):
      raise UserError("There are no shards of this format, and no text to make them from", got=path,
                      allowed="prepared shards, or a corpus", fix="set --data to text or JSONL files (DATA=...); "
                      f"the recipe's own text, which is fetched first, is --data={text}")
    config_data = ConfigDict(row.config.data.to_dict() | {"path": text, "shards_path": path})
    own = os.path.join(folder, corpus.TOKENIZER_FOLDER)
    if paths.vocabulary and not os.path.isdir(own):
      tokenizers.load_tokenizer(paths.vocabulary, config_data.tokenizer).save(own)
    tokenizer = corpus.make_tokenizer(config_data, folder, row.config.seed)
    print(f"Packing {text} as {config_data.format}: {path}", flush=True)
    shards.prepare(config_data, tokenizer, path, row.config.seed)


def pretrain_command(row: Planned, paths: Paths) -> list[str]:
  """The pre-training of a model as a command line."""
  _, recipe = recipes.load(row.model.recipe)
  changes = {key: now for key, (_, now) in config_lib.diff(recipe, row.given).items()}
  changes |= {"data.path": paths.data, "data.shards_path": shards_path(row, paths),
              "data.tokenizer.path": os.path.join(tokenizer_folder(row, paths), corpus.TOKENIZER_FOLDER)}
  return [sys.executable, "-m", "electra_jax.main", f"--config={row.model.recipe}", f"--workdir={row.workdir}",
          *(f"--config.{key}={value}" for key, value in changes.items())]


def make(row: Planned, tasks: Sequence[str], paths: Paths, tuning: Tuning, running: Running, *, probe: bool,
         after_each: Callable[[], None]) -> None:
  """Pre-trains, probes and fine-tunes a model; what is finished is not run again, so the same command resumes.

  Args:
    after_each: called after every stage.

  Raises:
    Failed: a run has failed.
    Interrupted: everything was asked to stop.
  """
  name = os.path.basename(row.folder)
  if is_trained(row):
    print(f"{name}: pre-training is finished", flush=True)
  else:
    print(f"{name}: {row.num_steps:,} steps, {row.workdir}", flush=True)
    running.call(pretrain_command(row, paths), os.path.join(row.folder, "pretrain.log"), running.at_once)
  after_each()
  if probe:
    running.call([sys.executable, "-m", "electra_jax.tools.experiments.probe", f"--workdir={row.workdir}"],
                 os.path.join(row.folder, "probe.log"), running.at_once)
    after_each()
  if paths.glue:
    folder = results.sweep_folder(row, max(checkpoints.saved_steps(row.workdir)))
    finetuning.sweep(folder, row.workdir, tasks, tuning, paths.glue, running)
    after_each()


def is_trained(row: Planned) -> bool:
  """Whether the run has its last checkpoint and the evaluation after it."""
  return row.num_steps in checkpoints.saved_steps(row.workdir) and any(
    entry["split"] == "eval" and entry["step"] == row.num_steps for entry in metrics.read_rows(row.workdir))
