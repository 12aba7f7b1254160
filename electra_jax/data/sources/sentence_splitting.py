"""Sentences of a paragraph: the paragraph itself (one sentence a line, as in BERT's input), or split by rules.

The formats of RoBERTa section 4.2 are made of sentences. A corpus with a sentence on each line needs no splitting;
running text is split by the rules of Wikimedia's sentencex (abbreviations, numbers, quotes; for many languages).
"""

import functools
from collections.abc import Callable

from electra_jax.errors import UserError


def by_line(paragraph: str) -> list[str]:
  """The paragraph, as its only sentence.

  >>> by_line("One. Two.")
  ['One. Two.']
  """
  return [paragraph]


def by_rules(paragraph: str, language: str) -> list[str]:
  """The sentences of running text, stripped, none empty; only blanks between them are lost."""
  import sentencex  # optional: make_splitter has checked that it is there

  segment = sentencex.segment  # ty: ignore[missing-attribute] - of a compiled module
  return [stripped for sentence in segment(language, paragraph) if (stripped := sentence.strip())]


def make_splitter(sentences: str) -> Callable[[str], list[str]]:
  """The function paragraph -> sentences for a value of data.sentences; it can be pickled.

  Raises:
    UserError: the package of the rules is missing.
  """
  if sentences == "line":
    return by_line
  try:
    import sentencex  # noqa: F401
  except ImportError as error:
    raise UserError("Splitting text into sentences needs a package that is not installed",
                    got=f"data.sentences={sentences}", allowed="sentencex",
                    fix="pip install sentencex, or keep --config.data.sentences=line, which takes each line of the "
                        "text as a sentence") from error
  return functools.partial(by_rules, language=sentences)
