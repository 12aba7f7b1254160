"""Spans whose end depends on their start: candidates of a window, and the average over several runs.

A joint span head gives [features, 1 + best, 4]: log p(start), log p(end | start), start, end (`models/joint_spans.py`);
first those of [CLS] as both, then the spans; -1 as start marks the end of the list.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from electra_jax.tasks.base import Feature


def candidates(spans: Float[np.ndarray, "spans 4"], feature: Feature) -> list[tuple[float, float, int, int]]:
  """(log p(start), log p(end | start), first character, last character + 1) of a window, the likeliest first.

  NaN is kept, as a single candidate.
  """
  if not np.isfinite(spans).all():
    return [(np.nan, np.nan, 0, 0)]
  offsets, begin = feature["_offsets"], feature["_begin"]
  return [(float(start), float(end), int(offsets[int(first) - begin, 0]), int(offsets[int(last) - begin, 1]))
          for start, end, first, last in spans[1:] if first >= 0]


def places(feature: Feature) -> Feature:
  """Where spans of a window may start and end: at the context's tokens that have text; each starts in one window."""
  length, begin, offsets = len(feature["input_ids"]), feature["_begin"], feature["_offsets"]
  may_start, may_end = np.zeros(length, bool), np.zeros(length, bool)
  may_end[begin:begin + len(offsets)] = offsets[:, 1] > offsets[:, 0]
  may_start[begin:begin + len(offsets)] = feature["_owned"]
  return {"may_start": may_start & may_end, "may_end": may_end}


def average(runs: Sequence[Float[np.ndarray, "features spans 4"]]) -> Float[np.ndarray, "features 1+best 4"]:
  """The spans with the largest mean probability over runs, as many as each run has; 0 for a run without the span.

  >>> one = np.array([[[-2, -2, 0, 0], [np.log(0.5), np.log(0.5), 1, 3]]])
  >>> two = np.array([[[-2, -2, 0, 0], [np.log(0.8), np.log(0.5), 2, 2]]])
  >>> np.exp(average([one, two])[0, 1, :2]).round(3).tolist(), average([one, two])[0, 1, 2:].tolist()
  ([0.4, 0.5], [2.0, 2.0])
  """
  mean = np.zeros_like(runs[0])
  mean[:, :, 2:] = -1
  for row in range(len(mean)):
    shares: dict[tuple[int, int], np.ndarray] = {}  # span -> sum of p(start), of p(start, end)
    for run in runs:
      for start, end, first, last in run[row, 1:].astype(np.float64):
        if first >= 0:
          shares.setdefault((int(first), int(last)), np.zeros(2))[:] += np.exp((start, start + end))
    best = sorted(shares.items(), key=lambda item: -item[1][1])[:mean.shape[1] - 1]
    for place, ((first, last), (of_start, of_both)) in enumerate(best, start=1):
      mean[row, place] = *_logs(of_start / len(runs), of_both / len(runs)), first, last
    nulls = [np.exp(np.cumsum(run[row, 0, :2], dtype=np.float64)) for run in runs]
    mean[row, 0] = 0
    mean[row, 0, :2] = _logs(*np.mean(nulls, axis=0))
  return mean


def _logs(of_start: float, of_both: float) -> tuple[float, float]:
  """log p(start) and log p(end | start), finite even where a probability underflows."""
  start, both = np.log(np.maximum((of_start, of_both), 1e-300))
  return start, both - start
