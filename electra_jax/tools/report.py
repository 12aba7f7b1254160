"""Report of a run as one self-contained HTML page: results, curves, samples, cost, recipe."""

import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from absl import flags
from tqdm import tqdm

from electra_jax import config as config_lib
from electra_jax import files, flops, metrics, recipes
from electra_jax import main as main_lib
from electra_jax.errors import UserError
from electra_jax.finetuning import report as finetuning_report
from electra_jax.finetuning import results
from electra_jax.tasks import glue, scoring
from electra_jax.tasks.scoring import percent
from electra_jax.tools import flops_report, plot_run, report_page, report_samples, summary
from electra_jax.tools.report_page import escape, paragraph, table
from electra_jax.training import checkpoints
from electra_jax.training import workdir as workdir_lib

FLAGS = flags.FLAGS

USAGE = """Writes everything about a run as one HTML page, to read in a browser or to send to somebody.

  A pre-training:           python -m electra_jax.tools.report runs/tiny
  A fine-tuning:            python -m electra_jax.tools.report runs/mrpc --out=mrpc.html
  In a second, no samples:  python -m electra_jax.tools.report runs/tiny --samples=0

The page has the last evaluation, curves, GLUE scores next to the papers', what the model says about held-out texts, the
recipe and where the run departs from it, devices, where the time went, floating-point operations in both conventions,
and every key. It needs no other file and no network, follows the reader's light or dark setting, and can be printed.
For an unfinished run the page says how far it is. It is written to WORKDIR/report.html unless --out says otherwise."""


class Facts(NamedTuple):
  """What is in the workdir."""

  workdir: str
  record: Mapping[str, Any]  # config.json
  config: Any  # its resolved part
  rows: list[dict]  # metrics.jsonl; [] before the first line
  starts: list[dict]  # starts.jsonl
  seeds: list[dict]  # of a fine-tuning: results of finished seeds
  num_samples: int  # texts for samples of what the model says

  @property
  def is_fine_tuning(self) -> bool:
    """Whether the run is a fine-tuning, not a pre-training."""
    return bool(self.config.task.name)


def read(workdir: str, num_samples: int = 0) -> Facts:
  """Everything except the parameters.

  Raises:
    UserError: there is no run.
  """
  record, config = config_lib.read_record(workdir), config_lib.load(workdir)
  return Facts(workdir, record, config, metrics.rows_so_far(workdir), workdir_lib.read_starts(workdir),
               results.load(workdir), num_samples)


def page(facts: Facts) -> str:
  """The whole page; a section that cannot be made says why."""
  body = head(facts)
  for title, make in SECTIONS.items():
    try:
      content = make(facts)
    except UserError as error:
      content = paragraph(f"{error.what}: {error.got}", dim=True)
    body += report_page.section(title, content)
  return report_page.document(os.path.basename(os.path.abspath(facts.workdir)), body)


# ---- the sections: HTML; "" = the page leaves the section out ----


def head(facts: Facts) -> str:
  """Name, state, and the most important numbers."""
  config = facts.config
  kind = (f"fine-tuning on {config.task.name}" if facts.is_fine_tuning else
          f"pre-training, objective {config.objective.name}")
  name = os.path.basename(os.path.abspath(facts.workdir))
  done, wanted, unit = progress_of(facts)
  finished = done >= wanted
  badge = f'<span class="badge{"" if finished else " open"}">{"finished" if finished else "not finished"}</span>'
  line = f"{kind} · {done:,} of {wanted:,} {unit}"
  return (f"<header><h1>{escape(name)}</h1><p>{escape(line)} {badge}</p></header>\n"
          + report_page.tiles(tiles(facts)))


def progress_of(facts: Facts) -> tuple[int, int, str]:
  """(done, wanted, of what)."""
  config = facts.config
  if facts.is_fine_tuning:
    return len(facts.seeds), config.task.num_seeds, "seeds"
  done = max([row["step"] for row in facts.rows] + checkpoints.saved_steps(facts.workdir) + [0])
  return done, config.train.num_steps, "steps"


TILES = ("held-out MLM loss", "held-out RTD AUC", "training speed", "MFU", "goodput")  # rows of the summary


def tiles(facts: Facts) -> list[tuple[str, str]]:
  """(what, value) of each tile."""
  config = facts.config
  parameters = flops_report.config_row("", config, mfu=1.0, devices=1)["parameters"]
  first = [("parameters of the encoder", f"{parameters / 1e6:,.1f} M")]
  if facts.is_fine_tuning:
    for name, row in _summary(facts).items():
      first.append((f"{name}, median of {row['num_runs']} seeds", f"{percent(row['median'])} %"))
    return first
  lines = summary.rows_of(facts.workdir) if facts.rows else []
  return first + [(what, value) for what, value, _ in lines if what in TILES]


def results_of(facts: Facts) -> str:
  """The last evaluation next to its baselines, or the scores of the seeds next to the papers'."""
  if not facts.is_fine_tuning:
    return table(("held-out text", "", "baseline"), [line for line in summary.rows_of(facts.workdir)
                                                   if line[0] not in ("checkpoint", "curves")])
  task, rows = facts.config.task.name, []
  if not facts.seeds:
    return paragraph("No seed is finished yet.", dim=True)
  for name, row in _summary(facts).items():
    rows.append((name, *(percent(row[key]) for key in ("median", "min", "max", "sd")), row["num_runs"],
                 row["num_failed"]))
  shown = table(("dev, percent", "median", "min", "max", "SD", "runs", "failed"), rows)
  metric = facts.seeds[0]["metric"]
  shown += table(("seed", f"{metric}, percent"), [(run["seed"], percent(run["scores"][metric])) for run in facts.seeds])
  papers = finetuning_report.papers_of(task, metric)
  baselines = results.describe_baselines(facts.workdir, metric, _summary(facts)[metric]["median"])
  shown += paragraph(baselines) if baselines else ""
  return shown + (table((f"the papers' {metric}, dev", "%"), papers) if papers else "")


def curves(facts: Facts) -> str:
  """Loss, quality and speed over the steps; for a fine-tuning, the dev scores of each seed."""
  if facts.is_fine_tuning:
    if not facts.seeds:
      return ""  # the section on results says so
    title = f"{facts.config.task.name}, {len(facts.seeds)} seeds"
    return report_page.cards([report_page.svg(
      lambda axes: finetuning_report.draw_curves(axes, facts.seeds, facts.seeds[0]["metric"], title))])
  runs = {os.path.basename(os.path.abspath(facts.workdir)): facts.rows}
  panels = plot_run.panels_of(runs)
  if not panels:
    return paragraph("No row of metrics yet (train.log_every_steps).", dim=True)
  return report_page.cards([report_page.svg(lambda axes, panel=panel: plot_run.draw(axes, panel, runs))
                            for panel in panels])


def glue_scores(facts: Facts) -> str:
  """The dev scores of fine-tunings during the pre-training (eval.finetune_tasks), next to the papers'."""
  rows = [row for row in facts.rows if row["split"] == "finetune"]
  names = list(dict.fromkeys(key.split("/")[0] for row in rows for key in row if "/" in key))
  if facts.is_fine_tuning or not names:
    return ""
  metric = {name: next(key for row in rows for key in row if key.startswith(f"{name}/")) for name in names}
  lines: list[tuple] = [(f"step {row['step']:,}", *(percent(row.get(metric[name], math.nan)) for name in names))
                        for row in rows]
  lines += [(model, *(scores.get(name, "-") for name in names)) for model, scores in glue.PAPER.items()
            if any(name in scores for name in names)]
  headings = [f"{name}: {metric[name].split('/', 1)[1]}" for name in names]
  return table(("", *headings), lines, "Dev, percent: medians over the seeds. Below: the papers' models.")


def samples(facts: Facts) -> str:
  """What the newest parameters of a pre-training say; a fine-tuning has its answers in files of its workdir."""
  if not facts.num_samples or facts.is_fine_tuning:
    return ""
  return report_samples.of_pretraining(facts.workdir, facts.config, facts.num_samples)


def recipe(facts: Facts) -> str:
  """The recipe of the run, where the run departs from it, and the text."""
  corpus = "" if facts.is_fine_tuning else f"Text: {facts.config.data.path or 'packed shards'}."
  name = facts.record.get("recipe")
  if not name:
    return paragraph(f"The run was not started from a recipe's file. {corpus}")
  about, given = recipes.load(name)
  in_json = json.loads(json.dumps(given.to_dict()))  # tuples become lists, as in config.json
  differences = config_lib.diff(in_json, facts.record["given"])
  beginning = about.split("\n\n")[0]
  shown = f"<p><code>{escape(name)}</code>: {escape(beginning)}</p>\n" + paragraph(corpus)
  if not differences:
    return shown + paragraph("Every key is the recipe's.")
  return shown + table(("departs from the recipe in", "recipe", "this run"),
                       [(key, _value(there), _value(here)) for key, (there, here) in differences.items()])


def hardware(facts: Facts) -> str:
  """The devices of each start, and where the time went."""
  lines = [(start["time"].replace("T", " ").replace("+00:00", " UTC"), f"{start['step']:,}",
            f"{start['num_devices']} × {start['device_kind']}"
            + (f", {start['device_memory_bytes'] / 2**30:.0f} GiB each" if start["device_memory_bytes"] else ""),
            start["num_processes"], start["cpu_cores"],
            ", ".join(f"{axis}={size}" for axis, size in start["mesh"].items() if size > 1) or "one device")
           for start in facts.starts]
  headings = ("started", "from step", "devices", "processes", "CPU cores of a host", "mesh")
  shown = table(headings, lines) if lines else paragraph("The workdir does not say on which devices it was made.")
  if damaged := checkpoints.set_aside(facts.workdir):
    shown += "<h3>Damaged checkpoints, skipped</h3>" + table(("kept as", "why"), list(damaged.items()))
  if seconds := summary.time_spent(facts.rows):
    total = sum(seconds.values())
    shown += (f"<h3>Goodput: {100 * seconds['steps'] / total:.1f} % of {tqdm.format_interval(total)} were steps</h3>"
              + report_page.shares(seconds))
    if parts := summary.time_spent(facts.rows, "start"):
      shown += "<h3>What a start takes</h3>" + report_page.shares(parts)
  elif not facts.is_fine_tuning:
    shown += paragraph("Where the time went is known when a run ends or is asked to stop.", dim=True)
  return shown


def operations(facts: Facts) -> str:
  """Floating-point operations of a pre-training in both conventions."""
  if facts.is_fine_tuning:
    return ""
  config, done = facts.config, progress_of(facts)[0]
  lines = [(name, count.convention, f"{count.per_step:.2e}", f"{done * count.per_step:.2e}", f"{count.per_run:.2e}")
           for name, count in (("paper", flops.paper_flops(config)), ("model", flops.model_flops(config)))]
  return table(("count", "convention", "a step", "until now", "the whole run"), lines)


def every_key(facts: Facts) -> str:
  """The resolved config, and the packages."""
  flat = config_lib.flatten(facts.record["resolved"])
  keys = table(("key", "value"), [(key, _value(value)) for key, value in flat.items()])
  versions = {**facts.record["versions"], "commit": facts.record["commit"]}
  return (report_page.folded(f"All {len(flat)} keys, as resolved", keys)
          + report_page.folded("Packages and commit", table(("package", "version"), list(versions.items()))))


SECTIONS: dict[str, Callable[[Facts], str]] = {
  "Results": results_of, "Curves": curves, "GLUE": glue_scores, "Samples": samples, "Recipe": recipe,
  "Hardware and time": hardware, "Floating-point operations": operations, "Configuration": every_key}


def _summary(facts: Facts) -> dict[str, dict[str, float]]:
  names = facts.seeds[0]["scores"] if facts.seeds else ()
  return {name: scoring.summarise([run["scores"][name] for run in facts.seeds]) for name in names}


def _value(value: object) -> str:
  if isinstance(value, int) and not isinstance(value, bool):
    return f"{value:,}"
  return '""' if value == "" else str(value)


def write(workdir: str, out: str, num_samples: int) -> str:
  """Writes the page, whole or not at all, and returns its path.

  Raises:
    UserError: there is no run, or the file cannot be written.
  """
  text = page(read(workdir, num_samples))
  try:
    with files.atomic(out) as file:
      file.write(text)
  except OSError as error:
    raise UserError("The report cannot be written", got=f"{out}: {error.strerror or error}",
                    allowed="a file in a folder that you may write to", fix="choose another --out") from error
  return out


def main(argv: list[str]) -> None:
  """Entry point."""
  if len(argv) != 2:
    raise UserError("A report is about one run", got=" ".join(argv[1:]) or "no workdir", allowed="one workdir",
                    fix="python -m electra_jax.tools.report runs/tiny")
  print(write(argv[1], FLAGS.out or os.path.join(argv[1], "report.html"), FLAGS.samples))


if __name__ == "__main__":  # flags, too: other tools have some of the same names
  flags.DEFINE_string("out", "", "The page; by default WORKDIR/report.html.")
  flags.DEFINE_integer("samples", 6, "Held-out texts for samples of what the model says; 0: none, which is quicker.",
                       lower_bound=0)
  main_lib.run(main, USAGE, takes_arguments=True)
