"""Published vocabularies: tokenizers that give the ids of transformers' AutoTokenizer for the same folder.

AutoTokenizer takes some classes' entries alone from tokenizer.json and builds the steps before them from
tokenizer_config.json (BERT's, RoBERTa's); for PreTrainedTokenizerFast tokenizer.json holds as it stands.
"""

import functools
import json
from collections.abc import Callable
from typing import NamedTuple

import tokenizers
from absl import logging
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from electra_jax.data.tokenizers import fairseq_vocabulary, kinds, published_tokenizer
from electra_jax.data.tokenizers.base import LACKS_ROLES, SPECIAL_NAMES, Tokenizer
from electra_jax.data.tokenizers.published_source import (
  SUPPORTED,
  UNSUPPORTED,
  PublishedFiles,
  extra_tokens,
  make_token,
  name_of,
  read,
  read_text,
)
from electra_jax.data.tokenizers.training import merges_text
from electra_jax.errors import UserError

# `model_type` of config.json -> the class that reads its vocabulary where tokenizer_config.json names none.
MODEL_CLASSES = {**dict.fromkeys(("bert", "electra", "distilbert", "mobilebert", "convbert"), "BertTokenizer"),
                 "roberta": "RobertaTokenizer"}
# Likewise of classes whose steps are not built here; their tokenizer.json holds as it stands, where it is asked for.
UNBUILT = {"albert": "AlbertTokenizer", "xlm-roberta": "XLMRobertaTokenizer", "camembert": "CamembertTokenizer"}
NATIVE = {"WordPiece": "wordpiece", "BPE": "byte_bpe"}  # model -> kind of its own files
AS_IT_STANDS = ("PreTrainedTokenizer", "TokenizersBackend")


class Built(NamedTuple):
  """A library's object before its added tokens."""

  library: tokenizers.Tokenizer
  plain: kinds.LibraryTokenizer | None = None  # what it is where nothing else is set: with words that are remembered
  has_roles: bool = True  # whether the class registers the usual special tokens unasked


def load(path: str, kind: str | None = None, lowercase: bool | None = None) -> Tokenizer:
  """The tokenizer of published files: a folder, or one file of it.

  Args:
    kind: the one that is wanted, where a folder has the files of several.
    lowercase: what the config asks for; it counts where the settings do not say.

  Raises:
    UserError: there is no vocabulary, it is damaged, or a setting is not supported.
    OSError: a file cannot be read.
  """
  fairseq_files = fairseq_vocabulary.find(path)
  if fairseq_files:
    return kinds.ByteBPE(fairseq_vocabulary.vocabulary(*fairseq_files), lowercase=False, source=path)
  try:
    source = read(path, lowercase)
    built = _builder(source, kind)(source)
    return built if isinstance(built, Tokenizer) else _finish(source, built)
  except (UserError, OSError):
    raise
  except Exception as error:  # what is malformed; the library raises plain Exception
    raise UserError(UNSUPPORTED, got=f"{path}: {type(error).__name__}: {error}", allowed=SUPPORTED,
                    fix="check the tokenizer's JSON files") from error


def _finish(source: PublishedFiles, built: Built) -> Tokenizer:
  """The library's object with the added tokens and those of the roles, or the plain tokenizer where it is no more."""
  library, settings = built.library, source.settings
  roles = {role: name_of(settings[f"{role}_token"]) for role in SPECIAL_NAMES if settings.get(f"{role}_token")}
  others = [settings[key] for key in settings if key.endswith("_token") and isinstance(settings[key], str | dict)]
  special = {*roles.values(), *map(name_of, others)}
  there = library.get_added_tokens_decoder().values()
  new = [token for _, token in sorted(source.added.items(), key=lambda item: item[0])
         if repr(token) not in set(map(repr, there))]
  usual = [next((name for name in names if library.token_to_id(name) is not None), None)
           for role, names in SPECIAL_NAMES.items() if role not in roles and built.has_roles]
  for token in map(make_token, (*others, *extra_tokens(settings), *filter(None, usual))):
    if token.content not in {other.content for other in (*there, *new)}:
      if token.content == "<mask>" and isinstance(library.pre_tokenizer, pre_tokenizers.ByteLevel):
        token = AddedToken("<mask>", special=True, normalized=False, lstrip=True)  # the space before it belongs to it
      new.append(token)
  for token in new:
    token.special = token.special or token.content in special
  library.add_tokens(new)
  for i, token in source.added.items():
    if library.token_to_id(token.content) != i:
      raise source.refused(f"the added token {token.content!r} is declared as id {i}, but the vocabulary gives it "
                           f"{library.token_to_id(token.content)}", fix="restore the files of the tokenizer")
  if built.plain is not None and _essence(built.plain.reader) == _essence(library):
    return built.plain
  content = json.loads(library.to_str())
  if published_tokenizer.kind_of(content) is None:
    raise source.refused(f"tokenizer.json has a model of type {content['model']['type']} with steps before it that no "
                         "kind of tokenizer has here", fix="use WordPiece, Unigram or byte-level BPE, or train a "
                         "vocabulary with electra_jax.tools.train_tokenizer")
  return published_tokenizer.PublishedTokenizer(published_tokenizer.files_of(library, roles), False, source.where)


def _plain(row: type[kinds.LibraryTokenizer], files: dict[str, bytes], lowercase: bool, source: PublishedFiles
           ) -> kinds.LibraryTokenizer | None:
  """The plain tokenizer of a vocabulary; None where its special tokens have other names."""
  try:
    return row(files, lowercase, source.where)
  except UserError as error:
    if not source.settings or not error.what.startswith(LACKS_ROLES):
      raise
    return None


def _essence(library: tokenizers.Tokenizer) -> dict:
  """What decides ids; what two forms of one tokenizer may differ in is left out."""
  content = json.loads(library.to_str())
  model = {key: value for key, value in content["model"].items() if value not in (None, "", False) and (
    key != "unk_token" or content["model"]["type"] == "WordPiece")}
  steps = {key: value for key, value in (content["pre_tokenizer"] or {}).items() if key != "trim_offsets"}
  added = [{key: value for key, value in token.items() if key != "normalized" or content["normalizer"]}
           for token in content["added_tokens"]]
  return {"model": model, "normalizer": content["normalizer"], "steps": steps, "added": added}


# ---- one builder for each way in which AutoTokenizer reads a folder ----


def _builder(source: PublishedFiles, kind: str | None) -> Callable[[PublishedFiles], Built | Tokenizer]:
  name = source.tokenizer_class or UNBUILT.get(source.model_type, "")
  content, files = source.content, source.files.keys()
  if name and name not in CLASSES and name not in AS_IT_STANDS:
    raise source.refused(f"tokenizer_class={name!r}", fix='set "tokenizer_class": "PreTrainedTokenizerFast" in '
                         "tokenizer_config.json where a tokenizer.json next to it is right, or convert it to one of "
                         f"{', '.join(sorted(CLASSES))}")
  by_files = {"byte_bpe": (_byte_bpe, kinds.ByteBPE), "sentencepiece": (_sentencepiece, kinds.SentencePiece),
              "wordpiece": (_bert, kinds.WordPiece), "sentencepiece_bpe": (
                functools.partial(_sentencepiece, row=kinds.SentencePieceBPE), kinds.SentencePieceBPE)}
  fitting = [key for key, (_, row) in by_files.items() if set(row.file_names) <= files]
  if name in CLASSES:
    model, build = CLASSES[name]
    if content is not None and content["model"]["type"] != model:
      raise source.refused(f"tokenizer_class={name!r} with a tokenizer.json of type {content['model']['type']}",
                           fix="name the class that has written tokenizer.json")
    if content is None and NATIVE[model] not in fitting:
      raise source.refused(f"tokenizer_class={name!r} without tokenizer.json or "
                           f"{' + '.join(by_files[NATIVE[model]][1].file_names)}", fix="copy the missing files")
    return build
  if not name and source.model_type in MODEL_CLASSES:
    model, build = CLASSES[MODEL_CLASSES[source.model_type]]
    if content["model"]["type"] == model if content is not None else NATIVE[model] in fitting:
      return build
  if content is not None:
    return _as_it_stands
  return by_files[kind if kind in fitting else fitting[0]][0]


def _expect(source: PublishedFiles, part: str, wanted: dict) -> None:
  """Raises where tokenizer.json says what the class in tokenizer_config.json does not look at."""
  step = (source.content.get(part) or {}) if source.content else wanted
  for key, value in wanted.items():
    if step.get(key) not in (value, *(("", None) if value is None else ())):
      raise source.refused(f"tokenizer.json has {part}.{key}={step.get(key)!r}, but tokenizer_class="
                           f"{source.tokenizer_class or 'unsaid'} takes it for {value!r}",
                           fix='set "tokenizer_class": "PreTrainedTokenizerFast" if tokenizer.json is right')


def _bert(source: PublishedFiles) -> Built:
  _expect(source, "model", {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100})
  _expect(source, "pre_tokenizer", {"type": "BertPreTokenizer"})
  _expect(source, "normalizer", {"type": "BertNormalizer", "clean_text": True})
  text = (_vocab_txt(source.content["model"]["vocab"], source) if source.content else
          read_text(source.files["vocab.txt"]))
  entries = text.decode("utf-8").replace("\r\n", "\n").removesuffix("\n").split("\n")
  lowercase = _lowercase(source, entries)
  unk = source.settings.get("unk_token") or next((name for name in SPECIAL_NAMES["unk"] if name in entries), "[UNK]")
  library = tokenizers.Tokenizer(models.WordPiece({entry: i for i, entry in enumerate(entries)},
                                                  unk_token=name_of(unk), max_input_chars_per_word=100))
  library.normalizer = normalizers.BertNormalizer(
    clean_text=True, handle_chinese_chars=source.flag("tokenize_chinese_chars", True),
    strip_accents=source.flag("strip_accents", None), lowercase=lowercase)
  library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  library.decoder = decoders.WordPiece(prefix="##", cleanup=True)
  return Built(library, _plain(kinds.WordPiece, {"vocab.txt": text}, lowercase, source))


def _vocab_txt(vocab: dict[str, int], source: PublishedFiles) -> bytes:
  """The entries of a WordPiece tokenizer.json, one a line."""
  if sorted(vocab.values()) != list(range(len(vocab))):
    raise source.refused("tokenizer.json has ids that are not 0, 1, 2, ...", fix="restore the file")
  return "".join(f"{token}\n" for token in sorted(vocab, key=vocab.__getitem__)).encode("utf-8")


def _lowercase(source: PublishedFiles, entries: list[str]) -> bool:
  """What the settings say, else what the config asks for, else what the entries look like.

  Capitals in a lowercased vocabulary are wasted, but text with capitals is [UNK] for a vocabulary without them.
  """
  setting = source.flag("do_lower_case", None)
  if setting is not None:
    return setting
  words = [entry for entry in entries if entry.isascii() and entry.strip("#").isalpha()]
  share = sum(entry.lower() != entry for entry in words) / max(len(words), 1)
  if source.lowercase is False and words and not share:
    return True  # `_check_config` refuses it, with the reason
  if source.lowercase is not None:
    if source.lowercase and share > 0.05:
      logging.warning("The vocabulary in %s has capitals in %.0f %% of its words, and data.tokenizer.lowercase=True "
                      "makes no use of them.", source.where, 100 * share)
    return source.lowercase
  if share > 0.05 and source.model_type:
    raise source.refused("do_lower_case is unsaid, for which transformers takes true, but the vocabulary has capitals",
                         fix='write {"do_lower_case": false} (or true) into tokenizer_config.json next to it')
  return share <= 0.05


def _byte_bpe(source: PublishedFiles) -> Built:
  _expect(source, "model", dict.fromkeys(("dropout", "continuing_subword_prefix", "end_of_word_suffix"))
          | {"byte_fallback": False, "ignore_merges": False})
  _expect(source, "pre_tokenizer", {"type": "ByteLevel", "use_regex": True})
  if source.content and source.content["normalizer"]:
    _expect(source, "normalizer", {"type": None})
  files = _bpe_files(source.content["model"]) if source.content else {
    name: read_text(source.files[name]) for name in kinds.ByteBPE.file_names}
  lowercase, prefix_space = bool(source.lowercase), source.flag("add_prefix_space", False)
  library = kinds.ByteBPE.make_library(files, lowercase)
  library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
  return Built(library, _plain(kinds.ByteBPE, files, lowercase, source))


def _bpe_files(model: dict) -> dict[str, bytes]:
  """vocab.json and merges.txt from a tokenizer.json."""
  return {"vocab.json": json.dumps(model["vocab"], ensure_ascii=False).encode("utf-8"),
          "merges.txt": merges_text(model["merges"]).encode("utf-8")}


def _sentencepiece(source: PublishedFiles, row: type[kinds.SentencePiece] = kinds.SentencePiece) -> Tokenizer:
  """The file by itself, with SentencePiece's own library; it does not say how the text was cased."""
  lowercase = source.flag("do_lower_case", bool(source.lowercase))
  if source.added:
    raise source.refused(f"added tokens next to a SentencePiece model ({next(iter(source.added.values())).content!r})",
                         fix="save it once with transformers, which writes tokenizer.json")
  with open(source.files["sentencepiece.model"], "rb") as file:
    return row({"sentencepiece.model": file.read()}, lowercase, source.where)


def _as_it_stands(source: PublishedFiles) -> Built:
  content, plain = source.content or {}, None
  kind = published_tokenizer.kind_of(content)
  if kind == "wordpiece":
    lowercase = (content["normalizer"] or {}).get("lowercase", False)
    plain = _plain(kinds.WordPiece, {"vocab.txt": _vocab_txt(content["model"]["vocab"], source)}, lowercase, source)
  elif kind == "byte_bpe":
    plain = _plain(kinds.ByteBPE, _bpe_files(content["model"]), bool(content["normalizer"]), source)
  return Built(tokenizers.Tokenizer.from_str(json.dumps(content)), plain, has_roles=not source.tokenizer_class)


CLASSES = {  # of transformers -> (type of the model in its tokenizer.json, builder)
  **dict.fromkeys(("BertTokenizer", "ElectraTokenizer", "DistilBertTokenizer", "MobileBertTokenizer",
                   "ConvBertTokenizer", "SqueezeBertTokenizer", "LayoutLMTokenizer"), ("WordPiece", _bert)),
  **dict.fromkeys(("RobertaTokenizer", "LongformerTokenizer", "BartTokenizer"), ("BPE", _byte_bpe))}
