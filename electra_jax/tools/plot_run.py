"""Curves of one or several runs in one picture."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from electra_jax import main as main_lib
from electra_jax import metrics, plotting
from electra_jax.errors import UserError

FLAGS = flags.FLAGS

USAGE = """Draws the curves of one or several runs into one picture: losses, quality, speed.

  One run:               python -m electra_jax.tools.plot_run runs/tiny
  Several, one picture:  python -m electra_jax.tools.plot_run runs/tiny runs/other --out=both.png

One run has a colour for each curve; several have a colour for each run and a line style for each curve. The picture is
curves.png in the first WORKDIR unless --out says otherwise. An unfinished run is drawn as far as it has come."""

# Title, unit of the y axis, and the curves: (split, metric, label, line). A split of None means any.
PANELS = (
  ("Masked language model: loss", "cross-entropy [nats per masked token]", (
    ("train", "mlm/loss", "training", "-"),
    ("eval", "mlm/loss", "held-out", "o-"),
    (None, "eval/unigram_entropy", "unigram entropy of held-out tokens", "--"))),
  ("Replaced-token detection: loss", "binary cross-entropy [nats per token]", (
    ("train", "rtd/loss", "training", "-"),
    ("eval", "rtd/loss", "held-out", "o-"),
    ("eval", "rtd/constant_loss", "the same answer everywhere", "--"))),
  ("Replaced-token detection: quality", "share (accuracy) or area (AUC), 0 to 1", (
    ("train", "rtd/accuracy", "accuracy, training", "-"),
    ("eval", "rtd/accuracy", "accuracy, held-out", "o-"),
    ("eval", "rtd/auc", "AUC, held-out", "s--"))),
  ("Kept encoder's masked language model: loss", "cross-entropy [nats per predicted token]", (
    ("train", "replace_mlm/loss", "Replace MLM, training", "-"),
    ("eval", "replace_mlm/loss", "Replace MLM, held-out", "o-"),
    ("train", "all_tokens_mlm/loss", "All-Tokens MLM, training", "-"),
    ("eval", "all_tokens_mlm/loss", "All-Tokens MLM, held-out", "o-"))),
  ("Speed", "tokens per second", (("train", "train/tokens_per_second", "training", "-"),)),
)
CONSTANTS = ("eval/unigram_entropy", "rtd/constant_loss")  # drawn as a level across the panel


def plot_runs(workdirs: Sequence[str], out: str) -> str:
  """Draws loss, quality and speed over steps, with the runs overlaid, and returns `out`; the file appears whole.

  Panels without a value in any run (such as RTD's for a masked LM) are left out.

  Args:
    workdirs: folders with a metrics.jsonl.
    out: the picture's path; its suffix gives the format: png, pdf or svg.

  Raises:
    UserError: a workdir has no metrics, none of them can be drawn, or `out` cannot be written.
  """
  runs = {_label(workdir, workdirs): metrics.read_rows(workdir) for workdir in workdirs}
  panels = panels_of(runs)
  if not panels:
    raise UserError("The runs have no curve to draw", got=", ".join(workdirs), fix="wait for the run's first log line",
                    allowed="rows with one of " + ", ".join(curve[1] for panel in PANELS for curve in panel[2]))
  columns = min(2, len(panels))
  lines = math.ceil(len(panels) / columns)
  figure = plotting.new(6.5 * columns, 4.0 * lines)
  for index, panel in enumerate(panels):
    draw(figure.add_subplot(lines, columns, index + 1), panel, runs)
  plotting.save(figure, out)
  return out


def panels_of(runs: Mapping[str, list[dict]]) -> list:
  """The rows of PANELS that have a value in one of the runs ({label: rows of its metrics})."""
  return [panel for panel in PANELS
          if any(_curve(rows, *curve[:2])[0] for rows in runs.values() for curve in panel[2])]


def _label(workdir: str, workdirs: Sequence[str]) -> str:
  """The folder's name, or its path if two folders share the name."""
  names = [os.path.basename(os.path.abspath(other)) for other in workdirs]
  name = os.path.basename(os.path.abspath(workdir))
  return name if names.count(name) == 1 else workdir


def _curve(rows: list[dict], split: str | None, name: str) -> tuple[list[int], list[float]]:
  """(steps, values) of a metric; empty if it has no finite value."""
  points = [(row["step"], row[name]) for row in rows if name in row and split in (None, row["split"])]
  if not any(math.isfinite(value) for _, value in points):
    return [], []
  return [step for step, _ in points], [value for _, value in points]


def draw(axes: Any, panel: tuple, runs: Mapping[str, list[dict]]) -> None:
  """One panel: with one run a colour per curve, with several a colour per run and a line style per curve."""
  title, unit, curves = panel
  for run_index, (run, rows) in enumerate(runs.items()):
    for curve_index, (split, name, label, line) in enumerate(curves):
      steps, values = _curve(rows, split, name)
      if not steps:
        continue
      style = dict(color=plotting.COLOURS[(run_index if len(runs) > 1 else curve_index) % len(plotting.COLOURS)],
                   label=label if len(runs) == 1 else f"{run}: {label}")
      if name in CONSTANTS:
        axes.axhline(next(v for v in reversed(values) if math.isfinite(v)), linestyle=line, linewidth=1.2, **style)
      else:
        marker = "." if len(steps) == 1 and line == "-" else ""  # a single point has no line
        axes.plot(steps, values, marker + line, linewidth=1.2, markersize=4, **style)
  axes.set(title=title, xlabel="step (optimizer updates)", ylabel=unit)
  if unit == "tokens per second":
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
  plotting.finish(axes, _key(axes, curves, runs) if len(runs) > 1 else None)


def _key(axes, curves, runs: Mapping[str, list[dict]]) -> list:
  """The legend: what the colours mean, then the line styles; runs + curves entries instead of runs x curves."""
  from matplotlib.lines import Line2D
  drawn = {line.get_label() for line in axes.lines}
  entries = [Line2D([], [], color=plotting.COLOURS[number % len(plotting.COLOURS)], label=run)
             for number, run in enumerate(runs) if any(f"{run}: {curve[2]}" in drawn for curve in curves)]
  kinds = [(label, line) for _, _, label, line in curves if any(f"{run}: {label}" in drawn for run in runs)]
  return entries + [Line2D([], [], color="#777777", marker=line.rstrip("-"), linestyle=line.lstrip("os"), markersize=4,
                           linewidth=1.2, label=label) for label, line in kinds if len(kinds) > 1]


def main(argv: list[str]) -> None:
  """Entry point."""
  if len(argv) < 2:
    raise UserError("Nothing says which run", got="no workdir", allowed="one or several workdirs",
                    fix="python -m electra_jax.tools.plot_run runs/tiny")
  print(plot_runs(argv[1:], FLAGS.out or os.path.join(argv[1], "curves.png")))


if __name__ == "__main__":  # flags, too: other tools have some of the same names
  flags.DEFINE_string("out", "", "The picture; by default curves.png in the first WORKDIR.")
  main_lib.run(main, USAGE, takes_arguments=True)
