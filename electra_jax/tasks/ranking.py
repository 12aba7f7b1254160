"""How is QNLI a ranking? Of a question's candidate sentences exactly one is the answer (RoBERTa section 5.1)."""

from collections.abc import Sequence

import numpy as np

from electra_jax.tasks import features, glue, scoring
from electra_jax.tasks.contract import Example, Feature, Outputs, Task

ANSWER, NO_ANSWER = glue.NOT_ENTAILED


def make(name: str, config_task) -> Task:
  """QNLI as pairwise ranking: for the test server; dev scores are not comparable with those of classification.

  Training compares each answer with one other sentence; scoring gives every sentence a number, and the best one of
  those with the same question counts as entailed.
  """
  row = glue.GLUE["qnli"]

  def read(split: str) -> list[Example]:
    examples = glue.read("qnli", split, config_task.data_dir)
    return pairs(examples) if split == "train" else examples

  def featurize(example: Example, tokenizer, max_length: int) -> list[Feature]:
    question, *candidates = example.texts
    rows = [features.sequence(tokenizer, (question, candidate), max_length, example.where, config_task.on_long_text)
            for candidate in candidates]
    return [{"input_ids": [one["input_ids"] for one in rows], "token_type_ids": [one["token_type_ids"] for one in rows],
             "label": 0, "_was_cut": any(one["_was_cut"] for one in rows)}]

  return Task(
    name=name, head="multiple_choice", label_names=row.labels, num_labels=1, splits=row.splits,
    test_splits=row.test_splits, metric="accuracy", read=read, featurize=featurize,
    decode=lambda outputs, features_, examples: decode(outputs, examples),
    score=lambda predictions, examples: scoring.score(("accuracy",), predictions, [e.label for e in examples]),
    submission=lambda split, predictions, examples: glue.submission("qnli", split, predictions, examples))


def pairs(examples: Sequence[Example]) -> list[Example]:
  """(question, its answer, another sentence) for each answer of the training set.

  The other sentence is one that the data set calls no answer to this question; where there is none, the answer to the
  next question, which nearly always is about something else.
  """
  answers = [example for example in examples if example.label == ANSWER]
  others: dict[str, list[str]] = {}
  for example in examples:
    if example.label == NO_ANSWER:
      others.setdefault(example.texts[0], []).append(example.texts[1])
  found = []
  for number, example in enumerate(answers):
    question, answer = example.texts
    for other in others.get(question) or [answers[(number + 1) % len(answers)].texts[1]]:
      if other != answer:
        found.append(example._replace(texts=(question, answer, other)))
  return found


def decode(outputs: Outputs, examples: Sequence[Example]) -> list[str | None]:
  """The best sentence of each question is its answer, of equals the first; a question with one sentence has its."""
  scores = outputs["multiple_choice_head"][:, 0]
  best: dict[str, int] = {}
  for number, example in enumerate(examples):
    question = example.texts[0]
    if question not in best or scores[number] > scores[best[question]]:
      best[question] = number
  return [None if not np.isfinite(scores[number]) else ANSWER if best[example.texts[0]] == number else NO_ANSWER
          for number, example in enumerate(examples)]
