"""Report of an experiment: tables next to the papers' numbers, differences with their noise, curves."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from electra_jax import config as config_lib
from electra_jax import flops, metrics, plotting
from electra_jax.objectives.table import ROWS as OBJECTIVES
from electra_jax.tasks import glue
from electra_jax.tools.experiments.results import pretrainings_of, read_probe
from electra_jax.tools.experiments.rows import AVERAGE, Planned, Table, by_model

PERPLEXITY = "perplexity"  # of held-out text; comparable only between masked LMs
PROBE = "probe"
TITLES = {AVERAGE: "GLUE", PERPLEXITY: "Perplexity", PROBE: "Probe", "untrained": "Probe, untrained",
          **{name: row.folder for name, row in glue.GLUE.items()}}
KEYS = {PERPLEXITY: "heldout/mlm/perplexity", PROBE: "probe/trained", "untrained": "probe/untrained"}
HELDOUT = {"mlm/loss": "MLM loss", "rtd/auc": "RTD AUC", "replace_mlm/loss": "Replace MLM loss",
           "all_tokens_mlm/loss": "All-Tokens MLM loss"}


def table(of: Table, rows: Sequence[Mapping]) -> str:
  """A Markdown table: the paper's numbers, ours, each task, the cost of the training."""
  has = {row["metric"] for row in rows}
  with_paper = [metric for metric in of.metrics if any(model.paper.get(metric) for model in of.models)]
  compared = [metric for metric in (*of.metrics, PROBE) if metric in with_paper or metric_key(metric) in has]
  others = [name for name in ("untrained", *of.tasks) if name not in compared and metric_key(name) in has]
  several = any(pretrainings_of(row) > 1 for row in rows)
  lines: list[dict[str, str]] = []  # of each model: heading -> cell
  for model in of.models:
    own = {row["metric"]: row for row in rows if row["model"] == model.name}
    if not own:
      continue
    first, cells = next(iter(own.values())), {"Model": model.name}
    for metric in compared:
      if metric in with_paper:
        cells[f"{TITLES[metric]}, paper"] = _number(model.paper.get(metric), metric)
      cells[f"{TITLES[metric]}, ours"] = _value(own, metric)
    cells |= {TITLES[name]: _value(own, name, spread=False) for name in others}
    heldout = [f"{title} {own[f'heldout/{name}']['value']:.3f}" for name, title in HELDOUT.items()
               if f"heldout/{name}" in own]
    cells["Held-out"] = "generator's " * (len(heldout) > 1) + ", ".join(heldout)
    if several:
      cells["Pre-trainings"] = str(max(map(pretrainings_of, own.values())))
    cells |= {"Steps": f"{first['steps']:,}" + f" of {first['planned_steps']:,}" * (
                first["steps"] < first["planned_steps"]),
              "Tokens": f"{first['tokens'] / 1e6:,.0f} M", "FLOPs": f"{first['train_flops']:.3g}",
              "Minutes": f"{first['minutes']:,.1f}", "Card": first["card"]}
    lines.append(cells)
  return plotting.markdown(list(lines[0]), (cells.values() for cells in lines)) if lines else ""


class Difference(NamedTuple):
  """The difference of a model of a table from the first one."""

  model: str
  first: str
  metric: str  # the table's first one, or the probe if that was not measured
  ours: float
  noise: float  # standard error of `ours`; 0 if the metric is of a single run
  paper: float | None
  is_behind: bool = False  # whether the paper names only this sign (Table.behind)
  limit: float = 2.0  # up to so many times the noise it may be chance

  @property
  def is_noise(self) -> bool:
    """Whether seeds alone may explain it."""
    return bool(self.noise) and abs(self.ours) <= self.limit * self.noise

  @property
  def contradicts(self) -> bool:
    """Whether the paper's has the opposite sign."""
    return not self.is_noise and self.ours * self.expected < 0

  @property
  def expected(self) -> float:
    """The paper's difference, -1 if it names only that sign, 0 if it names none."""
    return -1.0 if self.is_behind else self.paper or 0.0

  def in_paper(self, digits: int) -> str:
    """The paper's number or sign, "" if it names neither."""
    return "behind" if self.is_behind else "" if self.paper is None else f"{self.paper:+.{digits}f}"

  def value(self, digits: int) -> str:
    """Ours, with its noise."""
    return f"{self.ours:+.{digits}f}" + f" ± {self.noise:.{digits}f}" * bool(self.noise)


def compare(of: Table, rows: Sequence[Mapping], chance: Mapping[str, float] | None = None) -> list[Difference]:
  """Each other model against the first one, if both have been run.

  Args:
    chance: metric -> standard deviation between pre-trainings, for models that were pre-trained once; without it, their
      noise is only that of fine-tuning.
  """
  metric, first = of.metrics[0], of.models[0]
  if not any(row["metric"] == metric_key(metric) for row in rows):
    metric = PROBE
  by_name = {row["model"]: row for row in rows if row["metric"] == metric_key(metric)}
  compared = []
  for model in of.models[1:]:
    if first.name in by_name and model.name in by_name:
      a, b = by_name[model.name], by_name[first.name]
      ours, other = model.paper.get(metric), first.paper.get(metric)
      compared.append(Difference(model.name, first.name, metric, a["value"] - b["value"],
                              math.hypot(_standard_error(a, chance or {}), _standard_error(b, chance or {})),
                              None if ours is None or other is None else ours - other, model.name in of.behind,
                              _limit(a, b)))
  return compared


def differences(of: Table, rows: Sequence[Mapping], chance: Mapping[str, float] | None = None) -> list[str]:
  """Lines that compare each other model with the first: the paper's difference, ours, and whether ours is noise."""
  lines = []
  for difference in compare(of, rows, chance):
    text = f"{difference.value(2)} here"
    if paper := difference.in_paper(2):
      text = f"{paper} in the paper, {text}"
      if not difference.is_noise:
        text += ": the other sign" if difference.contradicts else ": the same sign"
    if difference.is_noise:
      text += ": within noise"
    lines.append(f"* {difference.model} − {difference.first}, {TITLES[difference.metric]}: {text}.")
  return lines


def draw(of: Table, rows: Sequence[Planned], scores: Sequence[dict], out: str) -> bool:
  """Draws held-out metrics and the probe against training FLOPs, and GLUE by task; False if there is nothing to draw.

  Args:
    scores: the figures of these models.
  """
  curves = {}  # title -> [(model, whose metric, FLOPs, values)]
  for row in rows:
    if not (logged := metrics.rows_so_far(row.workdir)):
      continue
    config = config_lib.load(row.workdir)
    per_step = flops.paper_flops(config).per_step
    evaluations = [row for row in logged if row["split"] == "eval"]
    for metric, title in HELDOUT.items():
      points = [(row["step"] * per_step, row[metric]) for row in evaluations
                if math.isfinite(row.get(metric, math.nan))]
      if points:
        owner = ", its generator" * (metric == "mlm/loss" and len(OBJECTIVES[config.objective.name].networks) > 1)
        curves.setdefault(f"held-out {title}", []).append((row.model.name, owner, *zip(*points)))
    if points := [(step * per_step, value) for step, (value, _) in read_probe(row.workdir).items()]:
      curves.setdefault("probe: do two held-out halves belong together?", []).append(
        (row.model.name, "", *zip(*points)))
  glue_of = {model.name: {row["metric"].removeprefix("glue/"): row for row in scores
                          if row["model"] == model.name and row["metric"].startswith("glue/")} for model in of.models}
  has_glue = any(glue_of.values())
  if not curves and not has_glue:
    return False
  panels = len(curves) + has_glue
  columns = min(panels, 2)  # more in a row cannot be read on a page
  rows_of_panels = -(-panels // columns)
  figure = plotting.new(6.0 * columns, 4.2 * rows_of_panels)
  colours = {row.model.name: plotting.COLOURS[i % len(plotting.COLOURS)] for i, (row, *_) in enumerate(by_model(rows))}
  for number, (title, lines) in enumerate(curves.items(), 1):
    axes, named = figure.add_subplot(rows_of_panels, columns, number), set()
    for model, owner, x, y in lines:
      label = None if model in named else model + owner  # once for all of its pre-trainings
      axes.plot(x, y, "o-", markersize=3, linewidth=1.2, color=colours[model], label=label)
      named.add(model)
    axes.set(title=title, xlabel="training FLOPs (ELECTRA Appendix C)", xlim=(0, None))
    plotting.finish(axes)
  if has_glue:
    axes = figure.add_subplot(rows_of_panels, columns, panels)
    names = [name for name in (*of.tasks, AVERAGE) if any(name in own for own in glue_of.values())]
    for number, (model, own) in enumerate((model, own) for model, own in glue_of.items() if own):
      x = [i + (number - (len(glue_of) - 1) / 2) * 0.12 for i, name in enumerate(names) if name in own]
      values = [own[name] for name in names if name in own]
      axes.errorbar(x, [score["value"] for score in values], [score["spread"] or 0.0 for score in values],
                    fmt="o", markersize=4, capsize=2, color=colours[model], label=model)
    axes.set(title="GLUE dev, percent", xticks=range(len(names)))
    axes.set_xticklabels([TITLES[name] for name in names], rotation=30)
    plotting.finish(axes)
  os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
  plotting.save(figure, out)
  return True


def _standard_error(row: Mapping, chance: Mapping[str, float]) -> float:
  """That of the mean of several pre-trainings; for a single one `chance`, or else the spread of fine-tuning."""
  if pretrainings_of(row) > 1:
    return row["spread"] / pretrainings_of(row)**0.5
  return chance.get(row["metric"], row["spread"] or 0.0)


def _limit(a: Mapping, b: Mapping) -> float:
  """Two standard errors of single pre-trainings; for means of several, Student's two-sided 95 %."""
  from scipy import stats  # takes most of a second

  both = pretrainings_of(a) + pretrainings_of(b)
  return 2.0 if both == 2 else float(stats.t.ppf(0.975, both - 2))


def metric_key(metric: str) -> str:
  """The metric's name in a row of figures."""
  return KEYS.get(metric, f"glue/{metric}")


def _value(own: Mapping[str, Mapping], metric: str, spread: bool = True) -> str:
  row = own.get(metric_key(metric))
  if row is None:
    return ""
  return _number(row["value"], metric) + (f" ± {row['spread']:.1f}" if spread and row["spread"] else "")


def _number(value: float | None, metric: str) -> str:
  return "" if value is None else f"{value:.2f}" if metric == PERPLEXITY else f"{value:.1f}"
