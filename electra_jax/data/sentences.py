"""How does a sentence of a user become ids, with its masks and character offsets, and ids a sentence again?"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from electra_jax.data.tokenizer_kinds import SPECIAL_NAMES, Tokenizer
from electra_jax.errors import UserError

MASK_TEXT = re.compile("|".join(map(re.escape, SPECIAL_NAMES["mask"])))  # [MASK] or <mask>

# How a vocabulary entry reads within a text, by kind of tokenizer: with a space in front where it starts a word.
PIECES = {
  "sentencepiece": lambda tokenizer, i, token: token.replace("▁", " "),
  "sentencepiece_bpe": lambda tokenizer, i, token: token.replace("▁", " "),
  "wordpiece": lambda tokenizer, i, token: token[2:] if token.startswith("##") else " " + token,
  "byte_bpe": lambda tokenizer, i, token: tokenizer.decode([i]),
}


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
  """[CLS] text [SEP]; each literal "[MASK]" or "<mask>" becomes the mask token.

  A mask stands for a whole word with the space before it, as in training: "is [MASK]." is "is" [MASK] ".".

  Raises:
    UserError: the text has no token, or more than `max_tokens`, special tokens included.
  """
  ids, offsets, masks, start = [tokenizer.cls_id], [(0, 0)], [], 0
  for mask in [*MASK_TEXT.finditer(text), None]:
    end = mask.start() if mask else len(text)
    chunk_ids, chunk_offsets = _encode_chunk(tokenizer, text[start:end].rstrip(), follows_mask=start > 0)
    ids += chunk_ids
    offsets += [(start + first, start + last) for first, last in chunk_offsets]
    if mask:
      masks.append(len(ids))
      ids.append(tokenizer.mask_id)
      offsets.append(mask.span())
      start = mask.end()
  if len(ids) == 1:
    raise UserError("A sentence is empty", got=repr(text), allowed="text with at least one visible character",
                    fix='write it in quotes: "The capital of France is [MASK]."')
  if len(ids) + 1 > max_tokens:
    raise UserError("A sentence is too long for this model", got=f"{len(ids) + 1} tokens in {text[:60]!r}...",
                    allowed=f"at most {max_tokens} tokens, two special ones included: data.sequence_length of the run; "
                            "positions behind it were never trained",
                    fix="split the text, or train with a longer --config.data.sequence_length")
  return Sentence(text, [*ids, tokenizer.sep_id], [*offsets, (len(text), len(text))], masks)


def _encode_chunk(tokenizer: Tokenizer, chunk: str, follows_mask: bool) -> tuple[list[int], list[tuple[int, int]]]:
  """Ids and offsets of the text between two masks, encoded as it would be after a word."""
  if not follows_mask or not chunk or chunk[0].isspace():
    return tokenizer.encode_words(chunk)
  # SentencePiece begins every text with a space; a character in front, of which no piece is a part, takes it.
  anchor = "." if chunk[0].isalnum() else "a"
  ids, offsets = tokenizer.encode_words(anchor + chunk)
  kept = [(i, (start - 1, end - 1)) for i, (start, end) in zip(ids, offsets) if start >= 1]
  if any(start < 1 < end for start, end in offsets):  # one piece covers both
    return tokenizer.encode_words(chunk)
  return [i for i, _ in kept], [offset for _, offset in kept]


def piece_text(tokenizer: Tokenizer, token_id: int) -> str:
  """How a vocabulary entry reads within a text; a space in front says that it starts a word."""
  token = tokenizer.tokens([token_id])[0]
  return f" {token}" if token_id in tokenizer.special_ids else PIECES[tokenizer.kind](tokenizer, token_id, token)


def put_in(tokenizer: Tokenizer, sentence: Sentence, new_ids: Mapping[int, int]) -> Sentence:
  """The sentence with other tokens at some positions (position -> id), in its ids and in its text.

  Spaces beside a punctuation mark stay as they are: vocabularies do not agree on them.
  """
  text, copied, offsets = "", 0, []  # `copied`: how much of the old text is in the new one
  for position, (start, end) in enumerate(sentence.offsets):
    if position in new_ids:
      text += sentence.text[copied:start]
      piece = piece_text(tokenizer, new_ids[position])
      if piece[:1].isalnum():  # goes on with the word before
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

  Length is rounded up to 16, 32, 64, ..., rows and prediction slots to powers of four, so that few programs compile.
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
