"""How does one fine-tune on data of one's own? JSONL, CSV or TSV with a text (or two) and a label, score or tags."""

import random
from collections.abc import Sequence

from electra_jax.errors import UserError
from electra_jax.tasks import sentences
from electra_jax.tasks.contract import Example, Task
from electra_jax.tasks.records import Record, read_records

METRICS = {"own_classification": ("accuracy",), "own_regression": ("spearman", "pearson"),
           "own_tagging": ("entity_f1", "tag_accuracy")}


def make(name: str, config_task) -> Task:
  """`own_classification`, `own_regression` or `own_tagging` of the files that the `task` branch names.

  The labels are those of the training file, sorted; without a dev file every tenth training example, drawn by a
  fixed seed, is kept for scoring.

  Raises:
    UserError: a file, column or label is missing or wrong; file and line are named.
  """
  is_regression, is_tagging = name == "own_regression", name == "own_tagging"
  fields = tuple(config_task.text_fields.split(","))
  records = read_records(config_task.train_path)
  labels = () if is_regression else _labels(records, config_task.label_field, is_tagging)

  def examples(found: Sequence[Record], labelled: bool) -> list[Example]:
    make_one = _tagged if is_tagging else _labelled
    return [make_one(record, str(number), fields, config_task.label_field if labelled else None, labels)
            for number, record in enumerate(found)]

  def read(split: str) -> list[Example]:
    if split == "test":
      return examples(read_records(config_task.test_path), labelled=False)
    if split == "dev" and config_task.dev_path:
      return examples(read_records(config_task.dev_path), labelled=True)
    if config_task.dev_path:
      return examples(records, labelled=True)
    kept = set(random.Random(0).sample(range(len(records)), max(1, len(records) // 10)))
    return examples([r for number, r in enumerate(records) if (number in kept) == (split == "dev")], labelled=True)

  test_splits = ("test",) if config_task.test_path else ()
  make_task = sentences.make_tagging if is_tagging else sentences.make
  return make_task(name, config_task, labels=labels, metrics=METRICS[name], splits=("train", "dev"),
                   test_splits=test_splits, read=read)


def _labels(records: Sequence[Record], label_field: str, is_tagging: bool) -> tuple[str, ...]:
  found = set()
  for record in records:
    value = record.get(label_field)
    found |= set(_list(value, record.where)) if is_tagging else {sentences.label_name(value)}
  if None in found:
    where = next(r.where for r in records if sentences.label_name(r.get(label_field)) is None)
    raise UserError("A training example has no label", got=f"{where}: {label_field} is null", allowed="a label's name",
                    fix="correct the line, or leave it out")
  if len(found) < 2:
    raise UserError("There is nothing to tell apart", got=f"only the label {next(iter(found))!r} in {records[0].where}",
                    allowed="at least two labels in the training file", fix="check --config.task.label_field")
  return tuple(sorted(found))


def _labelled(record: Record, number: str, fields: Sequence[str], label_field: str | None,
              labels: Sequence[str]) -> Example:
  texts = tuple(sentences.text_of(record, field) for field in fields)
  label = None if label_field is None else sentences.parse_label(record.get(label_field), labels, record.where)
  return Example(str(record.values.get("id", number)), texts, label, record.where)


def _tagged(record: Record, number: str, fields: Sequence[str], label_field: str | None,
            labels: Sequence[str]) -> Example:
  words, tags = _list(record.get(fields[0]), record.where), None
  if label_field is not None:
    tags = _list(record.get(label_field), record.where)
    if len(words) != len(tags):
      raise UserError("A sentence has not one tag for each word",
                      got=f"{record.where}: {len(words)} words, {len(tags)} tags", allowed="as many tags as words",
                      fix="correct the line")
    tags = tuple(sentences.parse_label(tag, labels, record.where) for tag in tags)
  return Example(str(record.values.get("id", number)), (tuple(words),), tags, record.where)


def _list(value, where: str) -> list[str]:
  """A JSON list of strings, or one string with blanks between its parts."""
  parts = value.split() if isinstance(value, str) else value
  if not isinstance(parts, list) or not parts or not all(isinstance(part, str) for part in parts):
    raise UserError("Words or tags are no list", got=f"{where}: {str(value)[:60]!r}",
                    allowed='a list of strings, or a string with blanks between them, at least one',
                    fix="correct the line")
  return parts
