"""The data benchmark measures what it says: every row is there, for each kind of tokenizer."""

import re

import pytest

from configs import tiny
from electra_jax.tools import bench_data


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece"])
def test_every_figure_is_there(tmp_path, monkeypatch, kind):
  peer = pytest.importorskip("benchmarks.data_peer", reason="it needs datasets (tests/requirements.txt)",
                             exc_type=ImportError)
  monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # restores what the benchmark sets
  words = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "again")
  lines = [" ".join(words[(i * j + j) % 10] for j in range(1, 40)) + f" {i}." for i in range(400)]
  (tmp_path / "text.txt").write_text("\n\n".join(lines))
  config = tiny.get_config()
  config.data.path = str(tmp_path / "text.txt")
  config.data.tokenizer.update(kind=kind, vocab_size=400)
  config.train.batch_size = 8
  figures = bench_data.time_data(config, text_megabytes=0.03, seconds=0.05, peers=peer.PEERS)
  assert len(figures["preparation"]) == 4 and len(figures["reading"]) == 4
  assert all(value > 0 for rows in figures.values() for row in rows for key, value in row.items() if key != "name")
  table = bench_data.table(figures)
  for name in ("encode_batch", "prepare, length 128", "prepare, length 512", "datasets.map", "tf, length 512",
               "threads, length 128"):
    assert re.search(rf"^.*{re.escape(name)}.* [\d,.]+ +[\d,.]+ +[\d,.]+$", table, re.MULTILINE), name
