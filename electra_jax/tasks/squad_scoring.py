"""Scores of answers: SQuAD's official exact match and F1 of v1.1, and of v2.0 with its threshold for "no answer".

All scores are in [0, 1]; the official scripts print percent.
"""

import collections
import math
import re
import string
from collections.abc import Callable, Sequence
from typing import NamedTuple

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Threshold(NamedTuple):
  """The odds of "no answer" above which a question stays unanswered, and the score that this gives."""

  value: float
  score: float


def normalise(text: str) -> str:
  """Lowercase, single blanks, no ASCII punctuation or English articles: what both official scripts compare.

  >>> normalise("The  U.S.\\tArmy, a (small) one")
  'us army small one'
  """
  return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact(answer: str, gold: str) -> float:
  """1 if both are equal once normalised."""
  return float(normalise(answer) == normalise(gold))


def f1_v1(answer: str, gold: str) -> float:
  """Harmonic mean of the words' precision and recall; 0 if they share none.

  >>> f1_v1("the big cat", "a cat"), f1_v1("", "")
  (0.6666666666666666, 0.0)
  """
  ours, theirs = normalise(answer).split(), normalise(gold).split()
  common = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
  return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def f1_v2(answer: str, gold: str) -> float:
  """As `f1_v1`, but if one of them has no word, 1 if neither has.

  >>> f1_v2("", "the"), f1_v2("", "cat")
  (1.0, 0.0)
  """
  if not normalise(answer) or not normalise(gold):
    return float(normalise(answer) == normalise(gold))
  return f1_v1(answer, gold)


def best_of(metric: Callable[[str, str], float], answer: str, golds: Sequence[str]) -> float:
  """The metric for the reference answer that fits best."""
  return max(metric(answer, gold) for gold in golds)


def score_v1(answers: Sequence[str | None], golds: Sequence[Sequence[str]]) -> dict[str, float]:
  """`f1` and `exact` of SQuAD 1.1; NaN if an answer is None (the network gave NaN) or there are none."""
  texts = [answer for answer in answers if answer is not None]
  if not texts or len(texts) < len(answers):
    return {"f1": math.nan, "exact": math.nan}
  return {name: _mean([best_of(metric, text, gold) for text, gold in zip(texts, golds, strict=True)])
          for name, metric in (("f1", f1_v1), ("exact", exact))}


def score_v2(answers: Sequence[str | None], null_odds: Sequence[float], golds: Sequence[Sequence[str]],
             threshold: float = 0.0) -> dict[str, float]:
  """The official metrics of SQuAD 2.0; an unanswerable question has no `golds`.

  A question stays unanswered where its `null_odds` exceed the threshold. `best_*` are those of the best threshold.
  NaN if an answer is None or there are none, and for a kind of question that does not occur.
  """
  names = ("f1", "exact", "has_answer_f1", "has_answer_exact", "no_answer_accuracy", "best_f1", "best_exact")
  texts = [answer for answer in answers if answer is not None]
  if not texts or len(texts) < len(answers) or not all(map(math.isfinite, null_odds)):
    return dict.fromkeys(names, math.nan)
  scores = {}
  for name, metric in (("f1", f1_v2), ("exact", exact)):
    raw = raw_scores(metric, texts, golds)
    thresholded = [float(not gold) if odds > threshold else value
                   for value, odds, gold in zip(raw, null_odds, golds, strict=True)]
    scores[name] = _mean(thresholded)
    scores[f"has_answer_{name}"] = _mean([value for value, gold in zip(thresholded, golds) if gold])
    scores["no_answer_accuracy"] = _mean([value for value, gold in zip(thresholded, golds) if not gold])
    scores[f"best_{name}"] = best_threshold(raw, texts, null_odds, golds).score
  return {name: scores[name] for name in names}


def raw_scores(metric: Callable[[str, str], float], answers: Sequence[str],
               golds: Sequence[Sequence[str]]) -> list[float]:
  """Each answer's metric before any threshold; references without a word do not count, as in the script."""
  return [best_of(metric, answer, [text for text in gold if normalise(text)] or [""])
          for answer, gold in zip(answers, golds, strict=True)]


def best_threshold(raw: Sequence[float], answers: Sequence[str], null_odds: Sequence[float],
                   golds: Sequence[Sequence[str]]) -> Threshold:
  """The threshold with the best mean, found as in the official script: answers are admitted by rising odds.

  Differs from the script where odds are equal: it may draw the line between two of them, which no threshold can.
  If it is best to answer nothing, the value is below all odds.
  """
  current = best = float(sum(not gold for gold in golds))
  value, order = min(null_odds) - 1, sorted(range(len(raw)), key=lambda i: null_odds[i])
  for place, i in enumerate(order):
    current += raw[i] if golds[i] else -bool(answers[i])
    is_last = place + 1 == len(order) or null_odds[order[place + 1]] > null_odds[i]
    if is_last and current > best:
      best, value = current, float(null_odds[i])
  return Threshold(value, best / len(raw))


def _mean(values: Sequence[float]) -> float:
  return sum(values) / len(values) if values else math.nan
