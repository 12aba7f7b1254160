"""Published vocabularies: bare files, or the tokenizer that transformers' AutoTokenizer makes of a folder."""

import codecs
import contextlib
import json
import os
import pathlib
from typing import Any

import tokenizers
from absl import logging
from tokenizers import AddedToken

from electra_jax.data.tokenizers import fairseq_vocabulary, kinds, published_tokenizer
from electra_jax.data.tokenizers.base import SPECIAL_NAMES, Tokenizer
from electra_jax.data.tokenizers.training import merges_text
from electra_jax.errors import UserError

UNSUPPORTED = "The settings next to the vocabulary are not supported"
# Files next to a vocabulary that say how a text is read.
SETTINGS = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}
# Other names of published files (GPT-2, fairseq) -> ours; any *.model counts as SentencePiece's, too.
ALIASES = {"encoder.json": "vocab.json", "vocab.bpe": "merges.txt"}
KINDS = (kinds.ByteBPE, kinds.SentencePiece, kinds.WordPiece, kinds.SentencePieceBPE)
CAPITALS = 0.05  # share of words with capitals above which a vocabulary is cased


def load(path: str, kind: str | None = None, lowercase: bool | None = None) -> Tokenizer:
  """The tokenizer of published files: a folder, or one file of it.

  Args:
    kind: the wanted one, if a folder has the files of several.
    lowercase: what the config asks for; it counts if the settings name none.

  Raises:
    UserError: there is no vocabulary, it is damaged, or its settings are not supported.
    OSError: a file cannot be read.
  """
  fairseq_files = fairseq_vocabulary.find(path)
  if fairseq_files:
    return kinds.ByteBPE(fairseq_vocabulary.vocabulary(*fairseq_files), lowercase=False, source=path)
  files = _files(path)
  if SETTINGS & files.keys():
    return _of_library(*_by_transformers(os.path.dirname(next(iter(files.values()))), files, lowercase), path)
  fitting = [row for row in KINDS if set(row.file_names) <= files.keys()]
  if not fitting:
    raise UserError("No vocabulary was found", got=f"{path}: {', '.join(list(files)[:8]) or 'an empty directory'}",
                    allowed="vocab.txt, vocab.json with merges.txt, *.model or tokenizer.json",
                    fix="point --config.data.tokenizer.path at the file or at its directory")
  row = next((row for row in fitting if row.kind == kind), fitting[0])
  content = {name: _read(files[name]) for name in row.file_names}
  is_lowercase = bool(lowercase)
  if row is kinds.WordPiece:
    is_lowercase = _lowercase(content["vocab.txt"].decode("utf-8", "replace").split(), lowercase, path)
  return row(content, is_lowercase, path)


def _files(path: str) -> dict[str, str]:
  """Our names -> paths of the files in a folder, or of one file (under any name) and those read with it."""
  folder, name = (path, "") if os.path.isdir(path) else os.path.split(path)
  folder = folder or "."
  files = {_our_name(other): os.path.join(folder, other) for other in sorted(os.listdir(folder))}
  if not name:
    return files
  if name.endswith(".txt") and _our_name(name) not in ("vocab.txt", "merges.txt"):  # bert-base-uncased-vocab.txt
    return {"vocab.txt": path}
  parts = kinds.ByteBPE.file_names if _our_name(name) in kinds.ByteBPE.file_names else (_our_name(name),)
  return {part: files[part] for part in {*parts, *SETTINGS} & files.keys()}


def _our_name(name: str) -> str:
  return ALIASES.get(name, "sentencepiece.model" if name.endswith(".model") else name)


def _read(path: str) -> bytes:
  """The bytes of a file without the byte order mark that some editors put in front."""
  return pathlib.Path(path).read_bytes().removeprefix(codecs.BOM_UTF8)


def _lowercase(entries: list[str], lowercase: bool | None, where: str) -> bool:
  """Whether to lowercase: what the config asks for, else what the entries look like.

  Capitals in a vocabulary are wasted on lowercased text, but words with capitals are [UNK] in a vocabulary without.
  """
  share = _share_of_capitals(entries)
  if lowercase is False and share == 0:
    return True  # `_check_config` refuses this, with the reason
  if lowercase and share > CAPITALS:
    logging.warning("The vocabulary in %s has capitals in %.0f %% of its words, and data.tokenizer.lowercase=True "
                    "makes no use of them.", where, 100 * share)
  return share <= CAPITALS if lowercase is None else lowercase


def _share_of_capitals(entries: list[str]) -> float:
  words = [entry for entry in entries if entry.isascii() and entry.strip("#").isalpha()]
  return sum(entry.lower() != entry for entry in words) / len(words) if words else -1.0


def _by_transformers(folder: str, files: dict[str, str], lowercase: bool | None
                     ) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
  """(the library's object, role -> its entry) as AutoTokenizer reads a folder."""
  def refused(got: object, fix: str = "check the tokenizer's JSON files; where tokenizer.json is right as it stands, "
              'set "tokenizer_class": "PreTrainedTokenizerFast" in tokenizer_config.json') -> UserError:
    return UserError(UNSUPPORTED, got=f"{folder}: {got}", allowed="what transformers' AutoTokenizer reads", fix=fix)

  os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # about PyTorch, which a tokenizer does not need
  try:
    import transformers
  except ImportError as error:
    raise UserError("A vocabulary has settings next to it, and what reads them is not installed",
                    got=f"{folder}: {error}", allowed="transformers", fix="pip install '.[hf]'") from error
  contents: dict[str, Any] = {name: {} for name in SETTINGS}
  for name in (SETTINGS | {"vocab.txt"}) & files.keys():
    content = _read(files[name])
    if len(content) < os.path.getsize(files[name]):
      raise refused(f"{name} begins with a byte order mark", "save it as UTF-8 without one")
    if name in SETTINGS:
      contents[name] = _parse(content, files[name])
  settings, described = contents["tokenizer_config.json"], contents["tokenizer.json"].get("model", {})
  named = f"tokenizer_class={settings.get('tokenizer_class')!r}"
  is_bare = "vocab.txt" in files and not described
  is_unsaid = is_bare and settings.get("do_lower_case") is None
  asked = {"do_lower_case": lowercase} if is_unsaid and lowercase is not None else {}
  try:
    is_unnamed = is_bare and not settings.get("tokenizer_class")
    reader: Any = transformers.BertTokenizer if is_unnamed else transformers.AutoTokenizer
    theirs = reader.from_pretrained(folder, local_files_only=True, **asked)
    library = theirs.backend_tokenizer
  except Exception as error:  # for a malformed file the libraries raise anything
    first_line = str(error).strip().partition("\n")[0]
    raise refused(f"{named}: {type(error).__name__}: {first_line}") from error
  model = json.loads(library.to_str())["model"]
  overlooked = [f"{key}={described[key]!r}" for key in ("type", "continuing_subword_prefix") if described.get(key) and
                described[key] != model.get(key)]
  if overlooked or not library.get_vocab().keys() - theirs.all_special_tokens:
    raise refused(f"{named} does not read {', '.join(overlooked) or 'the vocabulary that is there'}")
  entries, normalizer = list(library.get_vocab()), library.normalizer
  folds = normalizer is not None and normalizer.normalize_str("A") == "a"
  if is_unsaid and not asked and folds and _share_of_capitals(entries) > CAPITALS:
    raise refused("do_lower_case is unsaid, for which transformers takes true, but the vocabulary has capitals",
                  'write {"do_lower_case": false} (or true) into tokenizer_config.json next to it')
  roles = {role: name for role in SPECIAL_NAMES if (name := getattr(theirs, f"{role}_token", None))}
  declared = [contents[name].get(key) for name in sorted(SETTINGS) for key in ("mask_token", "added_tokens_decoder")]
  if roles.get("mask") == "<mask>" and not described and not any(isinstance(value, dict) for value in declared):
    # No file says how it is read: the space before belongs to it, as in training.
    library.add_special_tokens([AddedToken("<mask>", special=True, normalized=False, lstrip=True)])
  if not settings.get("tokenizer_class"):  # nothing says which entries are special
    usual = {role: name for role, names in SPECIAL_NAMES.items() for name in names[::-1] if name in entries} | roles
    library.add_special_tokens([AddedToken(name, special=True, normalized=False, lstrip=name == "<mask>")
                                for role, name in usual.items() if role not in roles])
  return library, roles


def _parse(content: bytes, path: str) -> dict:
  try:
    settings = json.loads(content)
    if not isinstance(settings, dict):
      raise ValueError(f"a {type(settings).__name__}, not an object")
  except ValueError as error:
    raise UserError(UNSUPPORTED, got=f"{path}: {error}", allowed="a JSON object", fix="restore the file") from error
  return settings


def _of_library(library: tokenizers.Tokenizer, roles: dict[str, str], where: str) -> Tokenizer:
  """A plain tokenizer of ours, which remembers words, if it equals the library's object; else the object as it is."""
  content = json.loads(library.to_str())
  kind, model = published_tokenizer.kind_of(content), content["model"]
  if kind is None:
    raise UserError(UNSUPPORTED, got=f"{where}: a model of type {model['type']} with steps before it that no kind of "
                    "tokenizer has here", allowed="WordPiece, Unigram or byte-level BPE",
                    fix="train a vocabulary with electra_jax.tools.train_tokenizer")
  plain, normalizer = None, content["normalizer"] or {}
  with contextlib.suppress(UserError):  # its special tokens have names of their own
    if kind == "wordpiece" and sorted(model["vocab"].values()) == list(range(len(model["vocab"]))):
      text = "".join(f"{token}\n" for token in sorted(model["vocab"], key=model["vocab"].__getitem__))
      plain = kinds.WordPiece({"vocab.txt": text.encode()}, normalizer.get("lowercase", False), where)
    elif kind == "byte_bpe":
      plain = kinds.ByteBPE({"vocab.json": json.dumps(model["vocab"], ensure_ascii=False).encode(),
                             "merges.txt": merges_text(model["merges"]).encode()}, bool(normalizer), where)
  if plain is not None and _essence(plain.reader) == _essence(library):
    return plain
  return published_tokenizer.PublishedTokenizer(published_tokenizer.files_of(library, roles), False, where)


def _essence(library: tokenizers.Tokenizer) -> dict:
  """The settings that decide the ids, without those in which two forms of one tokenizer may differ."""
  content = json.loads(library.to_str())
  model = {key: value for key, value in content["model"].items() if value not in (None, "", False) and (
    key != "unk_token" or content["model"]["type"] == "WordPiece")}
  steps = {key: value for key, value in (content["pre_tokenizer"] or {}).items() if key != "trim_offsets"}
  added = [{key: value for key, value in token.items() if key != "normalized" or content["normalizer"]}
           for token in content["added_tokens"]]
  return {"model": model, "normalizer": content["normalizer"], "steps": steps, "added": added}
