"""Pairs of next sentence prediction (NSP): BERT's input formats (RoBERTa section 4.2, Table 2).

Each token of a document comes out exactly once and in order, as A or as the true continuation B; a random B is a copy
of another document's tokens.
"""

import bisect
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from electra_jax.data import counter_hash
from electra_jax.data.examples import IS_NEXT, IS_RANDOM, SHORTEST, Example, Packing, Paragraphs
from electra_jax.errors import UserError


def pack_segment_pairs(documents: Iterable[Paragraphs], packing: Packing) -> Iterator[Example]:
  """[CLS] A [SEP] B [SEP] for NSP: A is a stretch of a document, B what follows it or, in half of the examples, a
  stretch of another document (BERT; "SEGMENT-PAIR+NSP" in RoBERTa 4.2).

  A ends at a random one of the boundaries between the paragraphs that fill the example; a single paragraph is halved. A
  random B is never the true continuation of A, and never comes from the same document (a text of more than 1 MiB
  without a blank line is several); what it displaces opens the next example. A share of the examples gets a random
  shorter target length. A last single token has no continuation.

  Differs from the released code: it makes pairs of each document ten times and drops what exceeds the length, here
  pairs are made once and the next example continues; it tells another document by its number, here an equal copy is not
  another; it never halves a paragraph, so more than half of its pairs are random. It takes the other document from the
  whole input file, here it comes from the same 1 MiB of text or is one of the two documents before it.

  Raises:
    UserError: there is no other document to take B from.

  >>> packing = Packing(sequence_length=11, cls_id=1, sep_id=2, seed=1)
  >>> for example in pack_segment_pairs([[[11, 12], [13, 14, 15], [16, 17, 18]], [[21], [22, 23]]], packing):
  ...   print(*example)
  [1, 11, 12, 2, 21, 22, 23, 2] 4 1
  [1, 13, 14, 15, 2, 16, 17, 18, 2] 5 0
  [1, 21, 2, 16, 17, 18, 2] 3 1
  [1, 22, 2, 23, 2] 3 0
  """
  yield from _pack_pairs(documents, packing, _segment_pairs)


def pack_sentence_pairs(documents: Iterable[Paragraphs], packing: Packing) -> Iterator[Example]:
  """[CLS] A [SEP] B [SEP] for NSP, where A and B are single sentences ("SENTENCE-PAIR+NSP" in RoBERTa 4.2).

  B is the sentence after A or, in half of the examples, a sentence of another document. No sentence follows the last
  one of a document, so in short documents more than half of the pairs are random. A sentence that is longer than half
  of an example is cut into several.

  Raises:
    UserError: there is no other document to take B from.

  >>> packing = Packing(sequence_length=11, cls_id=1, sep_id=2, seed=5)
  >>> for example in pack_sentence_pairs([[[11, 12], [13, 14, 15]], [[21], [22, 23]]], packing):
  ...   print(*example)
  [1, 11, 12, 2, 21, 2] 4 1
  [1, 13, 14, 15, 2, 21, 2] 5 1
  [1, 21, 2, 22, 23, 2] 3 0
  """
  half = (packing.sequence_length - 3) // 2
  documents = [[sentence[start:start + half] for sentence in document for start in range(0, len(sentence), half)]
               for document in documents]
  yield from _pack_pairs(documents, packing, _sentence_pairs)


class _Document(NamedTuple):
  """A document as the pairs see it."""

  tokens: list[int]
  starts: list[int]  # of its sentences in `tokens`, ascending
  number: int  # among the documents that lend

  def sentence(self, number: int) -> list[int]:
    end = self.starts[number + 1] if number + 1 < len(self.starts) else len(self.tokens)
    return self.tokens[self.starts[number]:end]


def _pack_pairs(documents: Iterable[Paragraphs], packing: Packing, make_pairs: Callable) -> Iterator[Example]:
  lenders, numbers = [], []  # the documents with tokens, and their numbers for the draws
  for number, paragraphs in enumerate(documents, packing.first_document - packing.num_lenders):
    if sentences := [sentence for sentence in paragraphs if sentence]:
      starts = [0, *itertools.accumulate(map(len, sentences))][:-1]
      lenders.append(_Document([token for sentence in sentences for token in sentence], starts, len(lenders)))
      numbers.append(number)
  for document, number in zip(lenders, numbers):
    if number < packing.first_document:  # it only lends
      continue
    if len(lenders) < 2:
      raise _no_other_document(lenders)
    seed = counter_hash.derive(counter_hash.fold(packing.seed, number), counter_hash.Purpose.PACKING)
    for first, second, label in make_pairs(document, lenders, packing, random.Random(int(seed[0]))):
      ids = [packing.cls_id, *first, packing.sep_id, *second, packing.sep_id]
      yield Example(ids, len(first) + 2, label)


def _segment_pairs(document: _Document, lenders: list[_Document], packing: Packing, rng: random.Random):
  """(A, B, label) of each example of a document."""
  tokens, starts, start = document.tokens, document.starts, 0
  while start < len(tokens):
    target = packing.sequence_length
    if target > SHORTEST and rng.random() < packing.short_sequence_share:
      target = rng.randint(SHORTEST, target)
    end = min(start + target - 3, len(tokens))
    boundaries = starts[bisect.bisect_right(starts, start):bisect.bisect_left(starts, end)]
    is_random = rng.random() < 0.5 or end - start == 1
    if boundaries:
      middle = rng.choice(boundaries)
    elif is_random and end - start < target - 3:
      middle = end  # the rest of the document
    else:
      middle = (start + end) // 2
    first, second, label = tokens[start:middle], tokens[middle:end], IS_NEXT
    if is_random and (borrowed := _borrow(document, middle, lenders, rng)):
      lender, sentence = borrowed
      begin = lender.starts[sentence]
      second, label = lender.tokens[begin:begin + target - 3 - len(first)], IS_RANDOM
    yield first, second, label
    start = middle if label == IS_RANDOM else end


def _sentence_pairs(document: _Document, lenders: list[_Document], packing: Packing, rng: random.Random):
  """(A, B, label) of each example of a document."""
  del packing
  number, count = 0, len(document.starts)
  while number < count:
    first, number = document.sentence(number), number + 1
    middle = document.starts[number] if number < count else len(document.tokens)
    if (number == count or rng.random() < 0.5) and (borrowed := _borrow(document, middle, lenders, rng)):
      lender, sentence = borrowed
      yield first, lender.sentence(sentence), IS_RANDOM
    else:
      yield first, document.sentence(number), IS_NEXT
      number += 1


def _borrow(document: _Document, middle: int, lenders: list[_Document],
            rng: random.Random) -> tuple[_Document, int] | None:
  """(other document, number of its sentence) for a sentence that does not continue `document` at position `middle`.

  None if chance finds no such sentence, as in a corpus of copies; the true continuation then has to do. At the end of
  `document`, where there is none, the first document that differs lends a sentence.

  Raises:
    UserError: all the others are copies, or beginnings, of `document`.
  """
  for _ in range(20):
    number = rng.randrange(len(lenders) - 1)
    lender = lenders[number + (number >= document.number)]
    sentence = rng.randrange(len(lender.starts))
    words = lender.sentence(sentence)
    if lender.tokens != document.tokens[:len(lender.tokens)] and words != document.tokens[middle:middle + len(words)]:
      return lender, sentence
  if middle < len(document.tokens):
    return None
  for lender in lenders:
    if lender.tokens != document.tokens[:len(lender.tokens)]:
      return lender, rng.randrange(len(lender.starts))
  raise _no_other_document(lenders)


def _no_other_document(lenders: list[_Document]) -> UserError:
  return UserError("Next sentence prediction takes segments from other documents, and there is no other document",
                   got="0 other documents with tokens" if len(lenders) < 2 else
                   f"{len(lenders) - 1} other documents with tokens, all alike",
                   allowed="at least two different documents in the training and, if there is one, the held-out split",
                   fix="separate the documents of a text by blank lines; of few documents hold out more than one, or "
                       "none, with --config.data.heldout_share=0.2 or 0; or choose a --config.data.format without NSP, "
                       "such as FULL-SENTENCES")
