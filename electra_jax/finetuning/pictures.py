"""Curves of the dev scores: one line a seed and their median."""

from collections.abc import Sequence
from typing import Any

from electra_jax import plotting
from electra_jax.tasks import scoring


def draw(axes: Any, runs: Sequence[dict], metric: str, title: str) -> None:
  """Draws the curves on matplotlib axes."""
  values: dict[int, list[float]] = {}
  for run in runs:
    steps, scores = [p["step"] for p in run["curve"]], [p[metric] for p in run["curve"]]
    axes.plot(steps, scores, color="#999999", linewidth=0.8, marker=".")
    for step, score in zip(steps, scores):
      values.setdefault(step, []).append(score)
  steps = sorted(values)
  medians = [scoring.summarise(values[step])["median"] for step in steps]
  axes.plot(steps, medians, color=plotting.COLOURS[0], linewidth=2, marker="o", label="median of the seeds")
  axes.set(title=title, xlabel="updates", ylabel=f"{metric} on dev")
  plotting.finish(axes)
