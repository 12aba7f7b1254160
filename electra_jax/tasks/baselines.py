"""Baselines of a classification: one constant answer, and word counts with a logistic regression (scikit-learn)."""

import random
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence

from electra_jax.tasks import scoring
from electra_jax.tasks.base import Example, Task
from electra_jax.tasks.scoring import percent

CONSTANT, WORDS = "always the commonest answer", "TF-IDF with logistic regression"
MOST_EXAMPLES = 20_000  # for the logistic regression, which then takes seconds


def measure(task: Task, train: Sequence[Example], dev: Sequence[Example]) -> dict[str, float]:
  """{baseline: `task.metric` on dev} of a classification; {} for other tasks.

  The words are counted only for a user's own data: for GLUE there are the papers' scores.
  """
  if task.head not in ("classification", "multi_label"):
    return {}
  commonest = Counter(example.label for example in train).most_common(1)[0][0]
  answers = {CONSTANT: [commonest] * len(dev)}
  if task.name.startswith("own_"):
    answers[WORDS] = by_words(task, train, [example.texts for example in dev])
  return {name: task.score(predictions, dev)[task.metric] for name, predictions in answers.items()}


def by_words(task: Task, train: Sequence[Example], texts: Sequence[tuple[str, ...]]) -> list:
  """The answers of a logistic regression on TF-IDF of words, pairs as one text; deterministic."""
  from sklearn.feature_extraction.text import TfidfVectorizer
  from sklearn.linear_model import LogisticRegression
  from sklearn.multiclass import OneVsRestClassifier

  if len(train) > MOST_EXAMPLES:
    train = random.Random(0).sample(list(train), MOST_EXAMPLES)
  vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+|[^\w\s]")
  rows = vectorizer.fit_transform([" ".join(example.texts) for example in train])
  asked = vectorizer.transform([" ".join(parts) for parts in texts])
  model = LogisticRegression(max_iter=1_000)
  if task.head == "classification":
    labels = [example.label for example in train]
    return list(model.fit(rows, labels).predict(asked)) if len(set(labels)) > 1 else labels[:1] * len(texts)
  (wanted,) = scoring.indicators([example.label for example in train], names=task.label_names)
  with warnings.catch_warnings(action="ignore", category=UserWarning):  # of a label that all or none have
    predicted = OneVsRestClassifier(model).fit(rows, wanted).predict(asked)
  return [tuple(name for name, is_true in zip(task.label_names, row) if is_true) for row in predicted]


def describe(metric: str, median: float, baselines: Mapping[str, float]) -> str:
  """A sentence with the baselines, and one more if the median over the seeds is not above all; "" without any.

  >>> describe("accuracy", 0.8, {CONSTANT: 0.5})
  'On the same dev examples: always the commonest answer, accuracy 50.0.'
  >>> describe("accuracy", float("nan"), {CONSTANT: 0.5}).endswith("commonest answer.")
  True
  """
  if not baselines:
    return ""
  values = ", ".join(f"{name}, {metric} {percent(value)}" for name, value in baselines.items())
  text = f"On the same dev examples: {values}."
  above = [name for name, value in baselines.items() if not median > value]
  if above:
    text += f" Nothing to use yet: the median {metric} {percent(median)} is not above that of {' and of '.join(above)}."
  return text
