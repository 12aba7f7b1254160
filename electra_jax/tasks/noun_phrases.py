"""Noun phrases of a sentence: spaCy's parser, or a few rules where it is not installed."""

import re
from collections.abc import Callable

from electra_jax.errors import UserError

MODEL = "en_core_web_sm"  # spaCy's small English pipeline
_DETERMINERS = "a an the this that these those my your his her its our their some any every each no"
_OTHERS = """
  i you he she it we they me him us them who whom whose which what there here and or but nor so because although though
  if when while where since until after before as than that to of in on at by for from with without into onto over under
  about around between through against during above below behind near is are was were be been being am do does did has
  have had will would can could shall should may might must not no yes very too also even just only then still yet ever
  never now
"""
DETERMINERS = frozenset(_DETERMINERS.split())
FUNCTION_WORDS = DETERMINERS | frozenset(_OTHERS.split())  # at which a phrase ends, or which are none by themselves
WORD = re.compile(r"\w+(?:-\w+|'(?!s\b)\w+)*")  # don't is one word, of Jim's the s is none
LONGEST = 3  # words behind a determiner


def by_rules(text: str) -> list[str]:
  """A determiner with the words behind it, and names: runs of capitalised words that are no function words.

  Without a tagger a phrase ends at a function word, at punctuation, at a word in -n't, -ed, -ing or -ly, or after three
  words.

  >>> by_rules("The trophy does not fit in the brown suitcase, Tom Smith said.")
  ['The trophy', 'the brown suitcase', 'Tom Smith']
  """
  words, phrases, place = list(WORD.finditer(text)), [], 0
  while place < len(words):
    first, end = words[place], place + 1
    if first.group().lower() in DETERMINERS:
      while end < len(words) and end - place <= LONGEST and _goes_on(text, words, end, is_first=end == place + 1):
        end += 1
      if end > place + 1:
        phrases.append(text[first.start():words[end - 1].end()])
    elif first.group()[0].isupper() and first.group().lower() not in FUNCTION_WORDS:
      while end < len(words) and words[end].group()[0].isupper() and _goes_on(text, words, end, is_first=True):
        end += 1
      phrases.append(text[first.start():words[end - 1].end()])
    place = end
  return phrases


def _goes_on(text: str, words: list[re.Match], place: int, is_first: bool) -> bool:
  word = words[place].group().lower()
  return (not text[words[place - 1].end():words[place].start()].strip() and word not in FUNCTION_WORDS
          and (is_first or not word.endswith(("n't", "ed", "ing", "ly"))))


def make_spacy() -> Callable[[str], list[str]]:
  """text -> the noun chunks of spaCy's parser.

  Raises:
    UserError: spaCy or its English pipeline is not installed.
  """
  try:
    import spacy  # ty: ignore[import-not-found] - optional
    parse = spacy.load(MODEL, exclude=["ner", "lemmatizer"])
  except (ImportError, OSError) as error:  # OSError: the pipeline is a package of its own
    raise UserError("Noun phrases are found with spaCy, of which something is not installed", got=str(error)[:200],
                    allowed=f"spaCy with {MODEL}, or --config.task.noun_phrases=rules",
                    fix=f"pip install spacy && python -m spacy download {MODEL}") from error
  return lambda text: [chunk.text for chunk in parse(text).noun_chunks]


FINDERS: dict[str, Callable[[], Callable[[str], list[str]]]] = {"spacy": make_spacy, "rules": lambda: by_rules}
