"""From a text file to rows on the screen: prepare_data and show_batch together."""

import io

import numpy as np
import pytest
from rich.console import Console

from configs import base, bert_small
from electra_jax import config as config_lib
from electra_jax.data import pipeline, shards, tokenizers
from electra_jax.inference import pretraining_heads
from electra_jax.tools import prepare_data, show_batch
from tests.workdirs import make_workdir

TEXT = ["the cat sat on the mat and looked at the rain", "rain fell on the roof all day", "a dog came in, wet and glad",
        "nobody had seen the dog before", "the cat left the mat to the dog"]


@pytest.fixture(scope="module", params=["wordpiece", "byte_bpe", "sentencepiece"])
def prepared(request, tmp_path_factory):
  folder = tmp_path_factory.mktemp(request.param)
  (folder / "corpus.txt").write_text("\n\n".join("\n".join(TEXT[i % 5:] + TEXT[:i % 5]) for i in range(60)))
  recipe = bert_small.get_config("tiny")
  recipe.data.update(path=str(folder / "corpus.txt"), num_workers=1, sequence_length=32)
  recipe.data.tokenizer.update(kind=request.param, vocab_size=400)
  config = config_lib.resolve(recipe)
  return config, folder, prepare_data.prepare_data(config, str(folder / "out"))


def test_prepare_then_show(prepared):
  config, folder, manifest = prepared
  tokenizer = tokenizers.load_tokenizer(str(folder / "out/tokenizer"), config.data.tokenizer)
  assert manifest["statistics"]["train"]["documents"] + manifest["statistics"]["heldout"]["documents"] == 60
  screen = io.StringIO()
  show_batch.show(config, str(folder / "out/shards"), tokenizer, step=1, rows=2, console=Console(file=screen))
  lines = screen.getvalue().splitlines()
  assert lines[0].startswith("step 1, row 0: example ") and lines[4].startswith("step 1, row 1:")
  for original, masked in ((lines[1], lines[2]), (lines[5], lines[6])):
    assert original.startswith("  original") and masked.startswith("  masked")
    assert original.count("‹") == masked.count("‹") > 0
    assert "[PAD]" not in original and "<pad>" not in original
    words = original.replace("‹", "").replace("›", "")
    assert " the " in words or " dog" in words  # text reads as text, whatever the pieces are
  again = prepare_data.prepare_data(config, str(folder / "out"))  # keeps the tokenizer, replaces the shards
  assert again["tokenizer"] == manifest["tokenizer"] and again["splits"] == manifest["splits"]


def test_corrupted_line_marks_what_was_replaced(prepared):
  config, folder, _ = prepared
  tokenizer = tokenizers.load_tokenizer(str(folder / "out/tokenizer"))
  examples = shards.open_shards(str(folder / "out/shards"), "train")
  batch = pipeline.make_batch_at(examples, config.data, tokenizer, batch_size=4, seed=0)(0)
  corrupted = batch["input_ids"].copy()
  corrupted[0, 2] += 1
  name, ids, marked = show_batch.row_lines(batch, 0, corrupted)[-1]
  assert name == "corrupted" and np.flatnonzero(marked).tolist() == [2] and ids[2] == corrupted[0, 2]
  text = show_batch.render(tokenizer, ids, marked, show_batch.STYLES[name], brackets=False)
  assert [span.style for span in text.spans if span.style == "bold red"] == ["bold red"]


def test_corrupted_line_comes_from_the_newest_generator(tmp_path_factory):
  workdir = make_workdir(tmp_path_factory.getbasetemp(), base, "sentencepiece")
  config, screen = config_lib.load(workdir), io.StringIO()
  console = Console(file=screen)
  corrupt = show_batch.make_corrupt(workdir, config, 0, console)
  run = pretraining_heads.load(workdir)
  batch = pretraining_heads.make_batch(run, [pretraining_heads.encode(run, f"{text} [MASK]") for text in TEXT])
  assert "generator of step 40" in screen.getvalue()
  np.testing.assert_array_equal(corrupt(batch), pretraining_heads.corrupt(run, batch))
  assert show_batch.make_corrupt(None, config, 0, console) is None and (
      "Without --workdir there is no checkpoint" in screen.getvalue())
  assert show_batch.make_corrupt(workdir, config_lib.resolve(bert_small.get_config("tiny")), 0, console) is None
