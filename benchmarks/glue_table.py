"""Do two sweeps of GLUE differ? Each task's best rate of both, side by side."""

import glob
import json
import os
import sys

from electra_jax.tasks import scoring
from electra_jax.tasks.glue import GLUE


def best(out: str, task: str) -> tuple[str, dict]:
  """(folder, summary of the deciding metric) of the point with the best median."""
  metric, found = GLUE[task].metrics[0], []
  for path in sorted(glob.glob(os.path.join(out, task, "*", "results.json"))):
    with open(path, encoding="utf-8") as file:
      summary = json.load(file)["summary"][metric]
    found.append((os.path.basename(os.path.dirname(path)), {k: float("nan") if v is None else v
                                                            for k, v in summary.items()}))
  return found[scoring.best([row["median"] for _, row in found]) or 0]


def table(outs: list[str]) -> str:
  """Markdown, percent: median (min to max) at the best rate of each sweep."""
  names = [task for task in GLUE if all(os.path.isdir(os.path.join(out, task)) for out in outs)]
  lines = ["| Task | Metric | " + " | ".join(os.path.basename(os.path.normpath(out)) for out in outs) + " |",
           "|---" * (len(outs) + 2) + "|"]
  for task in names:
    cells = []
    for out in outs:
      folder, row = best(out, task)
      cells.append(f"{100 * row['median']:.1f} ({100 * row['min']:.1f} to {100 * row['max']:.1f}), {folder}")
    lines.append(f"| {task} | {GLUE[task].metrics[0]} | " + " | ".join(cells) + " |")
  return "\n".join(lines)


if __name__ == "__main__":
  print(table(sys.argv[1:]))
