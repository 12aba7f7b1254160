"""Tasks on a user's own data: JSON lines, CSV or TSV with one or two texts and a label, several, a score or tags."""

import functools
import random
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from ml_collections import ConfigDict

from electra_jax.errors import UserError, named
from electra_jax.tasks import labels as labels_lib
from electra_jax.tasks import scoring, sequences
from electra_jax.tasks.base import Example, Task
from electra_jax.tasks.records import Record, read_records

METRICS = {"own_classification": ("accuracy", "f1"), "own_multi_label": ("micro_f1", "f1", "accuracy"),
           "own_regression": ("spearman", "pearson"), "own_tagging": ("entity_f1", "tag_accuracy")}


def make(name: str, config_task: ConfigDict) -> Task:
  """A row of METRICS over the files that the `task` branch names.

  The labels are those of the training file, sorted; without a dev file a tenth of the training examples is kept for
  scoring (`dev_part`).

  Raises:
    UserError: a file, column or label is missing or wrong; file and line are named. Or there are too many text fields.
  """
  kind = name.removeprefix("own_")
  fields = tuple(field.strip() for field in config_task.text_fields.split(","))
  most = 1 if kind == "tagging" else 2
  if len(fields) > most:
    raise UserError("An example has too many texts", got=f"task.text_fields={config_task.text_fields}",
                    allowed=f"at most {most} for task.name={name}", fix="name fewer with --config.task.text_fields")
  if config_task.write_test_predictions and not config_task.test_path:
    raise UserError("There are no test examples to answer", got="task.write_test_predictions without task.test_path",
                    allowed="both or neither", fix="name a file with --config.task.test_path")
  records = read_records(config_task.train_path)
  labels = () if kind == "regression" else _labels(records, config_task.label_field, PARTS[kind])
  known = dict.fromkeys(labels)  # in order, and quick to look up

  def examples(rows: Sequence[Record], labelled: bool) -> list[Example]:
    label_field = config_task.label_field if labelled else None
    return [_example(kind, record, number, fields, label_field, known) for number, record in enumerate(rows)]

  def read(split: str) -> list[Example]:
    if split == "test":
      return examples(read_records(config_task.test_path), labelled=False)
    if split == "dev" and config_task.dev_path:
      return examples(read_records(config_task.dev_path), labelled=True)
    train = examples(records, labelled=True)
    if config_task.dev_path:
      return train
    if len(train) < 2:
      raise UserError("One example cannot be split into train and dev", got=config_task.train_path,
                      allowed="two examples or more", fix="label more, or name a dev file with --config.task.dev_path")
    dev = dev_part([example.label if kind in ("classification", "multi_label") else None for example in train])
    return [example for number, example in enumerate(train) if (number in dev) == (split == "dev")]

  weights = None
  if config_task.class_weights == "balanced":
    counts = Counter(example.label for example in read("train"))
    weights = {label: counts.total() / (len(labels) * max(1, counts[label])) for label in labels}
  return sequences.make(
    name, config_task, labels=labels, metrics=METRICS[name], splits=("train", "dev"), read=read,
    test_splits=("test",) if config_task.test_path else (), head=kind if kind in ("multi_label", "tagging") else "",
    files=functools.partial(labels_lib.answers_csv, separator=" " if kind == "tagging" else ";"), weights=weights)


def dev_part(labels: Sequence) -> set[int]:
  """Indices of a tenth of the examples, at least one, drawn with a fixed seed, each label in proportion.

  An example whose label occurs once is kept for training.

  >>> sorted("aab"[number % 3] for number in dev_part([*"aab"] * 10))
  ['a', 'a', 'b']
  """
  counts, draw = Counter(labels), random.Random(0)
  order = sorted(range(len(labels)), key=lambda number: (str(labels[number]), draw.random()))
  order = [number for number in order if counts[labels[number]] > 1] or order
  size = max(1, min(len(labels) // 10, len(order) // 2))
  return {order[(2 * i + 1) * len(order) // (2 * size)] for i in range(size)}


def _labels(records: Sequence[Record], label_field: str, parts: Callable[..., list]) -> tuple[str, ...]:
  first: dict[str, str] = {}  # label -> where it occurs first
  types: dict[type, str] = {}  # likewise for each type of JSON
  for record in records:
    value = record.get(label_field)
    for label in parts(value, record.where):
      first.setdefault(sequences.label_name(label, record.where), record.where)
      types.setdefault(type(label), record.where)
  if len(types) > 1:
    shown = ", ".join(f"{kind.__name__} in {where}" for kind, where in types.items())
    raise UserError("Labels are of several types", got=shown, allowed="all strings, all integers or all booleans",
                    fix="write all labels alike")
  alike: dict = {}
  for name in first:
    other = alike.setdefault(_spelling(name), name)
    if other != name:
      raise UserError("Two labels differ only in their spelling", got=f"{other!r} in {first[other]}, {name!r} in "
                      f"{first[name]}", allowed="one spelling of each number and character", fix="write them alike")
  if parts is _list:
    _check_prefixes(first)
  if len(first) < 2:
    raise UserError("There is nothing to tell apart", got=f"{records[0].where}: {named(first)} alone",
                    allowed="at least two labels in the training file", fix="check --config.task.label_field")
  return tuple(sorted(first))


def _check_prefixes(first: Mapping[str, str]) -> None:
  """Raises if the prefixes of an entity type do not go together, such as M-LOC and I-LOC."""
  scheme = scoring.scheme_of(first)
  split = {tag: match.groups() for tag in first if (match := scoring.TAG.fullmatch(tag)) and match[2]}
  kinds = {kind for prefix, kind in split.values() if prefix in scheme}
  for tag, (prefix, kind) in split.items():
    if prefix not in scheme and kind in kinds:
      raise UserError("The prefix of a tag belongs to another scheme than the other tags", got=f"{first[tag]}: {tag!r}",
                      allowed="one of BIO (IOB2), IOB1, BIOES, BILOU, BMES and BMEWO",
                      fix="write all tags in one scheme")


def _spelling(name: str) -> float | str:
  """Equal for "1" and "1.0", with and without quotes, and for an accented letter as one code point or two."""
  if len(name) > 2 and name[0] == name[-1] and name[0] in "\"'":
    name = name[1:-1]
  return float(name) if sequences.NUMBER.fullmatch(name) else unicodedata.normalize("NFC", name)


def _example(kind: str, record: Record, number: int, fields: Sequence[str], label_field: str | None,
             labels: Collection[str]) -> Example:
  """An example of a kind of task; without a label if there is no field for it."""
  if kind == "tagging":
    texts = (tuple(_list(record.get(fields[0]), record.where)),)
  else:
    texts = tuple(sequences.text_of(record, field) for field in fields)
    if not any(text.strip() for text in texts):
      raise UserError("An example has no text", got=f"{record.where}: {', '.join(fields)} blank",
                      allowed="text with at least one visible character", fix="correct the line, or leave it out")
  label = None
  if label_field is not None:
    parts = PARTS[kind](record.get(label_field), record.where)
    if kind == "tagging" and len(parts) != len(texts[0]):
      raise UserError("A sentence has not one tag for each word",
                      got=f"{record.where}: {len(texts[0])} words, {len(parts)} tags", allowed="as many tags as words",
                      fix="correct the line")
    parsed = [sequences.parse_label(part, labels, record.where) for part in parts]
    if kind == "multi_label":
      label = tuple(name for name in labels if name in parsed)
    else:
      label = tuple(parsed) if kind == "tagging" else parsed[0]
  return Example(str(record.values.get("id", number)), texts, label, record.where)


def _list(value, where: str) -> list[str]:
  """A JSON list of strings, or one string with blanks between its parts."""
  parts = value.split() if isinstance(value, str) else value
  if not isinstance(parts, list) or not parts or not all(isinstance(part, str) for part in parts):
    raise UserError("Words or tags are not a list", got=f"{where}: {str(value)[:60]!r}",
                    allowed='a list of strings, or one string with blanks between them; at least one word',
                    fix="correct the line")
  return parts


def _several(value, where: str) -> list:
  """The labels of an example, possibly none: a JSON list, or one string with semicolons between them."""
  if isinstance(value, list):
    return value
  if isinstance(value, str):
    return [part.strip() for part in value.split(";")] if value.strip() else []
  raise UserError("An example has no list of labels", got=f"{where}: {value!r}", allowed="a list, or a string with "
                  "';' between the labels; an empty one where no label is true", fix="correct the line")


# Kind of task -> (value of the label field, "file:line") -> its labels
PARTS: dict[str, Callable[..., list]] = {
  "classification": lambda value, where: [value], "regression": lambda value, where: [value],
  "multi_label": _several, "tagging": _list}
