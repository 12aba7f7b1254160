"""Next sentence prediction: both formats as text, and that a random B is never the true continuation."""

import json
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_jax.data import packing, shards
from electra_jax.data.examples import IS_NEXT, IS_RANDOM, Packing
from electra_jax.data.shards import preparation
from electra_jax.errors import UserError
from tests.data.corpora import assert_four_parts, make_config, make_corpus
from tests.data.fakes import FakeTokenizer
from tests.data.test_packing import CLS, CORPUS, SEP, as_text, corpora, encode, pack

TOKENIZER = FakeTokenizer()
LABELS = {IS_NEXT: "next", IS_RANDOM: "random"}


def as_labelled_text(examples):
  return [f"{LABELS[e.nsp_label]}: {line}" for e, line in zip(examples, as_text(examples))]


def test_segment_pairs_as_text():
  """What a random segment displaces opens the next example; a single paragraph is halved where B is to follow it."""
  assert as_labelled_text(pack("SEGMENT-PAIR", CORPUS, 13, seed=1)) == [
    "random: [CLS] a a a [SEP] | d d d d d e f [SEP]",
    "next: [CLS] b b b b [SEP] | c c [SEP]",
    "random: [CLS] d d d d d [SEP] | i i i i i [SEP]",
    "next: [CLS] e [SEP] | f f f [SEP]",
    "random: [CLS] g g [SEP] | d d d d d e f f [SEP]",
    "random: [CLS] h h h h [SEP] | b b b b c c [SEP]",
    "random: [CLS] i i i i i i [SEP] | b b b b [SEP]",
    "random: [CLS] j j j [SEP] | d d d d d e f [SEP]",
  ]


def test_sentence_pairs_as_text():
  assert as_labelled_text(pack("SENTENCE-PAIR", CORPUS, 15, seed=1)) == [
    "next: [CLS] a a a [SEP] | b b b b [SEP]",
    "random: [CLS] c c [SEP] | g g [SEP]",
    "next: [CLS] d d d d d [SEP] | e [SEP]",
    "random: [CLS] f f f [SEP] | g g [SEP]",
    "random: [CLS] g g [SEP] | a a a [SEP]",
    "next: [CLS] h h h h [SEP] | i i i i i i [SEP]",
    "random: [CLS] j j j [SEP] | b b b b [SEP]",
  ]


def test_sentence_pairs_cut_long_sentences():
  """More than half of the room: (13 - 3) // 2 tokens."""
  examples = pack("SENTENCE-PAIR", [["a " * 12], ["b"]], 13)
  own = [token for e in examples for token in own_tokens(e)]
  assert max(len(e.ids) for e in examples) <= 13
  assert own == encode([["a " * 12], ["b"]])[0][0] + encode([["b"]])[0][0]


def own_tokens(example):
  """The tokens of an example that come from the document whose turn it is."""
  ids, start, label = example
  return ids[1:start - 1] + (ids[start:-1] if label == IS_NEXT else [])


# ---- bug-reports 10: a "random" next sentence that is the true one ----


@pytest.mark.parametrize("format_name", sorted(packing.NSP_FORMATS))
@pytest.mark.parametrize("corpus", [[["a", "b", "c"]], [["a", "b", "c"], []], [["a"], ["a"]]])
def test_bug_10_one_document_is_refused(format_name, corpus):
  with pytest.raises(UserError) as error:
    pack(format_name, corpus, 12)
  assert_four_parts(error, "no other document")


@pytest.mark.parametrize("format_name", sorted(packing.NSP_FORMATS))
def test_bug_10_copies_of_one_document_have_no_negatives(format_name):
  for seed in range(20):
    assert {e.nsp_label for e in pack(format_name, [["a", "b"], ["a", "b"]], 12, seed=seed)} == {IS_NEXT}


@pytest.mark.parametrize("format_name", sorted(packing.NSP_FORMATS))
def test_a_few_other_documents_among_many_copies_are_found(format_name):
  examples = pack(format_name, [["a", "b", "c"]] * 200 + [["d", "e"]], 12)
  assert {e.nsp_label for e in examples} == {IS_NEXT, IS_RANDOM}


@pytest.mark.parametrize("format_name", sorted(packing.NSP_FORMATS))
def test_bug_10_two_documents_of_one_sentence(format_name):
  for seed in range(50):
    for ids, start, label in pack(format_name, [["a a"], ["b b"]], 12, seed=seed):
      assert label == (IS_RANDOM if ids[1] != ids[-2] else IS_NEXT)
      assert label == IS_NEXT or {ids[1], ids[start]} == set(encode([["a", "b"]])[0][0] + encode([["a", "b"]])[0][1])


@pytest.mark.parametrize("format_name", sorted(packing.NSP_FORMATS))
def test_bug_10_a_repeated_sentence_elsewhere_is_not_random(format_name):
  """Other documents hold the very sentence that follows: it is never taken for another one."""
  corpus = [["a", "b", "c"], ["x", "b", "y"], ["b", "c"]]
  for seed in range(100):
    for ids, start, label in pack(format_name, corpus, 9, seed=seed):
      tokens = [TOKENIZER.tokens([i])[0] for i in ids]
      if label == IS_RANDOM and tokens[start - 2] == "a":
        assert tokens[start] != "b"


@settings(max_examples=300, deadline=None)
@given(corpus=corpora(), length=st.integers(8, 30), short=st.floats(0, 1), seed=st.integers(0, 1000),
       num_lenders=st.integers(0, 1))
@pytest.mark.parametrize("format_name", sorted(packing.NSP_FORMATS))
def test_any_documents(format_name, corpus, length, short, seed, num_lenders):
  source_of = {t: source for source, document in enumerate(corpus) for sentence in document for t in sentence}
  tokens = [t for document in corpus[num_lenders:] for sentence in document for t in sentence]
  settings_ = Packing(length, CLS, SEP, short_sequence_share=short, seed=seed, num_lenders=num_lenders)
  if tokens and len(set(source_of.values())) < 2:
    with pytest.raises(UserError):
      list(packing.FORMATS[format_name](corpus, settings_))
    return
  examples = list(packing.FORMATS[format_name](corpus, settings_))
  assert [t for example in examples for t in own_tokens(example)] == tokens  # order kept, nothing lost or doubled
  for ids, start, label in examples:
    assert len(ids) <= length and ids[0] == CLS and ids[start - 1] == ids[-1] == SEP and ids.count(SEP) == 2
    first, second = ids[1:start - 1], ids[start:-1]
    assert first and second and len({source_of[t] for t in first}) == len({source_of[t] for t in second}) == 1
    if label == IS_NEXT:
      assert second[0] == first[-1] + 1
    else:
      assert source_of[first[0]] != source_of[second[0]]


def test_half_of_the_pairs_are_random():
  rng = np.random.default_rng(0)
  corpus = [[[10 + i] * int(n) for n in rng.integers(3, 30, 40)] for i in range(300)]
  examples = list(packing.pack_segment_pairs(corpus, Packing(64, CLS, SEP, seed=3)))
  labels = np.array([example.nsp_label for example in examples])
  assert len(labels) > 3000 and abs(labels.mean() - 0.5) < 0.03  # 3 standard deviations
  full = np.array([len(example.ids) for example in examples]) == 64
  assert full[labels == IS_NEXT].mean() > 0.88  # all but the ends of documents
  sentences = [e.nsp_label for e in packing.pack_sentence_pairs(corpus, Packing(64, CLS, SEP, seed=3))]
  assert abs(np.mean(sentences) - 0.5) < 0.03


# ---- chunks ----


def chunk(corpus, monkeypatch, characters=10, **keys):
  monkeypatch.setattr(preparation, "CHUNK_CHARACTERS", characters)
  return list(preparation.make_chunks([("train", document) for document in corpus], **keys))


def test_a_chunk_borrows_from_the_one_before(monkeypatch):
  """Every document is longer than a chunk: without lenders, none would have another document to borrow from."""
  books = [[f"book {i} " + "x" * 20] for i in range(5)]
  chunks = chunk(books, monkeypatch, for_nsp=True)
  assert [c.documents for c in chunks] == [books[:2], [books[2]], [books[3]], [books[4]]]
  assert [c.lenders for c in chunks] == [[], books[0:2], books[1:3], books[2:4]]
  assert [c.documents for c in chunk(books, monkeypatch)] == [[book] for book in books]


def test_a_chunk_waits_for_a_second_document(monkeypatch):
  corpus = [["a" * 50], ["b"], ["c" * 20]]
  assert [c.documents for c in chunk(corpus, monkeypatch, for_nsp=True)] == [corpus[:2], corpus[2:]]


# ---- shards ----


@pytest.mark.parametrize("format_name", sorted(packing.NSP_FORMATS))
def test_labels_come_back_from_the_shards(format_name, tmp_path, monkeypatch):
  monkeypatch.setattr(preparation, "CHUNK_CHARACTERS", 2000)
  config = make_config(make_corpus(tmp_path), format=format_name)
  manifests = [shards.prepare(make_config(config.path, format=format_name, num_workers=workers), TOKENIZER,
                              str(tmp_path / str(workers)), seed=0) for workers in (1, 2)]
  for file in ("train/00000.npy", "heldout/00000.npy"):
    assert (tmp_path / "1" / file).read_bytes() == (tmp_path / "2" / file).read_bytes()
  assert manifests[0]["version"] == 2
  for split in ("train", "heldout"):
    examples = shards.open_shards(str(tmp_path / "1"), split, config, TOKENIZER)
    everything = np.arange(len(examples))
    ids, num_tokens, start = examples.read(everything)
    labels, statistics = examples.nsp_labels(everything), manifests[0]["statistics"][split]
    assert labels.dtype == np.int32 and set(labels) == {0, 1}
    assert statistics["random_pairs"] == labels.sum() and statistics["dropped_tokens"] == 0
    assert (ids[everything, start - 1] == SEP).all() and (start < num_tokens).all()
    borrowed = (num_tokens - start - 1)[labels == 1].sum()
    assert statistics["borrowed_tokens"] == borrowed
    assert (ids >= 4).sum() - borrowed == statistics["tokens"]
    assert np.array_equal(examples.lengths(), num_tokens)
    some = np.array([5, 0, 5])
    assert np.array_equal(examples.nsp_labels(some), labels[some])


def test_one_document_is_an_error_of_four_parts_from_worker_processes_too(tmp_path):
  path = tmp_path / "a.txt"
  path.write_text("a b c\nd e f\ng h i\n")
  for workers in (1, 2):
    with pytest.raises(UserError) as error:
      shards.prepare(make_config(path, format="SEGMENT-PAIR", num_workers=workers), TOKENIZER, str(tmp_path / "s"),
                     seed=0)
    assert_four_parts(error, "no other document", "blank lines", "--config.data.heldout_share=0.2")
  assert os.listdir(tmp_path) == ["a.txt"]


def test_a_single_held_out_document_gets_a_second_one(tmp_path):
  config = make_config(make_corpus(tmp_path, 6), format="SENTENCE-PAIR", heldout_share=1e-9)
  manifest = shards.prepare(config, TOKENIZER, str(tmp_path / "s"), seed=0)
  assert [manifest["statistics"][split]["documents"] for split in ("train", "heldout")] == [4, 2]


def test_shards_without_labels_keep_their_layout(tmp_path):
  config = make_config(make_corpus(tmp_path, 20))
  shards.prepare(config, TOKENIZER, str(tmp_path / "s"), seed=0)
  manifest = json.loads((tmp_path / "s" / "manifest.json").read_text())
  assert manifest["version"] == 1
  examples = shards.open_shards(str(tmp_path / "s"), "train", config, TOKENIZER)
  assert not examples.has_nsp_labels and examples.nsp_labels(np.arange(3)).tolist() == [-1] * 3
  assert examples.lengths().max() <= 16
