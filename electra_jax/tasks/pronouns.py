"""WNLI as a ranking by a new head: the pronoun's referent must score higher than the sentence's other noun phrases.

For ELECTRA's discriminator, which has no masked LM; RoBERTa's own way is `winograd.py`. Both find the noun phrases by
spaCy's parser (RoBERTa section 5.1).
"""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.errors import UserError
from electra_jax.tasks import features, glue
from electra_jax.tasks.base import Example, Feature, Outputs, Task

MODEL = "en_core_web_sm"  # spaCy's small English pipeline
_DETERMINERS = "a an the this that these those my your his her its our their some any every each no"
DETERMINERS = frozenset(_DETERMINERS.split())
WORD = re.compile(r"\w+(?:-\w+|'(?!s\b)\w+)*")  # "don't" is one word; the s of "Jim's" stands alone
PRONOUNS = frozenset(("he", "him", "his", "she", "her", "hers", "it", "its", "they", "them", "their", "theirs"))
TOKEN = re.compile(r"\w+|'\w+|[^\w\s]")
YES, NO = "1", "0"


class Referent(NamedTuple):
  """A hypothesis as the sentence's words around a phrase that replaces the pronoun: before + phrase + after."""

  before: str
  phrase: str
  after: str


def make(name: str, config_task: ConfigDict) -> Task:
  """WNLI as margin ranking; spaCy finds the other candidates.

  Only positive training examples are used, each with every other noun phrase of its sentence: pairs of hypotheses of
  which the first is right. On dev and test a hypothesis is true if it scores higher than every other noun phrase's.

  Differs from RoBERTa (section 5.1; the task `wsc`): the score is that of a linear layer on [CLS], not the masked LM's
  probability of the phrase, since ELECTRA's discriminator is no masked LM; the loss is the margin alone; and the
  pronoun is found by comparing WNLI's two sentences, where RoBERTa took its place from SuperGLUE's files.

  Reading the training examples and featurising raise a UserError if spaCy is not installed.
  """
  def featurize(example: Example, tokenizer: Tokenizer, max_length: int) -> list[Feature]:
    premise, *hypotheses = example.texts
    number = len(hypotheses)  # 2 to train on, or 1 to judge, with its rivals as further features
    hypotheses += others(premise, hypotheses[0]) if number == 1 else []
    rows = [features.sequence(tokenizer, (premise, hypothesis), max_length) for hypothesis in hypotheses]
    return features.as_choices(rows, number)

  return glue.make_ranking(name, config_task, "ranking", pairs, featurize, decode)


def pairs(examples: Sequence[Example]) -> list[Example]:
  """(sentence, right hypothesis, one with another noun phrase) for every positive example."""
  return [example._replace(texts=(*example.texts, other)) for example in examples if example.label == YES
          for other in others(*example.texts)]


def others(premise: str, hypothesis: str) -> list[str]:
  """The hypothesis with each other noun phrase of the premise; [] if its pronoun is not found."""
  referent = find_referent(premise, hypothesis)
  if referent is None:
    return []
  return [f"{referent.before}{phrase}{referent.after}" for phrase in rivals(premise, referent.phrase)]


def rivals(sentence: str, right: str) -> list[str]:
  """The sentence's other noun phrases, each once: no pronouns, nor any that shares a word with the right one."""
  phrases: dict[str, str] = {}
  for phrase in make_finder()(sentence):
    bare = _bare(phrase)
    if bare and bare not in PRONOUNS and not set(bare.split()) & set(_bare(right).split()):
      phrases.setdefault(bare, phrase)
  return list(phrases.values())


@functools.cache  # loading a parser takes seconds
def make_finder() -> Callable[[str], list[str]]:
  """text -> the noun chunks of spaCy's parser.

  Raises:
    UserError: spaCy or its English pipeline is not installed.
  """
  try:
    import spacy  # ty: ignore[import-not-found] - optional
    parse = spacy.load(MODEL, exclude=["ner", "lemmatizer"])
  except (ImportError, OSError) as error:  # OSError: the pipeline, a package of its own, is missing
    raise UserError("Noun phrases need spaCy and its English pipeline; one is not installed", got=str(error)[:200],
                    allowed=f"spaCy with {MODEL}",
                    fix=f"pip install spacy && python -m spacy download {MODEL}") from error
  return lambda text: [chunk.text for chunk in parse(text).noun_chunks]


def find_referent(premise: str, hypothesis: str) -> Referent | None:
  """The phrase of the hypothesis that replaces a pronoun of the premise; the words around it agree.

  Of several readings the one with the shortest phrase is taken, preferably a phrase that is in the premise.

  >>> find_referent("Tom gave Jim his hat because he was cold.", "Jim was cold.")
  Referent(before='', phrase='Jim', after=' was cold.')
  >>> find_referent("The bee landed on it.", "The bee landed on the flower.").phrase
  'the flower'
  """
  given, asked = list(TOKEN.finditer(premise)), list(TOKEN.finditer(hypothesis))
  if asked and not asked[-1].group()[0].isalnum():
    asked.pop()  # the full stop
  words, wanted = [m.group().lower() for m in given], [m.group().lower() for m in asked]
  readings = []  # (number of words, whether the premise lacks the phrase, its start, its end)
  for place in (place for place, word in enumerate(words) if word in PRONOUNS):
    left = next(n for n in range(min(place, len(wanted) - 1), -1, -1) if words[place - n:place] == wanted[:n])
    right = next(n for n in range(len(wanted) - left - 1, -1, -1)
                 if words[place + 1:place + 1 + n] == wanted[len(wanted) - n:])
    if left + right:
      start, end = asked[left].start(), asked[-1 - right].end()
      is_new = _bare(hypothesis[start:end]) not in premise.lower()
      readings.append((len(asked) - left - right, is_new, start, end))
  if not readings:
    return None
  _, _, start, end = min(readings, key=lambda reading: reading[:2])  # of equals the first
  if hypothesis[start:end].lower().endswith("'s"):  # his -> Jim's
    end -= 2
  return Referent(hypothesis[:start], hypothesis[start:end], hypothesis[end:])


def _bare(phrase: str) -> str:
  """Lowercase, without a leading determiner."""
  words = [word.lower() for word in WORD.findall(phrase)]
  return " ".join(words[1:] if words and words[0] in DETERMINERS else words)


def decode(outputs: Outputs, features_: Sequence[Feature], examples: Sequence[Example],
           labels: tuple[str, str] = (NO, YES)) -> list[str | None]:
  """The second label if an example's first score beats its others; else, or without others, the first."""
  scores: Mapping[int, list[float]] = {number: [] for number in range(len(examples))}
  (rows,) = outputs.values()
  for feature, row in zip(features_, rows, strict=True):
    scores[feature["_example"]].append(float(row[0]))
  no, yes = labels
  return [None if not np.isfinite(values).all() else yes if len(values) > 1 and values[0] > max(values[1:]) else no
          for values in scores.values()]
