"""A user's sentences, turned into ids with masks and character offsets, and back."""

import codecs
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from electra_jax.data.tokenizers import entries
from electra_jax.data.tokenizers.base import SPECIAL_NAMES, Tokenizer
from electra_jax.data.tokenizers.kinds import trimmed
from electra_jax.errors import UserError

MASK_TEXT = re.compile("|".join(map(re.escape, SPECIAL_NAMES["mask"])))  # [MASK] or <mask>


class Sentence(NamedTuple):
  """An encoded text. `ids` and `offsets` run in parallel, special tokens included."""

  text: str
  ids: list[int]
  offsets: list[tuple[int, int]]  # half-open character ranges in `text`; empty ones for special tokens
  masks: list[int]  # positions of the mask tokens

  @property
  def ordinary(self) -> range:
    """Positions between [CLS] and [SEP]."""
    return range(1, len(self.ids) - 1)


def encode(tokenizer: Tokenizer, text: str, max_tokens: int) -> Sentence:
  """[CLS] text [SEP]; each literal "[MASK]" or "<mask>" becomes the mask token, whatever the vocabulary calls it.

  A mask stands for a whole word with the space before it, as in training: "is [MASK]." is "is" [MASK] ".".

  Raises:
    UserError: the text has no token, or more than `max_tokens`, special tokens included.
  """
  (mask_name,) = tokenizer.tokens([tokenizer.mask_id])
  places, copied = [], 0  # of each character that the tokenizer reads, where it stands in `text`
  for mask in MASK_TEXT.finditer(text):
    places += [*range(copied, mask.start()), *[mask.start()] * len(mask_name)]
    copied = mask.end()
  places += range(copied, len(text) + 1)
  ids, offsets = tokenizer.encode_words(MASK_TEXT.sub(lambda _: mask_name, text).rstrip())
  offsets = [trimmed(text, places[start], places[end]) if i == tokenizer.mask_id else (places[start], places[end])
             for i, (start, end) in zip(ids, offsets)]
  if not ids:
    raise UserError("A sentence is empty", got=repr(text), allowed="text with at least one visible character",
                    fix='write it in quotes: "The capital of France is [MASK]."')
  if len(ids) + 2 > max_tokens:
    raise UserError("A sentence is too long for this model", got=f"{len(ids) + 2} tokens in {text[:60]!r}...",
                    allowed=f"at most {max_tokens} tokens, two special ones included: data.sequence_length of the run; "
                            "positions beyond it were never trained",
                    fix="split the text, or train with a longer --config.data.sequence_length")
  ids = [tokenizer.cls_id, *ids, tokenizer.sep_id]
  return Sentence(text, ids, [(0, 0), *offsets, (len(text), len(text))],
                  [position for position, i in enumerate(ids) if i == tokenizer.mask_id])


def piece_text(tokenizer: Tokenizer, token_id: int) -> str:
  """How a vocabulary entry reads by itself: with a space in front if it starts a word, "<0xE4>" if half a character."""
  (text,) = piece_texts(tokenizer, [token_id])
  (token,) = tokenizer.tokens([token_id])
  return token if "\N{REPLACEMENT CHARACTER}" in text and entries.BYTE.fullmatch(token) else text


def piece_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
  """How each token of a row reads; joined they are the row as text.

  A character whose bytes are spread over several tokens is the text of the last one; the others have "".
  """
  decoder = codecs.getincrementaldecoder("utf-8")("replace")
  texts = []
  for token_id, token in zip(ids, tokenizer.tokens(ids), strict=True):
    if token_id in tokenizer.special_ids:
      texts.append(decoder.decode(b"", final=True) + f" {token}")
      decoder.reset()
    else:
      texts.append(decoder.decode(entries.text_bytes(token, tokenizer.kind, tokenizer.prefix)))
  if texts:
    texts[-1] += decoder.decode(b"", final=True)
  return texts


def put_in(tokenizer: Tokenizer, sentence: Sentence, new_ids: Mapping[int, int]) -> Sentence:
  """The sentence with other tokens at some positions (position -> id), both in its ids and in its text.

  Spaces next to a punctuation mark stay as they are: vocabularies do not agree on them.
  """
  text, copied, offsets = "", 0, []  # copied: how much of the old text is in the new one
  for position, (start, end) in enumerate(sentence.offsets):
    if position in new_ids:
      text += sentence.text[copied:start]
      piece = piece_text(tokenizer, new_ids[position])
      if piece[:1].isalnum():  # continues the word before
        text = text.rstrip()
      elif piece[:1].isspace() and piece[1:2].isalnum() and text[-1:].isalnum():
        text += " "
      start, copied = len(text), max(copied, end)
      text += piece.strip()
      offsets.append((start, len(text)))
    else:
      shift = len(text) - copied
      offsets.append((start + shift, end + shift))
  ids = [new_ids.get(position, i) for position, i in enumerate(sentence.ids)]
  masks = [position for position in sentence.masks if position not in new_ids]
  return Sentence(text + sentence.text[copied:], ids, offsets, masks)


def make_batch(sentences: Sequence[Sentence], pad_id: int, max_tokens: int) -> dict[str, np.ndarray]:
  """Sentences as a padded batch with the fields of `pipeline`; rows beyond them are padding.

  The length is rounded up to 16, 32, 64, ..., rows and prediction slots by factors of four, so that few programs are
  compiled.
  """
  rows = _round_up(len(sentences), first=1, factor=4)
  length = min(_round_up(max(len(s.ids) for s in sentences), first=16, factor=2), max_tokens)
  slots = _round_up(max(len(s.masks) for s in sentences), first=2, factor=4)
  input_ids = np.full((rows, length), pad_id, np.int32)
  attention_mask = np.zeros((rows, length), bool)
  positions, weights = np.zeros((rows, slots), np.int32), np.zeros((rows, slots), np.float32)
  for row, sentence in enumerate(sentences):
    input_ids[row, :len(sentence.ids)] = sentence.ids
    attention_mask[row, :len(sentence.ids)] = True
    positions[row, :len(sentence.masks)] = sentence.masks
    weights[row, :len(sentence.masks)] = 1
  return {"input_ids": input_ids, "token_type_ids": np.zeros_like(input_ids), "attention_mask": attention_mask,
          "masked_input_ids": input_ids, "masked_positions": positions, "masked_ids": np.zeros_like(positions),
          "masked_weights": weights}


def _round_up(count: int, first: int, factor: int) -> int:
  size = first
  while size < count:
    size *= factor
  return size
