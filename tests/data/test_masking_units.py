"""Whole words and spans: what is masked together, how much, and how long; for all three kinds of tokenizer."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_collections import ConfigDict

from electra_jax import config
from electra_jax.data import masking, tokenizers
from tests.data.test_masking import MASK, SPECIAL, mask, rows_of

# Ids from 500 on go on with the word before them.
CONTINUES = np.arange(1000) >= 500
TEXTS = ["The unbelievable transformations happened internationally, didn't they?",
         "Hello (world)! 3.14 naïve café 東京 日本語",
         "He reads: anti-establishment, well-known electroencephalographically."]
SIZES = {"sentencepiece": 400, "sentencepiece_bpe": 400, "byte_bpe": 290}  # of vocabularies with few whole words


def words_of(row, num_tokens):
  """[(start, end)] of the words of a row of ids."""
  found = []
  for i in range(num_tokens):
    ordinary = row[i] not in SPECIAL
    if ordinary and CONTINUES[row[i]] and i and row[i - 1] not in SPECIAL:
      found[-1] = (found[-1][0], i + 1)
    elif ordinary:
      found.append((i, i + 1))
  return found


def chosen(out, row):
  return set(out["masked_positions"][row][out["masked_weights"][row] > 0].tolist())


def test_whole_words_as_ids():
  """[CLS] 7 501 8 [SEP] 502 503 9 [SEP]: the words are 7-501, 8, 502-503 (a word ends at a separator) and 9."""
  ids = [[1, 7, 501, 8, 2, 502, 503, 9, 2]]
  seen = set()
  for seed in range(200):
    out = mask(ids, seed=seed, rate=0.22, unit="word", continues_word=CONTINUES)
    seen.add(tuple(sorted(chosen(out, 0))))
  whole = {(1, 2), (5, 6), (3, 7)}
  cut = {(1, 3), (1, 7), (3, 5), (5, 7)}  # one token first, then a word that no longer fits: its first token
  assert seen == whole | cut


@pytest.mark.parametrize("unit", ["word", "span"])
@settings(max_examples=150, deadline=None)
@given(data=st.data(), length=st.integers(2, 40), rate=st.floats(0, 1), seed=st.integers(0, 2**64))
def test_properties(unit, data, length, rate, seed):
  """The count is exact; at most one word is cut, and of it the beginning is chosen; special tokens are never chosen."""
  rows = np.array(data.draw(st.lists(st.lists(st.sampled_from([1, 2, 4, 7, 8, 501, 502]), min_size=length,
                                              max_size=length), min_size=1, max_size=4)), np.int32)
  num_tokens = np.array(data.draw(st.lists(st.integers(0, length), min_size=len(rows), max_size=len(rows))))
  out = mask(rows, num_tokens, seed=seed, rate=rate, unit=unit, continues_word=CONTINUES)
  for row, n in enumerate(num_tokens):
    positions = chosen(out, row)
    words = words_of(rows[row], n)
    assert len(positions) == min(config.num_predictions(rate, n), sum(end - start for start, end in words))
    cut = []
    for start, end in words:
      inside = positions & set(range(start, end))
      positions -= inside
      if 0 < len(inside) < end - start:
        cut.append((start, end))
        assert inside == set(range(start, start + len(inside)))
    assert len(cut) <= 1 and not positions


@pytest.mark.parametrize("unit", ["word", "span"])
def test_a_mask_depends_on_seed_epoch_and_example_alone(unit):
  ids = rows_of([128] * 300, 128)
  keys = dict(unit=unit, continues_word=CONTINUES, mask_share=0.8, random_share=0.1)
  whole = mask(ids, **keys)
  order = np.random.default_rng(1).permutation(300)[:70]
  part = mask(ids[order], example_ids=order, **keys)
  longer = mask(np.pad(ids, ((0, 0), (0, 50))), **keys)
  for name, array in whole.items():
    assert np.array_equal(array[order], part[name]), name
    assert np.array_equal(array, longer[name][:, :array.shape[1]]), name
  assert not (mask(ids, epochs=1, **keys)["masked_positions"] == whole["masked_positions"]).all(1).any()
  assert not (mask(ids, **keys | dict(unit="token"))["masked_positions"] == whole["masked_positions"]).all(1).any()


def test_words_are_chosen_evenly():
  """Every word has the same chance, however long it is, but for the cut at the end."""
  row = [1, *([7, 501, 502] * 10), *([8] * 30), 2]  # ten words of three tokens, thirty of one
  out = mask([row] * 20_000, rate=0.25, unit="word", continues_word=CONTINUES)
  counts = np.zeros(62)
  np.add.at(counts, out["masked_positions"].ravel(), 1)
  long, short = counts[1:31:3].mean(), counts[31:61].mean()
  assert abs(long / short - 1) < 0.05 and np.ptp(counts[31:61]) / short < 0.1


def test_span_lengths_are_those_of_spanbert():
  """Rows so sparsely masked that spans hardly meet: shares of a geometric distribution cut off at 10, mean 3.8."""
  length, k = 2000, 10
  out = mask(np.full((1000, length), 7, np.int32), rate=k / length, unit="span",
             continues_word=CONTINUES)
  first = []
  for positions in out["masked_positions"]:
    runs = np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1)
    first += [len(run) for run in runs[:-1]] if len(runs) > 1 else []
  lengths = np.diff(masking.SPAN_CUMULATIVE, prepend=0, append=1)
  assert lengths @ np.arange(1, 11) == pytest.approx(3.8, abs=0.01) and lengths[0] == pytest.approx(0.224, abs=0.001)
  drawn = 1 + np.searchsorted(masking.SPAN_CUMULATIVE, np.random.default_rng(0).random(200_000), side="right")
  np.testing.assert_allclose(np.bincount(drawn, minlength=11)[1:] / 200_000, lengths, atol=0.004)
  share_of_one = np.mean(np.array(first) == 1)
  assert 0.2 < share_of_one < 0.4 and max(first) <= 10  # short ones are seen more often: the budget cuts long ones


def test_spans_end_at_special_tokens_and_share_their_fate():
  row = [1, *[7] * 60, 2, *[8] * 60, 2]
  out = mask([row] * 3000, rate=0.15, unit="span", continues_word=CONTINUES, mask_share=0.5,
             random_share=0.0)
  masked, tokens = out["masked_input_ids"] == MASK, np.array(row)
  alike = neighbours = 0
  for r in range(len(masked)):
    positions = sorted(chosen(out, r))
    assert not set(positions) & {0, 61, 122}
    for a, b in itertools.pairwise(positions):
      if b == a + 1:
        neighbours += 1
        alike += masked[r, a] == masked[r, b]
  assert alike / neighbours > 0.85  # by position it would be a half; neighbours of two spans differ
  used = out["masked_weights"] > 0
  assert (out["masked_ids"][used] == tokens[out["masked_positions"][used]]).all()
  words = mask([row] * 300, rate=0.15, unit="word", continues_word=CONTINUES, mask_share=0.5)
  assert (words["masked_weights"].sum(1) == 19).all()


def cut_into_words(tokenizer, text):
  words = []
  for i, (start, end) in zip(*tokenizer.encode_words(text)):
    if tokenizer.continues_word[i] and words:
      words[-1] = (words[-1][0], max(end, words[-1][1]))
    else:
      words.append((start, end))
  return [text[start:end].strip() for start, end in words]


@pytest.mark.parametrize("kind", sorted(tokenizers.TOKENIZERS))
def test_every_kind_cuts_the_same_words(kind, tmp_path):
  """Small vocabularies, so that most words have several pieces; joined by continues_word they are whole again."""
  if kind == "wordpiece":  # learnt from so little text, it would know few words and no pieces
    pieces = sorted({*"".join(TEXTS)} - {" "})
    entries = [*tokenizers.WordPiece.special_tokens, *pieces, *("##" + piece for piece in pieces)]
    tokenizer = tokenizers.WordPiece({"vocab.txt": "\n".join(entries).encode()}, lowercase=False)
  else:
    branch = ConfigDict(dict(kind=kind, path="", vocab_size=SIZES[kind], lowercase=False, training_bytes=10**6))
    tokenizer = tokenizers.train_tokenizer(branch, iter(TEXTS * 50), str(tmp_path / "t"), seed=0)
  assert tokenizer.continues_word.shape == (tokenizer.vocab_size,) and tokenizer.continues_word.dtype == bool
  assert not tokenizer.continues_word[list(tokenizer.special_ids)].any()
  expected = ["He", "reads", ":", "anti", "-", "establishment", ",", "well", "-", "known",
              "electroencephalographically", "."]
  got = cut_into_words(tokenizer, TEXTS[2])
  if kind != "wordpiece":  # a word behind a hyphen has no space before it, so it goes on with the hyphen
    expected[4:6], expected[7:9] = ["-establishment"], ["-known"]
  assert got == expected
  assert len(tokenizer.encode(TEXTS[2])) > len(got) + 5
  ideographs = [word for word in cut_into_words(tokenizer, TEXTS[1]) if word and word[0] > "\u3000"]
  assert ideographs == list("東京日本語")
