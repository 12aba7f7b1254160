"""Rare tokens are masked more often, in the stated proportion (ELECTRA Appendix F)."""

import numpy as np
import pytest

from electra_jax import config as config_lib
from electra_jax.data import masking, pipeline
from electra_jax.errors import UserError
from tests.data.test_masking import MASK, SPECIAL, Vocabulary, branch

COUNTS = np.array([0, 0, 0, 0, 0, 1, 4, 100, 0])
ROW = np.array([1, 5, 6, 7, 6, 2, 0, 0], np.int32)  # [CLS] once, four times, a hundred, four, [SEP]


def mask(rows, exponent, *, rate=1 / 6):
  number = np.arange(len(rows), dtype=np.int64)
  return masking.mask_batch(rows, np.full(len(rows), 6, np.int32), number, 0 * number, seed=0,
                            masking=branch(rate=rate), tokenizer=Vocabulary(9),
                            token_odds=None if exponent is None else masking.token_odds(COUNTS, exponent))


def shares(exponent):
  positions = mask(np.tile(ROW, (50_000, 1)), exponent)["masked_positions"][:, 0]
  return np.bincount(positions, minlength=8)[:6] / 50_000


def test_one_draw_is_in_proportion_to_the_odds():
  odds = np.array([0, 1, 1 / 2, 1 / 10, 1 / 2, 0])
  np.testing.assert_allclose(shares(0.5), odds / odds.sum(), atol=0.01)
  np.testing.assert_allclose(shares(None), [0, 0.25, 0.25, 0.25, 0.25, 0], atol=0.01)


def test_number_and_places_of_masks_keep_their_rules():
  """k is as ever, nothing is chosen twice, special tokens and padding never."""
  out = mask(np.tile(ROW, (1000, 1)), 2.0, rate=0.5)
  assert (out["masked_weights"].sum(1) == 3).all()
  chosen = out["masked_positions"][:, :3]
  assert (np.diff(chosen) > 0).all() and set(np.unique(chosen)) == {1, 2, 3, 4}


def test_a_mask_does_not_depend_on_the_other_rows():
  rows = np.tile(ROW, (20, 1))
  together = mask(rows, 0.5)["masked_positions"]
  assert np.array_equal(mask(rows[:7], 0.5)["masked_positions"], together[:7])


class Examples:
  """Forty rows of one text."""

  sequence_length, pad_id, has_nsp_labels = 8, 0, False

  def __len__(self):
    return 40

  def read(self, example_ids):
    rows = len(example_ids)
    return np.tile(ROW, (rows, 1)), np.full(rows, 6, np.int32), np.full(rows, 6, np.int32)

  def token_counts(self, vocab_size):
    return COUNTS[:vocab_size]


class Words:
  """A vocabulary of nine."""

  special_ids, mask_id, vocab_size = SPECIAL, MASK, 9


def test_training_prefers_rare_tokens_and_evaluation_does_not():
  """So that the masked-LM losses of evaluations stay comparable."""
  from configs import base

  given = base.get_config()
  given.data.sequence_length, given.data.reader = 8, "threads"
  given.data.masking.update(rate=1 / 6, rarity_exponent=9.0)
  data = config_lib.resolve(given).data
  batch = pipeline.make_batch_at(Examples(), data, Words(), batch_size=40, seed=0)(0)
  assert (batch["masked_ids"][:, 0] == 5).all()
  (held_out,) = pipeline.eval_batches(Examples(), data, Words(), batch_size=40, seed=0)
  assert set(held_out["masked_ids"][:, 0]) == {5, 6, 7}


def test_rarity_is_of_tokens_not_of_words():
  from configs import base

  given = base.get_config()
  given.data.masking.update(rarity_exponent=0.5, unit="word")
  with pytest.raises(UserError, match=r"data\.masking\.rarity_exponent is 0\.5, which is for tokens"):
    config_lib.resolve(given)
