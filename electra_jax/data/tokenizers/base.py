"""The protocol of a tokenizer: text to ids and back, the roles of special tokens, saving to disk."""

import functools
import hashlib
import itertools
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from electra_jax import files
from electra_jax.data.tokenizers import entries
from electra_jax.errors import UserError

# role -> its names in published vocabularies; the first one found counts (XLNet has both <cls> and <s>).
SPECIAL_NAMES = {
  "pad": ("[PAD]", "<pad>"),
  "unk": ("[UNK]", "<unk>"),
  "cls": ("[CLS]", "<cls>", "<s>"),
  "sep": ("[SEP]", "<sep>", "</s>"),
  "mask": ("[MASK]", "<mask>"),
}
FACTS_FILE = "tokenizer_facts.json"

# Entries that fill a vocabulary up to a round size (BERT, fairseq, T5) and occur in no text.
_FILLERS = re.compile(r"\[unused\d+\]|<unused_?\d+>|madeupword\d+")


class Tokenizer(ABC):
  """Text to ids and back, and which id plays which special role.

  Attributes:
    kind: its row in `tokenizers.TOKENIZERS`.
    vocab_size: the actual count of entries, which may be below the size asked for.
    pad_id, unk_id, cls_id, sep_id, mask_id: ids of the special roles.
    special_ids: ascending; these five and all unused or control entries: never masked, predicted or drawn at random,
      produced from text only by their names in `encode` and `encode_words` (unk_id also by unknown words).
    fingerprint: SHA-256 over the files that define the tokenizer; equal fingerprints give equal ids.
    lowercase: whether text is lowercased (and, for WordPiece, stripped of accents) first.
    files: name -> content of the defining files.
    continues_word: bool [vocab], whether a token continues the word of the token before it. Punctuation and each
      Chinese or Japanese character begin a new word in every kind, as in BERT's word splitting.
  """

  kind: str
  file_names: ClassVar[tuple[str, ...]]
  special_tokens: ClassVar[tuple[str, ...]]  # of a newly trained vocabulary: pad, unk, cls, sep, mask
  prefix: str = "##"  # WordPiece: the beginning of an entry that continues a word
  _roles: Mapping[str, str] = {}  # role -> its entry, if the vocabulary's own settings name one
  _library: Any  # reads no special token in a text
  reader: Any  # the `tokenizers` library's object that reads the names of special tokens in a text as these tokens

  def __init__(self, files: Mapping[str, bytes], lowercase: bool, source: str = "the vocabulary"):
    """Builds the tokenizer; `source` is the vocabulary's name in errors.

    Raises:
      UserError: the files cannot be parsed, or a special token is missing.
    """
    self.files, self.lowercase = dict(files), bool(lowercase)
    try:
      self._entries = self._build()
    except UserError:
      raise
    except Exception as error:  # the libraries raise plain Exception, RuntimeError, OSError, ValueError, ...
      raise UserError(f"The {self.kind} vocabulary cannot be read", got=f"{source}: {error}",
                      allowed=f"the published form of {' + '.join(self.file_names)}",
                      fix="check the file, or train a new vocabulary with electra_jax.tools.train_tokenizer") from error
    self.vocab_size = len(self._entries)
    ids = {token: i for i, token in enumerate(self._entries)}
    special = {role: [ids[name] for name in (self._roles.get(role), *names) if name in ids]
               for role, names in SPECIAL_NAMES.items()}
    missing = [f"{role} ({' or '.join(SPECIAL_NAMES[role])})" for role, numbers in special.items() if not numbers]
    if missing:
      raise UserError("The vocabulary lacks special tokens that pre-training needs",
                      got=f"{source} with {self.vocab_size} entries has no {', no '.join(missing)}",
                      allowed="a vocabulary with a token each for " + ", ".join(SPECIAL_NAMES),
                      fix="use the vocabulary of a BERT, ELECTRA or RoBERTa model, or train one with "
                          "electra_jax.tools.train_tokenizer")
    self._role_ids = [numbers[0] for numbers in special.values()]
    self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = self._role_ids
    fillers = (i for i, token in enumerate(self._entries) if self._is_filler(i, token))
    self.special_ids = tuple(sorted({*self._role_ids, *fillers}))
    self._special = frozenset(self.special_ids)
    digest = hashlib.sha256(f"{self.kind} lowercase={self.lowercase}".encode())
    for name in sorted(self.files):
      digest.update(f"\0{name} {len(self.files[name])}\0".encode() + self.files[name])
    self.fingerprint = digest.hexdigest()

  @functools.cached_property
  def continues_word(self) -> np.ndarray:
    return np.array([i not in self._special and entries.continues_word(entry, self.kind, self.prefix)
                     for i, entry in enumerate(self._entries)])

  def __reduce__(self):  # only the files go to another process, not the libraries' objects
    return type(self), (self.files, self.lowercase)

  @functools.cached_property
  def _special_name(self) -> re.Pattern:
    return re.compile("|".join(map(re.escape, sorted(self.tokens(self._role_ids), key=len, reverse=True))))

  def encode(self, text: str) -> list[int]:
    """The ids of an example or a question, without [CLS] and [SEP] around it; "[SEP]" in it is the special token, as in
    transformers.
    """
    return self.encode_words(text)[0] if self._special_name.search(text) else self.encode_batch([text])[0]

  @abstractmethod
  def encode_batch(self, texts: list[str]) -> list[list[int]]:
    """The ids of each text of a corpus; "[MASK]" in it is plain text, so that no mask is there before masking."""

  def encode_words(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """As `encode`, with the half-open range of characters (code points) that each id stands for."""
    encoding = self.reader.encode(text, add_special_tokens=False)
    return encoding.ids, encoding.offsets

  def decode(self, ids: Iterable[int]) -> str:
    """Readable text; special tokens appear by name, set off by spaces."""
    parts = []
    for is_special, group in itertools.groupby(map(int, ids), key=self._special.__contains__):
      run = list(group)
      parts += self.tokens(run) if is_special else [self._library.decode(run)]
    return " ".join(part.strip() for part in parts) if len(parts) > 1 else "".join(parts)

  def tokens(self, ids: Iterable[int]) -> list[str]:
    """The vocabulary entry of each id."""
    return [self._entries[int(i)] for i in ids]

  def facts(self) -> dict:
    """What `tokenizer_facts.json` records next to the files."""
    return {"kind": self.kind, "lowercase": self.lowercase, "vocab_size": self.vocab_size, "pad_id": self.pad_id,
            "unk_id": self.unk_id, "cls_id": self.cls_id, "sep_id": self.sep_id, "mask_id": self.mask_id,
            "special_ids": list(self.special_ids), "fingerprint": self.fingerprint}

  def save(self, directory: str) -> None:
    """Writes the files and the facts; the directory appears complete or not at all.

    Raises:
      UserError: the directory holds something else, or the disk refuses.
    """
    facts_path = os.path.join(directory, FACTS_FILE)
    if os.path.exists(facts_path) and files.read_json(facts_path).get("fingerprint") == self.fingerprint:
      return
    with files.new_folder(directory) as partial:
      for name, content in {**self.files, FACTS_FILE: json.dumps(self.facts(), indent=2).encode() + b"\n"}.items():
        with open(os.path.join(partial, name), "wb") as file:
          file.write(content)

  @abstractmethod
  def _build(self) -> list[str]:
    """Makes `_library` from `files` and returns the vocabulary in order of ids."""

  def _is_filler(self, token_id: int, token: str) -> bool:
    del token_id
    return bool(_FILLERS.fullmatch(token))
