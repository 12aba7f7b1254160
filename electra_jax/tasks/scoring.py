"""Scores of predictions: metrics of GLUE by scikit-learn and scipy, entities of tagging, medians over seeds.

A NaN prediction makes its metric NaN; NaN is never the best of several, and a median counts it as the worst.
"""

import functools
import math
import re
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

TAG = re.compile(r"([A-Z])(?:[-_](.*))?")  # B-LOC, B_LOC, or B alone
SCHEMES = (  # prefix -> its counterpart in BIOES; IOB1 has the prefixes of BIO
  dict(B="B", I="I", E="E", S="S"),  # BIO, BIOES
  dict(B="B", I="I", L="E", U="S"),  # BILOU
  dict(B="B", M="I", E="E", S="S"),  # BMES
  dict(B="B", M="I", E="E", W="S"),  # BMEWO
)


def accuracy(predictions: Sequence, labels: Sequence) -> float:
  """Share of equal pairs."""
  return float(np.mean([p == q for p, q in zip(predictions, labels, strict=True)]))


def f1(predictions: Sequence, labels: Sequence, names: Collection[str] = ()) -> float:
  """F1 of "1" where the labels are "0" and "1" (MRPC, QQP; 0 if "1" is never predicted); else the mean over the labels.

  A label that neither occurs nor is predicted has no F1 and is left out of the mean.

  Args:
    predictions: labels, or tuples of them where several may be true at once; `labels` likewise.
    names: all labels of the data set; by default "0" and "1".
  """
  from sklearn import metrics
  if isinstance(labels[0], tuple):
    return float(metrics.f1_score(*indicators(labels, predictions, names=names), average="macro",
                                  zero_division=np.nan))
  if names and set(names) != {"0", "1"}:
    return float(metrics.f1_score(labels, predictions, average="macro", zero_division=0.0))
  return float(metrics.f1_score(labels, predictions, pos_label="1", labels=["0", "1"], zero_division=0.0))


def micro_f1(predictions: Sequence[tuple], labels: Sequence[tuple], names: Collection[str]) -> float:
  """F1 over all pairs of an example and a label; 0 where none is right."""
  from sklearn import metrics
  return float(metrics.f1_score(*indicators(labels, predictions, names=names), average="micro", zero_division=0.0))


def indicators(*rows: Sequence[tuple], names: Collection[str]) -> list[np.ndarray]:
  """Tuples of labels as int [examples, labels], 1 for each label that is there."""
  return [np.array([[name in labels for name in names] for labels in side], int) for side in rows]


def matthews(predictions: Sequence[str], labels: Sequence[str]) -> float:
  """Matthews correlation; 0 for constant predictions."""
  from sklearn import metrics
  return float(metrics.matthews_corrcoef(labels, predictions))


def correlation(kind: str, predictions: Sequence[float], labels: Sequence[float]) -> float:
  """Linear (`pearsonr`) or rank correlation (`spearmanr`); 0 for constant predictions, for which it is undefined."""
  from scipy import stats
  if len(set(predictions)) < 2 or len(set(labels)) < 2:
    return 0.0
  return float(getattr(stats, kind)(predictions, labels).statistic)


def entity_f1(predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]],
              tags: Collection[str] = ()) -> float:
  """F1 over entities, micro-averaged: one is right if its type, first and last word are; 0 without any.

  Gives the numbers of CoNLL 2000's script and of seqeval; BILOU and BMES count like the same entities in BIOES.

  Args:
    tags: all tags of the data set, which identify the scheme; by default those that occur here.
  """
  tags = tags or {tag for rows in (predictions, labels) for row in rows for tag in row}
  ours, theirs = ({(number, *entity) for number, row in enumerate(rows) for entity in entities(row, tags)}
                  for rows in (predictions, labels))
  return 2 * len(ours & theirs) / (len(ours) + len(theirs)) if ours or theirs else 0.0


def entities(tags: Sequence[str], all_tags: Collection[str] = ()) -> list[tuple[str, int, int]]:
  """(type, first word, last word) of each entity that a sentence's tags spell; a tag without a prefix counts as inside.

  Lenient, like CoNLL's script: I- and E- begin an entity where none of their type is open.

  Args:
    all_tags: those of the data set, which identify the scheme; by default those of the sentence.

  >>> entities(["B-LOC", "I-LOC", "O", "I-PER", "B-PER"])
  [('LOC', 0, 1), ('PER', 3, 3), ('PER', 4, 4)]
  >>> entities(["B-LOC", "M-LOC", "E-LOC", "S-LOC"])
  [('LOC', 0, 2), ('LOC', 3, 3)]
  """
  prefixes = scheme_of(all_tags or tags)
  spans, before, kind_before = [], "O", ""
  for number, tag in enumerate(tags):
    split = TAG.fullmatch(tag)
    if split and split[1] in prefixes:
      prefix, kind = prefixes[split[1]], split[2] or ""
    else:
      prefix, kind = ("O", "") if tag == "O" else ("I", tag)
    if prefix == "O":
      pass
    elif prefix in "BS" or before in "OES" or kind != kind_before:
      spans.append((kind, number, number))
    else:
      spans[-1] = (kind, spans[-1][1], number)
    before, kind_before = prefix, kind
  return spans


def scheme_of(tags: Collection[str]) -> dict[str, str]:
  """Prefix -> its counterpart in BIOES, from the first row of SCHEMES that has all prefixes of the tags.

  If no row does, or a tag has no prefix, B, I, E and S mean what they usually do.

  >>> scheme_of(["O", "B-LOC", "L-LOC"])["L"], scheme_of(["NOUN", "U-TURN"]).get("U")
  ('E', None)
  """
  prefixes = {split[1] if (split := TAG.fullmatch(tag)) else tag for tag in tags if tag != "O"}
  return next((scheme for scheme in SCHEMES if prefixes <= scheme.keys()), SCHEMES[0])


def tag_accuracy(predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]) -> float:
  """Share of words with the right tag."""
  return accuracy([tag for tags in predictions for tag in tags], [tag for tags in labels for tag in tags])


METRICS: dict[str, Callable[..., float]] = {
  "accuracy": accuracy, "f1": f1, "micro_f1": micro_f1, "matthews": matthews,
  "pearson": functools.partial(correlation, "pearsonr"), "spearman": functools.partial(correlation, "spearmanr"),
  "entity_f1": entity_f1, "tag_accuracy": tag_accuracy,
}
WITH_NAMES = ("f1", "micro_f1", "entity_f1")  # also take all labels or tags of the data set


def score(names: Sequence[str], predictions: Sequence, labels: Sequence, tags: Collection[str] = ()
          ) -> dict[str, float]:
  """The named rows of METRICS; all NaN where there is nothing to score or a prediction is None or NaN.

  `tags` are all labels or tags of the data set, for the metrics of WITH_NAMES.

  >>> score(["accuracy", "f1", "matthews"], ["0", "0"], ["0", "1"])
  {'accuracy': 0.5, 'f1': 0.0, 'matthews': 0.0}
  >>> score(["pearson"], [float("nan"), 1.0], [1.0, 2.0]), score(["accuracy"], [], [])
  ({'pearson': nan}, {'accuracy': nan})
  """
  broken = not len(predictions) or any(
    answer is None or (isinstance(answer, float) and not math.isfinite(answer)) for answer in predictions)
  return {name: math.nan if broken else METRICS[name](predictions, labels, *[tags] * (name in WITH_NAMES))
          for name in names}


def summarise(values: Sequence[float]) -> dict[str, float]:
  """Median; min, max, sample standard deviation and number of the finite values; how many were not finite.

  A run that failed counts as the worst in the median: leaving it out would flatter a recipe that often fails.

  >>> summarise([0.5, float("nan"), 0.75, 1.0])
  {'median': 0.625, 'min': 0.5, 'max': 1.0, 'sd': 0.25, 'num_runs': 3, 'num_failed': 1}
  """
  finite = [float(value) for value in values if value is not None and math.isfinite(value)]
  failed = len(values) - len(finite)
  median = statistics.median([*finite, *[-math.inf] * failed]) if finite else math.nan
  spread = statistics.stdev(finite) if len(finite) > 1 else math.nan
  some = finite or [math.nan]
  return {"median": median if math.isfinite(median) else math.nan, "min": min(some), "max": max(some), "sd": spread,
          "num_runs": len(finite), "num_failed": failed}


def best(values: Sequence[float]) -> int | None:
  """Index of the highest finite value, the first of equals; None if there is none.

  >>> best([float("nan"), 0.2, 0.7, 0.7]), best([float("nan")])
  (2, None)
  """
  finite = [(value, -index) for index, value in enumerate(values) if math.isfinite(value)]
  return -max(finite)[1] if finite else None


def glue_score(scores: Mapping[str, Mapping[str, float]]) -> float:
  """ELECTRA's average over eight tasks (section 3.1): Spearman for STS, Matthews for CoLA, else accuracy; no WNLI.

  MNLI counts by its matched set. NaN where a task is missing. In [0, 1].
  """
  names = {"cola": "matthews", "stsb": "spearman", "mnli": "matched/accuracy",
           **dict.fromkeys(("sst2", "mrpc", "qqp", "qnli", "rte"), "accuracy")}
  return float(np.mean([scores.get(task, {}).get(name, math.nan) for task, name in names.items()]))


def leaderboard_score(scores: Mapping[str, Mapping[str, float]]) -> float:
  """The GLUE leaderboard's average over nine tasks, WNLI included; a task with two metrics counts by their mean.

  MNLI counts as one task, by the mean of its two sets. NaN where a task is missing. In [0, 1].
  """
  names = {"cola": ("matthews",), "sst2": ("accuracy",), "mrpc": ("f1", "accuracy"), "stsb": ("pearson", "spearman"),
           "qqp": ("f1", "accuracy"), "mnli": ("matched/accuracy", "mismatched/accuracy"), "qnli": ("accuracy",),
           "rte": ("accuracy",), "wnli": ("accuracy",)}
  return float(np.mean([np.mean([scores.get(task, {}).get(name, math.nan) for name in row])
                        for task, row in names.items()]))


def percent(value: float) -> str:
  """One decimal; a dash for NaN.

  >>> percent(0.876), percent(float("nan"))
  ('87.6', '-')
  """
  return "-" if value != value else f"{100 * value:.1f}"
