"""Export of a run as files that Hugging Face transformers loads: one folder for each of its networks."""

import contextlib
import json
import os
import shutil
from collections.abc import Generator
from typing import NamedTuple

import numpy as np
from absl import flags
from ml_collections import ConfigDict

from electra_jax import config as config_lib
from electra_jax import main as main_lib
from electra_jax import metrics
from electra_jax.data import tokenizers
from electra_jax.errors import UserError
from electra_jax.exchange import hf, hf_config, mapping, model_card, tokenizer_files
from electra_jax.exchange.initial import EMBEDDINGS, GENERATOR
from electra_jax.exchange.weights import Weights
from electra_jax.finetuning import results
from electra_jax.models.bert import SENTENCE_HEADS
from electra_jax.tasks.base import HEADS
from electra_jax.training import warning_signs

FLAGS = flags.FLAGS

USAGE = """Writes a run's networks as files that other code bases load.

  The newest checkpoint:   python -m electra_jax.tools.export --workdir=runs/base --out=exported
  An earlier one:          python -m electra_jax.tools.export --workdir=runs/base --step=5000 --out=exported
  For Flax, as trained:    python -m electra_jax.tools.export --workdir=runs/base --out=exported --format=msgpack

An ELECTRA gives exported/discriminator and exported/generator, every other run the one folder. Each loads with one
line, AutoModel.from_pretrained("exported/discriminator"), and holds config.json, model.safetensors, the tokenizer and a
model card. msgpack is flax.serialization's, with our own names; config.json and tokenizer/ come along.

--out must be new or empty; it appears complete or not at all."""


class Exported(NamedTuple):
  """What there is to say after an export."""

  folders: list[str]
  left_out: list[str]  # heads that transformers has no place for


def export(workdir: str, out: str, step: int | None = None, file_format: str = "hf") -> Exported:
  """Writes the networks of a checkpoint (None: the newest).

  Raises:
    UserError: there is no such run or checkpoint, no class of transformers computes its network, `out` is taken, or
      the disk refuses.
  """
  from electra_jax import sharding
  from electra_jax.training import checkpoints

  if file_format not in WRITERS:
    raise UserError("--format is unknown", got=file_format, allowed=", ".join(WRITERS), fix="use --format=hf")
  config = config_lib.load(workdir)
  step, params = checkpoints.load_params(workdir, step=step)
  tokenizer = tokenizers.load_tokenizer(os.path.join(workdir, "tokenizer"), config.data.tokenizer)
  flat = {path: np.asarray(leaf) for path, leaf in sharding.by_path(params).items()}
  with new_folder(out) as partial:
    names, left_out = WRITERS[file_format](partial, Source(workdir, config, step, tokenizer, flat))
  return Exported([os.path.normpath(os.path.join(out, name)) for name in names], left_out)


class Source(NamedTuple):
  """A checkpoint and what belongs to it."""

  workdir: str
  config: ConfigDict  # resolved
  step: int
  tokenizer: tokenizers.Tokenizer
  params: dict[str, np.ndarray]  # path -> array


@contextlib.contextmanager
def new_folder(out: str) -> Generator[str, None, None]:
  """A temporary folder beside `out` that takes its name in the end.

  Raises:
    UserError: `out` holds something, or the disk refuses; what existed is as it was.
  """
  if os.path.lexists(out) and not (os.path.isdir(out) and not os.path.islink(out) and not os.listdir(out)):
    raise UserError("--out is taken", got=f"{out} exists and holds something", allowed="a new or empty folder",
                    fix="choose another --out, or move the old one away")
  partial = f"{os.path.normpath(out)}.partial-{os.getpid()}"
  try:
    os.makedirs(partial)
    yield partial
    os.rename(partial, out)  # fails where `out` has been filled meanwhile
  except OSError as error:
    raise UserError("The folder cannot be written", got=f"{out}: {error}",
                    allowed="a place that you may write to, with room for 4 bytes a parameter",
                    fix="choose another --out, or free space") from error
  finally:
    shutil.rmtree(partial, ignore_errors=True)


# ---- Hugging Face ----


def networks_of(source: Source) -> tuple[dict[str, Weights], list[str]]:
  """({network: weights}, heads left out): each network whole, with the embeddings that it borrows.

  One encoder that is both networks (weight_tying=all) is written twice, each time with its own head.

  Raises:
    UserError: no class of transformers computes it.
  """
  by_network: dict[str, dict[str, np.ndarray]] = {}
  for path, value in source.params.items():
    network, below = path.split("/", 1)
    by_network.setdefault(network, {})[below] = value
  kept = next(name for name in by_network if name != GENERATOR)
  if GENERATOR in by_network:
    shared = {path: value for path, value in by_network[kept].items() if path.startswith(EMBEDDINGS)}
    by_network[GENERATOR] = shared | by_network[GENERATOR]
  elif "rtd_head/output/bias" in by_network[kept] and "mlm_head/output_bias" in by_network[kept]:
    by_network[GENERATOR] = {p: v for p, v in by_network[kept].items() if not p.startswith("rtd_head/")}
    by_network[kept] = {p: v for p, v in by_network[kept].items() if not p.startswith("mlm_head/")}
  found, left_out, (pooler, labels, is_multi) = {}, [], fine_tuning_of(source)
  for name, params in by_network.items():
    model = source.config.model.to_dict() | (source.config.generator.to_dict() if name == GENERATOR else {})
    heads = {path.split("/")[0] for path in params if path.split("/")[0].endswith("_head")}
    check_heads(heads, source.config.task.pooling)
    # Narrow generators have a projection, equally wide ones have not; as one of a pair both are ELECTRA's.
    is_pair = name in ("discriminator", GENERATOR)
    family = hf_config.family_of(model, heads | ({"rtd_head"} if is_pair else set()), pooler)
    for head in heads & set(SENTENCE_HEADS) if pooler == "gelu" else ():
      if f"{head}/dense/kernel" not in params:
        params = hf.with_gelu_layer(params, head, model["hidden_size"])
    known = {path.split("/")[0] for path in mapping.FAMILIES[family][1]}
    left_out += sorted(f"{name}/{head}" for head in heads - known)
    params = {path: value for path, value in params.items() if path.split("/")[0] not in heads - known}
    found[name] = hf.make_weights(family, model, params, source.tokenizer, labels)
    if is_multi:
      found[name].config["problem_type"] = "multi_label_classification"
  return found, left_out


def check_heads(heads: set[str], pooling: str) -> None:
  """Raises the UserError of a head that no class of transformers computes, and without which nothing can answer."""
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


def fine_tuning_of(source: Source) -> tuple[str, list[str], bool]:
  """(activation of the layer over [CLS] in the export, names of the labels, whether several are true together)."""
  if source.config.mode != "finetune":
    return "tanh", [], False
  with open(os.path.join(source.workdir, "labels.json"), encoding="utf-8") as file:
    labels = json.load(file)
  reads_cls = HEADS[labels["head"]][0][0] in SENTENCE_HEADS
  # A linear head becomes two layers with a GELU between; without a head over [CLS] there is nothing to choose.
  pooler = {"none": "gelu"}.get(source.config.task.pooler, source.config.task.pooler) if reads_cls else "tanh"
  return pooler, labels["label_names"], labels["head"] == "multi_label"


def write_hf(folder: str, source: Source) -> tuple[list[str], list[str]]:
  """Every network with its tokenizer and its card; (their names below `folder`, heads left out)."""
  found, left_out = networks_of(source)
  names = list(found) if len(found) > 1 or "discriminator" in found else [""]
  model = source.config.model
  evaluation = last_evaluation(source.workdir, source.step)
  for name, (network, weights) in zip(names, found.items()):
    place = os.path.join(folder, name)
    os.makedirs(place, exist_ok=True)
    hf.write_network(place, weights)
    tokenizer_files.write(place, source.tokenizer, is_roberta=weights.config["model_type"] == "roberta",
                          max_tokens=model.max_position_embeddings - model.position_offset)
    num_parameters = sum(value.size for value in weights.tensors.values())
    card = model_card.make(network, weights.config, source.config, source.step, num_parameters, evaluation,
                           imported_from(source.workdir), signs_of(source))
    with open(os.path.join(place, "README.md"), "w", encoding="utf-8") as file:
      file.write(card)
  return names, left_out


def last_evaluation(workdir: str, step: int) -> dict | None:
  """The last row of the run's evaluations at or before a step; of a fine-tuned run its scores, text by metric."""
  path = os.path.join(workdir, "results.json")
  if os.path.exists(path):
    found = results.read_json(path)
    metric = found["runs"][0]["metric"]
    told = results.describe_baselines(workdir, metric, found["summary"][metric]["median"])
    return {metric: ", ".join(f"{name} {value:.4g}" for name, value in row.items() if isinstance(value, float))
            for metric, row in found["summary"].items()} | ({"baselines": told} if told else {})
  try:
    rows = metrics.read_rows(workdir)
  except UserError:  # an averaged or imported folder has no log
    return None
  return next((row for row in reversed(rows) if row["split"] == "eval" and row["step"] <= step), None)


def signs_of(source: Source) -> list[str]:
  """What was wrong with a pre-training up to the step that is written."""
  if not metrics.has_rows(source.workdir):
    return []
  rows = metrics.read_rows(source.workdir)
  return warning_signs.find(source.config, [row for row in rows if row["step"] <= source.step])


def imported_from(workdir: str) -> str:
  """Where the parameters of an imported folder came from; "" for a run."""
  with open(os.path.join(workdir, "config.json"), encoding="utf-8") as file:
    return json.load(file).get("imported", {}).get("weights", "")


# ---- Flax ----


def write_msgpack(folder: str, source: Source) -> tuple[list[str], list[str]]:
  """params.msgpack with our own nested names, config.json and tokenizer/, as in the workdir."""
  from flax import serialization, traverse_util

  nested = traverse_util.unflatten_dict(source.params, sep="/")
  with open(os.path.join(folder, "params.msgpack"), "wb") as file:
    file.write(serialization.msgpack_serialize(nested))
  shutil.copy(os.path.join(source.workdir, "config.json"), folder)
  source.tokenizer.save(os.path.join(folder, "tokenizer"))
  return [""], []


WRITERS = {"hf": write_hf, "msgpack": write_msgpack}


def define_flags() -> None:
  """Not at import: other tools have flags of the same names."""
  flags.declare_key_flag("workdir")  # appears in --help
  flags.DEFINE_string("out", None, "The new folder.")
  flags.DEFINE_integer("step", None, "Of the checkpoint; without it the newest.")
  flags.DEFINE_enum("format", "hf", list(WRITERS), "hf: for transformers. msgpack: for Flax.")


def main(argv: list[str]) -> None:
  """Reads the flags, writes, says how to load it."""
  del argv
  if not FLAGS.workdir or not FLAGS.out:
    raise UserError("--workdir and --out are needed", got=f"--workdir={FLAGS.workdir or ''} --out={FLAGS.out or ''}",
                    allowed="the folder of a run, and a new one",
                    fix="python -m electra_jax.tools.export --workdir=runs/tiny --out=exported")
  main_lib.start_jax()
  done = export(FLAGS.workdir, FLAGS.out, FLAGS.step, FLAGS.format)
  if done.left_out:
    print(f"Left out, as transformers has no place for them: {', '.join(done.left_out)}")
  for folder in done.folders:
    print(f"Wrote {folder}" + (f': AutoModel.from_pretrained("{folder}")' if FLAGS.format == "hf" else ""))


if __name__ == "__main__":
  define_flags()
  main_lib.run(main, USAGE)
