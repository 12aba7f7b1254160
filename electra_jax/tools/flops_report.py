"""Costs of the papers' models, our counts next to theirs, and of a config on common hardware."""

import csv
import json
import sys

from absl import flags
from ml_collections import ConfigDict

from electra_jax import config as config_lib
from electra_jax import flops, plotting, recipes
from electra_jax import main as main_lib
from electra_jax.tools import flops_tables

FLAGS = flags.FLAGS
flags.DEFINE_enum("format", "md", ["md", "csv", "json"], "What is printed: Markdown tables, or only CSV or JSON.")
flags.DEFINE_float("mfu", 0.4, "Share of the peak FLOP/s that training reaches.", lower_bound=0.001, upper_bound=1.0)
flags.DEFINE_integer("devices", 1, "Cards or TPU chips that share the work.", lower_bound=1)

USAGE = """Counts training and inference FLOPs and parameters: of the papers' rows, or of your recipes.

  python -m electra_jax.tools.flops_report                      every row of ELECTRA's tables next to the paper's figure
  python -m electra_jax.tools.flops_report configs/base.py configs/small.py --mfu=0.5 --devices=8
  python -m electra_jax.tools.flops_report --format=json > flops.json

There are two conventions, which are never mixed: the paper's (Appendix C) for its tables, and only matrix products for
time and MFU (docs/flops.md)."""

# Dense FLOP/s of a card or a whole chip in bfloat16; of a V100 in float16.
HARDWARE = {
  "V100": flops.HARDWARE_PEAKS["Tesla V100-SXM2-16GB"], "A100": flops.HARDWARE_PEAKS["NVIDIA A100-SXM4-80GB"],
  "H100": flops.HARDWARE_PEAKS["NVIDIA H100 80GB HBM3"], "TPU v3": 2 * flops.HARDWARE_PEAKS["TPU v3"],  # two cores
  **{f"TPU {name}": flops.HARDWARE_PEAKS[f"TPU {name}"] for name in ("v4", "v5e", "v5p", "v6e")},
}

TABLE_COLUMNS = {  # heading -> field of flops_tables.Row.as_dict()
  "model": "name", "source": "source", "train": "train_flops", "paper": "paper_train_flops",
  "diff.": "train_difference", "speedup, or (cost)": "speedup",
  "released script": "reference_train_flops", "diff. ": "reference_difference",
  "infer": "inference_flops", "paper ": "paper_inference_flops", "diff.  ": "inference_difference",
  "parameters": "parameters", "paper  ": "paper_parameters", "diff.   ": "parameters_difference", "note": "note",
}


def component(term: str) -> str:
  """The component that a term `network/term` belongs to; all terms of a generator are one component."""
  network, name = term.split("/")
  if network == "generator":
    return "generator"
  for prefix in ("attention", "feed_forward", "embedding", "elementwise"):
    if name.startswith(prefix):
      return prefix
  return "heads"


def config_row(name: str, config: ConfigDict, *, mfu: float, devices: int) -> dict:
  """The report of one resolved config; operations by component are per training step."""
  paper, model = flops.paper_flops(config), flops.model_flops(config)
  tokens = config.train.batch_size * config.data.sequence_length

  def by_component(count):
    totals = dict.fromkeys(("attention", "feed_forward", "embedding", "generator", "heads", "elementwise"), 0.0)
    for term, value in count.terms.items():
      totals[component(term)] += value
    return totals

  counts = {
    key: {"convention": count.convention, "train_flops": count.per_run, "per_step": count.per_step,
          "per_token": count.per_step / tokens, "components": by_component(count), "terms": count.terms}
    for key, count in (("paper", paper), ("model", model))}
  kept = flops.kept_network(config)
  positions = config.model.max_position_embeddings
  return {
    "name": name, "train_flops": paper.per_run, "inference_flops": flops_tables.inference(kept),
    "parameters": flops_tables.parameters(kept, positions=positions), "paper_train_flops": None,
    "steps": config.train.num_steps, "tokens_per_step": tokens, "conventions": counts, "mfu": mfu, "devices": devices,
    "hours": {chip: model.per_run / (peak * mfu * devices) / 3600 for chip, peak in HARDWARE.items()},
  }


def cell(field: str, value: str | float | None) -> str:
  """A value as text: `6.430e19`, `+0.5 %`, `110.0M`."""
  if value is None:
    return "-"
  if isinstance(value, str):
    return value
  if field.endswith("difference"):
    return f"{100 * value:+.1f} %"
  if field.endswith("parameters"):
    return f"{value / 1e6:,.1f}M"
  return f"{value:.3e}".replace("e+", "e")


def config_markdown(row: dict) -> str:
  """The tables of one config."""
  counts = row["conventions"]
  parts = [f"## {row['name']}\n\n{row['steps']:,} steps of {row['tokens_per_step']:,} tokens; kept encoder "
           f"{cell('parameters', row['parameters'])} parameters; classifying 128 tokens "
           f"{cell('', row['inference_flops'])} FLOPs.\n"]
  for key, count in counts.items():
    parts.append(f"`{key}_flops`, convention: {count['convention']}\n")
    lines = [[name, cell("", value), f"{100 * value / count['per_step']:.1f} %"]
             for name, value in count["components"].items()]
    totals = [["per step", cell("", count["per_step"]), "100 %"], ["per token", cell("", count["per_token"]), ""],
              ["run", cell("", count["train_flops"]), ""]]
    parts.append(plotting.markdown(["per step", "FLOPs", "share"], lines + totals) + "\n")
  parts.append(f"Time of the run on {row['devices']} device(s) at MFU {row['mfu']:g} (`model_flops`):\n")
  parts.append(plotting.markdown(["hardware", "hours", "days"], [[chip, f"{hours:,.1f}", f"{hours / 24:,.2f}"]
                                                        for chip, hours in row["hours"].items()]) + "\n")
  return "\n".join(parts)


def write_csv(rows: list[dict]) -> None:
  """Prints all rows; a term that a row lacks stays empty."""
  flattened = [config_lib.flatten(row) for row in rows]
  writer = csv.DictWriter(sys.stdout, list(dict.fromkeys(key for row in flattened for key in row)), lineterminator="\n")
  writer.writeheader()
  writer.writerows(flattened)


def main(argv: list[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    rows = [config_row(recipe, config_lib.resolve(recipes.load(recipe)[1]), mfu=FLAGS.mfu, devices=FLAGS.devices)
            for recipe in argv[1:]]
  else:
    speedups = flops_tables.speedups()
    rows = [row.as_dict() | {"speedup": speedups.get(row.name)} for row in flops_tables.rows()]
  if FLAGS.format == "json":
    print(json.dumps(rows, indent=2))
  elif FLAGS.format == "csv":
    write_csv(rows)
  elif len(argv) > 1:
    print("\n".join(config_markdown(row) for row in rows))
  else:
    print("Convention: ELECTRA Appendix C (2 x forward, dense lookups, all operations); inference on 128 tokens.\n"
          "Speedup: training / inference versus BERT-Base (Table 1); (cost): training versus ELECTRA-400K (Table 2).\n")
    print(plotting.markdown(list(TABLE_COLUMNS), ([cell(field, row[field]) for field in TABLE_COLUMNS.values()]
                                                  for row in rows)))


if __name__ == "__main__":
  main_lib.run(main, USAGE, takes_arguments=True)
