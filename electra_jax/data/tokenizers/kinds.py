"""Tokenizers, text to ids and back: SentencePiece, WordPiece (BERT), byte-level BPE (RoBERTa section 4.4).

A tokenizer is defined by one or two published files (`file_names`) and by whether it lowercases.
Special ids are looked up in the vocabulary by name, never assumed. In a corpus a literal "[MASK]" or "<mask>" is plain
text; in examples and questions it is the special token (`Tokenizer.encode`).
"""

import functools
import itertools
import json
import re
import unicodedata
from abc import abstractmethod
from typing import Any

import sentencepiece
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from electra_jax.data.tokenizers import sentencepiece_library
from electra_jax.data.tokenizers.base import SPECIAL_NAMES, Tokenizer
from electra_jax.errors import UserError, named

_BEFORE_SINGLE_SPACE = re.compile(r"(?<=\S)(?= \S)")  # there byte-level BPE always begins a new word
KNOWN_CHARACTERS = 2_000_000  # in the words that a tokenizer remembers: about 100 MB


def entries_of(library: tokenizers.Tokenizer) -> list[str]:
  """The vocabulary by id; "" where an id has no entry."""
  names = {i: token for token, i in library.get_vocab().items()}
  return [names.get(i, "") for i in range(max(names) + 1)]


class LibraryTokenizer(Tokenizer):
  """What WordPiece and byte-level BPE share: the `tokenizers` library; `_library` has no special tokens.

  Neither kind has a token that reaches across a single space, so each word is encoded once and remembered, which is
  several times as fast as the library on running text.
  """

  _known_characters = 0

  @functools.cached_property
  def _known(self) -> dict[str, list[int]]:
    return {}

  @functools.cached_property
  def reader(self) -> tokenizers.Tokenizer:
    reader = tokenizers.Tokenizer.from_str(self._library.to_str())
    # The space before RoBERTa's mask belongs to it: in training the masked token began with that space.
    reader.add_special_tokens([
      AddedToken(self._entries[i], special=True, normalized=False, lstrip=self.kind == "byte_bpe" and i == self.mask_id)
      for i in self._role_ids])
    return reader

  def encode_batch(self, texts: list[str]) -> list[list[int]]:
    if self._known_characters > KNOWN_CHARACTERS:
      self._known, self._known_characters = {}, 0  # a new dict: another thread may be reading the old one
    ids_of = self._known
    words_of = [self._words(text) for text in texts]
    new = [word for word in set().union(*words_of) if word not in ids_of]
    if new:
      encoded = self._library.encode_batch_fast(new, add_special_tokens=False)
      ids_of.update(zip(new, [encoding.ids for encoding in encoded]))
      self._known_characters += sum(map(len, new))
    return [list(itertools.chain.from_iterable(map(ids_of.__getitem__, words))) for words in words_of]

  @abstractmethod
  def _words(self, text: str) -> list[str]:
    """Parts of a text whose concatenated ids are those of the text."""


class WordPiece(LibraryTokenizer):
  """BERT's tokenizer: clean, (lower, strip accents,) split at spaces and punctuation, then greedy longest match.

  Differs from the released BERT and ELECTRA code, as transformers does: a word is [UNK] above 100 characters, not 200;
  a final capital sigma lowercases to the medial form; unassigned code points are kept rather than dropped.
  """

  kind = "wordpiece"
  file_names = ("vocab.txt",)
  special_tokens = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

  def _build(self) -> list[str]:
    text = self.files["vocab.txt"].decode("utf-8").replace("\r\n", "\n")
    entries = text.removesuffix("\n").split("\n")
    unk = next((name for name in SPECIAL_NAMES["unk"] if name in entries), "[UNK]")
    vocab = {token: i for i, token in enumerate(entries)}
    self._library = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=unk, max_input_chars_per_word=100))
    self.set_pipeline(self._library, self.lowercase)
    self._library.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return entries

  def _words(self, text: str) -> list[str]:
    return text.split(" ")  # not at other blanks: some of them are removed, which joins what they separate

  @staticmethod
  def set_pipeline(library: tokenizers.Tokenizer, lowercase: bool) -> None:
    """Sets the steps before the vocabulary, the same for training and use."""
    library.normalizer = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=None,
                                                    lowercase=lowercase)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()


class ByteBPE(LibraryTokenizer):
  """GPT-2's byte-level BPE with RoBERTa's special tokens (RoBERTa section 4.4): any text, no unknown token.

  No space is added before a text's first word, as in fairseq's preprocessing of RoBERTa's corpora.
  """

  kind = "byte_bpe"
  file_names = ("vocab.json", "merges.txt")
  special_tokens = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")

  def _build(self) -> list[str]:
    vocab = json.loads(self.files["vocab.json"])
    lines = self.files["merges.txt"].decode("utf-8").replace("\r\n", "\n").split("\n")
    merges: list[Any] = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    self._library = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>"))
    self.set_pipeline(self._library, self.lowercase)
    self._library.decoder = decoders.ByteLevel()
    return entries_of(self._library)

  def _words(self, text: str) -> list[str]:
    if " ".join(text.split()) != text:
      return _BEFORE_SINGLE_SPACE.split(text)
    first, *rest = text.split(" ")
    return [first, *[" " + word for word in rest]]

  @staticmethod
  def set_pipeline(library: tokenizers.Tokenizer, lowercase: bool) -> None:
    """Sets the steps before the vocabulary, the same for training and use."""
    if lowercase:
      library.normalizer = normalizers.Lowercase()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=True)


class SentencePiece(Tokenizer):
  """A unigram SentencePiece model; a new one falls back to bytes, so that no character is unknown.

  Differs from the papers, which use WordPiece and byte-level BPE: it is the default for a new vocabulary because its
  training is fast, deterministic and needs no rules for splitting words.
  """

  kind = "sentencepiece"
  file_names = ("sentencepiece.model",)
  special_tokens = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")

  def _build(self) -> list[str]:
    self._library = sentencepiece.SentencePieceProcessor(model_proto=self.files["sentencepiece.model"])
    entries = [self._library.id_to_piece(i) for i in range(self._library.vocab_size())]
    folds = "A" not in self._library.normalize("A")
    if folds and not self.lowercase:
      raise UserError("The SentencePiece model folds case, but the config asks for a cased vocabulary",
                      got="a model with an nmt_nfkc_cf or similar normaliser", allowed="data.tokenizer.lowercase True",
                      fix="set --config.data.tokenizer.lowercase=True, or use another model")
    self._lower_here = self.lowercase and not folds  # ALBERT's published models leave lowercasing to the caller
    names = {name for group in SPECIAL_NAMES.values() for name in group}
    loose = [token for i, token in enumerate(entries) if token in names and not self._is_filler(i, token)]
    if loose:
      raise UserError("Special tokens of the SentencePiece model can be produced by text", got=named(loose),
                      allowed="control symbols", fix="train the model with --control_symbols=[CLS],[SEP],[MASK]")
    return entries

  def encode_batch(self, texts: list[str]) -> list[list[int]]:
    if self._lower_here:
      texts = ["".join(map(str.lower, text)) for text in texts]  # character by character, as `reader` does
    return self._library.encode(texts, num_threads=1)

  @functools.cached_property
  def reader(self) -> tokenizers.Tokenizer:
    reader = sentencepiece_library.make_library(self.files["sentencepiece.model"], self.unk_id, self._lower_here)
    reader.add_special_tokens([AddedToken(name, special=True, normalized=False)
                               for name in self.tokens(self._role_ids)])
    return reader

  def encode_words(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    ids, offsets = super().encode_words(text)
    return ids, [trimmed(text, *offset) for offset in offsets]

  def _is_filler(self, token_id: int, token: str) -> bool:
    library = self._library
    return (library.is_control(token_id) or library.is_unused(token_id) or library.is_unknown(token_id)
            or super()._is_filler(token_id, token))


class SentencePieceBPE(SentencePiece):
  """A SentencePiece model of merges; the library knows the type from the file, so the code is the same."""

  kind = "sentencepiece_bpe"


def trimmed(text: str, start: int, end: int) -> tuple[int, int]:
  """The range without spaces and invisible (control or format) characters at its beginning."""
  while start < end and (text[start].isspace() or unicodedata.category(text[start]) in ("Cc", "Cf")):
    start += 1
  return start, end
