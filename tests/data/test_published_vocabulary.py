"""Folders of vocabularies with settings next to them give AutoTokenizer's ids, or a refusal that names the setting."""

import copy
import io
import json
import os
import pickle
import sys

import pytest
import sentencepiece
import transformers
from ml_collections import ConfigDict
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from electra_jax.data import tokenizers
from electra_jax.data.tokenizers.training import train_byte_bpe
from electra_jax.errors import UserError
from electra_jax.exchange import tokenizer_files
from tests.workdirs import TEXT

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, "über", "uber", "müller", "muller", "schön", "play", "##ing", "@@ing", "the", "THE", "The", "模",
         "型", "模型", "##型", "[", "]", "e", "##1", "sep", "में", "म", "a", "b", "I", ",", ".", "mask", "##b"]
N = len(WORDS)
TEXTS = ["Über Müller schön the THE The playing 模型 [SEP] b [MASK] a, [E1]. x", "[MASK]模型 the", "", " the  a ",
         "ÜBER\u0301 a\u200bb  [sep] <mask> a", "a [E1]the [e1] b.", "the [MASK], <s> a</s> b [CLS]", "में the"]
BYTES_TEXTS = ["the cat sat", "  two  spaces a", "a\n b", "É naïve ﬁ ``x'' it's", "", "<s>the<mask>cat 12",
               "[E1] the, </s> x <mask>.", "the cat [MASK] the [SEP] x", "ΣΊΣΥΦΟΣ 漢字 ½"]
FAST = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "pad_token": "[PAD]",
        "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
BERT = {"config.json": {"model_type": "bert"}}
ROBERTA = {"config.json": {"model_type": "roberta"}}
FLAGS = dict(special=False, lstrip=False, rstrip=False, normalized=False, single_word=False)


def bert(name="BertTokenizer", **settings):
  """A vocab.txt with these settings next to it."""
  return BERT | {"vocab.txt": "\n".join(WORDS) + "\n", "tokenizer_config.json": {"tokenizer_class": name, **settings}}


def lower(**settings):
  return bert(do_lower_case=True, **settings)


def word_piece(settings=FAST, prefix="##", chars=100, normalizer=None, splitter=None, added=(), **options):
  """A tokenizer.json of the library's own parts."""
  library = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]",
                                       continuing_subword_prefix=prefix, max_input_chars_per_word=chars))
  library.normalizer = normalizer or normalizers.BertNormalizer(**options)
  library.pre_tokenizer = splitter or pre_tokenizers.BertPreTokenizer()
  library.add_special_tokens(SPECIAL)
  library.add_tokens(list(added))
  return BERT | {"tokenizer.json": library.to_str(), "tokenizer_config.json": settings}


BYTES = train_byte_bpe(iter(TEXT * 20), 400, False, 0)
NUM_BYTES = len(json.loads(BYTES["vocab.json"]))
MASK = {"content": "<mask>", **FLAGS | dict(special=True, lstrip=True)}
OWN_MASK = {"mask_token": {"__type": "AddedToken", **MASK}}


def byte_bpe(change=lambda content: None, name="RobertaTokenizer", **settings):
  """A tokenizer.json of byte-level BPE, changed."""
  content = json.loads(tokenizers.TOKENIZERS["byte_bpe"].tokenizer(BYTES, False).reader.to_str())
  change(content)
  return ROBERTA | {"tokenizer.json": content, "tokenizer_config.json": {"tokenizer_class": name, **settings}}


def set_step(name, **values):
  def change(content):
    content[name] = (content[name] or {}) | values
  return change


def albert(**settings):
  """A SentencePiece file as ALBERT's."""
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(TEXT * 20), model_writer=model, vocab_size=300, hard_vocab_limit=False, pad_id=0, unk_id=1,
    bos_id=-1, eos_id=-1, pad_piece="<pad>", control_symbols="[CLS],[SEP],[MASK]", user_defined_symbols="[E1]",
    minloglevel=2)
  return {"config.json": {"model_type": "albert"}, "spiece.model": model.getvalue(), "tokenizer_config.json": settings}


def saved_unigram(name, folder):
  """What transformers saves of a class with a Unigram model of few pieces."""
  pieces = ["▁the", "▁cat", "▁", *"thecas", "▁s", "at", "▁a", *"ix,."]
  vocab = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0),
           *((piece, -i / 10) for i, piece in enumerate(dict.fromkeys(pieces))), ("<mask>", 0.0)]
  getattr(transformers, name)(vocab=vocab).save_pretrained(folder)
  return {file: (folder / file).read_text() for file in ("tokenizer.json", "tokenizer_config.json")}


def write(folder, files):
  folder.mkdir(exist_ok=True)
  for name, content in files.items():
    text = content if isinstance(content, str | bytes) else json.dumps(content, ensure_ascii=False)
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
  return str(folder)


SEQUENCE = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])
FOLDERS = {
  "lower case": lower(), "cased": bert(do_lower_case=False),
  "lower case, accents kept": lower(strip_accents=False), "cased, accents stripped": bert(do_lower_case=False,
                                                                                         strip_accents=True),
  "Chinese characters not apart": lower(tokenize_chinese_chars=False),
  "a class of ELECTRA": bert("ElectraTokenizerFast", do_lower_case=True),
  "a class of DistilBERT": bert("DistilBertTokenizerFast", do_lower_case=False),
  "added_tokens.json": lower() | {"added_tokens.json": {"[E1]": N}},
  "an added token": lower(added_tokens_decoder={N: {"content": "[E1]", **FLAGS}}),
  "an added token that is normalised": lower(added_tokens_decoder={N: {"content": "[E1]", **FLAGS | {
    "normalized": True, "rstrip": True}}}),
  "a special token of whole words": lower(added_tokens_decoder={N: {"content": "[E1]", **FLAGS | {
    "special": True, "lstrip": True, "single_word": True}}}),
  "a special token of an entry": lower(additional_special_tokens=["play"]),
  "special_tokens_map.json": lower() | {"special_tokens_map.json": {"additional_special_tokens": ["[E1]"]}},
  "a mask with its space": lower() | {"special_tokens_map.json": {"mask_token": {"content": "[MASK]", "lstrip": True}}},
  "another mask": lower(mask_token="mask"), "another unknown token": lower(unk_token="e"),
  "extra special tokens": lower(extra_special_tokens={"entity_token": "[E1]"}),
  "a token of the model's own": lower(entity_token="play"),
  "Windows' line ends": lower() | {"vocab.txt": "\r\n".join(WORDS) + "\r\n"},
  "tokenizer.json read by BERT's class": word_piece({"tokenizer_class": "BertTokenizer", "do_lower_case": False},
                                                    lowercase=True),
  "its added tokens": word_piece({"tokenizer_class": "BertTokenizer", "do_lower_case": True}, added=["[E1]"]),
  "tokenizer.json as it stands": word_piece(lowercase=True),
  "accents of tokenizer.json": word_piece(lowercase=True, strip_accents=False),
  "Chinese characters of tokenizer.json": word_piece(lowercase=True, handle_chinese_chars=False),
  "control characters kept": word_piece(lowercase=False, clean_text=False),
  "another prefix": word_piece(prefix="@@", lowercase=True), "short words": word_piece(chars=3, lowercase=True),
  "a sequence of normalizers": word_piece(normalizer=SEQUENCE, splitter=pre_tokenizers.Whitespace()),
  "digits apart": word_piece(splitter=pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(),
                                                              pre_tokenizers.Digits(True)])),
  "a pattern": word_piece(splitter=pre_tokenizers.Split(Regex(r"\s+"), "removed")),
  "added tokens of tokenizer.json": word_piece(added=["[E1]", AddedToken("the", single_word=True)], lowercase=False),
  "added tokens next to it": word_piece(FAST | {"added_tokens_decoder": {N: {"content": "[E1]", **FLAGS}}}),
}
BYTE_FOLDERS = {
  "vocab.json and merges.txt": ROBERTA | BYTES | {"tokenizer_config.json": OWN_MASK},
  "a space in front": ROBERTA | BYTES | {"tokenizer_config.json": OWN_MASK | {"add_prefix_space": True}},
  "an added token": ROBERTA | BYTES | {"tokenizer_config.json": OWN_MASK, "added_tokens.json": {"[E1]": NUM_BYTES}},
  "tokenizer.json": byte_bpe(), "tokenizer.json, a space in front": byte_bpe(add_prefix_space=True),
  "a space in tokenizer.json alone": byte_bpe(set_step("pre_tokenizer", add_prefix_space=True)),
  "the same as it stands": byte_bpe(set_step("pre_tokenizer", add_prefix_space=True), "PreTrainedTokenizerFast"),
  "lower case": byte_bpe(set_step("normalizer", type="Lowercase"), "PreTrainedTokenizerFast"),
  "three tokens and no more": byte_bpe(set_step("truncation", direction="Right", max_length=3, stride=0,
                                                strategy="LongestFirst"), "PreTrainedTokenizerFast"),
  "no pattern": byte_bpe(set_step("pre_tokenizer", use_regex=False), "PreTrainedTokenizerFast"),
}
CLASSES = ("XLMRobertaTokenizer", "CamembertTokenizer")


def compare(path, texts):
  ours, theirs = tokenizers.load_tokenizer(path), transformers.AutoTokenizer.from_pretrained(path)
  for text in texts:
    expected = theirs(text, add_special_tokens=False)["input_ids"]
    ids, offsets = ours.encode_words(text)
    assert ids == expected == ours.encode(text), (text, ours.tokens(ids), theirs.convert_ids_to_tokens(expected))
    assert all(0 <= start <= end <= len(text) for start, end in offsets)
  return ours


@pytest.mark.parametrize("name", FOLDERS)
def test_settings_of_word_piece(tmp_path, name):
  ours = compare(write(tmp_path / "m", FOLDERS[name]), TEXTS)
  assert ours.kind == "wordpiece" and len(ours.continues_word) == ours.vocab_size
  keeps_itself(ours, tmp_path, TEXTS)


@pytest.mark.parametrize("name", BYTE_FOLDERS)
def test_settings_of_byte_level_bpe(tmp_path, name):
  ours = compare(write(tmp_path / "m", BYTE_FOLDERS[name]), BYTES_TEXTS)
  assert ours.kind == "byte_bpe"
  keeps_itself(ours, tmp_path, BYTES_TEXTS)


@pytest.mark.parametrize("name", CLASSES)
def test_unigram_models(tmp_path, name):
  ours = compare(write(tmp_path / "m", saved_unigram(name, tmp_path / "theirs")), BYTES_TEXTS)
  assert ours.kind == "sentencepiece"
  keeps_itself(ours, tmp_path, BYTES_TEXTS)


@pytest.mark.parametrize("kind", tokenizers.TOKENIZERS)
def test_exports_without_our_own_files(tmp_path, kind):
  row = tokenizers.TOKENIZERS[kind]
  ours = row.tokenizer(row.train(iter(TEXT * 20), 400, True, 0), True)
  tokenizer_files.write(str(tmp_path), ours, max_tokens=64, has_token_types=True)
  for name in (*ours.files, "tokenizer_facts.json"):
    os.remove(tmp_path / name)
  again = compare(str(tmp_path), BYTES_TEXTS)
  assert (again.kind, again.lowercase, again.special_ids) == (ours.kind, True, ours.special_ids)
  assert again.encode_batch(BYTES_TEXTS) == ours.encode_batch(BYTES_TEXTS)


def keeps_itself(ours, folder, texts):
  """On disk, across processes and in an export; in a corpus no name of a special token is one."""
  ours.save(str(folder / "saved"))
  tokenizer_files.write(write(folder / "export", {}), ours, max_tokens=64, has_token_types=True)
  theirs = transformers.AutoTokenizer.from_pretrained(folder / "export")
  for other in (tokenizers.load_tokenizer(str(folder / "saved")), pickle.loads(pickle.dumps(ours)),
                tokenizers.load_tokenizer(str(folder / "export"))):
    assert other.facts() == ours.facts() and other.encode_batch(texts) == ours.encode_batch(texts)
    assert [other.encode(text) for text in texts] == [ours.encode(text) for text in texts]
  assert [theirs(text, add_special_tokens=False)["input_ids"] for text in texts] == [ours.encode(t) for t in texts]
  roles = {ours.pad_id, ours.cls_id, ours.sep_id, ours.mask_id}
  assert not roles & {i for ids in ours.encode_batch(texts) for i in ids}


REFUSED = {
  "capitals, nothing said": (bert(), "do_lower_case is unsaid"),
  "MeCab": (bert("BertJapaneseTokenizer"), "BertJapaneseTokenizer"), "a class of nobody": (bert("MyTokenizer"), "MyT"),
  "BERT's class without its file": (ROBERTA | BYTES | {"tokenizer_config.json": {"tokenizer_class": "BertTokenizer"}},
                                   "the vocabulary that is there"),
  "broken settings": (lower() | {"tokenizer_config.json": "{"}, "tokenizer_config.json"),
  "a list of settings": (lower() | {"special_tokens_map.json": []}, "a list, not an object"),
  "a prefix that BERT's class overlooks": (word_piece({"tokenizer_class": "BertTokenizer", "do_lower_case": True},
                                                      prefix="@@"), "continuing_subword_prefix='@@'"),
  "a class of another model": (word_piece({"tokenizer_class": "RobertaTokenizer"}), "type='WordPiece'"),
  "added tokens next to SentencePiece": ({"spiece.model": albert()["spiece.model"], "added_tokens.json": {"[X]": 300}},
                                        "tokenizer_class=None"),
  "a byte order mark": (lower() | {"vocab.txt": "\ufeff" + "\n".join(WORDS)}, "byte order mark"),
  "whole words alone": (BERT | {"tokenizer_config.json": FAST, "tokenizer.json": Tokenizer(
    models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]")).to_str()}, "of type WordLevel"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_are_refused_are_named(tmp_path, name):
  files, named = REFUSED[name]
  with pytest.raises(UserError) as error:
    tokenizers.load_tokenizer(write(tmp_path / "m", files))
  assert named in error.value.got and error.value.fix and len(str(error.value)) < 2000


@pytest.mark.parametrize("files, kind", [
  (lower(model_max_length=512), "WordPiece"), (word_piece(lowercase=True), "WordPiece"), (byte_bpe(), "ByteBPE"),
  (ROBERTA | BYTES | {"tokenizer_config.json": {"model_max_length": 512}}, "ByteBPE")])
def test_what_nothing_unusual_is_set_for_is_one_of_the_plain_kinds(tmp_path, files, kind):
  """They remember words, which makes a corpus ready in half the time; `<mask>` has the space before it."""
  assert type(tokenizers.load_tokenizer(write(tmp_path / "m", files))).__name__ == kind


def test_without_transformers_the_error_says_what_to_install(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "transformers", None)
  with pytest.raises(UserError, match="not installed") as error:
    tokenizers.load_tokenizer(write(tmp_path / "m", lower()))
  assert error.value.fix == "pip install '.[hf]'"
  assert tokenizers.load_tokenizer(write(tmp_path / "bare", {"vocab.txt": "\n".join(WORDS)})).kind == "wordpiece"


@pytest.mark.parametrize("asked, said, expected", [
  (True, {}, True), (False, {}, False), (True, {"do_lower_case": True}, True), (False, {"do_lower_case": False}, False),
  (True, {"do_lower_case": False}, None), (False, {"do_lower_case": True}, None), (None, {"do_lower_case": True}, True),
  (None, {"do_lower_case": False}, False)])
def test_lower_case_that_the_config_asks_for(tmp_path, asked, said, expected):
  path = write(tmp_path / "m", bert(**said))
  config = asked is not None and ConfigDict(dict(kind="wordpiece", lowercase=asked, vocab_size=64, path=path))
  for place in (path, f"{path}/vocab.txt"):
    if expected is None:
      with pytest.raises(UserError, match=r"data\.tokenizer\.lowercase does not agree"):
        tokenizers.load_tokenizer(place, config)
    else:
      assert tokenizers.load_tokenizer(place, config or None).lowercase == expected


def test_folders_are_left_as_they_are(tmp_path):
  files = lower(added_tokens_decoder={N: {"content": "[E1]", **FLAGS}})
  before = copy.deepcopy(files)
  path = write(tmp_path / "m", files)
  tokenizers.load_tokenizer(path)
  assert files == before and sorted(os.listdir(path)) == sorted(files)
