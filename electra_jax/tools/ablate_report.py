"""How is an ablation shown? A Markdown table with the paper's number, and quality against training FLOPs."""

import math
import re
import statistics
from collections.abc import Sequence

from electra_jax import figures

NAMED = re.compile(r'"([^"]+)"')
NUMBER = re.compile(r"\d\d\.\d(?=\D|$)")
OWN = ("mlm/loss", "mlm/accuracy", "rtd/loss", "rtd/auc", "replace_mlm/loss",
       "all_tokens_mlm/loss")


def row_name(result: dict) -> str:
  """The row's name in the paper, where the recipe's docstring quotes one; else the recipe's.

  >>> row_name({"name": "table3_bert", "about": 'ELECTRA Table 3, row "BERT": 82.2 GLUE'})
  'BERT'
  """
  found = NAMED.search(result["about"])
  return found[1] if found and "Weight" not in found[1] else result["name"]


def paper_number(result: dict) -> str:
  """The paper's numbers as the docstring says them, from the first figure with a decimal on.

  >>> paper_number({"about": 'ELECTRA Table 3, row "BERT": 82.2 GLUE; BERT-Base as the paper trains it.'})
  '82.2 GLUE'
  """
  tail = result["about"].split(": ", 1)[-1].split(";")[0].rstrip('.,"')
  return tail if NUMBER.search(tail) else ""


def groups_of(results: Sequence[dict]) -> list[list[dict]]:
  """The seeds of each recipe together, in the order of the runs."""
  return [[one for one in results if one["name"] == name] for name in dict.fromkeys(one["name"] for one in results)]


def table(results: Sequence[dict], quality_name: str, chance: float) -> str:
  """The Markdown table, and below it what each objective says of itself."""
  lines = [f"| Row | Paper | {quality_name} (ours) | untrained | Training FLOPs | Steps | Seconds |",
           "|---|---|---|---|---|---|---|"]
  for seeds in groups_of(results):
    first = seeds[0]
    value, error = seeds_mean(seeds, -1)
    untrained, _ = seeds_mean(seeds, 0)
    lines.append(f"| {row_name(first)} | {paper_number(first)} | {value:.4f} ± {error:.4f} | {untrained:.4f} | "
                 f"{first['flops']:.3g} | {first['steps']:,} | {statistics.mean(s['seconds'] for s in seeds):,.0f} |")
  num_seeds = max(len(seeds) for seeds in groups_of(results))
  spread = ("the standard error over the judged pairs of the single seed" if num_seeds == 1 else
            f"the standard deviation over {num_seeds} seeds")
  lines += ["", f"± is {spread}; chance is {chance:g}. FLOPs are ELECTRA Appendix C's. Seconds are of training steps, "
            "without compilation and evaluation.", "",
            "Each objective's own held-out metrics (of its own task: not to be compared between rows):", ""]
  names = [name for name in OWN if any(name in one["own"] for one in results)]
  lines += ["| Row | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
  for seeds in groups_of(results):
    cells = [f"{statistics.mean(s['own'][name] for s in seeds):.4f}" if name in seeds[0]["own"] else ""
             for name in names]
    lines.append(f"| {row_name(seeds[0])} | " + " | ".join(cells) + " |")
  return "\n".join(lines) + "\n"


def seeds_mean(seeds: Sequence[dict], index: int) -> tuple[float, float]:
  """Mean of a point's quality and its spread: over seeds, or of a single one the pairs' standard error."""
  points = [one["points"][index] for one in seeds]
  values = [value for _, value, _ in points]
  return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else points[0][2]


def draw(results: Sequence[dict], quality, out: str) -> str:
  """Quality against training FLOPs, a curve for each row, the form of ELECTRA Figures 1 and 3; returns `out`."""
  figure = figures.new(7.5, 5.0)
  axes = figure.add_subplot()
  for number, seeds in enumerate(groups_of(results)):
    count = min(len(one["points"]) for one in seeds)
    means = [seeds_mean(seeds, index) for index in range(count)]
    axes.errorbar([seeds[0]["points"][index][0] for index in range(count)], [value for value, _ in means],
                  [0.0 if math.isnan(error) else error for _, error in means],
                  marker="osDv^P*X"[number % 8], markersize=4, linewidth=1.3, capsize=2, label=row_name(seeds[0]),
                  color=figures.COLOURS[number % len(figures.COLOURS)])
  axes.axhline(quality.chance, linestyle=":", linewidth=1, color="grey", label="chance")
  axes.set(xlabel="training FLOPs (ELECTRA Appendix C)", ylabel=quality.title, xlim=(0, None))
  figures.finish(axes)
  figures.save(figure, out)
  return out
