"""Does AutoTokenizer give our ids, from the files that an export writes?"""

import gzip
import json
import os
import random
import unicodedata

import pytest
import transformers

from electra_jax.data import sentences, tokenizers
from electra_jax.exchange import tokenizer_files
from electra_jax.tasks import features
from tests.conftest import SHARED
from tests.workdirs import TEXT

HARD = ["", " ", "  two  spaces\tand\na line ", "Émigré naïve ﬁ ① Ⅷ", "cafe\u0301 o\u0302", "日本語と한국어",
        "🙂👩\u200d👧 ok", "don't stop-motion, e.g. 3.14!", "unseen zymurgy ĦæÞ", "ΣΊΣΥΦΟΣ",
        "<0x41> <unk> [MASK] <mask> [CLS]", "a" * 120]
KINDS = [("wordpiece", True), ("wordpiece", False), ("byte_bpe", True), ("byte_bpe", False), ("sentencepiece", True),
         ("sentencepiece", False), ("sentencepiece_bpe", True)]


@pytest.mark.parametrize("kind,lowercase", KINDS)
def test_ids_of_a_new_vocabulary(tmp_path, kind, lowercase):
  row = tokenizers.TOKENIZERS[kind]
  ours = row.tokenizer(row.train(iter(TEXT * 20), 400, lowercase, 0), lowercase)
  compare(ours, tmp_path, TEXT + HARD, has_token_types=lowercase or kind == "wordpiece")


def compare(ours, folder, texts, has_token_types=True):
  """Plain ids alike, with and without [CLS] and [SEP]; and as a pipeline reads a mask."""
  tokenizer_files.write(str(folder), ours, max_tokens=128, has_token_types=has_token_types)
  theirs = transformers.AutoTokenizer.from_pretrained(folder)
  plain = transformers.AutoTokenizer.from_pretrained(folder, split_special_tokens=True)
  for text, ids in zip(texts, ours.encode_batch(texts)):
    assert plain(text, add_special_tokens=False)["input_ids"] == ids, text
    assert plain(text)["input_ids"] == [ours.cls_id, *ids, ours.sep_id], text
  for text in (f"the cat {theirs.mask_token} on the mat.", f"{theirs.mask_token} sat, {theirs.mask_token}."):
    assert theirs(text)["input_ids"] == sentences.encode(ours, text, 128).ids, text
  pair, fine_tuned_on = theirs("the cat", "the dog."), features.sequence(ours, ["the cat", "the dog."], 128)
  assert pair["input_ids"] == fine_tuned_on["input_ids"]
  assert pair.get("token_type_ids") == (fine_tuned_on["token_type_ids"] if has_token_types else None)
  assert (theirs.pad_token_id, theirs.unk_token_id, theirs.model_max_length) == (ours.pad_id, ours.unk_id, 128)
  assert len(theirs) == ours.vocab_size
  again = tokenizers.load_tokenizer(str(folder))
  assert again.fingerprint == ours.fingerprint
  return theirs


def published(shared, kind, folder):
  """The real vocabularies."""
  names = {"wordpiece": {"vocab.txt": "bert-base-uncased-vocab.txt.gz"},
           "byte_bpe": {"vocab.json": "roberta-vocab.json.gz", "merges.txt": "gpt2-vocab.bpe.gz"}}[kind]
  for name, source in names.items():
    (folder / name).write_bytes(gzip.decompress((shared / "reference/vocab" / source).read_bytes()))
  return tokenizers.load_tokenizer(str(folder))


@pytest.mark.parametrize("kind,key", [("wordpiece", "wordpiece_uncased"), ("byte_bpe", "roberta_bpe")])
def test_golden_ids_of_published_vocabularies(shared, tmp_path, kind, key):
  cases = json.loads((shared / "reference/golden/tokenizers.json").read_text())["cases"]
  (tmp_path / "source").mkdir()
  (tmp_path / "out").mkdir()
  compare(published(shared, kind, tmp_path / "source"), tmp_path / "out", [case["text"] for case in cases],
          has_token_types=kind != "byte_bpe")
  plain = transformers.AutoTokenizer.from_pretrained(tmp_path / "out", split_special_tokens=True)
  for case in cases:
    assert plain(case["text"], add_special_tokens=False)["input_ids"] == case[key]["ids"], case["name"]


def pool(name):
  """Characters of one kind: of everything assigned, of letters with marks, of Korean, of few that repeat."""
  ranges = {"all": [(1, 0x110000)], "latin": [(0x20, 0x250), (0x1E00, 0x2000)],
            "signs": [(0x2000, 0x3400), (0xFF00, 0xFFF0)],
            "korean": [(0x1100, 0x1200), (0xAC00, 0xAD00), (0x3130, 0x3190)]}.get(name, ())
  found = [chr(i) for first, last in ranges for i in range(first, last) if unicodedata.category(chr(i))[0] != "C"]
  marks = [chr(i) for i in (*range(0x300, 0x312), 0x323, 0x327, 0x328, 0x344, 0x3099, 0xFF9E, 0x200D)]
  return {"marks": [*"aAeEioOuyﬁ①ｶôớ", *marks], "words": [*"the cat sat on mat, rain"], "repeats": [*"aab "]}.get(
    name, found + marks * (name != "all"))


def random_texts(count):
  rng = random.Random(7)
  pools = [pool(name) for name in ("all", "latin", "signs", "korean", "marks", "words", "repeats")]
  return ["".join(rng.choices(rng.choice(pools), k=rng.randrange(40))) for _ in range(count)]


@pytest.mark.parametrize("kind", ["sentencepiece", "sentencepiece_bpe"])
def test_golden_and_ten_thousand_random_texts_with_sentence_piece(kind):
  texts, size = random_texts(10_000), 1100  # the first 71 have more characters than the golden texts
  if os.path.isdir(SHARED):
    golden = json.loads((SHARED / "reference/golden/tokenizers.json").read_text())["cases"]
    texts, size = [case["text"] for case in golden] + texts, 700
  row = tokenizers.TOKENIZERS[kind]
  ours = row.tokenizer(row.train(iter(TEXT * 20 + texts[:71]), size, True, 0), True)
  theirs = tokenizer_files.make_library(ours)
  theirs.encode_special_tokens = True
  encoded = theirs.encode_batch(texts, add_special_tokens=False)
  assert [text for text, one, ids in zip(texts, encoded, ours.encode_batch(texts)) if one.ids != ids] == []
