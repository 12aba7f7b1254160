"""Packing of documents into examples of a fixed length: the input formats of the papers, in pure Python.

A document arrives as lists of token ids, one per paragraph (a "sentence" in RoBERTa's words: the line of the source).
SEGMENT-PAIR, SENTENCE-PAIR, FULL-SENTENCES and DOC-SENTENCES are RoBERTa section 4.2 (Table 2); ELECTRA is the
two-segment builder of the released code (the paper does not describe it). Every token that goes in comes out exactly
once and in order: nothing is cut off. The pairs of next sentence prediction (`pairs`) also hold copies of other
documents' tokens.
"""

import random
from collections.abc import Callable, Iterable, Iterator

from electra_jax.data import counter_hash
from electra_jax.data.examples import SHORTEST, Example, Packing, Paragraphs
from electra_jax.data.pairs import pack_segment_pairs, pack_sentence_pairs


def pack_full_sentences(documents: Iterable[Paragraphs], packing: Packing) -> Iterator[Example]:
  """[CLS] sentences [SEP]: whole sentences in order, across documents, until the next one does not fit (RoBERTa 4.2).

  An extra separator stands between the documents of one example. A sentence longer than a whole example has to be
  split anyhow, so it starts in the room that is left and continues in the next examples.

  >>> packing = Packing(sequence_length=8, cls_id=1, sep_id=2)
  >>> for example in pack_full_sentences([[[11, 12], [13, 14, 15]], [[21], [22, 23]]], packing):
  ...   print(example.ids)
  [1, 11, 12, 13, 14, 15, 2]
  [1, 21, 22, 23, 2]
  """
  room = packing.sequence_length - 2
  held: list[int] = []
  for paragraphs in documents:
    separator = [packing.sep_id] if held else []
    for sentence in paragraphs:
      if not sentence:
        continue
      start = 0
      while len(held) + len(separator) + len(sentence) - start > room:
        take = room - len(held) - len(separator)
        if len(sentence) > room and take > 0:
          held += separator + sentence[start:start + take]
          start += take
        yield _single(held, packing)
        held, separator = [], []
      held += separator + sentence[start:]
      separator = []
  if held:
    yield _single(held, packing)


def pack_doc_sentences(documents: Iterable[Paragraphs], packing: Packing) -> Iterator[Example]:
  """FULL-SENTENCES that never cross documents (RoBERTa 4.2), so the last example of each is shorter.

  To make up for that, the batch grows, as in the paper: `order.TokenBatches`.

  >>> packing = Packing(sequence_length=8, cls_id=1, sep_id=2)
  >>> for example in pack_doc_sentences([[[11, 12], [13]], [[21]]], packing):
  ...   print(example.ids)
  [1, 11, 12, 13, 2]
  [1, 21, 2]
  """
  for paragraphs in documents:
    yield from pack_full_sentences([paragraphs], packing)


def pack_electra(documents: Iterable[Paragraphs], packing: Packing) -> Iterator[Example]:
  """[CLS] A [SEP] B [SEP], cut from one document at a time (released ELECTRA code).

  Each example is filled up to its target length, or to the end of the document. Segment A takes whole paragraphs up
  to about half of it; the paragraph that crosses the half goes to A or B by the toss of a coin. A share of the examples
  gets only one segment, and a share a random shorter target of 5 to sequence_length tokens.

  Differs from the released code: it drops what exceeds the length, here the next example gets it; it leaves B empty
  where one long paragraph fills the example, here that paragraph is halved; its short examples are at least one
  paragraph long, here they have the drawn length.

  >>> packing = Packing(sequence_length=10, cls_id=1, sep_id=2)
  >>> for example in pack_electra([[[11, 12], [13, 14, 15], [16, 17, 18, 19]], [[21]]], packing):
  ...   print(example.ids, example.second_segment_start)
  [1, 11, 12, 2, 13, 14, 15, 16, 17, 2] 4
  [1, 18, 19, 2] 4
  [1, 21, 2] 3
  """
  for number, paragraphs in enumerate(documents, packing.first_document):
    seed = counter_hash.derive(counter_hash.fold(packing.seed, number), counter_hash.Purpose.PACKING)
    yield from _electra_document(paragraphs, packing, random.Random(int(seed[0])))


def _electra_document(paragraphs: Paragraphs, packing: Packing, rng: random.Random) -> Iterator[Example]:
  paragraph, offset = 0, 0  # where the next example starts
  while paragraph < len(paragraphs):
    target = packing.sequence_length
    if target > SHORTEST and rng.random() < packing.short_sequence_share:
      target = rng.randint(SHORTEST, target)
    is_single = rng.random() < packing.single_segment_share
    room = target - (2 if is_single else 3)
    pieces: list[list[int]] = []
    while paragraph < len(paragraphs) and room:
      piece = paragraphs[paragraph][offset:offset + room]
      if piece:
        pieces.append(piece)
      room -= len(piece)
      offset += len(piece)
      if offset == len(paragraphs[paragraph]):
        paragraph, offset = paragraph + 1, 0
    if not pieces:
      return  # nothing but empty paragraphs was left
    if is_single:
      yield _single([token for piece in pieces for token in piece], packing)
    else:
      yield _pair(pieces, target - 3, packing, rng)


def _pair(pieces: list[list[int]], room: int, packing: Packing, rng: random.Random) -> Example:
  """Divides the pieces of one example (at most `room` tokens in all) between segments A and B."""
  half = room // 2
  if len(pieces) == 1 and len(pieces[0]) == room:
    pieces = [pieces[0][:half], pieces[0][half:]]
  first, number = list(pieces[0]), 1
  while number < len(pieces) and len(first) + len(pieces[number]) <= half:
    first += pieces[number]
    number += 1
  crosses = number < len(pieces) and len(first) < half
  if crosses and len(first) + len(pieces[number]) < room and rng.random() < 0.5:
    first += pieces[number]
    number += 1
  second = [token for piece in pieces[number:] for token in piece]
  if not second:
    return _single(first, packing)
  ids = [packing.cls_id, *first, packing.sep_id, *second, packing.sep_id]
  return Example(ids, len(first) + 2)


def _single(tokens: list[int], packing: Packing) -> Example:
  ids = [packing.cls_id, *tokens, packing.sep_id]
  return Example(ids, len(ids))


# data.format -> function(documents, packing) that yields examples
FORMATS: dict[str, Callable[[Iterable[Paragraphs], Packing], Iterator[Example]]] = {
  "ELECTRA": pack_electra,
  "FULL-SENTENCES": pack_full_sentences,
  "DOC-SENTENCES": pack_doc_sentences,
  "SEGMENT-PAIR": pack_segment_pairs,
  "SENTENCE-PAIR": pack_sentence_pairs,
}
NSP_FORMATS = frozenset({"SEGMENT-PAIR", "SENTENCE-PAIR"})  # those whose examples have an nsp_label
