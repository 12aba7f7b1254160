"""A published tokenizer with settings of its own: the `tokenizers` library's object as tokenizer.json describes it."""

import json
from collections.abc import Iterator, Mapping

import tokenizers
from tokenizers import processors

from electra_jax.data.tokenizers import kinds
from electra_jax.data.tokenizers.base import Tokenizer

FILE = "published_tokenizer.json"


def files_of(library: tokenizers.Tokenizer, roles: Mapping[str, str]) -> dict[str, bytes]:
  """The file that defines a `PublishedTokenizer`.

  Args:
    library: with all added tokens; its padding, truncation and post-processing are left out.
    roles: role (`SPECIAL_NAMES`) -> entry, if the settings name one.
  """
  library.no_padding()
  library.no_truncation()
  content = json.loads(library.to_str()) | {"post_processor": None}
  return {FILE: json.dumps({"roles": dict(roles), "tokenizer": content}, ensure_ascii=False).encode("utf-8")}


def kind_of(content: dict) -> str | None:
  """The row of `tokenizers.TOKENIZERS` whose entries read like those of a tokenizer.json; None if there is none."""
  model, steps = content["model"], set(_types(content.get("pre_tokenizer"))) | set(_types(content.get("normalizer")))
  if model["type"] == "BPE":
    is_marked = {"Metaspace", "Prepend"} & steps
    return "byte_bpe" if "ByteLevel" in steps else "sentencepiece_bpe" if is_marked else None
  return {"WordPiece": "wordpiece", "Unigram": "sentencepiece"}.get(model["type"])


def _types(step: dict | None) -> Iterator[str]:
  """The types of a step of tokenizer.json and of all steps within it."""
  if step:
    yield step["type"]
    for part in step.get("normalizers") or step.get("pretokenizers") or ():
      yield from _types(part)


def _without_special_tokens(content: dict) -> dict:
  """A tokenizer.json that reads no special token in a text but the unknown one: the others have names nobody writes."""
  model, vocab = content["model"], content["model"]["vocab"]
  unknown = vocab[model["unk_id"]][0] if model.get("unk_id") is not None else model.get("unk_token")
  entries = {entry[0] for entry in vocab} if isinstance(vocab, list) else vocab.keys()
  hidden = {token["content"] for token in content["added_tokens"] if token["special"]} & entries - {unknown}
  renamed = {entry: f"\ufff8{entry}" for entry in hidden}
  vocab = [[renamed.get(entry, entry), score] for entry, score in vocab] if isinstance(vocab, list) else {
    renamed.get(entry, entry): i for entry, i in vocab.items()}
  return content | {"model": model | {"vocab": vocab},
                    "added_tokens": [token for token in content["added_tokens"] if token["content"] not in hidden]}


class PublishedTokenizer(Tokenizer):
  """Any tokenizer.json of a known kind; a text is encoded as a whole, because its settings may reach across spaces."""

  kind = "published"
  file_names = (FILE,)

  def _build(self) -> list[str]:
    content = json.loads(self.files[FILE])
    self._roles, self.kind = content["roles"], kind_of(content["tokenizer"]) or self.kind
    self.prefix = content["tokenizer"]["model"].get("continuing_subword_prefix") or "##"
    self.reader = tokenizers.Tokenizer.from_str(json.dumps(content["tokenizer"]))
    self._library = tokenizers.Tokenizer.from_str(json.dumps(_without_special_tokens(content["tokenizer"])))
    self._library.encode_special_tokens = True  # the names of those left are plain text
    if self.kind == "byte_bpe":  # character ranges without the space in front
      self.reader.post_processor = processors.ByteLevel(trim_offsets=True)
    normalizer = self._library.normalizer
    self.lowercase = normalizer is not None and "A" not in normalizer.normalize_str("A")
    self._never_text = {i for i, token in self.reader.get_added_tokens_decoder().items() if token.special}
    return kinds.entries_of(self.reader)

  def encode(self, text: str) -> list[int]:
    return self.reader.encode(text, add_special_tokens=False).ids

  def encode_batch(self, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in self._library.encode_batch_fast(texts, add_special_tokens=False)]

  def encode_words(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    ids, offsets = super().encode_words(text)
    return ids, [kinds.trimmed(text, *offset) for offset in offsets]

  def _is_filler(self, token_id: int, token: str) -> bool:
    return not token or token_id in self._never_text or super()._is_filler(token_id, token)
