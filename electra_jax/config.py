"""Config of a run: derived from a recipe, checked (config_rules.py), frozen, saved, compared."""

import json
import math
import os
import subprocess
from importlib import metadata

from ml_collections import ConfigDict, FrozenConfigDict

from electra_jax import config_rules, files
from electra_jax.errors import UserError, listed, named

# Keys that may change when a run resumes in the same workdir; a change of any other makes it another run.
RESUMABLE = ("train.num_steps", "train.log_every_steps", "train.steps_per_dispatch", "train.remat", "train.kernels",
             "train.matmul_precision", "train.accumulation_steps", "train.on_nonfinite",
             "task.num_seeds", "task.write_test_predictions", "task.data_dir",
             "eval.", "checkpoint.", "mesh.", "log.",
             "data.reader", "data.num_workers", "data.path", "data.shards_path",
             "data.on_bad_record")

FORMAT = 3  # of config.json and all else in a workdir; one version of the code reads one format
# SQuAD as in BERT's code: candidates per question, which is also how many starts and ends per window are paired; tokens
# of the longest answer.
NUM_BEST, MAX_ANSWER_LENGTH = 20, 30
VOCAB_MULTIPLE = 128  # of a token table's rows: matrix units want aligned shapes


def num_predictions(rate: float, num_tokens: int) -> int:
  """k = ceil(rate * n) masked positions of n tokens (ELECTRA footnote 2), safe against 0.15 * 20 > 3.0.

  >>> num_predictions(0.15, 128), num_predictions(0.15, 20), num_predictions(0.15, 1)
  (20, 3, 1)
  """
  return math.ceil(rate * num_tokens - 1e-9)


def whole_dispatches(steps: int, updates: int) -> int:
  """The largest multiple of `updates` (`train.steps_per_dispatch`) up to `steps`; if there is none, `steps` or 1.

  >>> whole_dispatches(47, 10), whole_dispatches(7, 10), whole_dispatches(0, 10)
  (40, 7, 1)
  """
  return steps - steps % updates or max(1, steps)


def table_rows(num_tokens: int) -> int:
  """Rows of a token table: the number of tokens, rounded up to a multiple of VOCAB_MULTIPLE.

  >>> table_rows(30522)
  30592
  """
  return -(-num_tokens // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def fit_dispatches(given: ConfigDict) -> None:
  """Lowers `train.steps_per_dispatch` until it divides every cadence of the recipe."""
  cadences = (given.train.num_steps, given.train.log_every_steps, given.eval.every_steps,
              given.eval.finetune_every_steps, given.checkpoint.every_steps, given.objective.generator_steps or 0)
  given.train.steps_per_dispatch = math.gcd(given.train.steps_per_dispatch, *cadences)


def resolve(config: ConfigDict) -> FrozenConfigDict:
  """A frozen copy with the derived keys filled in.

  Raises:
    UserError: rules are violated; the message lists all of them.
  """
  c = ConfigDict(config.to_dict())  # the given recipe stays unchanged
  faults = list(config_rules.choice_faults(c))
  if not faults:
    _derive(c)
    faults = list(config_rules.range_faults(c))
  if faults:
    raise UserError(f"The configuration has {len(faults)} fault{'s' * (len(faults) > 1)}",
                    got=listed(faults), allowed="see the reasons in configs/common.py",
                    fix="change the keys above in the recipe or on the command line: --config.KEY=VALUE")
  return FrozenConfigDict(c)


def _derive(c: ConfigDict) -> None:
  def default(branch, key, value):
    if branch[key] is None:
      branch[key] = value

  default(c.model, "vocab_size", table_rows(c.data.tokenizer.vocab_size))
  width, depth = c.generator.width_fraction, c.generator.depth_fraction
  default(c.generator, "hidden_size", round(c.model.hidden_size * width))
  default(c.generator, "intermediate_size", round(c.model.intermediate_size * width))
  default(c.generator, "num_attention_heads", max(1, round(c.model.num_attention_heads * width)))
  default(c.generator, "num_hidden_layers", max(1, round(c.model.num_hidden_layers * depth)))
  rate = c.data.masking.rate if c.objective.name == "all_tokens_mlm" else 1.0
  default(c.objective, "encoder_mlm_weight", 1 / rate if rate > 0 else 1.0)  # a rate of 0 is refused below
  half = c.train.num_steps // 2
  half -= half % max(1, c.train.steps_per_dispatch)
  default(c.objective, "generator_steps", half if c.objective.name == "two_stage" else 0)
  default(c.data, "num_workers", _num_cpus())
  for key, value in fit_to_encoder(c.model.hidden_size, c.model.num_hidden_layers).items():
    branch, name = key.split(".")
    default(c[branch], name, value)
  default(c.optimizer, "warmup_steps", min(10_000, c.train.num_steps // 10))
  default(c.eval, "batch_size", max(1, c.train.batch_size // max(1, c.train.accumulation_steps)))


def fit_to_encoder(hidden_size: int, num_layers: int) -> dict[str, float]:
  """Fine-tuning keys that a recipe leaves open (configs/finetune/own.py), by the encoder's width.

  ELECTRA Table 5's learning rate is for 768 units; a narrower encoder needs a higher one. Below 256 units there is no
  layer-wise decay, below 128 the layers over the pre-trained embeddings are new: pre-training such small layers never
  helped (docs/finetuning.md).

  >>> fit_to_encoder(768, 12)
  {'optimizer.learning_rate': 0.0001, 'task.layer_decay': 0.8, 'task.fresh_layers': 0}
  """
  return {"optimizer.learning_rate": round(1e-4 * 768 / max(64, hidden_size), 6),
          "task.layer_decay": 0.8 if hidden_size >= 256 else 1.0,
          "task.fresh_layers": 0 if hidden_size >= 128 else num_layers}


def flatten(config: ConfigDict | dict, prefix: str = "") -> dict[str, object]:
  """{"train.num_steps": 20, ...}: every leaf under its dotted key."""
  flat = {}
  for key, value in (config if isinstance(config, dict) else config.to_dict()).items():
    flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
  return flat


def diff(old: ConfigDict | dict, new: ConfigDict | dict) -> dict[str, tuple[object, object]]:
  """Dotted keys whose values differ -> (old, new), where None stands for a missing key."""
  a, b = flatten(old), flatten(new)
  return {key: (a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)}


def check_resumable(old: ConfigDict, new: ConfigDict, workdir: str) -> dict[str, tuple[object, object]]:
  """The permitted differences between a workdir's config and a new one.

  Raises:
    UserError: a key differs that makes it another run (model, data, objective, optimizer, batch).
  """
  changes = diff(old, new)
  resumable = RESUMABLE if old.task.name or new.task.name else (*RESUMABLE, "task.")  # pre-training does not read these
  if "train.num_steps" in changes:
    resumable += ("optimizer.warmup_steps",)  # derived from it; it changes the schedule anyway
  forbidden = {key: values for key, values in changes.items() if not key.startswith(resumable)}
  if forbidden:
    raise UserError(
      f"The workdir {workdir} holds another run",
      got=listed([f"{key}: {was!r} in the workdir, {now!r} asked for" for key, (was, now) in forbidden.items()]),
      allowed="on resume only the number of steps, cadences, paths and readers, and the keys of eval, checkpoint, mesh "
              "and log may change (RESUMABLE in electra_jax/config.py)",
      fix="use another --workdir, or the workdir's values: " + named(
        [f"--config.{key}={was}" for key, (was, _) in forbidden.items()], most=5))
  return changes


def save(path: str, given: ConfigDict, resolved: ConfigDict, text: dict | None = None, **more: object) -> None:
  """Writes the given and the resolved config, package versions and the git commit as JSON, atomically.

  Args:
    text: path and checksum of a pre-training's text; the path replaces an empty data.path.
    more: further branches of the file.
  """
  complete = ConfigDict(resolved.to_dict())
  if text and not complete.data.path:
    complete.data.path = text["path"]
  record = {"format": FORMAT, "given": given.to_dict(), "resolved": complete.to_dict(), "versions": _versions(),
            "commit": _commit(), "text": text, **more}
  with files.atomic(path) as file:
    json.dump(record, file, indent=2, sort_keys=True)


def load(workdir: str) -> FrozenConfigDict:
  """The resolved config of a workdir. Raises as `read_record`."""
  return FrozenConfigDict(read_record(workdir)["resolved"])


def read_record(workdir: str) -> dict:
  """The config.json of a workdir: format, given, resolved, text, versions, commit.

  Raises:
    UserError: there is no run, its config.json cannot be read, or another version of the code wrote it.
  """
  check_exists(workdir)
  path = os.path.join(workdir, "config.json")
  try:
    with open(path, encoding="utf-8") as file:
      record = json.load(file)
    if not isinstance(record, dict) or not isinstance(record.get("resolved"), dict):
      raise ValueError('no object with a branch "resolved"')
  except (OSError, ValueError, RecursionError) as error:
    is_begun = any(os.path.isdir(os.path.join(workdir, folder)) for folder in ("checkpoints", "seeds"))
    fix = ("restore it from a backup, as nothing else says what the run is, or choose another workdir" if is_begun else
           "check the path, or train first: launch/demo.sh makes one in minutes")
    raise UserError(f"No run can be read from {workdir}", got=f"{path}: {error}",
                    allowed="a folder that `python -m electra_jax.main --workdir=...` wrote",
                    fix=fix) from error
  if record.get("format") != FORMAT:
    raise UserError(f"Another version of the code wrote {workdir}",
                    got=f"format {record.get('format', 0)} of commit {record.get('commit', 'unknown')}",
                    allowed=f"format {FORMAT}", fix="check out that commit, or train in a new --workdir")
  return record


def check_exists(path: str) -> None:
  """Raises a UserError if there is nothing to start from under a path."""
  if "://" in path or os.path.exists(path) or os.path.exists(f"{path}.index"):  # a TensorFlow prefix is not a file
    return
  raise UserError(f"No run can be read from {path}", got="there is no such file or folder",
                  allowed="a run's workdir, or published weights on this machine", fix="check the path")


def _versions() -> dict[str, str]:
  names = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tensorflow-cpu", "tokenizers",
           "sentencepiece")
  found = {}
  for name in names:
    try:
      found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
      found[name] = "not installed"
  return found


def _num_cpus() -> int:
  """CPUs that this process may use; of a shared machine a scheduler grants a part."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _commit() -> str:
  here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
  if not os.path.exists(os.path.join(here, ".git")):  # installed, perhaps within a repository of something else
    return "unknown"
  try:
    run = subprocess.run(["git", "-C", here, "describe", "--always", "--dirty"], capture_output=True, text=True,
                         timeout=10, check=True)
    return run.stdout.strip()
  except (OSError, subprocess.SubprocessError):
    return "unknown"
