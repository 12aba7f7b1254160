"""How did the models of a claim come along? Held-out metrics against training FLOPs and GLUE by task, as a PNG."""

import math
import os
from collections.abc import Sequence

from electra_jax import config as config_lib
from electra_jax import figures, flops, metrics
from electra_jax.objectives.table import ROWS
from electra_jax.tools import evidence_report as report
from electra_jax.tools.evidence_claims import AVERAGE, CLAIMS, Planned, by_model


def draw(name: str, rows: Sequence[Planned], out: str) -> bool:
  """Held-out metrics against training FLOPs, and GLUE by task, as a PNG; False where there is nothing to draw."""
  curves = {}  # metric -> [(model, whose metric, FLOPs, values)]
  for row in rows:
    if not metrics.has_rows(row.workdir):
      continue
    config = config_lib.load(row.workdir)
    count = flops.paper_flops(config)
    for metric in report.HELDOUT:
      points = [(one["step"] * count.per_step, one[metric])
                for one in metrics.read_rows(row.workdir)
                if one["split"] == "eval" and metric in one and math.isfinite(one[metric])]
      if points:
        owner = ", its generator" * (metric == "mlm/loss" and len(ROWS[config.objective.name].networks) > 1)
        curves.setdefault(metric, []).append((row.model.name, owner, *zip(*points)))
  scores = {}  # model -> metric of GLUE -> (percent, spread)
  for own in by_model(rows):
    for one in report.figures_of(name, own, ""):
      if one["metric"].startswith("glue/"):
        found = scores.setdefault(one["model"], {})
        found[one["metric"].removeprefix("glue/")] = one["value"], one["spread"]
  if not curves and not scores:
    return False
  panels = len(curves) + bool(scores)
  shape = math.ceil(panels / 2), min(panels, 2)  # two a row: readable where a page is 830 pixels wide
  figure = figures.new(6.0 * shape[1], 4.2 * shape[0])
  colours = {row.model.name: figures.COLOURS[i % len(figures.COLOURS)]
             for i, (row, *_) in enumerate(by_model(rows))}
  for number, (metric, lines) in enumerate(curves.items(), 1):
    axes, named = figure.add_subplot(*shape, number), set()
    for model, owner, x, y in lines:
      label = None if model in named else model + owner  # once for all of its pre-trainings
      axes.plot(x, y, "o-", markersize=3, linewidth=1.2, color=colours[model], label=label)
      named.add(model)
    axes.set(title=f"held-out {report.HELDOUT[metric]}", xlabel="training FLOPs (ELECTRA Appendix C)", xlim=(0, None))
    figures.finish(axes)
  if scores:
    axes = figure.add_subplot(*shape, panels)
    names = [metric for metric in (*CLAIMS[name].tasks, AVERAGE) if any(metric in one for one in scores.values())]
    for number, (model, found) in enumerate(scores.items()):
      own = [(i + (number - (len(scores) - 1) / 2) * 0.12, *found[metric]) for i, metric in enumerate(names)
             if metric in found]
      axes.errorbar([x for x, _, _ in own], [value for _, value, _ in own], [spread or 0.0 for _, _, spread in own],
                    fmt="o", markersize=4, capsize=2, color=colours[model], label=model)
    axes.set(title="GLUE dev, percent", xticks=range(len(names)))
    axes.set_xticklabels([report.TITLES[metric] for metric in names], rotation=30)
    figures.finish(axes)
  os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
  figures.save(figure, out)
  return True
