"""The step benchmark times the real update and says what changed. Its figures are no business of a test."""

import json

import pytest

from configs import bert_original_base, small
from electra_jax import config as config_lib
from electra_jax.data import pipeline
from electra_jax.errors import UserError
from electra_jax.tools import bench


def shrunk(**model):
  config = small.get_config("tiny")
  config.model.update(hidden_size=16, embedding_size=16, num_hidden_layers=1, intermediate_size=32, **model)
  config.train.batch_size = 8
  config.data.tokenizer.vocab_size = 1200
  return config


def test_a_step_is_timed(one_device):
  figures = bench.time_step(config_lib.resolve(shrunk()), windows=1, window_steps=1)
  assert figures["tokens_per_second"] > 0 and figures["batch_size"] == 8 and figures["objective"] == "rtd"
  assert 0 < figures["share_of_matmul"] < 1.5
  assert 30 < figures["loss"] < 60  # ln 1200 + 50 ln 2: an untrained model on random ids


@pytest.mark.parametrize("recipe", [small, bert_original_base])
def test_synthetic_rows_have_the_form_of_real_ones(recipe):
  config = config_lib.resolve(recipe.get_config("tiny"))
  found = bench.synthetic_batch(config)
  assert {name: (rows.shape, rows.dtype.type) for name, rows in found.items()} == pipeline.batch_shapes(
    config.data, config.train.batch_size)


def test_each_part_is_left_out_once(monkeypatch):
  seen = []

  def fake(config, **how):
    seen.append((config.model.attention_probs_dropout_prob, config.model.hidden_dropout_prob, config.generator.kind,
                 config.optimizer.name, config.model.num_hidden_layers, config.train.kernels))
    return {"step_ms": 7.0}

  monkeypatch.setattr(bench, "time_step", fake)
  given = small.get_config()
  found = bench.breakdown(given, 10.0, windows=1, window_steps=1)
  assert found == dict.fromkeys(bench.PARTS, 3.0)
  whole = (0.1, 0.1, "learned", "lamb", 12, "auto")
  assert [sum(a != b for a, b in zip(row, whole)) for row in seen] == [1, 2, 1, 1, 1, 1]
  given.objective.name, given.optimizer.name = "mlm", "adamw"
  assert set(bench.PARTS) - set(bench.breakdown(given, 10.0)) == {"generator and masked LM", "LAMB's ratios"}


def test_figures_are_compared_with_earlier_ones(tmp_path):
  path = tmp_path / "before.json"
  before = {"tokens_per_second": 100, "step_ms": 20.0, "mfu": None, "device": "cpu", "batch_size": 8}
  path.write_text("a line of the start-up\n" + json.dumps(before) + "\n")
  text = bench.compared(before | {"tokens_per_second": 150, "batch_size": 16}, str(path))
  assert "+50.0 %" in text and "not the same batch_size: 8 -> 16" in text and "mfu" not in text


@pytest.mark.parametrize("content", (None, "", "no json"))
def test_a_bad_file_to_compare_with(tmp_path, content):
  path = tmp_path / "before.json"
  if content is not None:
    path.write_text(content)
  with pytest.raises(UserError, match="to compare with"):
    bench.compared({}, str(path))
