"""RACE: four sequences a question, each the passage with one answer, and a choice between their [CLS] vectors.

RoBERTa section 5.3: "We truncate question-answer pairs that are longer than 128 tokens and, if needed, the passage so
that the total length is at most 512 tokens."
"""

import glob
import json
import os
from collections.abc import Mapping, Sequence

import numpy as np
from ml_collections import ConfigDict

from electra_jax.data.sources import tables
from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.errors import UserError
from electra_jax.tasks import features, scoring
from electra_jax.tasks.base import Example, Feature, Outputs, Task
from electra_jax.tasks.records import Record, find

LEVELS = ("middle", "high")
METRICS = ("accuracy", *LEVELS)  # of `score`; the first is the default
LETTERS = ("A", "B", "C", "D")
NUM_QUESTIONS = {"race": {"dev": 4887, "test": 4934}}
# Accuracy on all questions of the test set in percent, RoBERTa Table 7.
PAPER = {"RoBERTa-Large (test)": {"race": 83.2}, "XLNet-Large (test)": {"race": 81.7},
         "BERT-Large (test)": {"race": 72.0}}


def make(name: str, config_task: ConfigDict) -> Task:
  """RACE with both levels; `config_task` is the `task` branch of the config.

  The test split comes with its answers: if it is there, it is scored as well, but runs are compared on dev.
  """
  has_test = any(_files(config_task.data_dir, "test", level) for level in LEVELS)
  return Task(
    name=name, head="multiple_choice", label_names=(), num_labels=1,
    splits=("train", "dev", "test") if has_test else ("train", "dev"), test_splits=(),
    metric=config_task.metric or METRICS[0], read=lambda split: read(config_task.data_dir, split),
    featurize=lambda example, tokenizer, max_length: [
      featurize(example, tokenizer, max_length, config_task.max_question_length)],
    decode=decode, score=score, files=answer_files)


def read(data_dir: str, split: str) -> list[Example]:
  """The questions of a split: texts (passage, question, options, level), labels A to D.

  Files: the official folders SPLIT/LEVEL/*.txt, or SPLIT.LEVEL.jsonl (also .gz, .zst); one JSON object a passage.

  Raises:
    UserError: there is no file, or a passage or an answer is malformed; file and line are named.
  """
  records = [(level, Record(values, f"{path}:{number}")) for level in LEVELS for path in _files(data_dir, split, level)
             for number, values in tables.read(path, kind="jsonl")]
  if not records:
    raise UserError("A data file does not exist", got=os.path.join(data_dir, f"{split}.middle.jsonl"),
                    allowed=f"{split}/middle/*.txt, {split}/high/*.txt, or {split}.middle.jsonl, {split}.high.jsonl "
                    "(also .gz, .zst)", fix="check --config.task.data_dir")
  return [example for level, record in records for example in _examples(record, level)]


def _files(data_dir: str, split: str, level: str) -> list[str]:
  lines = find(os.path.join(data_dir, f"{split}.{level}.jsonl"))
  official = os.path.join(glob.escape(data_dir), split, level, "*.txt")
  return [lines] if os.path.exists(lines) else sorted(glob.glob(official))


def _examples(record: Record, level: str) -> list[Example]:
  """One for each question of a passage."""
  passage, *lists = (record.get(name) for name in ("article", "questions", "options", "answers"))
  if not (isinstance(passage, str) and all(isinstance(values, list) for values in lists)
          and len(lists[0]) == len(lists[1]) == len(lists[2])):
    shown = (f"{len(values)} {name}" if isinstance(values, list) else f"{name}: {values!r}"
             for name, values in zip(("questions", "options", "answers"), lists))
    raise UserError("A passage has not one list of options and one answer for each question",
                    got=f"{record.where}: {', '.join(shown)}", allowed="a text as article, and equally many of each",
                    fix="correct the line")
  examples = []
  for number, (question, options, answer) in enumerate(zip(*lists)):
    if not (isinstance(options, list) and len(options) == len(LETTERS) and answer in LETTERS
            and all(isinstance(text, str) for text in (question, *options))):
      raise UserError("A question has not four options, or its answer is none of them",
                      got=f"{record.where}: question {number}: {question!r}, options {options!r}, answer {answer!r}",
                      allowed="texts, four options, and an answer among " + ", ".join(LETTERS), fix="correct the line")
    examples.append(Example(f"{record.get('id')}-{number}", (passage, question, tuple(options), level), answer,
                            record.where))
  return examples


def featurize(example: Example, tokenizer: Tokenizer, max_length: int, max_question: int) -> Feature:
  """[CLS] passage [SEP] question and answer [SEP] for each option; if that is too long, the passage loses its end."""
  passage, question, options, _ = example.texts
  rows = choices(tokenizer, passage, [question_and_answer(question, option) for option in options], max_length,
                 max_question)
  (feature,) = features.as_choices(rows, len(rows))
  return feature | {"label": LETTERS.index(example.label)}


def choices(tokenizer: Tokenizer, passage: str, options: Sequence[str], max_length: int,
            max_question: int) -> list[Feature]:
  """[CLS] passage [SEP] option [SEP] for each; an option keeps `max_question` tokens, the passage gets the rest."""
  passage_ids = list(tokenizer.encode(passage))
  special = 2 + features.num_separators(tokenizer)
  rows = []
  for option in options:
    option_ids = list(tokenizer.encode(option))
    shown = option_ids[:min(max_question, max_length - special)]
    room = max_length - special - len(shown)
    rows.append({**features.joined(tokenizer, [passage_ids[:room], shown]),
                 "_was_cut": len(shown) < len(option_ids) or room < len(passage_ids)})
  return rows


def question_and_answer(question: str, option: str) -> str:
  """The answer after the question, or in its blank.

  >>> question_and_answer("Who ran?", "the cat"), question_and_answer("The _ ran.", "cat")
  ('Who ran? the cat', 'The cat ran.')
  """
  return question.replace("_", option) if "_" in question else f"{question} {option}"


def decode(outputs: Outputs, features_: Sequence[Feature], examples: Sequence[Example]) -> list[str | None]:
  """The letter of the best option; None where the outputs are NaN."""
  del features_, examples
  return [LETTERS[int(row.argmax())] if np.isfinite(row).all() else None
          for row in outputs["multiple_choice_head"]]  # [examples, choices]


def score(answers: Sequence[str | None], examples: Sequence[Example]) -> dict[str, float]:
  """Accuracy on all questions and on those of middle and of high school; NaN where there are none."""
  scores = scoring.score(["accuracy"], answers, [example.label for example in examples])
  for level in LEVELS:
    chosen = [(answer, example.label) for answer, example in zip(answers, examples) if example.texts[3] == level]
    scores[level] = scoring.score(["accuracy"], *zip(*chosen))["accuracy"] if chosen else np.nan
  return scores


def answer_files(splits: Mapping[str, tuple[Sequence[str | None], Sequence[Example]]]) -> dict[str, str]:
  """{file name: JSON} with the letter for each question's id."""
  return {f"{split}_predictions.json": json.dumps(
    {example.example_id: answer for example, answer in zip(examples, answers, strict=True)}, indent=2) + "\n"
          for split, (answers, examples) in splits.items()}
