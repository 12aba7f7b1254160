"""Single rows are trusted without reading their whole shard: each block of a file has a checksum of its own."""

import json
import time

import numpy as np
import pytest

from electra_jax.data import shards
from electra_jax.data.shards import writing
from electra_jax.errors import UserError

LENGTH, EXAMPLES = 126, 5000  # rows of 256 bytes, shards of several blocks


@pytest.fixture
def directory(tmp_path):
  writer = writing.SplitWriter(str(tmp_path / "train"), EXAMPLES, np.uint16)
  rows = np.random.default_rng(0).integers(5, 1000, (2 * EXAMPLES + 10, 2 + LENGTH)).astype(np.int32)
  rows[:, :2] = LENGTH
  writer.add(rows)
  splits = {"train": writer.finish(), "heldout": writing.SplitWriter(str(tmp_path / "h"), 1, np.uint16).finish()}
  manifest = {"version": 1, "packing": {"format": "FULL-SENTENCES", "sequence_length": LENGTH}, "splits": splits,
              "shard_examples": EXAMPLES, "source": {"path": "", "files": {}, "checksum": ""},
              "tokenizer": {"fingerprint": "", "vocab_size": 1000, "pad_id": 0, "special_ids": [0]}}
  (tmp_path / "manifest.json").write_text(json.dumps(manifest))
  return tmp_path, rows


def test_every_row_is_checked_and_read(directory):
  folder, rows = directory
  examples = shards.open_shards(str(folder), "train")
  ids = np.random.default_rng(1).permutation(len(rows))
  assert np.array_equal(examples.read(ids)[0], rows[ids, 2:])
  assert np.count_nonzero(~examples._is_sound) == examples._blocks_per_shard - 1  # blocks that the short one lacks


@pytest.mark.parametrize("place, bad", [(10, 0), (writing.CHECK_BYTES * 2 + 5, 2048), (-1, EXAMPLES - 1)])
def test_damage_is_found_where_it_is(directory, place, bad):
  folder, _ = directory
  path = folder / "train/00001.npy"
  content = bytearray(path.read_bytes())
  content[place] ^= 1
  path.write_bytes(content)
  examples = shards.open_shards(str(folder), "train")
  examples.read(np.arange(EXAMPLES))  # the first shard is well
  if bad:
    examples.read(np.array([EXAMPLES]))  # and so is the first block of the second
  for _ in range(2):
    with pytest.raises(UserError, match=r"00001\.npy: CRC-32 .* of block"):
      examples.read(np.array([EXAMPLES + bad]))
  with pytest.raises(UserError, match=r"00001\.npy"):
    examples.token_counts(1000)


def test_the_first_batch_reads_blocks_not_shards(tmp_path):
  number, examples = 1526, 65_536  # 100 million examples, in files with holes: all zero
  row = np.zeros((examples, 2 + LENGTH), np.uint16)
  writer = writing.SplitWriter(str(tmp_path / "train"), examples, np.uint16)
  writer.add(row)
  entry, = writer.files
  header = (tmp_path / "train/00000.npy").read_bytes()[:entry["bytes"] - row.nbytes]
  entries = []
  for i in range(number):
    entries.append(entry | {"file": f"train/{i:05d}.npy"})
    with open(tmp_path / entries[-1]["file"], "wb") as file:
      file.write(header)
      file.truncate(entry["bytes"])
  manifest = {"version": 1, "packing": {"sequence_length": LENGTH}, "shard_examples": examples,
              "splits": {"train": {"examples": number * examples, "shards": entries}},
              "tokenizer": {"vocab_size": 1000, "pad_id": 0, "special_ids": [0]}}
  started = time.process_time()
  opened = shards.ShardedExamples(str(tmp_path), manifest, "train")
  opened.read(np.random.default_rng(0).integers(0, len(opened), 256))
  assert time.process_time() - started < 1.0
