"""Summary of a run: a table of its last evaluation next to its baselines."""

import os
import statistics

from rich.console import Console
from rich.table import Table

from electra_jax import config as config_lib
from electra_jax import files, metrics, progress
from electra_jax import main as main_lib
from electra_jax.errors import UserError
from electra_jax.tasks import scoring
from electra_jax.training import warning_signs

USAGE = """Prints the last evaluation of one or more runs next to its baselines, the speed and the paths.

  python -m electra_jax.tools.summary runs/tiny
  python -m electra_jax.tools.summary runs/*

A loss means something only next to its baseline: the unigram entropy is the loss of the best model that ignores all
context, an AUC of 0.5 is chance. Of a fine-tuning, the scores on the dev set. tools/report has more, as a page."""


def rows_of(workdir: str) -> list[tuple[str, str, str]]:
  """(what, value, baseline or note) lines of one run.

  Raises:
    UserError: the workdir holds no run, or one that has not logged yet.
  """
  config, results = config_lib.load(workdir), os.path.join(workdir, "results.json")
  if os.path.exists(results):
    return [(f"{config.task.name}, {name}", scoring.percent(row["median"]), "median over the seeds")
            for name, row in files.read_json(results)["summary"].items()]
  rows = metrics.read_rows(workdir)
  step = max(row["step"] for row in rows)
  last = next((row for row in reversed(rows) if row["split"] == "eval"), {})
  entropy = last.get("eval/unigram_entropy")
  lines = [("steps", f"{step:,} of {config.train.num_steps:,}", "")]
  if not last:
    lines.append(("held-out text", "not evaluated yet", "eval.every_steps; never with data.heldout_share=0"))
  if "mlm/loss" in last:
    lines += [("held-out MLM loss", _number(last["mlm/loss"], " nats"),
               f"{entropy:.3f}: unigram entropy of the same tokens"),
              ("held-out MLM accuracy", _number(100 * last["mlm/accuracy"], " %", 1), ""),
              ("held-out perplexity", _number(last["mlm/perplexity"], digits=1), "")]
  if "rtd/auc" in last:
    lines += [("held-out RTD AUC", _number(last["rtd/auc"]), "0.500: chance"),
              ("held-out RTD loss", _number(last["rtd/loss"], " nats"),
               f"{last['rtd/constant_loss']:.3f}: the same answer everywhere" if "rtd/constant_loss" in last else "")]
  if "rtd/recall" in last:
    lines.append(("replaced tokens", progress.describe_marks(last), ""))
  speeds, mfus = ([row[name] for row in rows if name in row] for name in ("train/tokens_per_second", "train/mfu"))
  if speeds:
    lines.append(("training speed", f"{statistics.median(speeds):,.0f} tokens/s", "median of the log windows"))
  if mfus:
    lines.append(("MFU", f"{100 * statistics.median(mfus):.1f} %", "median of the log windows"))
  if seconds := time_spent(rows):
    share = seconds["steps"] / sum(seconds.values())
    lines.append(("goodput", f"{100 * share:.1f} %", "share of the time spent on steps"))
  lines += [("warning", sign, "") for sign in warning_signs.find(config, rows)]
  for what, name in (("checkpoint", os.path.join("checkpoints", str(step))), ("curves", "curves.png")):
    path = os.path.abspath(os.path.join(workdir, name))
    if os.path.exists(path):
      lines.append((what, path, ""))
  return lines


def time_spent(rows: list[dict], of: str = "time") -> dict[str, float]:
  """Purpose -> seconds, over all starts that ended in order; {} if none did. `of`="start": the parts of starting up."""
  spent: dict[str, float] = {}
  for row in rows:
    for key, value in row.items():
      if row["split"] == "time" and key.startswith(f"{of}/") and key.endswith("_seconds"):
        name = key.removeprefix(f"{of}/").removesuffix("_seconds").replace("_", " ")
        spent[name] = spent.get(name, 0.0) + value
  return spent if sum(spent.values()) > 0 else {}


def _number(value: float, unit: str = "", digits: int = 3) -> str:
  return f"{value:.{digits}f}{unit}" if value == value else "not finite"


def main(argv: list[str]) -> None:
  """Prints a table for each workdir."""
  if len(argv) < 2:
    raise UserError("No run is named", got="no workdir", allowed="one or more workdirs",
                    fix="python -m electra_jax.tools.summary runs/tiny")
  console = Console(highlight=False, width=max(100, Console().width))
  for workdir in argv[1:]:
    try:
      lines = rows_of(workdir)
    except UserError as error:
      if len(argv) == 2:
        raise
      lines = [("left out", error.what, "")]  # of runs/* some may be no runs, or have only begun
    table = Table(title=workdir, show_header=False, title_justify="left")
    for line in lines:
      table.add_row(*line)
    console.print(table)


if __name__ == "__main__":
  main_lib.run(main, USAGE, takes_arguments=True)
