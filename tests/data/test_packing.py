"""The formats without NSP written out as text, and what holds for any documents."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_jax.data.packing import FORMATS, Packing, pack_electra, pack_full_sentences
from tests.data.fakes import FakeTokenizer

CLS, SEP = 1, 2
TOKENIZER = FakeTokenizer()
# Ten sentences in four documents.
CORPUS = [["a a a", "b b b b", "c c"], ["d d d d d", "e", "f f f"], ["g g"], ["h h h h", "i i i i i i", "j j j"]]


def encode(corpus):
  return [TOKENIZER.encode_batch(document) for document in corpus]


def as_text(examples):
  """Each example as text, segment B after a bar."""
  lines = []
  for ids, start, _ in examples:
    tokens = TOKENIZER.tokens(ids)
    lines.append(" ".join([*tokens[:start], *(["|"] if start < len(ids) else []), *tokens[start:]]))
  return lines


def pack(format_name, corpus, length, **keys):
  return list(FORMATS[format_name](encode(corpus), Packing(length, CLS, SEP, **keys)))


def test_full_sentences_as_text():
  assert as_text(pack("FULL-SENTENCES", CORPUS, 14)) == [
    "[CLS] a a a b b b b c c [SEP]",  # the next sentence, with its separator, would make 6 of 3
    "[CLS] d d d d d e f f f [SEP] g g [SEP]",  # exactly 14, across documents
    "[CLS] h h h h i i i i i i [SEP]",
    "[CLS] j j j [SEP]",
  ]


def test_doc_sentences_as_text():
  """Documents never share an example; what is left of one makes a short example."""
  assert as_text(pack("DOC-SENTENCES", CORPUS, 14)) == [
    "[CLS] a a a b b b b c c [SEP]",
    "[CLS] d d d d d e f f f [SEP]",
    "[CLS] g g [SEP]",
    "[CLS] h h h h i i i i i i [SEP]",
    "[CLS] j j j [SEP]",
  ]


def test_electra_as_text():
  """Documents never mix; the half of 13 - 3 is 5."""
  assert as_text(pack("ELECTRA", CORPUS, 13)) == [
    "[CLS] a a a [SEP] | b b b b c c [SEP]",
    "[CLS] d d d d d [SEP] | e f f f [SEP]",
    "[CLS] g g [SEP]",
    "[CLS] h h h h [SEP] | i i i i i i [SEP]",
    "[CLS] j j j [SEP]",
  ]


def test_full_sentences_split_only_what_cannot_fit():
  corpus = [["a a", "b b b b b b b b b b"], ["c c c c c c c c"], ["d"]]
  assert as_text(pack("FULL-SENTENCES", corpus, 8)) == [
    "[CLS] a a b b b b [SEP]",  # a sentence over 6 tokens starts in the room that is left
    "[CLS] b b b b b b [SEP]",
    "[CLS] c c c c c c [SEP]",
    "[CLS] c c [SEP] d [SEP]",
  ]
  assert as_text(pack("FULL-SENTENCES", [["a a a a a"], ["b b b b b b b"]], 8)) == [
    "[CLS] a a a a a [SEP]",  # room for the separator, but not for a token behind it
    "[CLS] b b b b b b [SEP]", "[CLS] b [SEP]"]


def test_electra_goes_on_with_what_exceeds_the_length():
  assert as_text(pack("ELECTRA", [["a " * 23, "b " * 8]], 13)) == [
    "[CLS] a a a a a [SEP] | a a a a a [SEP]",  # one paragraph fills the example: it is halved
    "[CLS] a a a a a [SEP] | a a a a a [SEP]",
    "[CLS] a a a [SEP] | b b b b b b b [SEP]",
    "[CLS] b [SEP]",
  ]


def test_electra_single_segments():
  assert as_text(pack("ELECTRA", CORPUS[:1], 12, single_segment_share=1.0)) == ["[CLS] a a a b b b b c c [SEP]"]


@pytest.mark.parametrize("format_name", ["ELECTRA", "FULL-SENTENCES", "DOC-SENTENCES"])
def test_empty_documents_and_paragraphs_vanish(format_name):
  packing = Packing(10, CLS, SEP)
  assert list(FORMATS[format_name]([], packing)) == []
  assert list(FORMATS[format_name]([[], [[]], [[], []]], packing)) == []
  assert [ids for ids, _, _ in FORMATS[format_name]([[], [[], [7], []], []], packing)] == [[CLS, 7, SEP]]


def test_electra_shares():
  """Single segments and short targets at their shares; with no share set, full and in two segments."""
  corpus = [[[5] * 7] * 2000] * 40
  examples = list(pack_electra(corpus, Packing(64, CLS, SEP, single_segment_share=0.1, short_sequence_share=0.05)))
  count = len(examples)
  assert count > 8000
  single = sum(start == len(ids) for ids, start, _ in examples) / count
  assert abs(single - 0.1) < 0.015
  lengths = [len(ids) for ids, _, _ in examples]
  assert abs(sum(n < 64 for n in lengths) / count - 0.05) < 0.012
  assert max(lengths) == 64
  assert len({n for n in lengths if n < 64}) > 40  # from 5 on, all short lengths occur
  first = [start - 2 for ids, start, _ in examples if start < len(ids) == 64]
  assert 25 < sum(first) / len(first) < 36  # A holds about half of the 61
  assert len(set(first)) > 2  # the paragraph that crosses the half goes either way
  plain = list(pack_electra(corpus[:1], Packing(64, CLS, SEP)))
  assert all(len(ids) == 64 and start < 64 for ids, start, _ in plain[:-1])


def test_electra_draws_belong_to_the_document():
  """A document is packed the same way wherever its batch begins, and otherwise under another seed or number."""
  corpus = [[[5 + i] * 6] * 50 for i in range(6)]
  packing = Packing(32, CLS, SEP, single_segment_share=0.3, short_sequence_share=0.3, seed=1)
  whole = list(pack_electra(corpus, packing))
  parts = [list(pack_electra(corpus[i:i + 2], packing._replace(first_document=i))) for i in (0, 2, 4)]
  assert whole == [example for part in parts for example in part]
  assert whole != list(pack_electra(corpus, packing._replace(seed=2)))
  assert whole != list(pack_electra(corpus, packing._replace(first_document=1)))


@st.composite
def corpora(draw):
  """Documents of consecutive numbers, so that order and conservation can be read off."""
  sizes = draw(st.lists(st.lists(st.integers(0, 40), max_size=6), max_size=6))
  number, documents = 10, []
  for document in sizes:
    paragraphs = []
    for size in document:
      paragraphs.append(list(range(number, number + size)))
      number += size
    documents.append(paragraphs)
  return documents


@settings(max_examples=300, deadline=None)
@given(documents=corpora(), length=st.integers(8, 30), single=st.floats(0, 1), short=st.floats(0, 1),
       seed=st.integers(0, 1000))
@pytest.mark.parametrize("format_name", ["ELECTRA", "FULL-SENTENCES", "DOC-SENTENCES"])
def test_any_documents(format_name, documents, length, single, short, seed):
  packing = Packing(length, CLS, SEP, single, short, seed)
  examples = list(FORMATS[format_name](documents, packing))
  tokens = [token for document in documents for paragraph in document for token in paragraph]
  packed = [token for ids, _, _ in examples for token in ids if token not in (CLS, SEP)]
  assert packed == tokens  # order kept, nothing lost, nothing doubled
  document_of = {t: n for n, document in enumerate(documents) for paragraph in document for t in paragraph}
  for ids, start, _ in examples:
    assert 3 <= len(ids) <= length
    assert ids[0] == CLS and ids[-1] == SEP and CLS not in ids[1:]
    assert not any(a == b == SEP for a, b in itertools.pairwise(ids)) and ids[1] != SEP
    held = [document_of[token] for token in ids if token not in (CLS, SEP)]
    if format_name == "DOC-SENTENCES":
      assert len(set(held)) == 1 and start == len(ids) and ids.count(SEP) == 1
    elif format_name == "ELECTRA":
      assert len(set(held)) == 1
      assert start == (ids.index(SEP) + 1) and ids.count(SEP) == (1 if start == len(ids) else 2)
    else:
      assert start == len(ids)
      assert ids.count(SEP) == len(set(held))  # one between documents, one at the end


@settings(max_examples=100, deadline=None)
@given(documents=corpora(), length=st.integers(8, 30))
def test_full_sentences_are_full(documents, length):
  """A sentence that fits into an example is never split."""
  where = {}
  for number, (ids, _, _) in enumerate(pack_full_sentences(documents, Packing(length, CLS, SEP))):
    where.update(dict.fromkeys(ids, number))
  for document in documents:
    for sentence in document:
      if 0 < len(sentence) <= length - 2:
        assert len({where[token] for token in sentence}) == 1
