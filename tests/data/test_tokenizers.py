"""Tokenizers give the published ids, never special ones for text, survive the disk, and refuse what cannot work."""

import gzip
import io
import json
import pathlib
import pickle
import random
import subprocess
import sys

import pytest
import sentencepiece
from ml_collections import ConfigDict

from electra_jax.data.shards import corpus
from electra_jax.data.tokenizers import TOKENIZERS, load_tokenizer, sentencepiece_library, train_tokenizer
from electra_jax.errors import UserError
from tests.data.corpora import assert_four_parts

ROOT = pathlib.Path(__file__).resolve().parents[2]
KINDS = tuple(TOKENIZERS)
# Text enough for some hundred entries: sentences over small sets of words.
TEXTS = [f"The {a} {b} {c} the {d} naïve café, {n}!" for n, (a, b, c, d) in enumerate(
  (a, b, c, d) for a in ("quick", "lazy", "brown", "Little") for b in ("fox", "dog", "reader", "Model")
  for c in ("jumps over", "replaces", "predicts", "learns") for d in ("token", "sentence", "river", "Berlin"))]
LITERALS = "[MASK] <mask> [CLS] [SEP] [PAD] [UNK] <s> </s> <pad> <unk> [unused1] madeupword0000"


def config(kind, **changes):
  keys = dict(kind=kind, path="", vocab_size=400, lowercase=kind != "byte_bpe", training_bytes=10**6)
  return ConfigDict(keys | changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """One small tokenizer of each kind, with its directory."""
  folders = {kind: str(tmp_path_factory.mktemp("tokenizers") / kind) for kind in KINDS}
  return {kind: (train_tokenizer(config(kind), iter(TEXTS), folder, 0), folder) for kind, folder in folders.items()}


# ---- published vocabularies ----


@pytest.fixture(scope="module")
def published(shared, tmp_path_factory):
  folder = tmp_path_factory.mktemp("published")
  names = {"bert-base-uncased-vocab.txt": "vocab.txt", "roberta-vocab.json": "vocab.json",
           "gpt2-vocab.bpe": "merges.txt"}
  for name, ours in names.items():
    (folder / ours).write_bytes(gzip.decompress((shared / "reference/vocab" / f"{name}.gz").read_bytes()))
  return folder


@pytest.fixture(scope="module")
def golden(shared):
  return json.loads((shared / "reference/golden/tokenizers.json").read_text())


@pytest.mark.parametrize("file, key", [("vocab.txt", "wordpiece_uncased"), ("vocab.json", "roberta_bpe"),
                                       ("merges.txt", "roberta_bpe")])
def test_ids_and_offsets_equal_the_published_ones(published, golden, file, key):
  tokenizer = load_tokenizer(str(published / file))
  batch = tokenizer.encode_batch([case["text"] for case in golden["cases"]])
  for case, ids in zip(golden["cases"], batch):
    assert ids == case[key]["ids"] and tokenizer.tokens(ids) == case[key]["tokens"], case["name"]
    if not tokenizer._special_name.search(case["text"]):  # plain text in these golden ids
      assert tokenizer.encode_words(case["text"]) == (ids, list(map(tuple, case[key]["offsets"]))), case["name"]
    if key == "roberta_bpe" and "\N{REPLACEMENT CHARACTER}" not in case["text"]:
      assert tokenizer.decode(ids) == case["text"]


def test_other_golden_fields(published, golden):
  bert, roberta = load_tokenizer(str(published / "vocab.txt")), load_tokenizer(str(published / "vocab.json"))
  for case in golden["cases"]:
    (ids, spaced), expected = roberta.encode_batch([case["text"], " " + case["text"]]), case["roberta_bpe"]
    assert [roberta.cls_id, *ids, roberta.sep_id] == expected["with_bos_eos"], case["name"]
    assert spaced == expected["leading_space_ids"], case["name"]
    if not roberta._special_name.search(case["text"]):
      _, offsets = roberta.encode_words(" " + case["text"])
      assert offsets == list(map(tuple, expected["leading_space_offsets"])), case["name"]
    (ids,), expected = bert.encode_batch([case["text"]]), case["wordpiece_uncased"]
    assert [bert.cls_id, *ids, bert.sep_id] == expected["with_cls_sep"], case["name"]
  differing = {case["name"] for case in golden["cases"]  # as the docstring of WordPiece says
               if case["wordpiece_uncased"].get("google_electra_ids", case["wordpiece_uncased"]["ids"])
               != bert.encode_batch([case["text"]])[0]}
  assert differing == {"greek_final_sigma", "unassigned", "long_word_101", "long_word_200", "long_word_in_text"}
  for pair in filter(lambda pair: pair["pair"], golden["pairs"]):  # an empty second text is left out there
    first, second = (bert.encode(pair[name]) for name in ("text", "pair"))
    joined = [bert.cls_id, *first, bert.sep_id, *second, bert.sep_id]
    assert joined == pair["wordpiece_uncased"]["ids"]
    first, second = (roberta.encode(pair[name]) for name in ("text", "pair"))
    joined = [roberta.cls_id, *first, roberta.sep_id, roberta.sep_id, *second, roberta.sep_id]
    assert joined == pair["roberta_bpe"]["ids"]


def test_fairseq_files_and_tokenizer_json_give_the_published_ids(published, golden, shared, tmp_path):
  names = {"fairseq-gpt2_bpe-dict.txt": "dict.txt", "gpt2-encoder.json": "encoder.json", "gpt2-vocab.bpe": "vocab.bpe"}
  for name, theirs in names.items():
    (tmp_path / theirs).write_bytes(gzip.decompress((shared / "reference/vocab" / f"{name}.gz").read_bytes()))
  saved = {}
  for key, name in (("roberta_bpe", "vocab.json"), ("wordpiece_uncased", "vocab.txt")):
    saved[key] = tmp_path / key / "tokenizer.json"
    saved[key].parent.mkdir()
    saved[key].write_text(load_tokenizer(str(published / name))._library.to_str())
  places = [(tmp_path, "roberta_bpe"), (tmp_path / "dict.txt", "roberta_bpe"), *((saved[key], key) for key in saved)]
  for path, key in places:
    tokenizer = load_tokenizer(str(path))
    for case in golden["cases"]:
      expected = case[key]["ids"], list(map(tuple, case[key]["offsets"]))
      assert tokenizer.encode_batch([case["text"]]) == [expected[0]], (path, case["name"])
      if not tokenizer._special_name.search(case["text"]):
        assert tokenizer.encode_words(case["text"]) == expected, (path, case["name"])


def test_published_facts(published):
  bert, roberta = load_tokenizer(str(published / "vocab.txt")), load_tokenizer(str(published / "vocab.json"))
  assert (bert.kind, bert.vocab_size, bert.lowercase) == ("wordpiece", 30522, True)
  assert (bert.pad_id, bert.unk_id, bert.cls_id, bert.sep_id, bert.mask_id) == (0, 100, 101, 102, 103)
  assert bert.special_ids == tuple(range(999))  # five roles and [unused0..993]
  assert (roberta.kind, roberta.vocab_size, roberta.lowercase) == ("byte_bpe", 50265, False)
  assert (roberta.cls_id, roberta.pad_id, roberta.sep_id, roberta.unk_id, roberta.mask_id) == (0, 1, 2, 3, 50264)
  assert roberta.special_ids == (0, 1, 2, 3, 50261, 50262, 50263, 50264)  # and madeupword0000..2
  assert bert.decode([101, 2040, 2001, 103, 102]) == "[CLS] who was [MASK] [SEP]"
  with pytest.raises(UserError, match=r"tokenizer\.lowercase=True"):  # capitals would become [UNK]
    load_tokenizer(str(published / "vocab.txt"), config("wordpiece", vocab_size=30522, lowercase=False))


def test_gpt2_lacks_a_mask_token(published, shared, tmp_path):
  encoder = gzip.decompress((shared / "reference/vocab/gpt2-encoder.json.gz").read_bytes())
  (tmp_path / "encoder.json").write_bytes(encoder)
  (tmp_path / "vocab.bpe").write_bytes((published / "merges.txt").read_bytes())
  with pytest.raises(UserError, match=r"no pad .*no mask \(\[MASK\] or <mask>\)"):
    load_tokenizer(str(tmp_path))


# ---- every kind ----


@pytest.mark.parametrize("kind", KINDS)
def test_special_ids_come_from_the_vocabulary(trained, kind):
  tokenizer, _ = trained[kind]
  names = TOKENIZERS[kind].tokenizer.special_tokens
  roles = [tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]
  assert tokenizer.tokens(roles) == list(names)
  assert tokenizer.special_ids == tuple(sorted(roles))
  if kind == "byte_bpe":  # RoBERTa's layout
    assert roles == [1, 3, 0, 2, tokenizer.vocab_size - 1]
  assert len(set(tokenizer.tokens(range(tokenizer.vocab_size)))) == tokenizer.vocab_size <= 400


@pytest.mark.parametrize("kind", KINDS)
def test_literal_special_tokens_are_plain_text(trained, kind):
  tokenizer, _ = trained[kind]
  texts = [LITERALS, *LITERALS.split(), "x[MASK]y<mask>", "the [MASK] fox"]
  forbidden = set(tokenizer.special_ids) - ({tokenizer.unk_id} if kind == "wordpiece" else set())
  for ids in tokenizer.encode_batch(texts):
    assert ids and not forbidden & set(ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["", " ", "\0\ufffd\u200b", "☃ 漢字 🙂", "e\u0301", "x" * 5000, "a\tb  c\u2028d"])
def test_odd_texts(trained, kind, text):
  tokenizer, _ = trained[kind]
  ids = tokenizer.encode(text)
  words_ids, offsets = tokenizer.encode_words(text)
  assert words_ids == ids and len(offsets) == len(ids)
  assert all(0 <= start <= end <= len(text) for start, end in offsets)
  if kind == "byte_bpe":
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("kind", ["sentencepiece", "sentencepiece_bpe"])
def test_characters_that_training_never_saw_become_bytes(trained, kind):
  tokenizer, _ = trained[kind]
  text = "the fox ☃ 漢字 🙂"
  ids = tokenizer.encode(text)
  assert tokenizer.unk_id not in ids and tokenizer.decode(ids) == text
  assert "<0xE2>" in tokenizer.tokens(ids)


def test_a_sentencepiece_model_of_characters():
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXTS), model_writer=model, model_type="char",
                                           vocab_size=300, hard_vocab_limit=False, minloglevel=2)
  with pytest.raises(UserError, match="cannot be used") as error:
    sentencepiece_library.make_library(model.getvalue(), 0, False)
  assert "CHAR" in error.value.got


def test_a_model_that_keeps_case_is_lowercased_alike_in_a_corpus_and_in_a_question():
  row = TOKENIZERS["sentencepiece"]
  tokenizer = row.tokenizer(row.train(iter(TEXTS), 400, False, 0), True)
  text = "The İstanbul fox, ΣΊΣΥΦΟΣ"
  assert tokenizer.encode_batch([text]) == [tokenizer.encode_words(text)[0]] == tokenizer.encode_batch([
    "the i\u0307stanbul fox, σίσυφοσ"])


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe"])
@pytest.mark.parametrize("limit", [10**6, 0])
def test_remembered_words_change_nothing(trained, monkeypatch, kind, limit):
  monkeypatch.setattr("electra_jax.data.tokenizers.kinds.KNOWN_CHARACTERS", limit)
  tokenizer, _ = trained[kind]
  draw = random.Random(0)
  alphabet = " " * 6 + "ab'sSΣσ1,.\t\u00a0\u2028\u3000\x1c\x85\x00\ufffd\u0301\u200b漢é🙂\u0130\n"
  texts = [*TEXTS, *("".join(draw.choices(alphabet, k=draw.randint(0, 14))) for _ in range(3000))]
  expected = [encoding.ids for encoding in tokenizer._library.encode_batch(texts, add_special_tokens=False)]
  for start in range(0, len(texts), 500):
    assert tokenizer.encode_batch(texts[start:start + 500]) == expected[start:start + 500]


@pytest.mark.parametrize("kind", KINDS)
def test_decode_and_offsets(trained, kind):
  tokenizer, _ = trained[kind]
  text = "The lazy fox learns the river"
  ids, offsets = tokenizer.encode_words(text)
  assert "".join(text[start:end] for start, end in offsets) == text.replace(" ", "")
  expected = text.lower() if tokenizer.lowercase else text
  assert tokenizer.decode(ids) == expected
  cls, mask = tokenizer.tokens([tokenizer.cls_id, tokenizer.mask_id])
  assert tokenizer.decode([tokenizer.cls_id, *ids, tokenizer.mask_id]) == f"{cls} {expected} {mask}"
  assert tokenizer.encode_batch([text, "", text]) == [ids, [], ids]


@pytest.mark.parametrize("kind", KINDS)
def test_save_load_and_pickle_keep_everything(trained, kind, tmp_path):
  tokenizer, folder = trained[kind]
  again = tmp_path / "again"
  tokenizer.save(str(again))
  tokenizer.save(str(again))  # the same one may be saved twice
  copies = load_tokenizer(folder), load_tokenizer(str(again), config(kind)), pickle.loads(pickle.dumps(tokenizer))
  for other in copies:
    assert other.facts() == tokenizer.facts() and other.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)
  facts = json.loads((again / "tokenizer_facts.json").read_text())
  assert facts["kind"] == kind and facts["mask_id"] == tokenizer.mask_id and facts["vocab_size"] == tokenizer.vocab_size


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_deterministic_across_processes(trained, kind, tmp_path):
  program = ("import sys, tests.data.test_tokenizers as t\n"
             "print(t.train_tokenizer(t.config(sys.argv[1]), iter(t.TEXTS), sys.argv[2], 0).fingerprint)")
  done = subprocess.run([sys.executable, "-c", program, kind, str(tmp_path / "t")], capture_output=True, text=True,
                        check=True, cwd=ROOT)
  assert done.stdout.split()[-1] == trained[kind][0].fingerprint


def test_fingerprint_depends_on_files_and_case(trained):
  tokenizer, _ = trained["wordpiece"]
  cased = type(tokenizer)(tokenizer.files, lowercase=False)
  fingerprints = {tokenizer.fingerprint, cased.fingerprint, *(trained[kind][0].fingerprint for kind in KINDS)}
  assert len(fingerprints) == len(KINDS) + 1


@pytest.mark.parametrize("kind", KINDS)
def test_long_paragraphs_are_learnt_from(kind, tmp_path, length=20_000):
  long = " ".join(["extraordinary"] * (length // 14))
  tokenizer = train_tokenizer(config(kind), iter([long, *TEXTS]), str(tmp_path / "t"), 0)
  assert len(tokenizer.encode("extraordinary extraordinary")) <= 3


def test_a_small_corpus_gives_a_smaller_vocabulary(tmp_path, capsys):
  for kind in KINDS:
    tokenizer = train_tokenizer(config(kind, vocab_size=5000), iter(TEXTS), str(tmp_path / kind), 0)
    assert tokenizer.vocab_size < 5000 and "fewer than the 5,000" in capsys.readouterr().out


def test_training_stops_at_training_bytes(tmp_path):
  taken = []
  texts = (taken.append(text) or text for text in TEXTS)
  train_tokenizer(config("wordpiece", training_bytes=1000), texts, str(tmp_path / "t"), 0)
  assert 900 < sum(len(text.encode()) for text in taken) < 1200


# ---- published forms, made from small vocabularies ----


@pytest.mark.parametrize("kind, names", [
  ("wordpiece", {"vocab.txt": "my-vocab.txt"}), ("byte_bpe", {"vocab.json": "vocab.json", "merges.txt": "merges.txt"}),
  ("byte_bpe", {"vocab.json": "encoder.json", "merges.txt": "vocab.bpe"}),
  ("sentencepiece", {"sentencepiece.model": "spiece.model"}),
  ("sentencepiece_bpe", {"sentencepiece.model": "bpe.model"})])
def test_published_forms(trained, tmp_path, kind, names):
  tokenizer, _ = trained[kind]
  for ours, theirs in names.items():
    (tmp_path / theirs).write_bytes(tokenizer.files[ours])
  for path in (tmp_path, *tmp_path.iterdir()):
    if path.is_dir() and kind == "wordpiece":
      continue  # in a directory, only vocab.txt is known by name
    loaded = load_tokenizer(str(path), config(kind))
    assert loaded.fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe"])
def test_tokenizer_json(trained, tmp_path, kind):
  tokenizer, _ = trained[kind]
  (tmp_path / "tokenizer.json").write_text(tokenizer._library.to_str())
  loaded = load_tokenizer(str(tmp_path / "tokenizer.json"), config(kind))
  assert loaded.encode_batch([*TEXTS, LITERALS]) == tokenizer.encode_batch([*TEXTS, LITERALS])
  assert loaded.special_ids == tokenizer.special_ids and loaded.lowercase == tokenizer.lowercase


# ---- bad input ----


@pytest.mark.parametrize("removed, named", [
  ("[MASK]", "mask ([MASK] or <mask>)"), ("[PAD]", "pad"), ("[UNK]", "unk"), ("[CLS]", "cls"), ("[SEP]", "sep")])
def test_a_vocabulary_without_a_special_token(tmp_path, removed, named):
  entries = [entry for entry in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "fox") if entry != removed]
  (tmp_path / "vocab.txt").write_text("\n".join(entries))
  with pytest.raises(UserError) as caught:
    load_tokenizer(str(tmp_path))
  assert_four_parts(caught, f"no {named}", "vocab")


@pytest.mark.parametrize("name, content", [
  ("vocab.json", b'{"a": 1'), ("x.model", b"no model"), ("vocab.txt", b"\xff\xfe"), ("vocab.txt", b"caf\xe9"),
  ("tokenizer.json", b"{}"), ("tokenizer.json", b'{"model": {"type": "Unigram", "vocab": {}}}'),
  ("readme.rst", b"text"), ("vocab.json", b"[]")])
def test_damaged_or_unknown_vocabularies(tmp_path, name, content):
  (tmp_path / name).write_bytes(content)
  if name == "vocab.json":
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
  for path in (tmp_path, tmp_path / name):
    with pytest.raises(UserError) as caught:
      load_tokenizer(str(path))
    assert_four_parts(caught, str(tmp_path))


@pytest.mark.parametrize("path", ["", "/no/such/vocab.txt"])
def test_missing_vocabulary(path):
  with pytest.raises(UserError) as caught:
    load_tokenizer(path)
  assert_four_parts(caught, "--config.data.tokenizer.path")


@pytest.mark.parametrize("changes, message", [
  (dict(kind="sentencepiece"), "--config.data.tokenizer.kind=wordpiece"),
  (dict(lowercase=False), "--config.data.tokenizer.lowercase=True"),
  (dict(vocab_size=50), "--config.data.tokenizer.vocab_size=")])
def test_a_config_that_asks_for_another_vocabulary(trained, changes, message):
  with pytest.raises(UserError) as caught:
    load_tokenizer(trained["wordpiece"][1], config(**dict(kind="wordpiece") | changes))
  assert_four_parts(caught, message)


@pytest.mark.parametrize("damage", ["changed", "missing", "facts"])
def test_a_damaged_saved_tokenizer(trained, tmp_path, damage):
  trained["wordpiece"][0].save(str(tmp_path / "t"))
  vocab, facts = tmp_path / "t/vocab.txt", tmp_path / "t/tokenizer_facts.json"
  if damage == "changed":
    vocab.write_bytes(vocab.read_bytes() + b"extra\n")
  elif damage == "missing":
    vocab.unlink()
  else:
    facts.write_text(facts.read_text()[:40])
  with pytest.raises(UserError) as caught:
    load_tokenizer(str(tmp_path / "t"))
  assert_four_parts(caught, "damaged", str(tmp_path))


def test_another_vocabulary_than_the_one_asked_for_is_not_used_silently(trained, tmp_path, capsys):
  trained["wordpiece"][0].save(str(tmp_path / "tokenizer"))
  other = tmp_path / "vocab.txt"
  other.write_bytes(trained["wordpiece"][0].files["vocab.txt"])
  data = ConfigDict(dict(shards_path="", tokenizer=config("wordpiece", path=str(other))))
  assert corpus.make_tokenizer(data, str(tmp_path), 0).vocab_size == trained["wordpiece"][0].vocab_size
  data.tokenizer.vocab_size = 5000
  corpus.make_tokenizer(data, str(tmp_path), 0)
  assert "fewer than the 5,000 of data.tokenizer.vocab_size" in capsys.readouterr().out
  other.write_bytes(trained["wordpiece"][0].files["vocab.txt"].replace(b"\nthe\n", b"\nThe\n"))
  with pytest.raises(UserError) as caught:
    corpus.make_tokenizer(data, str(tmp_path), 0)
  assert_four_parts(caught, "another vocabulary", str(other))
  corpus.make_tokenizer(data, str(tmp_path), 0, is_trained=True)  # a run with checkpoints keeps its own
  other.unlink()
  corpus.make_tokenizer(data, str(tmp_path), 0)


def test_a_taken_directory_is_left_alone(trained, tmp_path):
  (tmp_path / "t").mkdir()
  (tmp_path / "t/mine.txt").write_text("precious")
  for write in (trained["wordpiece"][0].save, lambda path: train_tokenizer(config("wordpiece"), iter(TEXTS), path, 0)):
    with pytest.raises(UserError) as caught:
      write(str(tmp_path / "t"))
    assert_four_parts(caught, "taken")
  assert [path.name for path in tmp_path.rglob("*")] == ["t", "mine.txt"]


def test_training_that_fails_leaves_nothing(trained, tmp_path, monkeypatch):
  def fail(*args):
    raise OSError(28, "No space left on device")

  def broken():
    yield from TEXTS
    raise UserError("A corpus file is binary", got="x", allowed="y", fix="z")

  with pytest.raises(UserError, match="binary"):
    train_tokenizer(config("wordpiece"), broken(), str(tmp_path / "t"), 0)
  monkeypatch.setattr("os.rename", fail)
  with pytest.raises(UserError, match="No space left"):
    trained["wordpiece"][0].save(str(tmp_path / "t"))
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind, texts, size", [
  ("sentencepiece", [], 400), ("sentencepiece", TEXTS, 280), ("byte_bpe", TEXTS, 260), ("wordpiece", TEXTS, 4)])
def test_training_that_cannot_work(tmp_path, kind, texts, size):
  with pytest.raises(UserError) as caught:
    train_tokenizer(config(kind, vocab_size=size), iter(texts), str(tmp_path / "t"), 0)
  assert_four_parts(caught)
  assert not list(tmp_path.iterdir())


def test_the_tool(tmp_path):
  (tmp_path / "corpus.txt").write_text("\n\n".join(TEXTS))
  command = [sys.executable, "-m", "electra_jax.tools.train_tokenizer", "--config=configs/base.py",
             f"--config.data.path={tmp_path}/corpus.txt", f"--out={tmp_path}/t",
             "--config.data.tokenizer.kind=wordpiece", "--config.data.tokenizer.vocab_size=300"]
  done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
  assert done.returncode == 0, done.stderr
  assert load_tokenizer(f"{tmp_path}/t").kind == "wordpiece"
