"""What came out of the runs of a claim? Rows of figures, and a Markdown table beside the paper's numbers."""

import json
import math
import os
import pathlib
import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import scipy.stats

from electra_jax import config as config_lib
from electra_jax import flops, metrics, workdir
from electra_jax.errors import UserError
from electra_jax.tasks import glue, results, scoring
from electra_jax.tools import ablate, evidence_runs
from electra_jax.tools.evidence_claims import AVERAGE, CLAIMS, PERPLEXITY, Claim, Planned

TITLES = {AVERAGE: "GLUE", PERPLEXITY: "Perplexity", **{name: row.folder for name, row in glue.GLUE.items()}}
HELDOUT = {"mlm/loss": "MLM loss", "rtd/auc": "RTD AUC", "replace_mlm/loss": "Replace MLM loss",
           "all_tokens_mlm/loss": "All-Tokens MLM loss"}


# ---- figures ----


def figures_of(name: str, rows: Sequence[Planned], command: str) -> list[dict]:
  """Every figure of a model over its pre-trainings.

  Of one they are those of `rows_of`. Where several have a figure, `value` is their mean, `spread` their sample standard
  deviation, `runs` has each of them, and `pretrainings` says how many there are. One that has taken fewer steps than
  another is left out: the mean would be of two budgets.
  """
  each = [one for row in rows for one in rows_of(name, row, command)]
  steps, found = max((one["steps"] for one in each), default=0), {}
  for one in each:
    if one["steps"] == steps:
      found.setdefault(one["metric"], []).append(one)
  return [_over_pretrainings(each) for each in found.values()]


def _over_pretrainings(each: Sequence[dict]) -> dict:
  if len(each) == 1:
    return each[0]
  values = [one["value"] for one in each]
  return each[0] | {"value": statistics.fmean(values), "spread": statistics.stdev(values),
                    "runs": [round(value, 4) for value in values], "pretrainings": len(each),
                    "minutes": round(statistics.fmean(one["minutes"] for one in each), 2)}


def rows_of(name: str, row: Planned, command: str) -> list[dict]:
  """Every figure of a pre-training: GLUE scores in percent as medians over the seeds, and the last held-out metrics.

  Empty before the first line of metrics. `spread` is the sample standard deviation over the seeds of fine-tuning.
  """
  if not metrics.has_rows(row.workdir):
    return []
  config, logged = config_lib.load(row.workdir), metrics.read_rows(row.workdir)
  trained = [one for one in logged if one["split"] == "train"]
  if not trained:
    return []
  evaluated = [one for one in logged if one["split"] == "eval"]
  sweep = newest_sweep(row.sweeps)
  steps = sweep or trained[-1]["step"]
  seconds = ablate.training_seconds(ablate.Row(name, "", None, config, row.workdir)) * steps / trained[-1]["step"]
  starts = workdir.read_starts(row.workdir)
  facts = {"train_flops": steps * flops.paper_flops(config).per_step, "minutes": round(seconds / 60, 2),
           "card": f"{starts[-1]['num_devices']} x {starts[-1]['device_kind']}" if starts else "", "command": command,
           "steps": steps, "planned_steps": config.train.num_steps, "pretrainings": 1,
           "tokens": steps * config.train.batch_size * config.data.sequence_length}

  def figure(metric, value, spread=None, runs=None, paper=None):
    return {"claim": name, "model": row.model.name, "metric": metric, "value": value,
            "seeds": 1 if runs is None else len(runs), "spread": spread,
            "runs": [round(one, 2) for one in runs or ()], "paper": paper, **facts}

  found = glue_figures(evidence_runs.glue_folder(row, sweep), CLAIMS[name].tasks) if sweep else {}
  figures = [figure(f"glue/{metric}", *values, paper=row.model.paper.get(metric)) for metric, values in found.items()]
  if evaluated:
    last = evaluated[-1]
    figures += [figure(f"heldout/{metric}", value, paper=row.model.paper.get(metric.removeprefix("mlm/")))
                for metric, value in last.items()
                if "/" in metric and isinstance(value, float) and math.isfinite(value)]
  speeds = sorted(one["train/tokens_per_second"] for one in trained if one.get("train/tokens_per_second"))
  return figures + ([figure("train/tokens_per_second", round(statistics.median(speeds)))] if speeds else [])


def newest_sweep(folder: str) -> int:
  """The step from whose checkpoint the newest of these sweeps over GLUE started; 0 without one."""
  names = [name for name in os.listdir(folder) if name.startswith("step_")] if os.path.isdir(folder) else []
  return max((int(name[5:]) for name in names), default=0)


def glue_figures(folder: str, tasks: Sequence[str]) -> dict[str, tuple[float, float | None, list[float]]]:
  """{task or average: (percent, spread, percent of each seed)} of the finished tasks of a sweep.

  The average is of the tasks' medians, as the paper takes it (section 3.1), and stands there when no task is missing;
  its spread is that of the averages of single seeds.
  """
  found, by_seed, medians = {}, {}, {}
  for task in tasks:
    path = evidence_runs.task_results(folder, task)
    if not os.path.exists(path):
      continue
    content = results.read_json(path)
    metric = glue.GLUE[task].metrics[0]
    medians[task] = {name: row["median"] for name, row in content["summary"].items()}
    for run in content["runs"]:
      by_seed.setdefault(run["seed"], {})[task] = run["scores"]
    found[task] = _percent(content, metric)
    if "mismatched/accuracy" in content["summary"]:
      found["mnli_mm"] = _percent(content, "mismatched/accuracy")
  average = scoring.glue_score(medians)
  if math.isfinite(average):
    seeds = [100 * score for score in map(scoring.glue_score, by_seed.values()) if math.isfinite(score)]
    found = {AVERAGE: (100 * average, statistics.stdev(seeds) if len(seeds) > 1 else None, seeds)} | found
  return found


def _percent(content: Mapping, metric: str) -> tuple[float, float | None, list[float]]:
  summary = content["summary"][metric]
  spread = 100 * summary["sd"] if math.isfinite(summary["sd"]) else None
  scores = [run["scores"][metric] for run in content["runs"]]  # as in the summary, failed ones do not count
  return 100 * summary["median"], spread, [100 * one for one in scores if one is not None and math.isfinite(one)]


def merge(before: Iterable[dict], new: Iterable[dict]) -> list[dict]:
  """The new figures take the place of all of the same models of the same claims; in the order of CLAIMS."""
  new = list(new)
  models = {(one["claim"], one["model"]) for one in new}
  rows = [one for one in before if (one["claim"], one["model"]) not in models] + new
  order = {(name, model.name): (i, j) for i, (name, claim) in enumerate(CLAIMS.items())
           for j, model in enumerate(claim.models)}
  return sorted((row for row in rows if (row["claim"], row["model"]) in order),
                key=lambda row: order[row["claim"], row["model"]])


def load(path: str) -> list[dict]:
  """The rows of a file of figures, as docs/results/evidence.json; none where it does not exist.

  Raises:
    UserError: it is damaged.
  """
  if not os.path.exists(path):
    return []
  try:
    with open(path, encoding="utf-8") as file:
      return json.load(file)
  except ValueError as error:
    raise UserError("The file of figures is damaged", got=f"{path}: {error}", allowed="a list of rows",
                    fix="restore it from git") from error


def save(path: str, rows: Sequence[dict]) -> None:
  """One row a line, so that a diff shows what has changed."""
  os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
  with open(f"{path}.partial", "w", encoding="utf-8") as file:
    file.write("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
  os.replace(f"{path}.partial", path)


# ---- Markdown ----


def page(rows: Sequence[dict], folder: str, link: str) -> str:
  """docs/results.md: a table for each claim, the differences, what FOLDER/CLAIM.md remarks, and the pictures:
  CLAIM.png, then any CLAIM-MORE.png.

  Args:
    rows: of evidence.json.
    folder: docs/results.
    link: the same as a link in the page.
  """
  parts = ["# Results", textwrap.fill(
    f"Every figure with its spread, budget and command is a row of [evidence.json]({link}/evidence.json). FLOPs are in "
    "the ELECTRA paper's convention (Appendix C). ± is the standard deviation over the seeds of fine-tuning of a "
    "model that was pre-trained once; the chance of pre-training comes on top (see table3). Where a "
    "table counts pre-trainings, ± is theirs, each the median of its seeds, and that of a difference is the standard "
    "error. The papers' numbers are of models that were trained for far longer, most of them larger, and fine-tuned on "
    "all of GLUE's training examples, ours on at most 12,000 of a task: the order is what can be compared. Minutes are "
    "those of the training steps.", 125,
    break_long_words=False, break_on_hyphens=False), overview(rows)]
  for name, claim in CLAIMS.items():
    own = [row for row in rows if row["claim"] == name]
    if not own:
      continue
    parts += [f"## {name}: {claim.source}", f"*{claim.says}* `{own[0]['command']}`", table(claim, own)]
    parts += ["\n".join(differences(claim, own))] if differences(claim, own) else []
    remarks = os.path.join(folder, f"{name}.md")
    if os.path.exists(remarks):
      with open(remarks, encoding="utf-8") as file:
        parts.append(file.read().strip())
    root = pathlib.Path(folder)
    parts += [f"![curves of {path.stem}]({link}/{path.name})"
              for path in (*root.glob(f"{name}.png"), *sorted(root.glob(f"{name}-*.png")))]
  return "\n\n".join(parts) + "\n"


def table(claim: Claim, rows: Sequence[dict]) -> str:
  """A Markdown table of a claim: the paper's numbers, ours, each task, what the training cost."""
  compared = list(claim.metrics)
  others = [task for task in claim.tasks if task not in compared and _any(rows, f"glue/{task}")]
  with_paper = [metric for metric in compared if any(model.paper.get(metric) for model in claim.models)]
  head = ["Model"]
  for metric in compared:
    head += [f"{TITLES[metric]}, paper"] * (metric in with_paper) + [f"{TITLES[metric]}, ours"]
  several = any(_pretrainings(row) > 1 for row in rows)
  head += [TITLES[task] for task in others] + ["Held-out"] + ["Pre-trainings"] * several
  head += ["Steps", "Tokens", "FLOPs", "Minutes", "Card"]
  lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
  for model in claim.models:
    own = {row["metric"]: row for row in rows if row["model"] == model.name}
    if not own:
      continue
    first = next(iter(own.values()))
    cells = [model.name]
    for metric in compared:
      cells += [_number(model.paper.get(metric), metric)] * (metric in with_paper) + [_value(own, metric)]
    cells += [_value(own, task, spread=False) for task in others]
    heldout = [f"{title} {own[f'heldout/{name}']['value']:.3f}" for name, title in HELDOUT.items()
               if f"heldout/{name}" in own]
    heldout[:1] = [f"generator's {heldout[0]}"] if len(heldout) > 1 else heldout[:1]
    steps = f"{first['steps']:,}" + f" of {first['planned_steps']:,}" * (first["steps"] < first["planned_steps"])
    cells += [", ".join(heldout)] + [str(max(map(_pretrainings, own.values())))] * several
    cells += [steps, f"{first['tokens'] / 1e6:,.0f} M", f"{first['train_flops']:.3g}",
              f"{first['minutes']:,.1f}", first["card"]]
    lines.append("| " + " | ".join(cells) + " |")
  return "\n".join(lines)


class Difference(NamedTuple):
  """Between a model of a claim and the first one, in the claim's first metric."""

  model: str
  first: str
  ours: float
  noise: float  # of the two spreads, of means' standard errors; 0 where the metric is of one run
  paper: float | None
  limit: float = 2.0  # so many times the noise may be chance

  @property
  def is_noise(self) -> bool:
    """Whether the seeds alone may make it."""
    return bool(self.noise) and abs(self.ours) <= self.limit * self.noise

  @property
  def contradicts(self) -> bool:
    """Whether the paper's has the other sign."""
    return self.paper is not None and not self.is_noise and self.ours * self.paper < 0

  def value(self, digits: int) -> str:
    """Ours, with its noise."""
    return f"{self.ours:+.{digits}f}" + f" ± {self.noise:.{digits}f}" * bool(self.noise)


def compare(claim: Claim, rows: Sequence[dict]) -> list[Difference]:
  """Each other model against the first one, as far as both have been run."""
  metric, first = claim.metrics[0], claim.models[0]
  by_model = {row["model"]: row for row in rows if row["metric"] == _key(metric)}
  found = []
  for model in claim.models[1:]:
    if first.name in by_model and model.name in by_model:
      a, b = by_model[model.name], by_model[first.name]
      papers = [model.paper.get(metric), first.paper.get(metric)]
      found.append(Difference(model.name, first.name, a["value"] - b["value"],
                              math.hypot(*((one["spread"] or 0.0) / _pretrainings(one) ** 0.5 for one in (a, b))),
                              None if None in papers else papers[0] - papers[1], _limit(a, b)))
  return found


def differences(claim: Claim, rows: Sequence[dict]) -> list[str]:
  """Each other model against the first one: the paper's difference, ours, and whether it stands out of the noise."""
  lines = []
  for one in compare(claim, rows):
    said = f"{one.value(2)} here"
    if one.paper is not None:
      said = f"{one.paper:+.2f} in the paper, {said}"
      if not one.is_noise:
        said += ": the other sign" if one.contradicts else ": the same sign"
    if one.is_noise:
      said += ": within noise"
    lines.append(f"* {one.model} − {one.first}, {TITLES[claim.metrics[0]]}: {said}.")
  return lines


def overview(rows: Sequence[dict]) -> str:
  """A Markdown table with a line for each claim that was run: what the paper says, and the differences here."""
  lines = ["| Claim | What it says | Here | The difference is from |", "|---|---|---|---|"]
  for name, claim in CLAIMS.items():
    own = [row for row in rows if row["claim"] == name]
    if not own:
      continue
    found = compare(claim, own)
    said = [f"{one.model} {one.value(1)}" + ("" if one.paper is None else f" (paper {one.paper:+.1f})")
            + ", noise" * one.is_noise + ", **the other sign**" * one.contradicts for one in found]
    anchor = "".join(c for c in f"{name}: {claim.source}".lower() if c.isalnum() or c in " -").replace(" ", "-")
    lines.append(f"| [{name}](#{anchor}) | {claim.says} | {'; '.join(said) or 'held-out losses only'} | "
                 + (f"{found[0].first}, {TITLES[claim.metrics[0]]} |" if found else "|"))
  return "\n".join(lines)


def _pretrainings(row: Mapping) -> int:
  return row.get("pretrainings", 1)


def _limit(a: Mapping, b: Mapping) -> float:
  """Twice the spreads of fine-tuning; of means of pre-trainings Student's two-sided 95 %."""
  both = _pretrainings(a) + _pretrainings(b)
  return 2.0 if both == 2 else float(scipy.stats.t.ppf(0.975, both - 2))


def _key(metric: str) -> str:
  return "heldout/mlm/perplexity" if metric == PERPLEXITY else f"glue/{metric}"


def _any(rows: Sequence[dict], metric: str) -> bool:
  return any(row["metric"] == metric for row in rows)


def _value(own: Mapping[str, dict], metric: str, spread: bool = True) -> str:
  row = own.get(_key(metric))
  if row is None:
    return ""
  return _number(row["value"], metric) + (f" ± {row['spread']:.1f}" if spread and row["spread"] else "")


def _number(value: float | None, metric: str) -> str:
  return "" if value is None else f"{value:.2f}" if metric == PERPLEXITY else f"{value:.1f}"
