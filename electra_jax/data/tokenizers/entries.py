"""Entries of a vocabulary: the bytes of text that each stands for, and whether it continues a word."""

import re
import unicodedata

BYTE = re.compile("<0x([0-9A-F]{2})>")  # SentencePiece's pieces of single bytes
_IDEOGRAPHS = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")  # and kana
_HIDDEN = (*range(33), *range(127, 161), 173)  # invisible bytes, with letters of their own in GPT-2's byte alphabet
_BYTE_OF = {chr(byte): byte for byte in range(256) if byte not in _HIDDEN} | {
  chr(256 + number): byte for number, byte in enumerate(_HIDDEN)}


def text_bytes(entry: str, kind: str, prefix: str = "##") -> bytes:
  """An ordinary entry as UTF-8, which may be a part of a character, with a space in front where it starts a word.

  Args:
    kind: a row of `tokenizers.TOKENIZERS`.
    prefix: of WordPiece's entries that continue a word.
  """
  if kind == "byte_bpe":
    return bytes(map(_BYTE_OF.__getitem__, entry)) if set(entry) <= _BYTE_OF.keys() else entry.encode()
  if kind == "wordpiece":
    return (entry.removeprefix(prefix) if entry.startswith(prefix) else " " + entry).encode()
  byte = BYTE.fullmatch(entry)
  return bytes.fromhex(byte[1]) if byte else entry.replace("▁", " ").encode()


def continues_word(entry: str, kind: str, prefix: str = "##") -> bool:
  """Whether an ordinary entry, with the arguments of `text_bytes`, continues the word of the token before it.

  Without a space before them, letters, digits, accents and bytes inside of a character do. A text's first word has no
  space either, so it counts as continuing the paragraph before it.
  """
  if kind == "wordpiece":
    return entry.startswith(prefix)
  content = text_bytes(entry, kind)
  text = content.decode("utf-8", "replace")
  is_inside_character = b"\x80" <= content[:1] < b"\xc0"
  is_of_word = text[:1].isalnum() or unicodedata.category(text[:1] or " ").startswith("M")
  return is_inside_character or (is_of_word and not _IDEOGRAPHS.match(text))
