"""Sentences of a paragraph: the paragraph itself (one sentence a line, as in BERT's input), or split by rules.

The formats of RoBERTa section 4.2 are made of sentences. A corpus with a sentence on each line needs no splitting;
running text is split by the rules of Wikimedia's sentencex (abbreviations, numbers, quotes; for many languages).
"""

from electra_jax.errors import UserError


def split(paragraph: str, sentences: str) -> list[str]:
  """The sentences of a paragraph, stripped, none empty; only blanks between them are lost.

  Args:
    sentences: data.sentences: "line", for which the paragraph is the only one, or the language of the rules.

  Raises:
    UserError: the package of the rules is missing.

  >>> split("One. Two.", "line")
  ['One. Two.']
  """
  if sentences == "line":
    return [paragraph]
  try:
    import sentencex
  except ImportError as error:
    raise UserError("Splitting text into sentences needs a package that is not installed",
                    got=f"data.sentences={sentences}", allowed="sentencex",
                    fix="pip install sentencex, or keep --config.data.sentences=line, which takes each line of the "
                        "text as a sentence") from error
  segment = sentencex.segment  # ty: ignore[missing-attribute] - of a compiled module
  return [stripped for sentence in segment(sentences, paragraph) if (stripped := sentence.strip())]
