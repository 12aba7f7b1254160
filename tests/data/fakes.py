"""A tokenizer of whole words: small enough that a test can state every id, independent of the real ones."""

import hashlib
import re

WORDS = [*"abcdefghijklmnopqrstuvwxyz", *(f"w{i}" for i in range(1000))]


class FakeTokenizer:
  """PAD 0, CLS 1, SEP 2, MASK 3, UNK 4, then the words."""

  kind = "fake"
  pad_id, cls_id, sep_id, mask_id, unk_id = range(5)
  special_ids = (0, 1, 2, 3, 4)

  def __init__(self, words=WORDS):
    self.words = list(words)
    self.ids = {word: 5 + i for i, word in enumerate(self.words)}
    self.vocab_size = 5 + len(self.words)
    self.fingerprint = hashlib.sha256(" ".join(self.words).encode()).hexdigest()

  def encode_batch(self, texts):
    return [[self.ids.get(word, self.unk_id) for word in text.split()] for text in texts]

  def encode_words(self, text):
    spans = [word.span() for word in re.finditer(r"\S+", text)]
    return self.encode_batch([text])[0], spans

  def tokens(self, ids):
    return [(["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", *self.words])[i] for i in ids]
