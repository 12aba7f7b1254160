"""Shards: what is written can be read back; damage and misuse are reported and do no harm."""

import json
import os
import pathlib

import numpy as np
import pytest

from electra_jax.data import shards
from electra_jax.data.shards import preparation
from electra_jax.data.sources import documents as documents_lib
from electra_jax.errors import UserError
from tests.data.corpora import assert_four_parts, make_config, make_corpus, read_all
from tests.data.fakes import WORDS, FakeTokenizer

TOKENIZER = FakeTokenizer()


def test_everything_comes_back(made):
  config, directory, manifest = made
  text = pathlib.Path(config.path).read_text()
  wanted = sorted(i for ids in TOKENIZER.encode_batch(text.split("\n")) for i in ids)
  found, total = [], 0
  for split in ("train", "heldout"):
    examples, ids, num_tokens, start = read_all(directory, split, config_data=config, tokenizer=TOKENIZER)
    assert (examples.sequence_length, examples.pad_id) == (16, 0)
    assert ids.dtype == num_tokens.dtype == start.dtype == np.int32 and ids.shape == (len(examples), 16)
    real = np.arange(16) < num_tokens[:, None]
    assert (ids[real] != 0).all() and not ids[~real].any()
    assert (ids[:, 0] == 1).all() and (ids[np.arange(len(ids)), num_tokens - 1] == 2).all()
    two = start < num_tokens
    assert (ids[two, start[two] - 1] == 2).all() and (start[~two] == num_tokens[~two]).all()
    found += ids[ids >= 5].tolist()
    statistics = manifest["statistics"][split]
    assert statistics["examples"] == len(examples) and statistics["dropped_tokens"] == 0
    assert statistics["padding_share"] == pytest.approx(1 - real.mean(), abs=1e-5)
    assert examples.token_counts(TOKENIZER.vocab_size).tolist() == np.bincount(
      ids[ids >= 5], minlength=TOKENIZER.vocab_size).tolist()
    total += statistics["documents"]
  assert sorted(found) == wanted and total == 120
  assert sum(manifest["statistics"][split]["tokens"] for split in ("train", "heldout")) == len(wanted)
  assert not [name for name in os.listdir(directory.parent) if "partial" in name or "replaced" in name]


def test_random_access_equals_sequential(made):
  _, directory, manifest = made
  examples, ids, num_tokens, start = read_all(directory, "train")
  assert len(manifest["splits"]["train"]["shards"]) >= 3
  some = np.random.default_rng(0).integers(0, len(examples), 200)
  for got, want in zip(examples.read(some), (ids, num_tokens, start)):
    assert np.array_equal(got, want[some])
  assert examples.read(np.zeros(0, np.int64))[0].shape == (0, 16)
  for bad in (-1, len(examples)):
    with pytest.raises(IndexError):
      examples.read(np.array([bad]))


def test_worker_count_does_not_matter(made, tmp_path, monkeypatch):
  config, _, _ = made
  monkeypatch.setattr(preparation, "CHUNK_CHARACTERS", 2000)  # many chunks
  for workers in (1, 2):
    config = make_config(config.path, num_workers=workers)
    shards.prepare(config, TOKENIZER, str(tmp_path / str(workers)), seed=0)
  files = [sorted(p.relative_to(tmp_path / w) for p in (tmp_path / w).rglob("*.npy")) for w in "12"]
  assert files[0] == files[1] and len(files[0]) > 3
  for file in files[0]:
    assert (tmp_path / "1" / file).read_bytes() == (tmp_path / "2" / file).read_bytes()
  manifests = [json.loads((tmp_path / w / "manifest.json").read_text()) for w in "12"]
  for manifest in manifests:
    del manifest["statistics"]["seconds"]
  assert manifests[0] == manifests[1]


def test_large_vocabulary_and_full_sentences(tmp_path):
  config = make_config(make_corpus(tmp_path, 10), format="FULL-SENTENCES")
  words = FakeTokenizer([*(f"x{i}" for i in range(70_000)), *WORDS])
  shards.prepare(config, words, str(tmp_path / "s"), seed=0)
  _, ids, num_tokens, start = read_all(tmp_path / "s", "train", config_data=config, tokenizer=words)
  assert ids.max() > 70_000 and (start == num_tokens).all()
  assert np.load(tmp_path / "s/train/00000.npy").dtype == np.int32


# ---- the held-out split ----


@pytest.mark.parametrize(("documents", "share", "train", "heldout"), [
  (2, 1e-9, 1, 1), (2, 1 - 1e-9, 1, 1), (5, 1e-9, 4, 1), (1, 1e-9, 1, 0), (1, 1 - 1e-9, 1, 0), (5, 0.0, 5, 0)])
def test_neither_split_is_empty_by_chance(documents, share, train, heldout):
  splits = [s for s, _ in documents_lib.split_documents([[str(i)] for i in range(documents)], share)]
  assert (splits.count("train"), splits.count("heldout")) == (train, heldout)


@pytest.mark.parametrize(("names", "share", "heldout"), [
  ("bdefh", 1e-9, "fh"), ("bdef", 1 - 1e-9, "bd"), ("bde", 1e-9, ""), ("bdefh", 0.0, ""), ("bacdef", 0.2, "ac"),
  ("badef", 0.2, "af"), ("bdefa", 0.2, "fa"), ("aabdef", 0.2, "aaf"), ("bbbb", 1e-9, "bb")])
def test_pairs_get_two_different_documents_in_each_split(names, share, heldout):
  """With a share of 0.2, the hash of the texts holds out a and c; copies count once."""
  split = list(documents_lib.split_documents([[name] for name in names], share, least=2))
  assert "".join(document[0] for name, document in split if name == "heldout") == heldout
  assert [document[0] for _, document in split] == [*names]


# ---- damage ----


def test_truncated_and_missing_shards_are_found_at_once(copy):
  path = copy / "train" / "00001.npy"
  path.write_bytes(path.read_bytes()[:-1])
  with pytest.raises(UserError) as error:
    shards.open_shards(str(copy), "train")
  assert_four_parts(error, "00001.npy", "bytes")
  path.unlink()
  with pytest.raises(UserError) as error:
    shards.open_shards(str(copy), "train")
  assert_four_parts(error, "00001.npy", "No such file")
  assert len(shards.open_shards(str(copy), "heldout"))


@pytest.mark.parametrize(("content", "word"), [
  (None, "There are no shards"), ("", "damaged"), ("[1]", "version"), ('{"version": 0}', "version 0"),
  ('{"version": 1}', "damaged"), ('{"version": 1, "packing": 3, "tokenizer": {"fingerprint": "x"}}', "damaged")])
def test_bad_manifests(copy, content, word):
  (copy / "manifest.json").unlink()
  if content is not None:
    (copy / "manifest.json").write_text(content)
  assert shards.exist(str(copy)) == (content is not None)
  with pytest.raises(UserError) as error:
    shards.open_shards(str(copy), "train", make_config(""))
  assert_four_parts(error, word)


# ---- another config or tokenizer ----


def test_other_config_is_refused_naming_each_key(made):
  directory = made[1]
  harmless = make_config("elsewhere", num_workers=7, shard_examples=3, max_documents=9)
  shards.open_shards(str(directory), "train", harmless, TOKENIZER)
  with pytest.raises(UserError) as error:
    shards.open_shards(str(directory), "train", make_config("", sequence_length=32, heldout_share=0.2))
  assert_four_parts(error, "data.sequence_length is 32", "packed with 16", "data.heldout_share is 0.2", "prepare_data",
                    "--config.data.sequence_length=16 --config.data.heldout_share=0.1", str(directory))
  with pytest.raises(UserError) as error:
    shards.open_shards(str(directory), "train", make_config("", format="FULL-SENTENCES"))
  assert_four_parts(error, "data.format is 'FULL-SENTENCES'", "packed with 'ELECTRA'", "--config.data.format=ELECTRA")
  with pytest.raises(UserError) as error:
    shards.open_shards(str(directory), "train", make_config("", short_sequence_share=0.2))
  assert_four_parts(error, "data.short_sequence_share")


def test_other_tokenizer_is_refused(made):
  with pytest.raises(UserError) as error:
    shards.open_shards(str(made[1]), "train", made[0], FakeTokenizer(WORDS[:-1]))
  assert_four_parts(error, "another tokenizer", "fingerprint")
