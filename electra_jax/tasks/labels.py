"""Labels of a data set: how often each occurs, what looks doubtful, and how well each is predicted."""

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from electra_jax import plotting
from electra_jax.errors import named
from electra_jax.tasks import scoring
from electra_jax.tasks.base import Example, Task
from electra_jax.tasks.scoring import percent

FEW = 50  # dev examples, from which the standard error of an accuracy is 7 points or less
MOST_LABELS = 20  # in a confusion matrix


def introduce(task: Task, examples: Mapping[str, Sequence[Example]]) -> list[str]:
  """Lines to print before training: the counts of the labels, and warnings; none unless the head predicts labels."""
  if task.head not in ("classification", "multi_label", "tagging"):
    return []  # a ranking trains on pairs made of positive examples
  counts = {split: Counter(name for example in examples[split] for name in (
    [example.label] if task.head == "classification" else example.label)) for split in task.splits[:2]}
  lines = [f"labels of {split}: " + named([f"{name} {number[name]:,}" for name in task.label_names], most=MOST_LABELS)
           for split, number in counts.items()]
  train, dev = counts.values()
  if (count := len(examples[task.splits[1]])) < FEW:
    lines.append(f"Only {count} dev examples: one of them is {100 / count:.1f} points, so the scores say little. "
                 "Label more, or name more with task.dev_path.")
  if once := [name for name in task.label_names if train[name] == 1]:
    lines.append(f"Labels that occur once in train, too rarely to be learnt: {named(once)}.")
  if unseen := [name for name in task.label_names if not dev[name]]:
    lines.append(f"Labels that no dev example has, so that no score covers them: {named(unseen)}.")
  return lines


def class_tables(task: Task, predictions: Sequence, examples: Sequence[Example]) -> str:
  """Markdown: precision, recall and F1 of each label in percent and, for single labels, the confusion matrix."""
  from sklearn import metrics  # takes seconds

  names, wanted, is_single = task.label_names, [example.label for example in examples], task.head == "classification"
  sides = (wanted, predictions) if is_single else scoring.indicators(wanted, predictions, names=names)
  columns = metrics.precision_recall_fscore_support(*sides, labels=names if is_single else None, zero_division=np.nan)
  tables = [plotting.markdown(["Label", "Precision", "Recall", "F1", "Examples"], (
    [name, *map(percent, scores), f"{count:,}"] for name, *scores, count in zip(names, *columns)))]
  if is_single and len(names) <= MOST_LABELS:
    counts = metrics.confusion_matrix(wanted, predictions, labels=names)
    tables.append(plotting.markdown(["Label \\ answer", *names], (
      [name, *(f"{count:,}" for count in row)] for name, row in zip(names, counts))))
  return "\n\n".join(tables) + "\n"


def answers_csv(answers: Mapping[str, tuple[Sequence, Sequence[Example]]], separator: str = ";") -> dict[str, str]:
  """{"dev.csv": ...}: id, label, prediction and texts of each example; `separator` goes between labels or words."""
  def shown(value) -> str:
    return "" if value is None else separator.join(value) if isinstance(value, tuple) else str(value)

  files = {}
  for split, (predictions, examples) in answers.items():
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    many = [f"text_{number}" for number in range(1, len(examples[0].texts) + 1)]
    writer.writerow(["id", "label", "prediction", *(many if len(many) > 1 else ["text"])])
    writer.writerows([e.example_id, *map(shown, (e.label, p, *e.texts))] for p, e in zip(predictions, examples))
    files[f"{split}.csv"] = text.getvalue()
  return files
