"""How does text become token ids, and back? SentencePiece, WordPiece (BERT) and byte-level BPE (RoBERTa section 4.4).

A tokenizer is defined by one or two published files (`file_names`) and the fact whether it lowercases.
Special ids are looked up in the vocabulary by name, never assumed. No special token is registered with the libraries,
so that a literal "[MASK]" or "<mask>" in a text is plain text; only packing and masking insert the ids.
"""

import functools
import hashlib
import itertools
import json
import os
import re
import shutil
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np
import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from electra_jax.errors import UserError, named

# role -> the names that published vocabularies give it; the first one found counts (XLNet has both <cls> and <s>).
SPECIAL_NAMES = {
  "pad": ("[PAD]", "<pad>"),
  "unk": ("[UNK]", "<unk>"),
  "cls": ("[CLS]", "<cls>", "<s>"),
  "sep": ("[SEP]", "<sep>", "</s>"),
  "mask": ("[MASK]", "<mask>"),
}
FACTS_FILE = "tokenizer_facts.json"

_IDEOGRAPHS = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")  # and kana

_BEFORE_SINGLE_SPACE = re.compile(r"(?<=\S)(?= \S)")  # where byte-level BPE always begins a new word
KNOWN_CHARACTERS = 2_000_000  # of the words that a tokenizer remembers: about 100 MB

# Entries that fill a vocabulary up to a round size (BERT, fairseq, T5); they occur in no text.
_FILLERS = re.compile(r"\[unused\d+\]|<unused_?\d+>|madeupword\d+")


class Tokenizer(ABC):
  """Text to ids and back, and which id plays which special role.

  Attributes:
    kind: its row in `tokenizers.TOKENIZERS`.
    vocab_size: true count of entries, which may be below the size that was asked for.
    pad_id, unk_id, cls_id, sep_id, mask_id: ids of the special roles.
    special_ids: ascending; these five and all unused or control entries: never masked, never predicted or drawn at
      random, never produced from text (except unk_id).
    fingerprint: SHA-256 over the files that define the tokenizer; equal fingerprints give equal ids.
    lowercase: whether text is lowercased (and, for WordPiece, stripped of accents) first.
    files: name -> content of the defining files.
    continues_word: bool [vocab]: whether a token goes on with the word that the token before it begins or continues.
      Punctuation, and each Chinese or Japanese character, begins anew in every kind, as in BERT's word splitting.
  """

  kind: ClassVar[str]
  file_names: ClassVar[tuple[str, ...]]
  special_tokens: ClassVar[tuple[str, ...]]  # of a newly trained vocabulary: pad, unk, cls, sep, mask

  def __init__(self, files: Mapping[str, bytes], lowercase: bool, source: str = "the vocabulary"):
    """Builds the tokenizer; `source` is how errors call the vocabulary.

    Raises:
      UserError: the files cannot be parsed, or a special token is missing.
    """
    self.files, self.lowercase = dict(files), bool(lowercase)
    try:
      entries = self._build()
    except UserError:
      raise
    except Exception as error:  # the libraries raise plain Exception, RuntimeError, OSError, ValueError, ...
      raise UserError(f"The {self.kind} vocabulary cannot be read", got=f"{source}: {error}",
                      allowed=f"the published form of {' + '.join(self.file_names)}",
                      fix="check the file, or train a new vocabulary with electra_jax.tools.train_tokenizer") from error
    self.vocab_size = len(entries)
    ids = {token: i for i, token in enumerate(entries)}
    special = {role: next((ids[name] for name in names if name in ids), None) for role, names in SPECIAL_NAMES.items()}
    missing = [f"{role} ({' or '.join(SPECIAL_NAMES[role])})" for role, i in special.items() if i is None]
    if missing:
      raise UserError("The vocabulary lacks special tokens that pre-training needs",
                      got=f"{source} with {len(entries)} entries has no {', no '.join(missing)}",
                      allowed="a vocabulary with a token each for " + ", ".join(SPECIAL_NAMES),
                      fix="use the vocabulary of a BERT, ELECTRA or RoBERTa model, or train one with "
                          "electra_jax.tools.train_tokenizer")
    self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = special.values()
    fillers = (i for i, token in enumerate(entries) if self._is_filler(i, token))
    self.special_ids = tuple(sorted({*special.values(), *fillers}))
    self._special = frozenset(self.special_ids)
    digest = hashlib.sha256(f"{self.kind} lowercase={self.lowercase}".encode())
    for name in sorted(self.files):
      digest.update(f"\0{name} {len(self.files[name])}\0".encode() + self.files[name])
    self.fingerprint = digest.hexdigest()

  @functools.cached_property
  def continues_word(self) -> np.ndarray:
    """See the class."""
    return np.array([i not in self._special and self._continues_word(i) for i in range(self.vocab_size)])

  def __reduce__(self):  # the libraries' objects need not cross process borders, the files do
    return type(self), (self.files, self.lowercase)

  def encode(self, text: str) -> list[int]:
    """The ids of one text, without special tokens."""
    return self.encode_batch([text])[0]

  @abstractmethod
  def encode_batch(self, texts: list[str]) -> list[list[int]]:
    """The ids of each text, without special tokens; a literal "[MASK]" or "<mask>" is plain text."""

  @abstractmethod
  def encode_words(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """The ids of a text and, for each, the half-open range of characters (code points) that it stands for."""

  def decode(self, ids: Iterable[int]) -> str:
    """Readable text; special tokens appear by name, set off by spaces."""
    parts, run = [], []
    for i in [*map(int, ids), None]:
      if i is not None and i not in self._special:
        run.append(i)
        continue
      if run:
        parts.append(self._decode_ordinary(run))
        run = []
      if i is not None:
        parts.append(self.tokens([i])[0])
    return " ".join(part.strip() for part in parts) if len(parts) > 1 else "".join(parts)

  @abstractmethod
  def tokens(self, ids: Iterable[int]) -> list[str]:
    """The vocabulary entry behind each id."""

  def facts(self) -> dict:
    """What `tokenizer_facts.json` records beside the files."""
    return {"kind": self.kind, "lowercase": self.lowercase, "vocab_size": self.vocab_size, "pad_id": self.pad_id,
            "unk_id": self.unk_id, "cls_id": self.cls_id, "sep_id": self.sep_id, "mask_id": self.mask_id,
            "special_ids": list(self.special_ids), "fingerprint": self.fingerprint}

  def save(self, directory: str) -> None:
    """Writes the files and the facts; the directory appears complete or not at all.

    Raises:
      UserError: the directory holds something else, or the disk refuses.
    """
    facts_path = os.path.join(directory, FACTS_FILE)
    if os.path.exists(facts_path):
      with open(facts_path, encoding="utf-8") as file:
        if json.load(file).get("fingerprint") == self.fingerprint:
          return
    if os.path.lexists(directory) and not (os.path.isdir(directory) and not os.listdir(directory)):
      raise UserError("The directory for the tokenizer is taken", got=f"{directory} exists and holds something else",
                      allowed="a new or empty directory", fix="choose another directory, or move the old one away")
    partial = f"{os.path.normpath(directory)}.partial-{os.getpid()}"
    try:
      os.makedirs(partial)
      for name, content in {**self.files, FACTS_FILE: json.dumps(self.facts(), indent=2).encode() + b"\n"}.items():
        with open(os.path.join(partial, name), "wb") as file:
          file.write(content)
      os.replace(partial, directory)
    except OSError as error:
      raise UserError("The tokenizer cannot be written", got=f"{directory}: {error.strerror or error}",
                      allowed="a writable place with room for about 2 MB", fix="check the disk and the path") from error
    finally:
      shutil.rmtree(partial, ignore_errors=True)

  @abstractmethod
  def _build(self) -> list[str]:
    """Makes the library's object from `files` and returns the vocabulary in order of ids."""

  @abstractmethod
  def _decode_ordinary(self, ids: list[int]) -> str:
    """Text of ids that are not special."""

  @abstractmethod
  def _continues_word(self, token_id: int) -> bool:
    """Whether an ordinary token goes on with the word before it."""

  def _is_filler(self, token_id: int, token: str) -> bool:
    del token_id
    return bool(_FILLERS.fullmatch(token))


class _RustTokenizer(Tokenizer):
  """What WordPiece and byte-level BPE share: the `tokenizers` library, with nothing registered as special.

  Neither kind has a token that reaches across a single space, so each word is encoded once and remembered: a
  multiple of the library's speed on running text.
  """

  _known: dict[str, list[int]]
  _known_characters = 0

  def encode_batch(self, texts: list[str]) -> list[list[int]]:
    if self._known_characters > KNOWN_CHARACTERS:
      self._known, self._known_characters = {}, 0  # a new one: another thread may read the old one
    known = self._known
    words_of = [self._words(text) for text in texts]
    new = [word for word in set().union(*words_of) if word not in known]
    if new:
      encoded = self._library.encode_batch_fast(new, add_special_tokens=False)
      known.update(zip(new, [encoding.ids for encoding in encoded]))
      self._known_characters += sum(map(len, new))
    return [list(itertools.chain.from_iterable(map(known.__getitem__, words))) for words in words_of]

  @abstractmethod
  def _words(self, text: str) -> list[str]:
    """Parts of a text whose ids, one after the other, are those of the text."""

  def encode_words(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    encoding = self._library.encode(text, add_special_tokens=False)
    return encoding.ids, encoding.offsets

  def tokens(self, ids: Iterable[int]) -> list[str]:
    return [self._entries[int(i)] for i in ids]

  def _decode_ordinary(self, ids: list[int]) -> str:
    return self._library.decode(ids)


class WordPiece(_RustTokenizer):
  """BERT's tokenizer: clean, (lower, strip accents,) split at spaces and punctuation, then greedy longest match.

  Differs from the released BERT and ELECTRA code, as transformers does: a word is [UNK] above 100 characters, not 200;
  a final capital sigma lowercases to the medial form; unassigned code points are kept rather than dropped.
  """

  kind = "wordpiece"
  file_names = ("vocab.txt",)
  special_tokens = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

  def _build(self) -> list[str]:
    text = self.files["vocab.txt"].decode("utf-8").replace("\r\n", "\n")
    self._entries = text.removesuffix("\n").split("\n")
    unk = next((name for name in SPECIAL_NAMES["unk"] if name in self._entries), "[UNK]")
    vocab = {token: i for i, token in enumerate(self._entries)}
    self._library = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=unk, max_input_chars_per_word=100))
    self.set_pipeline(self._library, self.lowercase)
    self._library.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    self._known = {}
    return self._entries

  def _words(self, text: str) -> list[str]:
    return text.split(" ")  # not at other blanks: some of them are removed, and join what they part

  def _continues_word(self, token_id: int) -> bool:
    return self._entries[token_id].startswith("##")

  @staticmethod
  def set_pipeline(library: tokenizers.Tokenizer, lowercase: bool) -> None:
    """Sets the steps before the vocabulary, alike for training and use."""
    library.normalizer = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=None,
                                                    lowercase=lowercase)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()


class ByteBPE(_RustTokenizer):
  """GPT-2's byte-level BPE with RoBERTa's special tokens (RoBERTa section 4.4): any text, no unknown token.

  No space is put before a text's first word, as in fairseq's preprocessing of RoBERTa's corpora.
  """

  kind = "byte_bpe"
  file_names = ("vocab.json", "merges.txt")
  special_tokens = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")

  def _build(self) -> list[str]:
    vocab = json.loads(self.files["vocab.json"])
    self._entries = [""] * (max(vocab.values()) + 1)
    for token, i in vocab.items():
      self._entries[i] = token
    lines = self.files["merges.txt"].decode("utf-8").replace("\r\n", "\n").split("\n")
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    self._library = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>"))
    self.set_pipeline(self._library, self.lowercase)
    self._library.decoder = decoders.ByteLevel()
    self._known = {}
    return self._entries

  def _words(self, text: str) -> list[str]:
    if " ".join(text.split()) != text:
      return _BEFORE_SINGLE_SPACE.split(text)
    first, *rest = text.split(" ")
    return [first, *[" " + word for word in rest]]

  def _continues_word(self, token_id: int) -> bool:
    # A text's first word has no space either, so it counts as going on with the paragraph before it.
    first_byte = _byte_of(self._entries[token_id][:1])
    return _is_inside_character(first_byte) or _is_inside_word(self._library.decode([token_id]))

  @staticmethod
  def set_pipeline(library: tokenizers.Tokenizer, lowercase: bool) -> None:
    """Sets the steps before the vocabulary, alike for training and use."""
    if lowercase:
      library.normalizer = normalizers.Lowercase()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=True)


class SentencePiece(Tokenizer):
  """A unigram SentencePiece model; a new one falls back to bytes, so that no character is unknown.

  Differs from the papers, which use WordPiece and byte-level BPE: it is the default for a new vocabulary because its
  training is quick, deterministic and needs no word splitting rules.
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
      texts = [_lower(text) for text in texts]
    return self._library.encode(texts, num_threads=1)

  def encode_words(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    mapping = self._library.encode_as_offset_mapping(_lower(text) if self._lower_here else text)
    return mapping["ids"], [_trimmed(text, start, end) for start, end in mapping["offsets"]]

  def tokens(self, ids: Iterable[int]) -> list[str]:
    return [self._library.id_to_piece(int(i)) for i in ids]

  def _decode_ordinary(self, ids: list[int]) -> str:
    return self._library.decode(ids)

  def _continues_word(self, token_id: int) -> bool:
    piece = self._library.id_to_piece(token_id)  # of a byte: <0xE4>
    return _is_inside_character(int(piece[1:-1], 16)) if self._library.is_byte(token_id) else _is_inside_word(piece)

  def _is_filler(self, token_id: int, token: str) -> bool:
    library = self._library
    return (library.is_control(token_id) or library.is_unused(token_id) or library.is_unknown(token_id)
            or super()._is_filler(token_id, token))


class SentencePieceBPE(SentencePiece):
  """A SentencePiece model of merges; the file alone says of which type it is, so `encode` is the same."""

  kind = "sentencepiece_bpe"


def _byte_of(letter: str) -> int:
  """The byte that a letter of GPT-2's byte alphabet stands for; 0 for no letter."""
  number = ord(letter or "\0")
  if number < 256:
    return number
  return number - 256 if number <= 288 else number - 289 + 127 if number <= 322 else 173


def _is_inside_character(byte: int) -> bool:
  return 0x80 <= byte < 0xC0  # a continuation byte of UTF-8


def _is_inside_word(text: str) -> bool:
  """Whether a piece that stands without a space before it belongs to the word before: letters, digits, accents."""
  first = text[:1]
  return (first.isalnum() or unicodedata.category(first or " ").startswith("M")) and not _IDEOGRAPHS.match(text)


def _lower(text: str) -> str:
  """Lowercase with offsets kept: a character whose lower form is longer stays as it is."""
  return "".join(low if len(low := c.lower()) == 1 else c for c in text)


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
  while start < end and text[start].isspace():
    start += 1
  return start, end
