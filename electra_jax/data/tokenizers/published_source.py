"""Files of a published vocabulary and the settings next to them, as they lie in a folder."""

import codecs
import json
import os
from typing import NamedTuple, TypeVar

import tokenizers
from tokenizers import AddedToken

from electra_jax.data.tokenizers.base import SPECIAL_NAMES
from electra_jax.data.tokenizers.kinds import ByteBPE, SentencePiece, WordPiece
from electra_jax.errors import UserError

SUPPORTED = "the settings that docs/data_formats.md lists"
UNSUPPORTED = "The settings next to the vocabulary are not supported"
# Published files' other names (GPT-2, fairseq) -> ours; besides, any *.model counts as SentencePiece's.
ALIASES = {"encoder.json": "vocab.json", "vocab.bpe": "merges.txt"}
ROLE_KEYS = tuple(f"{role}_token" for role in (*SPECIAL_NAMES, "bos", "eos"))


Default = TypeVar("Default", bool, bool | None)


class PublishedFiles(NamedTuple):
  """What lies in a folder."""

  where: str
  files: dict[str, str]  # our names -> paths
  settings: dict  # of tokenizer_config.json with what special_tokens_map.json says
  added: dict[int, AddedToken]  # declared id -> token
  content: dict | None  # of tokenizer.json, with the library's defaults
  tokenizer_class: str  # without "Fast"; "": unsaid
  model_type: str  # of config.json; "": there is none
  lowercase: bool | None  # data.tokenizer.lowercase; None: there is no config

  def refused(self, got: str, fix: str = "set it as the model was trained, if the files allow that") -> UserError:
    """An error that names a setting."""
    return UserError(UNSUPPORTED, got=f"{self.where}: {got}", allowed=SUPPORTED, fix=fix)

  def flag(self, key: str, default: Default) -> bool | Default:
    """A setting that is true, false or unsaid."""
    value = self.settings.get(key)
    if value is not None and not isinstance(value, bool):
      raise self.refused(f"{key}={value!r} in tokenizer_config.json", fix="write true or false")
    return default if value is None else value


def read(path: str, lowercase: bool | None) -> PublishedFiles:
  """What belongs to a folder's vocabulary, or to one file of it under any name.

  Raises:
    UserError: there is no vocabulary, or a file is damaged.
    OSError: a file cannot be read.
  """
  is_folder = os.path.isdir(path)
  folder, name = (path, "") if is_folder else os.path.split(path)
  names = sorted(os.listdir(folder or "."))
  files = {_our_name(other): os.path.join(folder, other) for other in names}
  if not is_folder:
    parts = ByteBPE.file_names if _our_name(name) in ByteBPE.file_names else (_our_name(name),)
    files = {part: files[part] for part in parts if part in files} | {_our_name(name): path}
  if name.endswith(".txt") and _our_name(name) not in ("vocab.txt", "merges.txt"):
    files = {"vocab.txt": path}  # under any name: bert-base-uncased-vocab.txt
  elif name.endswith(".json") and _our_name(name) not in ("tokenizer.json", "vocab.json"):
    files = {"tokenizer.json": path}
  named_otherwise = not is_folder and _our_name(name) not in files
  beside = {} if named_otherwise else {
    other: _read_object(os.path.join(folder, other)) for other in (
      "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json") if other in names}
  settings, content = beside.get("tokenizer_config.json", {}), None
  if "tokenizer.json" in files:
    content = _content(files["tokenizer.json"])
  added, settings = _added(settings, beside, content)
  model_type = beside.get("config.json", {}).get("model_type")
  named = settings.get("tokenizer_class") or beside.get("config.json", {}).get("tokenizer_class") or ""
  if not any(set(row.file_names) <= files.keys() for row in (WordPiece, ByteBPE, SentencePiece)) and content is None:
    raise UserError("No vocabulary was found", got=f"{path}: {', '.join(names[:8]) or 'an empty directory'}",
                    allowed="vocab.txt, vocab.json with merges.txt, *.model or tokenizer.json",
                    fix="point --config.data.tokenizer.path at the file or at its directory")
  return PublishedFiles(path, files, settings, added, content, str(named).removesuffix("Fast"),
                model_type if isinstance(model_type, str) else "", lowercase)


def _our_name(name: str) -> str:
  return ALIASES.get(name, "sentencepiece.model" if name.endswith(".model") else name)


def read_text(path: str) -> bytes:
  """A vocabulary's file without the byte order mark that some editors put in front.

  Raises:
    UserError: it is of UTF-16.
  """
  with open(path, "rb") as file:
    content = file.read()
  if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and not path.endswith(".model"):
    raise UserError("A vocabulary is written in UTF-16", got=f"{path} begins with its byte order mark",
                    allowed="UTF-8", fix=f"iconv -f UTF-16 -t UTF-8 {path} > NEW")
  return content.removeprefix(codecs.BOM_UTF8)


def _read_object(path: str) -> dict:
  content = read_text(path)
  try:
    settings = json.loads(content)
    if not isinstance(settings, dict):
      raise ValueError(f"a {type(settings).__name__}, not an object")
  except ValueError as error:
    raise UserError(UNSUPPORTED, got=f"{path}: {error}", allowed="a JSON object", fix="restore the file") from error
  return settings


def _content(path: str) -> dict:
  """tokenizer.json as the library understands it, every default filled in."""
  text = read_text(path).decode("utf-8", "replace")
  try:
    return json.loads(tokenizers.Tokenizer.from_str(text).to_str())
  except Exception as error:  # the library raises plain Exception
    raise UserError("This tokenizer.json is of a form that is not supported", got=f"{path}: {error}",
                    allowed="what the `tokenizers` library writes",
                    fix="use such a vocabulary, or train one with electra_jax.tools.train_tokenizer") from error


# ---- added tokens ----


def _added(settings: dict, beside: dict[str, dict], content: dict | None) -> tuple[dict[int, AddedToken], dict]:
  """(declared id -> token, the settings with what special_tokens_map.json says where it counts)."""
  if "added_tokens_decoder" in settings:
    return {int(i): make_token(token) for i, token in settings["added_tokens_decoder"].items()}, settings
  settings = settings | beside.get("special_tokens_map.json", {})
  special = {name_of(settings[key]) for key in ROLE_KEYS if settings.get(key)} | {
    name_of(token) for token in extra_tokens(settings)}
  added = {i: AddedToken(name, normalized=name not in special, special=name in special)
           for name, i in beside.get("added_tokens.json", {}).items()}
  return added | {token["id"]: make_token(token) for token in (content or {}).get("added_tokens", ())}, settings


def make_token(value: AddedToken | dict | str) -> AddedToken:
  """An added token from any form that settings have; of a text alone it is a special one."""
  flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
  if isinstance(value, AddedToken):
    return value
  if isinstance(value, str):
    return AddedToken(value, special=True, normalized=False)
  return AddedToken(value["content"], **{flag: value[flag] for flag in flags if flag in value})


def name_of(value: dict | str) -> str:
  """What a token of the settings is called in texts."""
  return value["content"] if isinstance(value, dict) else value


def extra_tokens(settings: dict) -> list:
  """Special tokens next to those of the roles: a list, or an object of names."""
  extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
  return list(extra.values()) if isinstance(extra, dict) else extra
