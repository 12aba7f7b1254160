"""QNLI as pairwise ranking: a question's answer versus other candidate sentences (RoBERTa section 5.1)."""

from collections.abc import Sequence

import numpy as np
from ml_collections import ConfigDict

from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.tasks import features, glue
from electra_jax.tasks.base import Example, Feature, Outputs, Task

ANSWER, NO_ANSWER = glue.NOT_ENTAILED


def make(name: str, config_task: ConfigDict) -> Task:
  """QNLI as pairwise ranking, for the test server: dev scores are not comparable with those of classification.

  Training compares each answer with one other sentence. Of several sentences for the same question, the one with the
  highest score is the answer. Two thirds of the questions in the official dev file have a single sentence: it is the
  answer if its score is positive, a threshold that the loss learns from the training data (`losses.answer_ranking`).

  Differs from RoBERTa, which does not say how it decides on questions with one sentence, how it mines candidates, or
  what its loss is.
  """
  def featurize(example: Example, tokenizer: Tokenizer, max_length: int) -> list[Feature]:
    question, *candidates = example.texts
    rows = [features.sequence(tokenizer, (question, candidate), max_length) for candidate in candidates]
    return features.as_choices(rows, len(rows))

  return glue.make_ranking(name, config_task, "answer_ranking", pairs, featurize,
                           lambda outputs, features_, examples: decode(outputs, examples))


def pairs(examples: Sequence[Example]) -> list[Example]:
  """(question, its answer, another sentence) for each answer of the training set.

  The other sentences are those labelled as no answer to this question; if there is none, the answer to the most similar
  question: it is about the same thing, often from the same paragraph.
  """
  answers = [example for example in examples if example.label == ANSWER]
  others: dict[str, list[str]] = {}
  for example in examples:
    if example.label == NO_ANSWER:
      others.setdefault(example.texts[0], []).append(example.texts[1])
  mined = mine([example.texts[0] for example in answers], [example.texts[1] for example in answers])
  return [example._replace(texts=(*example.texts, other)) for example, candidate in zip(answers, mined, strict=True)
          for other in others.get(example.texts[0], [candidate]) if other not in ("", example.texts[1])]


def mine(questions: Sequence[str], answers: Sequence[str]) -> list[str]:
  """For each question the answer to the most similar other one, by TF-IDF of words in at most 1 of 500 questions.

  Frequent words say little and cost most of the time. Without a word in common it is the next question's answer; "" if
  there is no other answer.
  """
  from sklearn.feature_extraction.text import TfidfVectorizer  # takes seconds

  most = len(questions) // 500 if len(questions) > 1000 else 1.0  # a number of questions, or a share of them
  vectors = TfidfVectorizer(token_pattern=r"\w+", max_df=most, dtype=np.float32).fit_transform(questions)
  mined = []
  for first in range(0, len(questions), 4096):
    similar = (vectors[first:first + 4096] @ vectors.T).tocsr()
    for row in range(similar.shape[0]):
      own = first + row
      span = slice(similar.indptr[row], similar.indptr[row + 1])
      likely = sorted(zip(-similar.data[span], similar.indices[span], strict=True))
      places = [*(int(place) for _, place in likely), (own + 1) % len(questions)]
      mined.append(next((answers[place] for place in places if answers[place] != answers[own]), ""))
  return mined


def decode(outputs: Outputs, examples: Sequence[Example]) -> list[str | None]:
  """The best of a question's sentences (the first of equals) is its answer; a single one if its score is positive."""
  scores = outputs["multiple_choice_head"][:, 0]
  rows: dict[str, list[int]] = {}
  for number, example in enumerate(examples):
    rows.setdefault(example.texts[0], []).append(number)
  answers = {max(numbers, key=lambda number: scores[number]) for numbers in rows.values()
             if len(numbers) > 1 or scores[numbers[0]] > 0}
  return [None if not np.isfinite(scores[number]) else ANSWER if number in answers else NO_ANSWER
          for number in range(len(examples))]
