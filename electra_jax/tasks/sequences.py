"""Sentences and pairs, classified, rated or tagged: the part that GLUE and a user's own data share."""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from electra_jax.data.sources import tables
from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.errors import UserError, named
from electra_jax.tasks import features, scoring
from electra_jax.tasks.base import Example, Feature, Outputs, Task
from electra_jax.tasks.records import Record

MISSING = ("", "nan", "<na>")  # how a missing label is written after a pass through NumPy or pandas
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def make(name: str, config_task: ConfigDict, *, labels: Sequence[str], metrics: Sequence[str], splits: Sequence[str],
         test_splits: Sequence[str], read: Callable[[str], list[Example]], head: str = "",
         submission: Callable | None = None, files: Callable | None = None,
         weights: Mapping[str, float] | None = None) -> Task:
  """A task with a label, several labels or (without `labels`) a number for one or two texts, or a tag for each word.

  Args:
    head: multi_label | tagging; "": classification, or regression without `labels`.
    weights: an example's weight in the loss, by its label; None: all alike.
  """
  head = head or ("classification" if labels else "regression")
  numbers = {label: number for number, label in enumerate(labels)}

  def featurize(example: Example, tokenizer: Tokenizer, max_length: int) -> list[Feature]:
    if head == "tagging":
      return [features.words(tokenizer, example, max_length, numbers)]
    feature = features.sequence(tokenizer, example.texts, max_length)
    if example.label is not None and head == "multi_label":
      feature["labels"] = [float(label in example.label) for label in labels]
    elif example.label is not None:
      feature["label"] = numbers[example.label] if labels else example.label
      if weights:
        feature["_weight"] = weights[example.label]
    return [feature]

  def decode_all(outputs: Outputs, features_: Sequence[Feature], examples: Sequence[Example]) -> list:
    if head == "tagging":
      return decode_tags(outputs, features_, examples, labels)
    return (decode_multi if head == "multi_label" else decode)(outputs, labels)

  return Task(
    name=name, head=head, label_names=tuple(labels), num_labels=len(labels) or 1, splits=tuple(splits),
    test_splits=tuple(test_splits), metric=config_task.metric or metrics[0], read=read, featurize=featurize,
    decode=decode_all,
    score=lambda predictions, examples: scoring.score(metrics, predictions, [e.label for e in examples], labels),
    augment=swap_pairs if config_task.swap_pairs else lambda examples: examples, submission=submission, files=files)


def decode(outputs: Outputs, labels: Sequence[str]) -> list:
  """The best label's name, or the number; None or NaN where the outputs are NaN."""
  logits = outputs["classification_head"]  # [examples, labels]
  if not labels:
    return [float(value) for value in logits[:, 0]]
  return [labels[int(np.argmax(row))] if np.isfinite(row).all() else None for row in logits]


def decode_multi(outputs: Outputs, labels: Sequence[str]) -> list[tuple[str, ...] | None]:
  """The labels that are more likely true than not; None where the outputs are NaN."""
  return [tuple(label for label, logit in zip(labels, row, strict=True) if logit > 0)
          if np.isfinite(row).all() else None for row in outputs["classification_head"]]


def decode_tags(outputs: Outputs, features_: Sequence[Feature], examples: Sequence[Example],
                labels: Sequence[str]) -> list[tuple[str, ...] | None]:
  """A tag for every word; words that were cut off get "O", or the first label if there is no "O"."""
  missing = "O" if "O" in labels else labels[0]
  answers = []
  for logits, feature, example in zip(outputs["tagging_head"], features_, examples, strict=True):
    rows = logits[feature["_first"]]  # [words, labels]
    tags = tuple(labels[int(best)] for best in rows.argmax(-1))
    tags += (missing,) * (len(example.texts[0]) - len(tags))
    answers.append(tags if np.isfinite(rows).all() else None)
  return answers


def swap_pairs(examples: list[Example]) -> list[Example]:
  """Each pair in both orders: paraphrase and similarity are symmetric (MRPC, STS-B); single texts stay single."""
  return [*examples, *(example._replace(texts=example.texts[::-1]) for example in examples if len(example.texts) == 2)]


def text_of(record: Record, column: str) -> str:
  """The text in a column.

  Raises:
    UserError: the column is missing or not text; file and line are named.
  """
  value = record.get(column)
  if not isinstance(value, str):
    raise UserError(f"The column {column!r} is no text", got=f"{record.where}: {value!r}", allowed="a string",
                    fix="correct the line")
  return value


def parse_label(value: object, labels: Collection[str], where: str) -> str | float:
  """A label's name as in `labels`, or a finite number if there are none.

  Raises:
    UserError: the label is missing, unknown or not a number; file and line are named.
  """
  if not labels:
    return parse_score(value, where)
  name = label_name(value, where)
  if name not in labels:
    raise UserError("A label is unknown", got=f"{where}: {value!r}", allowed=named(labels),
                    fix="correct the line; a set without labels can only be predicted, not trained or scored on")
  return name


def label_name(value: object, where: str) -> str:
  """JSON's 1 and true become "1" and "true".

  Raises:
    UserError: the label is missing, no scalar, or begins or ends with a blank or an invisible character.

  >>> label_name(1, "a.jsonl:1"), label_name(True, "a.jsonl:2"), label_name("yes", "a.jsonl:3")
  ('1', 'true', 'yes')
  """
  if isinstance(value, bool):
    return str(value).lower()
  if isinstance(value, list | dict):
    raise UserError("A label is no name", got=f"{where}: a {type(value).__name__}, {value!r}",
                    allowed="one string, number or boolean an example",
                    fix="choose one label, or for several --config=configs/finetune/own.py:multi_label")
  if value is None or str(value).strip().casefold() in MISSING:
    raise UserError("An example has no label", got=f"{where}: {value!r}", allowed="a label's name",
                    fix="correct the line, or leave it out")
  if tables.is_padded(str(value)):
    raise UserError("A label begins or ends with a blank or an invisible character", got=f"{where}: {value!r}",
                    allowed="the same spelling in every line", fix="correct the line")
  return str(value)


def parse_score(value: Any, where: str) -> float:
  """A finite number, a JSON one or written with digits and a decimal point.

  Raises:
    UserError: it is not; file and line are named.
  """
  is_number = NUMBER.fullmatch(value.strip()) if isinstance(value, str) else type(value) in (int, float)
  number = float(str(value)) if is_number else math.nan  # of text: an integer of JSON may be too long for `float`
  if not math.isfinite(number):
    raise UserError("A score is not a number", got=f"{where}: {value!r}", allowed="a number, with a decimal point",
                    fix="correct the line; a set without scores can only be predicted (test), not trained or scored on")
  return number
