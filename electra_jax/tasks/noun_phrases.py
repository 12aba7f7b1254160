"""Noun phrases of a sentence, by spaCy's parser (RoBERTa section 5.1)."""

import functools
import re
from collections.abc import Callable

from electra_jax.errors import UserError

MODEL = "en_core_web_sm"  # spaCy's small English pipeline
_DETERMINERS = "a an the this that these those my your his her its our their some any every each no"
DETERMINERS = frozenset(_DETERMINERS.split())
WORD = re.compile(r"\w+(?:-\w+|'(?!s\b)\w+)*")  # "don't" is one word; the s of "Jim's" stands alone


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
