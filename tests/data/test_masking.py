"""Masking statistics and rules; the numbers of bug reports are those of public reports about other code."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_collections import ConfigDict

from configs import small
from electra_jax import config
from electra_jax.data import masking
from electra_jax.errors import UserError

SPECIAL = (0, 1, 2, 3, 4)  # PAD CLS SEP MASK UNK
MASK = 3


class Vocabulary:
  """The roles, and ordinary entries behind them."""

  mask_id = MASK

  def __init__(self, vocab_size=1000, special_ids=SPECIAL, continues_word=None):
    self.vocab_size, self.special_ids, self.continues_word = vocab_size, special_ids, continues_word


def branch(rate=0.15, mask_share=1.0, random_share=0.0, num_static_masks=0, unit="token"):
  return ConfigDict(dict(rate=rate, unit=unit, mask_share=mask_share, random_share=random_share,
                         num_static_masks=num_static_masks, never_mask=(), rarity_exponent=0.0))


def mask(input_ids, num_tokens=None, example_ids=None, epochs=0, seed=0, vocab_size=1000, special_ids=SPECIAL,
         continues_word=None, **keys):
  input_ids = np.asarray(input_ids, np.int32)
  rows = len(input_ids)
  num_tokens = (input_ids != 0).sum(1) if num_tokens is None else np.asarray(num_tokens)
  example_ids = np.arange(rows) if example_ids is None else np.asarray(example_ids)
  epochs = np.broadcast_to(np.asarray(epochs, np.int64), rows)
  return masking.mask_batch(input_ids, num_tokens, example_ids, epochs, seed=seed, masking=branch(**keys),
                            tokenizer=Vocabulary(vocab_size, special_ids, continues_word))


def rows_of(lengths, length, seed=0, vocab_size=1000):
  """[CLS] ordinary ... [SEP] padded to `length`, one row for each number of tokens."""
  rng = np.random.default_rng(seed)
  rows = np.zeros((len(lengths), length), np.int32)
  for row, n in zip(rows, lengths):
    row[:n] = rng.integers(5, vocab_size, n)
    row[0], row[n - 1] = 1, 2
  return rows


def test_bug_1_special_tokens_are_never_masked():
  ids = [[1, 7, 8, 2, 0, 0]]
  for seed in range(1000):
    out = mask(ids, seed=seed, rate=1.0)
    assert out["masked_input_ids"].tolist() == [[1, MASK, MASK, 2, 0, 0]]
    assert out["masked_positions"].tolist() == [[1, 2, 0, 0, 0, 0]]
    assert out["masked_ids"].tolist() == [[7, 8, 0, 0, 0, 0]]
    assert out["masked_weights"].tolist() == [[1, 1, 0, 0, 0, 0]]


@pytest.mark.parametrize(("n", "length", "rate", "expected"), [
  (10, 128, 0.15, 2),  # bug 2: 10 real and 118 padding tokens
  (128, 128, 0.15, 20),
  (20, 128, 0.15, 3),  # 0.15 * 20 is 3.0000000000000004 in floats
  (512, 512, 0.15, 77),
  (512, 512, 0.25, 128),
  (3, 128, 1.0, 1),  # capped by the candidates
  (2, 128, 0.15, 0),  # [CLS] [SEP]
  (128, 128, 0.0, 0),
])
def test_number_of_targets(n, length, rate, expected):
  out = mask(rows_of([n] * 50, length), rate=rate)
  assert (out["masked_weights"].sum(1) == expected).all()


def test_bug_2_padding_does_not_matter():
  short, long = rows_of([10] * 8, 10), np.zeros((8, 128), np.int32)
  long[:, :10] = short
  a, b = mask(short), mask(long)
  assert np.array_equal(a["masked_positions"], b["masked_positions"][:, :2]) and b["masked_weights"].sum() == 16
  assert np.array_equal(a["masked_input_ids"], b["masked_input_ids"][:, :10])


def test_bug_3_random_tokens_are_ordinary():
  ids = [[1, 5, 5, 5, 5, 2]] * 100
  out = mask(ids, rate=1.0, mask_share=0.0, random_share=1.0, vocab_size=6)
  assert (out["masked_input_ids"] == ids).all() and out["masked_weights"].sum() == 400
  unused = tuple(range(5, 100))  # [unused0] ... [unused94]
  ids = np.full((8000, 128), 500, np.int32)
  out = mask(ids, rate=1.0, mask_share=0.0, random_share=1.0, special_ids=SPECIAL + unused)
  drawn = out["masked_input_ids"].ravel()
  assert drawn.size > 1_000_000 and drawn.min() >= 100 and drawn.max() < 1000
  counts = np.bincount(drawn, minlength=1000)[100:]
  assert np.abs(counts / drawn.size * 900 - 1).max() < 0.2  # uniform: 6 standard deviations of 1138 draws


def test_vocabulary_without_ordinary_tokens_masks_nothing():
  out = mask([[1, 4, 4, 2]], rate=1.0, mask_share=0.0, random_share=1.0, vocab_size=5)
  assert out["masked_input_ids"].tolist() == [[1, 4, 4, 2]] and not out["masked_weights"].any()


def test_shares_and_uniformity():
  """BERT's 80/10/10 over 200 000 and more draws, and every position equally often."""
  rows, length = 11_000, 128
  ids = np.full((rows, length), 7, np.int32)  # 7 drawn by chance counts as kept: 1 in 50 000
  ids[:, 0], ids[:, -1] = 1, 2
  out = mask(ids, mask_share=0.8, random_share=0.1, vocab_size=50_005)
  changed = np.take_along_axis(out["masked_input_ids"], out["masked_positions"], 1)
  draws = changed.size
  assert draws >= 200_000 and out["masked_weights"].all()
  assert abs((changed == MASK).mean() - 0.8) < 0.003
  assert abs((changed == 7).mean() - 0.1) < 0.003
  assert abs(((changed != MASK) & (changed != 7)).mean() - 0.1) < 0.003
  counts = np.bincount(out["masked_positions"].ravel(), minlength=length)
  assert counts[0] == counts[-1] == 0
  expected = draws / 126
  assert np.abs(counts[1:-1] - expected).max() < 6 * math.sqrt(expected)


def test_the_released_electra_keeps_fifteen_percent():
  shares = small.get_config("released").data.masking
  ids = np.full((11_000, 128), 7, np.int32)
  out = mask(ids, mask_share=shares.mask_share, random_share=shares.random_share)
  changed = np.take_along_axis(out["masked_input_ids"], out["masked_positions"], 1)
  assert set(np.unique(changed)) == {MASK, 7} and abs((changed == 7).mean() - 0.15) < 0.003


def test_pairs_of_positions_are_independent():
  """The chosen set is uniform: neighbours are chosen together as often as distant positions."""
  out = mask(np.full((40_000, 16), 7, np.int32), rate=0.25)
  chosen = np.zeros((40_000, 16))
  np.put_along_axis(chosen, out["masked_positions"], 1, axis=1)
  together = (chosen.T @ chosen / len(chosen))[~np.eye(16, dtype=bool)]
  assert np.abs(together - 4 / 16 * 3 / 15).max() < 0.007  # about 6 standard deviations


def test_mask_depends_on_seed_epoch_and_example_alone():
  ids = rows_of([128] * 300, 128)
  whole = mask(ids, mask_share=0.8, random_share=0.1)
  order = np.random.default_rng(1).permutation(300)[:70]
  part = mask(ids[order], example_ids=order, mask_share=0.8, random_share=0.1)
  for name, array in whole.items():
    assert np.array_equal(array[order], part[name]), name
  for change in (dict(seed=1), dict(epochs=1), dict(example_ids=np.arange(300) + 300)):
    other = mask(ids, mask_share=0.8, random_share=0.1, **change)
    same = (other["masked_positions"] == whole["masked_positions"]).all(1)
    assert not same.any(), change


def test_static_masks_repeat_and_dynamic_ones_do_not():
  ids = rows_of([128] * 20, 128)
  masks = [mask(ids, epochs=e, num_static_masks=10, mask_share=0.8, random_share=0.1) for e in range(23)]
  for epoch, out in enumerate(masks):
    assert all(np.array_equal(out[name], masks[epoch % 10][name]) for name in out)
  distinct = {out["masked_positions"].tobytes() for out in masks}
  assert len(distinct) == 10
  assert len({mask(ids, epochs=e)["masked_positions"].tobytes() for e in range(23)}) == 23


def test_inputs_stay_as_they_were():
  ids = rows_of([30, 128], 128)
  before = ids.copy()
  mask(ids, mask_share=0.1, random_share=0.9)
  assert np.array_equal(ids, before)


def test_empty_batch_and_padding_rows():
  assert mask(np.zeros((0, 8), np.int32))["masked_positions"].shape == (0, 2)
  out = mask(np.zeros((2, 8), np.int32))
  assert not out["masked_weights"].any() and not out["masked_input_ids"].any()


@settings(max_examples=150, deadline=None)
@given(data=st.data(), length=st.integers(1, 40), rows=st.integers(1, 6), rate=st.floats(0, 1),
       mask_share=st.floats(0, 1), seed=st.integers(-5, 2**64))
def test_properties(data, length, rows, rate, mask_share, seed):
  slots = config.num_predictions(rate, length)
  num_tokens = np.array(data.draw(st.lists(st.integers(0, length), min_size=rows, max_size=rows)))
  ids = np.array(data.draw(st.lists(st.lists(st.integers(0, 12), min_size=length, max_size=length), min_size=rows,
                                    max_size=rows)), np.int32)
  out = mask(ids, num_tokens, seed=seed, rate=rate, mask_share=mask_share, random_share=1 - mask_share,
             vocab_size=13)
  assert {name: (array.dtype, array.shape) for name, array in out.items()} == {
    "masked_input_ids": (np.int32, (rows, length)), "masked_positions": (np.int32, (rows, slots)),
    "masked_ids": (np.int32, (rows, slots)), "masked_weights": (np.float32, (rows, slots))}
  for row in range(rows):
    n = num_tokens[row]
    candidates = [i for i in range(n) if ids[row, i] >= 5]
    k = int(out["masked_weights"][row].sum())
    assert k == min(config.num_predictions(rate, n), len(candidates))
    positions = out["masked_positions"][row]
    assert out["masked_weights"][row].tolist() == [1.0] * k + [0.0] * (slots - k)
    assert positions[:k].tolist() == sorted(set(positions[:k].tolist())) and set(positions[:k]) <= set(candidates)
    assert not positions[k:].any() and not out["masked_ids"][row, k:].any()
    assert out["masked_ids"][row, :k].tolist() == ids[row, positions[:k]].tolist()
    changed = np.flatnonzero(out["masked_input_ids"][row] != ids[row])
    assert set(changed) <= set(positions[:k])
    assert all(x == MASK or 5 <= x < 13 for x in out["masked_input_ids"][row, positions[:k]])


class Markers:
  """A vocabulary whose entry 5 is a marker of the corpus."""

  special_ids, mask_id, vocab_size = SPECIAL, MASK, 8

  def tokens(self, ids):
    return [["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "<speaker>", "a", "b"][i] for i in ids]


def test_entries_that_are_never_masked():
  tokenizer = Markers()
  assert masking.protected_ids(tokenizer, ()) == SPECIAL
  protected = masking.protected_ids(tokenizer, ("<speaker>",))
  assert protected == (*SPECIAL, 5)
  out = mask([[1, 5, 6, 7, 5, 2]] * 500, rate=1.0, mask_share=0.0, random_share=1.0, special_ids=protected,
             vocab_size=8)
  assert (out["masked_positions"][:, :3] == [2, 3, 0]).all() and out["masked_weights"].sum() == 1000
  assert set(out["masked_input_ids"][:, 2:4].ravel()) == {6, 7}
  with pytest.raises(UserError, match="'<listener>'"):
    masking.protected_ids(tokenizer, ("<speaker>", "<listener>"))


def test_the_pipeline_protects_them():
  from configs import base
  from electra_jax import config as config_lib
  from electra_jax.data import pipeline

  class Examples(list):
    sequence_length, has_nsp_labels = 8, False

    def read(self, example_ids):
      return (np.tile(np.array([[1, 5, 6, 7, 5, 2, 0, 0]], np.int32), (len(example_ids), 1)),
              *[np.full(len(example_ids), 6, np.int32)] * 2)

  given = base.get_config()
  given.data.sequence_length = 8
  given.data.masking.update(rate=1.0, never_mask=("<speaker>",))
  batch = pipeline.make_batch_at(Examples(range(9)), config_lib.resolve(given).data, Markers(), batch_size=4, seed=0)(0)
  assert (batch["masked_positions"][:, :2] == [2, 3]).all() and batch["masked_weights"].sum() == 8
