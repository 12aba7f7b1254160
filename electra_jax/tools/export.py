"""Export of a run's networks as files that Hugging Face transformers loads, a folder for each."""

import os
import shutil
from typing import NamedTuple

import numpy as np
from absl import flags
from ml_collections import ConfigDict

from electra_jax import config as config_lib
from electra_jax import files, metrics, sharding
from electra_jax import main as main_lib
from electra_jax.data import tokenizers
from electra_jax.errors import UserError
from electra_jax.exchange import hf, hub, model_card, onnx_files, tokenizer_files
from electra_jax.finetuning import results
from electra_jax.tools.export_networks import ExportedRun, networks_of
from electra_jax.training import checkpoints, warning_signs

FLAGS = flags.FLAGS

USAGE = """Writes a run's networks as files that other code bases load.

  The newest checkpoint:   python -m electra_jax.tools.export --workdir=runs/base --out=exported
  An earlier one:          python -m electra_jax.tools.export --workdir=runs/base --step=5000 --out=exported
  For Flax, as trained:    python -m electra_jax.tools.export --workdir=runs/base --out=exported --format=msgpack
  With model.onnx, too:    python -m electra_jax.tools.export --workdir=runs/base --out=exported --format=onnx

An ELECTRA gives exported/discriminator and exported/generator, any other run a single folder. Each loads with one line,
AutoModel.from_pretrained("exported/discriminator"), and holds config.json, model.safetensors, the tokenizer and a model
card. msgpack is flax.serialization's format, with our own names, next to config.json and tokenizer/.

  To the Hugging Face hub: python -m electra_jax.tools.export --workdir=runs/base --out=exported --push=USER/MODEL \\
                               --license=apache-2.0 --language=en

uploads what was written, an ELECTRA as USER/MODEL-discriminator and USER/MODEL-generator.

--out must be new or empty; it appears complete or not at all."""


class Exported(NamedTuple):
  """What an export wrote."""

  folders: list[str]
  names: list[str]  # of the networks' folders below --out; [""] for a single one
  left_out: list[str]  # heads that no class of transformers has


def export(workdir: str, out: str, step: int | None = None, file_format: str = "hf",
           publication: model_card.Publication = model_card.UNPUBLISHED) -> Exported:
  """Writes the networks of a checkpoint, the newest if `step` is None.

  Args:
    file_format: a row of WRITERS.
    publication: where the model will be published, for its card; with several networks the beginning of their names.

  Raises:
    UserError: there is no such run or checkpoint, no class of transformers computes its network, `out` is taken, or
      the disk refuses.
  """
  config = config_lib.load(workdir)
  step, params = checkpoints.load_params(workdir, step=step)
  tokenizer = tokenizers.load_tokenizer(os.path.join(workdir, "tokenizer"), config.data.tokenizer)
  flat = {path: np.asarray(leaf) for path, leaf in sharding.by_path(params).items()}
  with files.new_folder(out) as partial:
    names, left_out = WRITERS[file_format](partial, ExportedRun(workdir, config, step, tokenizer, flat, publication))
  return Exported([os.path.normpath(os.path.join(out, name)) for name in names], names, left_out)


# ---- Hugging Face ----


def write_hf(folder: str, source: ExportedRun) -> tuple[list[str], list[str]]:
  """Every network with its tokenizer and its card; (their names below `folder`, heads left out)."""
  networks, left_out = networks_of(source)
  names = list(networks) if len(networks) > 1 or "discriminator" in networks else [""]
  model, max_tokens = source.config.model, source.config.data.sequence_length
  imported_from = config_lib.read_record(source.workdir).get("imported", {}).get("weights", "")  # "": it is a run
  if imported_from:  # which does not tell how long its examples were
    max_tokens = model.max_position_embeddings - model.position_offset
  evaluation, scores, signs = run_so_far(source.workdir, source.step, source.config)
  place_of = hub.repositories(source.publication.name, names) if source.publication.name != "PATH" else {}
  for name, (network, weights) in zip(names, networks.items()):
    path = os.path.join(folder, name)
    os.makedirs(path, exist_ok=True)
    hf.write_network(path, weights)
    tokenizer_files.write(path, source.tokenizer, max_tokens=max_tokens,
                          has_token_types=weights.config["type_vocab_size"] > 1)
    num_parameters = sum(value.size for value in weights.tensors.values())
    card = model_card.make(network, weights.config, source.config, source.step, num_parameters, evaluation,
                           imported_from, signs,
                           source.publication._replace(name=place_of.get(name, "PATH")), scores)
    with open(os.path.join(path, "README.md"), "w", encoding="utf-8") as file:
      file.write(card)
  return names, left_out


def run_so_far(workdir: str, step: int, config: ConfigDict) -> tuple[dict | None, dict[str, float], list[str]]:
  """(evaluation, scores, signs) for `model_card.make`, up to a step."""
  path = os.path.join(workdir, "results.json")
  if os.path.exists(path):
    content = files.read_json(path)
    summary, metric = content["summary"], content["runs"][0]["metric"]
    baselines = results.describe_baselines(workdir, metric, summary[metric]["median"])
    evaluation = {name: ", ".join(f"{key} {value:.4g}" for key, value in row.items() if isinstance(value, float))
                  for name, row in summary.items()} | ({"baselines": baselines} if baselines else {})
    return evaluation, {name: row["median"] for name, row in summary.items()}, []
  rows = [row for row in metrics.rows_so_far(workdir) if row["step"] <= step]
  evaluation = next((row for row in reversed(rows) if row["split"] == "eval"), None)
  return evaluation, {}, warning_signs.find(config, rows)


# ---- Flax ----


def write_msgpack(folder: str, source: ExportedRun) -> tuple[list[str], list[str]]:
  """Writes params.msgpack with our own nested names, and the workdir's config.json and tokenizer/."""
  from flax import serialization, traverse_util

  nested = traverse_util.unflatten_dict(source.params, sep="/")
  with open(os.path.join(folder, "params.msgpack"), "wb") as file:
    file.write(serialization.msgpack_serialize(nested))
  shutil.copy(os.path.join(source.workdir, "config.json"), folder)
  source.tokenizer.save(os.path.join(folder, "tokenizer"))
  return [""], []


# ---- ONNX ----


def write_onnx(folder: str, source: ExportedRun) -> tuple[list[str], list[str]]:
  """Writes what transformers loads, with model.onnx next to it."""
  onnx_files.check_installed()
  names, left_out = write_hf(folder, source)
  for name in names:
    onnx_files.write(os.path.join(folder, name))
  return names, left_out


WRITERS = {"hf": write_hf, "msgpack": write_msgpack, "onnx": write_onnx}


def main(argv: list[str]) -> None:
  """Writes what the flags say, and prints how to load it."""
  del argv
  if not FLAGS.workdir or not FLAGS.out:
    raise UserError("--workdir and --out are needed", got=f"--workdir={FLAGS.workdir or ''} --out={FLAGS.out or ''}",
                    allowed="the folder of a run, and a new one",
                    fix="python -m electra_jax.tools.export --workdir=runs/tiny --out=exported")
  if FLAGS.push:
    check_push()
  main_lib.start_jax()
  publication = model_card.Publication(FLAGS.push or "PATH", FLAGS.license, FLAGS.language)
  done = export(FLAGS.workdir, FLAGS.out, FLAGS.step, FLAGS.format, publication)
  if done.left_out:
    print(f"Left out, as no class of transformers has them: {', '.join(done.left_out)}")
  for folder in done.folders:
    print(f"Wrote {folder}" + (f': AutoModel.from_pretrained("{folder}")' if FLAGS.format != "msgpack" else ""))
  for name, repository in hub.repositories(FLAGS.push or "", done.names).items() if FLAGS.push else ():
    print(f"Uploaded to {hub.upload(os.path.join(FLAGS.out, name), repository)}")


def check_push() -> None:
  """Raises a UserError if an upload would fail, before anything is written."""
  if FLAGS.format == "msgpack" or not FLAGS.license or not FLAGS.language:
    raise UserError("A model on the hub needs a licence, a language, and another format than msgpack",
                    got=f"--license={FLAGS.license} --language={FLAGS.language} --format={FLAGS.format}",
                    allowed="one of the hub's licence identifiers and a language code",
                    fix="for example --license=apache-2.0 --language=en --format=hf")
  hub.check(FLAGS.push)


if __name__ == "__main__":  # flags, too: other tools have some of the same names
  flags.declare_key_flag("workdir")  # appears in --help
  flags.DEFINE_string("out", None, "The new folder.")
  flags.DEFINE_integer("step", None, "Of the checkpoint; without it the newest.")
  flags.DEFINE_enum("format", "hf", list(WRITERS), "hf: for transformers; onnx: that, too; msgpack: for Flax.")
  flags.DEFINE_string("push", None, "Uploads to this name of the Hugging Face hub, USER/MODEL, too.")
  flags.DEFINE_string("license", "", "Of the model, for its card: an identifier of the hub, such as apache-2.0.")
  flags.DEFINE_string("language", "", "Of the text, for the card: en; several with commas.")
  main_lib.run(main, USAGE)
