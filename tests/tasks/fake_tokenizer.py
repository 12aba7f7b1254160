"""A vocabulary of words that a test can read: ids are 10 + the word's letter count, special ids below.

And noun phrases without spaCy's parser: "the" with the word behind it.
"""

import re

find_phrases = re.compile(r"\b[Tt]he \w+").findall


class Words:
  """[CLS] 1, [SEP] 2, [PAD] 0, [UNK] 3; `kind` decides the separators of a pair."""

  pad_id, cls_id, sep_id, unk_id = 0, 1, 2, 3

  def __init__(self, kind: str = "wordpiece"):
    self.kind = kind

  def encode(self, text: str) -> list[int]:
    """One id a word; a word with a hyphen is two pieces."""
    return [10 + len(piece) for word in text.split() for piece in word.split("-")]
