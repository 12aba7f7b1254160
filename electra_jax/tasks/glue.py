"""GLUE's tasks, a row each: files, columns, labels, metrics, and the format that the test server expects."""

import functools
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ml_collections import ConfigDict

from electra_jax.tasks import scoring, sequences
from electra_jax.tasks.base import Example, Feature, Task
from electra_jax.tasks.records import find, read_records, read_tfds


class GlueRow(NamedTuple):
  """A GLUE task; `columns` are those of the official TSV files, `tfds_columns` those of TFDS."""

  folder: str
  columns: tuple[str, ...]
  metrics: tuple[str, ...]  # the first is the default, as in ELECTRA's GLUE score
  labels: tuple[str, ...]  # names as in the files and on the test server; () for regression
  tests: dict[str, tuple[str, int]]  # test split -> (file name, number of lines) that the server expects
  label_column: str = "label"
  id_column: str = "index"
  header: tuple[str, ...] | None = None  # for training and dev files that have no header line
  tfds_columns: tuple[str, ...] = ("sentence1", "sentence2")
  splits: tuple[str, ...] = ("train", "dev")
  has_short_rows: bool = False  # some training and dev rows lack columns; everybody leaves those out


NOT_ENTAILED = ("entailment", "not_entailment")
ZERO_ONE = ("0", "1")

GLUE: dict[str, GlueRow] = {
  "cola": GlueRow("CoLA", ("sentence",), ("matthews",), ZERO_ONE, header=("source", "label", "mark", "sentence"),
                  tfds_columns=("sentence",), tests={"test": ("CoLA.tsv", 1063)}),
  "sst2": GlueRow("SST-2", ("sentence",), ("accuracy",), ZERO_ONE, tfds_columns=("sentence",),
                  tests={"test": ("SST-2.tsv", 1821)}),
  "mrpc": GlueRow("MRPC", ("#1 String", "#2 String"), ("accuracy", "f1"), ZERO_ONE, label_column="Quality",
                  tests={"test": ("MRPC.tsv", 1725)}),
  "stsb": GlueRow("STS-B", ("sentence1", "sentence2"), ("spearman", "pearson"), (), label_column="score",
                  tests={"test": ("STS-B.tsv", 1379)}),
  "qqp": GlueRow("QQP", ("question1", "question2"), ("accuracy", "f1"), ZERO_ONE, label_column="is_duplicate",
                 id_column="id", tfds_columns=("question1", "question2"), tests={"test": ("QQP.tsv", 390965)},
                 has_short_rows=True),
  "mnli": GlueRow("MNLI", ("sentence1", "sentence2"), ("accuracy",), ("contradiction", "entailment", "neutral"),
                  label_column="gold_label", tfds_columns=("premise", "hypothesis"),
                  splits=("train", "dev_matched", "dev_mismatched"),
                  tests={"test_matched": ("MNLI-m.tsv", 9796), "test_mismatched": ("MNLI-mm.tsv", 9847),
                         "ax": ("AX.tsv", 1104)}),
  "qnli": GlueRow("QNLI", ("question", "sentence"), ("accuracy",), NOT_ENTAILED, tfds_columns=("question", "sentence"),
                  tests={"test": ("QNLI.tsv", 5463)}),
  "rte": GlueRow("RTE", ("sentence1", "sentence2"), ("accuracy",), NOT_ENTAILED, tests={"test": ("RTE.tsv", 3000)}),
  "wnli": GlueRow("WNLI", ("sentence1", "sentence2"), ("accuracy",), ZERO_ONE, tests={"test": ("WNLI.tsv", 146)}),
}
# The diagnostics (AX) are answered by the MNLI model.
AX_FILES = ("AX/AX.tsv", "AX/test.tsv", "diagnostic/diagnostic.tsv")
# Labels that TFDS names differently from the files.
TFDS_LABELS = {"cola": {"unacceptable": "0", "acceptable": "1"}, "sst2": {"negative": "0", "positive": "1"},
               "mrpc": {"not_equivalent": "0", "equivalent": "1"}, "qqp": {"not_duplicate": "0", "duplicate": "1"},
               "wnli": {"not_entailment": "0", "entailment": "1"}}
# Dev results of the papers in percent, each task by its first metric: ELECTRA Table 2, RoBERTa Tables 5 and 8.
PAPER = {
  "ELECTRA-Large": dict(cola=69.3, sst2=96.0, mrpc=90.6, stsb=92.1, qqp=92.4, mnli=90.5, qnli=94.5, rte=86.8),
  "RoBERTa-Large": dict(cola=68.0, sst2=96.4, mrpc=90.9, stsb=92.4, qqp=92.2, mnli=90.2, qnli=94.7, rte=86.6,
                        wnli=91.3),
  "RoBERTa-Base": dict(cola=63.6, sst2=94.8, mrpc=90.2, stsb=91.2, qqp=91.9, mnli=87.6, qnli=92.8, rte=78.7),
  "BERT-Large": dict(cola=60.6, sst2=93.2, mrpc=88.0, stsb=90.0, qqp=91.3, mnli=86.6, qnli=92.3, rte=70.4),
}


def make(name: str, config_task: ConfigDict) -> Task:
  """The task for a row of GLUE; `config_task` is the `task` branch of the config."""
  row, left_out = GLUE[name], {}
  task = sequences.make(
    name, config_task, labels=row.labels, metrics=row.metrics, splits=row.splits, test_splits=tuple(row.tests),
    read=lambda split: read(name, split, config_task.data_dir, left_out),
    submission=functools.partial(submission, name))
  return task._replace(left_out=left_out)


def make_ranking(name: str, config_task: ConfigDict, head: str, pairs: Callable[[list[Example]], list[Example]],
                 featurize: Callable[..., list[Feature]], decode: Callable[..., list]) -> Task:
  """A row of GLUE (`name` without "_ranking") whose texts compete: `pairs` makes the training examples."""
  source = name.removesuffix("_ranking")
  row = GLUE[source]

  def read_split(split: str) -> list[Example]:
    examples = read(source, split, config_task.data_dir)
    return pairs(examples) if split == "train" else examples

  return Task(
    name=name, head=head, label_names=row.labels, num_labels=1, splits=row.splits, test_splits=tuple(row.tests),
    metric="accuracy", read=read_split, featurize=featurize, decode=decode,
    score=lambda predictions, examples: scoring.score(("accuracy",), predictions, [e.label for e in examples]),
    submission=functools.partial(submission, source))


def read(name: str, split: str, data_dir: str, left_out: dict[str, str] | None = None) -> list[Example]:
  """The examples of a split: official TSV files or JSONL under `data_dir`, or `tfds:glue` (`data_dir`).

  JSONL: FOLDER/SPLIT.jsonl with "label" and the columns of TFDS.

  Args:
    left_out: collects the lines that everybody leaves out: "file:line" -> why.

  Raises:
    UserError: a file, column or label is missing or wrong; file and line are named.
  """
  row, names = GLUE[name], {}
  labelled = split not in row.tests
  columns, label_column, id_column = row.tfds_columns, "label", "idx"  # in JSONL too
  if data_dir.startswith("tfds:"):
    theirs = "test" if split == "ax" else split.replace("dev", "validation")
    names = TFDS_LABELS.get(name, {})
    records = read_tfds(f"{data_dir[5:]}/{'ax' if split == 'ax' else name}", theirs)
  else:
    stems = AX_FILES if split == "ax" else (f"{row.folder}/{split}.tsv", f"{row.folder}/{split}.jsonl")
    path, header = find(*(os.path.join(data_dir, stem) for stem in stems)), None
    if ".tsv" in os.path.basename(path):
      columns, label_column, id_column = row.columns, row.label_column, row.id_column
      header = row.header if labelled else None
    records = read_records(path, header, left_out if labelled and row.has_short_rows else None)
  examples = []
  for number, record in enumerate(records):
    texts, label = tuple(sequences.text_of(record, column) for column in columns), None
    if labelled:
      raw = record.get(label_column)
      label = sequences.parse_label(names.get(raw, raw), row.labels, record.where)
    examples.append(Example(str(record.values.get(id_column, number)), texts, label, record.where))
  return examples


def submission(name: str, split: str, predictions: Sequence, examples: Sequence[Example]) -> dict[str, str]:
  """{file name: text} of the leaderboard: header `index`, `prediction`; label names; STS-B between 0 and 5.

  The lines are in the order of the index, which TFDS shuffles.
  """
  row = GLUE[name]
  file_name, _ = row.tests[split]
  shown = [f"{min(5.0, max(0.0, value)):.3f}" for value in predictions] if not row.labels else predictions
  lines = [(example.example_id, value) for example, value in zip(examples, shown, strict=True)]
  lines.sort(key=lambda line: (len(line[0]), line[0]))
  return {file_name: "".join(f"{index}\t{value}\n" for index, value in [("index", "prediction"), *lines])}


def row_of(name: str) -> GlueRow:
  """The row of a task or of its ranking; for SuperGLUE's WSC that of WNLI, which was made from it."""
  return GLUE["wnli" if name == "wsc" else name.removesuffix("_ranking")]
