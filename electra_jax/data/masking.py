"""Masking of tokens: the chosen positions, and what is put there (ELECTRA section 2, RoBERTa 4.1).

Everything is a hash of (seed, epoch, example id, position): a mask depends on its example and epoch alone, never on
the other rows of the batch, the host, or the number of restarts. Masks are new in each epoch ("dynamic", RoBERTa
4.1) unless `num_static_masks` makes them repeat. The unit of choice is a token, a whole word, or a span of words.
"""

import functools

import numpy as np
from jaxtyping import Float32, Int32, Int64
from ml_collections import ConfigDict

from electra_jax import config
from electra_jax.data import counter_hash
from electra_jax.data.counter_hash import Purpose
from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.errors import UserError, named

POSITION_MASK = np.uint64(0xFFFF)  # the low bits of a sort key, which hold the position; the other 48 are random

# Length of a span in words: geometric with p = 0.2, cut off at 10 and normalised; its mean is 3.8 (SpanBERT, Joshi et
# al. 2020, section 3.1).
SPAN_PROBABILITY, MAX_SPAN_WORDS = 0.2, 10
_SPAN_SHARES = (1 - SPAN_PROBABILITY) ** np.arange(MAX_SPAN_WORDS)
SPAN_CUMULATIVE = np.cumsum(_SPAN_SHARES)[:-1] / _SPAN_SHARES.sum()

BLOCK_TOKENS = 32_768  # rows are processed in blocks whose keys (8 bytes a token) fit in the L2 cache


def mask_batch(input_ids: Int32[np.ndarray, "batch length"], num_tokens: Int32[np.ndarray, "batch"],
               example_ids: Int64[np.ndarray, "batch"], epochs: Int64[np.ndarray, "batch"], *, seed: int,
               masking: ConfigDict, tokenizer: Tokenizer, token_odds: np.ndarray | None = None
               ) -> dict[str, np.ndarray]:
  """Chooses k = ceil(rate * n) of each row's n tokens (special ones included) without replacement, and masks them.

  Only ordinary tokens are chosen: never a special id, never padding; k is capped at their number. Of the chosen
  positions `mask_share` become [MASK], `random_share` a token drawn uniformly from the ordinary ids (possibly the
  original, as in BERT), the rest stay. Without ordinary ids in the vocabulary nothing is masked.

  With `masking.unit` "word" or "span", whole words or spans of words are chosen in random order until k tokens are; k
  is exact, so the last of them may be cut. The tokens of a span share their fate ([MASK], random, kept); those of a
  word, as in BERT, do not. Words and spans end at special tokens.

  Args:
    masking: the config.data.masking branch: rate, unit, mask_share, random_share, num_static_masks, never_mask.
    tokenizer: anything with special_ids, mask_id and vocab_size, and continues_word unless the unit is "token".
    token_odds: float [vocab] from `token_odds`, for the unit "token"; None = every token has the same.

  Returns:
    masked_input_ids int32 [batch, length]; masked_positions int32 [batch, predictions], ascending; masked_ids int32
    [batch, predictions], the originals; masked_weights float32 [batch, predictions], 1 or 0. Predictions are the k of a
    full row; unused slots are 0.

  >>> from ml_collections import ConfigDict
  >>> masking = ConfigDict(dict(rate=1.0, unit="token", mask_share=1.0, random_share=0.0, num_static_masks=0,
  ...                           never_mask=()))
  >>> class Vocabulary:
  ...   special_ids, mask_id, vocab_size = (0, 1, 2, 3, 4), 3, 10
  >>> ids = np.array([[1, 7, 8, 2, 0, 0]], np.int32)  # [CLS] 7 8 [SEP] [PAD] [PAD]
  >>> out = mask_batch(ids, np.array([4]), np.array([0]), np.array([0]), seed=0,
  ...                  masking=masking, tokenizer=Vocabulary())
  >>> out["masked_input_ids"].tolist(), out["masked_positions"].tolist(), out["masked_ids"].tolist()
  ([[1, 3, 3, 2, 0, 0]], [[1, 2, 0, 0, 0, 0]], [[7, 8, 0, 0, 0, 0]])
  """
  batch, length = input_ids.shape
  if length > POSITION_MASK:
    raise ValueError(f"sequence_length is {length}; masking handles at most {POSITION_MASK}")
  if masking.num_static_masks:
    epochs = epochs % masking.num_static_masks
  is_ordinary, ordinary_ids = _vocabulary_tables(tokenizer, masking.never_mask)
  targets = _target_counts(masking.rate, length)
  predictions = targets[-1]
  targets = targets[num_tokens]
  keys = counter_hash.fold(seed, epochs, example_ids)
  rows = max(1, BLOCK_TOKENS // length)
  blocks = [slice(start, start + rows) for start in range(0, max(1, batch), rows)]
  chosen = [_choose(input_ids[block], num_tokens[block], targets[block], keys[block], masking, predictions, is_ordinary,
                    tokenizer, token_odds) for block in blocks]
  positions, weights, fates = (np.concatenate(parts) for parts in zip(*chosen))
  return _replace(input_ids, positions, weights, fates, keys, masking, ordinary_ids, tokenizer.mask_id)


def _choose(input_ids, num_tokens, targets, keys, masking: ConfigDict, predictions, is_ordinary,
            tokenizer: Tokenizer, token_odds) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """(positions, weights, fates) [rows, predictions] of some rows; equal fates share the draw of [MASK], random or kept.

  Differs from BERT's whole word masking, which skips a word that would exceed k; here as much of it as fits is masked.

  Differs from SpanBERT's code, which draws tokens, skips those already masked, and begins a span at the token's word;
  here words are drawn, and of a span that begins within another one the rest is masked.

  Differs from the released BERT and ELECTRA code, which also choose [UNK].

  Differs from the released ELECTRA code, which rounds k and draws positions with replacement: fewer are masked where it
  draws one twice.
  """
  candidates = is_ordinary[input_ids]  # [rows, length]
  candidates &= np.arange(input_ids.shape[1]) < num_tokens[:, None]
  position_keys = counter_hash.derive(keys, Purpose.MASKED_POSITION)
  starts = None
  if masking.unit != "token":
    starts = word_starts(candidates, tokenizer.continues_word[input_ids])
    if masking.unit == "span":
      starts = span_starts(position_keys, counter_hash.derive(keys, Purpose.SPAN_LENGTH), candidates, starts)
  odds = None if token_odds is None else token_odds[input_ids]
  positions, weights = choose_positions(position_keys, candidates, targets, predictions, starts, odds)
  if starts is None or masking.unit != "span":
    return positions, weights, positions
  return positions, weights, np.take_along_axis(starts, positions, axis=1)


def choose_positions(keys: np.ndarray, candidates: np.ndarray, targets: np.ndarray, predictions: int,
                     starts: np.ndarray | None = None, odds: np.ndarray | None = None
                     ) -> tuple[Int32[np.ndarray, "batch predictions"], Float32[np.ndarray, "batch predictions"]]:
  """A uniformly random subset of each row's candidate positions, ascending, with weights 1; unused slots are 0.

  Each candidate gets a random sort key and the smallest win: drawing without replacement in one pass.

  Args:
    keys: uint64 [batch], one stream of random numbers per row.
    candidates: bool [batch, length], the positions that may be chosen.
    targets: int [batch], how many positions are wanted; fewer are chosen where candidates run out.
    predictions: slots of a row, at least its target and at most `length`.
    starts: int [batch, length], where the word or span of each position begins; they are chosen whole, and only the
      last may lose its end. None = every position by itself.
    odds: float [batch, length], positive; a draw takes a position in proportion to it. None = all alike.

  >>> candidates = np.array([[0, 1, 1, 1], [0, 0, 1, 0]], bool)
  >>> positions, weights = choose_positions(counter_hash.fold(np.arange(2)), candidates, np.array([2, 2]), 3)
  >>> positions.tolist(), weights.tolist()
  ([[2, 3, 0], [2, 0, 0]], [[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
  """
  length = candidates.shape[1]
  order = counter_hash.draws(keys, length)  # [batch, length]
  if odds is not None:  # exponential waiting times: the first comes from a position in proportion to its odds
    uniform = ((order >> np.uint64(11)) + 0.5) * 2.0**-53
    order = (-np.log(uniform) / odds).view(np.uint64)  # the bits of positive floats sort as the floats do
  if starts is not None:
    order = np.take_along_axis(order, starts, axis=1)
  order &= ~POSITION_MASK
  order |= np.arange(length, dtype=np.uint64)
  order |= candidates.astype(np.uint64) - np.uint64(1)  # all bits set, so last, where not a candidate
  if predictions < length:
    order = np.partition(order, predictions - 1, axis=1)[:, :predictions]
  order.sort(axis=1)  # [batch, predictions]
  counts = np.minimum(targets, candidates.sum(axis=1))
  chosen = np.arange(predictions) < counts[:, None]
  last = np.uint16(0xFFFF)  # sorts behind every position
  positions = np.where(chosen, (order & POSITION_MASK).astype(np.uint16), last)
  positions.sort(axis=1)
  return np.where(chosen, positions, 0).astype(np.int32), chosen.astype(np.float32)


def protected_ids(tokenizer: Tokenizer, never_mask: tuple[str, ...]) -> tuple[int, ...]:
  """Ids that are never masked and never drawn: the tokenizer's special ones and the entries in `never_mask`.

  The latter are a corpus's own markers, such as "<speaker>".

  Raises:
    UserError: the vocabulary lacks one of them.
  """
  if not never_mask:
    return tuple(tokenizer.special_ids)
  ids = {token: i for i, token in enumerate(tokenizer.tokens(range(tokenizer.vocab_size)))}
  missing = [entry for entry in never_mask if entry not in ids]
  if missing:
    raise UserError("data.masking.never_mask names what the vocabulary lacks", got=named(map(repr, missing)),
                    allowed='entries as they stand in the vocabulary: "[unused7]", "##ing", "Ġthe"',
                    fix="correct or remove them")
  return tuple(sorted({*tokenizer.special_ids, *(ids[entry] for entry in never_mask)}))


def token_odds(token_counts: Int64[np.ndarray, "vocab"], rarity_exponent: float) -> np.ndarray:
  """Odds that each token is masked, count ** -rarity_exponent: "our rarer tokens more frequently" (Appendix F).

  The paper gives no formula. A token that never occurs counts once.

  >>> token_odds(np.array([0, 1, 4, 100]), rarity_exponent=0.5).tolist()
  [1.0, 1.0, 0.5, 0.1]
  """
  return np.maximum(token_counts, 1) ** -float(rarity_exponent)


def word_starts(candidates: np.ndarray, continues: np.ndarray) -> np.ndarray:
  """Where the word of each position begins, int [batch, length]; anything but a candidate stands alone and ends a word.

  >>> candidates = np.array([[0, 1, 1, 1, 0, 1]], bool)
  >>> word_starts(candidates, continues=np.array([[0, 0, 1, 0, 0, 1]], bool)).tolist()
  [[0, 1, 1, 3, 4, 5]]
  """
  goes_on = continues & candidates
  goes_on[:, 1:] &= candidates[:, :-1]
  goes_on[:, :1] = False
  return np.maximum.accumulate(np.where(goes_on, 0, np.arange(candidates.shape[1])), axis=1)


def span_starts(keys: np.ndarray, length_keys: np.ndarray, candidates: np.ndarray, words: np.ndarray) -> np.ndarray:
  """Where the span of each position begins, int [batch, length].

  A span may begin at every word. A position that several cover belongs to the one that `choose_positions` takes first:
  as if spans were drawn one after another, and each masked what is left of it.

  Args:
    keys: uint64 [batch], as of `choose_positions`.
    length_keys: uint64 [batch], for the draws of the lengths.
    words: from `word_starts`.
  """
  rows, length = candidates.shape
  order = counter_hash.draws(keys, length).ravel() & ~POSITION_MASK  # as choose_positions ranks
  num_words = 1 + np.searchsorted(SPAN_CUMULATIVE, counter_hash.draws(length_keys, length).ravel() * 2.0**-64, "right")
  first = np.arange(0, rows * length, length)[:, None]  # of each row in the flat arrays below
  start = (words + first).ravel()
  before = np.maximum(start[np.arange(-1, rows * length - 1)], 0)  # of a word's start: the start of the word before
  goes_on = candidates.ravel()[before]
  goes_on[::length] = False
  best, best_order, is_open = start, order[start], candidates.ravel()
  for distance in range(1, MAX_SPAN_WORDS):
    is_open = is_open & goes_on[start]
    start = before[start]
    start_order = order[start]
    is_better = is_open & (num_words[start] > distance) & (start_order < best_order)
    best, best_order = np.where(is_better, start, best), np.where(is_better, start_order, best_order)
  return best.reshape(rows, length) - first


def _replace(input_ids, positions, weights, fates, keys, masking: ConfigDict, ordinary_ids, mask_id):
  """The batch's masking fields: what stands at the chosen positions before and after masking.

  Differs from BERT's code, whose random tokens may be special ones.

  Differs from the released ELECTRA code, where 85 % of the chosen positions become [MASK] and the rest stay; the
  preprint replaces all of them, as `mask_share` of 1 does (`configs/small.py:released` has the code's).
  """
  used = weights > 0  # [batch, predictions]
  originals = np.where(used, np.take_along_axis(input_ids, positions, axis=1), 0).astype(np.int32)
  replacements = np.full_like(originals, mask_id)
  if masking.mask_share < 1:
    at = positions.astype(np.uint64) * counter_hash.GOLDEN  # a draw belongs to its position, not to its slot
    action = counter_hash.derive(keys, Purpose.MASK_ACTION)[:, None] + fates.astype(np.uint64) * counter_hash.GOLDEN
    action = counter_hash.mix(action) * 2.0**-64  # [batch, predictions], uniform in [0, 1)
    replacements = np.where(action < masking.mask_share, replacements, originals)
    if masking.random_share and ordinary_ids.size:
      draw = counter_hash.mix(counter_hash.derive(keys, Purpose.RANDOM_TOKEN)[:, None] + at)
      draw %= np.uint64(ordinary_ids.size)  # [batch, predictions]
      random = (action >= masking.mask_share) & (action < masking.mask_share + masking.random_share)
      replacements = np.where(random, ordinary_ids[draw], replacements)
  masked = input_ids.copy()
  row, slot = np.nonzero(used)
  masked[row, positions[row, slot]] = replacements[row, slot]
  return {"masked_input_ids": masked, "masked_positions": positions, "masked_ids": originals,
          "masked_weights": weights}


@functools.lru_cache(maxsize=4)  # asked for with each batch
def _vocabulary_tables(tokenizer: Tokenizer, never_mask: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
  """(is_ordinary bool [vocab], ordinary ids int32); shared between calls, so read-only."""
  is_ordinary = np.ones(tokenizer.vocab_size, bool)
  is_ordinary[list(protected_ids(tokenizer, never_mask))] = False
  ordinary_ids = np.flatnonzero(is_ordinary).astype(np.int32)
  is_ordinary.flags.writeable = ordinary_ids.flags.writeable = False
  return is_ordinary, ordinary_ids


@functools.lru_cache(maxsize=16)
def _target_counts(rate: float, length: int) -> np.ndarray:
  """k for every possible number of tokens, int64 [length + 1]."""
  return np.array([config.num_predictions(rate, n) for n in range(length + 1)])
