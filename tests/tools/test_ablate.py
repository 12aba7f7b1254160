"""One command repeats an ablation: equal budgets, shared data, a killed run goes on, an honest table."""

import os
import shutil

import numpy as np
import pytest

from electra_jax import checkpoints, flops, inference, metrics
from electra_jax.errors import UserError
from electra_jax.tools import ablate, ablate_quality, ablate_report, appendix_e
from tests.conftest import ROOT
from tests.objectives.test_ablation_runs import write_corpus

RECIPES = ["ablations:table3_electra,tiny", "ablations:table3_bert,tiny"]
SMALL = ["model.hidden_size=16", "model.embedding_size=16", "model.num_hidden_layers=1", "model.intermediate_size=32",
         "data.sequence_length=16", "data.tokenizer.vocab_size=100", "data.heldout_share=0.5", "data.num_workers=1",
         "data.reader=threads", "train.batch_size=8", "optimizer.name=adamw", "log.tensorboard=false",
         "objective.rtd_weight=10"]


@pytest.fixture(autouse=True)
def at_root(monkeypatch):
  monkeypatch.chdir(ROOT)


def test_equal_flops_give_each_recipe_its_own_steps(tmp_path):
  rows = ablate.plan(ablate.recipes_of("table3", []), str(tmp_path), num_steps=None, total_flops=1e19)
  assert [row.name for row in rows] == [f"table3_{name}" for name in ("electra", "all_tokens_mlm", "replace_mlm",
                                                                     "electra_15", "bert")]
  assert all(flops.paper_flops(row.config).per_run == pytest.approx(1e19, rel=1e-4) for row in rows)
  steps = {row.name: row.config.train.num_steps for row in rows}
  assert steps["table3_bert"] > steps["table3_electra"] > steps["table3_all_tokens_mlm"]


def test_warm_up_and_stages_follow_the_steps(tmp_path):
  recipes = ["configs/base.py", "ablations:figure3_two_stage"]
  base, two_stage = ablate.plan(recipes, str(tmp_path), num_steps=7660, total_flops=None)
  assert base.config.optimizer.warmup_steps == 100 and two_stage.config.objective.generator_steps == 3830
  (fixed,) = ablate.plan(recipes[:1], str(tmp_path), num_steps=7660, total_flops=None,
                         settings=["optimizer.warmup_steps=7"])
  assert fixed.config.optimizer.warmup_steps == 7


def test_equal_data_is_shared_and_masks_do_not_count(tmp_path):
  rows = ablate.plan([*RECIPES, "ablations:roberta_table2_doc_sentences,tiny"], str(tmp_path), num_steps=4,
                     total_flops=None, num_seeds=2)
  assert len({row.config.data.shards_path for row in rows[:4]}) == 1 and rows[0].config.data.masking != (
    rows[2].config.data.masking)
  assert rows[4].config.data.shards_path != rows[0].config.data.shards_path
  assert [os.path.basename(row.workdir) for row in rows[:2]] == ["table3_electra_seed0", "table3_electra_seed1"]


@pytest.mark.parametrize("arguments, said", [
  (dict(settings=["model.hiden_size=3"]), "cannot be used"), (dict(settings=["train.num_steps=3"]), "--steps, --flops"),
  (dict(total_flops=1.0), "budget is unclear"), (dict(recipes=["nowhere.py"]), "cannot be loaded"),
  (dict(recipes=RECIPES[:1] * 2), "same name"), (dict(settings=["train.batch_size=many"]), "does not fit")])
def test_mistakes_are_told(tmp_path, arguments, said):
  recipes = arguments.pop("recipes", RECIPES)
  with pytest.raises(UserError, match=said):
    ablate.plan(recipes, str(tmp_path), **dict(num_steps=4, total_flops=None) | arguments)
  with pytest.raises(UserError, match="table is unknown"):
    ablate.recipes_of("table9", [])


def test_from_recipes_to_table(tmp_path, monkeypatch):
  """Four steps of two recipes; the second call runs nothing, a lost end is made again, a new budget is refused."""
  settings = [*SMALL, f"data.path={write_corpus(tmp_path / 'corpus.txt')}"]
  monkeypatch.setattr(ablate_quality, "BATCH_SIZE", 64)

  def rows(num_steps=4):
    return ablate.plan(RECIPES, str(tmp_path / "out"), num_steps=num_steps, total_flops=None, settings=settings,
                       num_points=2)

  results = ablate.run(rows(), "continuation")
  assert [len(one["points"]) for one in results] == [3, 3]  # untrained, half-way, at the end
  assert results[0]["points"][-1][0] == pytest.approx(results[0]["flops"])
  assert "rtd/auc" in results[0]["own"] and "rtd/auc" not in results[1]["own"]
  assert len(os.listdir(tmp_path / "out/data")) == 1
  assert appendix_e.evaluate(rows()[0].workdir, 8)["electra_mlm/upper_bound"] == 1
  with pytest.raises(UserError, match="Appendix E does not hold"):
    appendix_e.evaluate(rows()[1].workdir, 8)

  lines = {row.name: len(metrics.read_rows(row.workdir)) for row in rows()}
  assert repr(ablate.run(rows(), "continuation")) == repr(results)
  assert lines == {row.name: len(metrics.read_rows(row.workdir)) for row in rows()}

  last = rows()[1]
  shutil.rmtree(os.path.join(last.workdir, "checkpoints", "4"))
  before = inference.load(last.workdir, 2)
  assert ablate.run(rows(), "continuation")[1]["points"] == results[1]["points"]
  assert checkpoints.saved_steps(last.workdir) == [2, 4] and before.step == 2
  with pytest.raises(UserError, match=r"another (run|budget)"):
    ablate.run(rows(num_steps=6), "continuation")

  text = ablate_report.table(results, "continuation", 0.5)
  assert "| ELECTRA | 85.0 GLUE | " in text and "| BERT | 82.2 GLUE | " in text and "not to be compared" in text
  quality = ablate_quality.QUALITIES["continuation"]
  out = ablate_report.draw(results, quality, str(tmp_path / "curves.png"))
  assert os.path.getsize(out) > 5_000


def test_the_probe_finds_what_is_there_and_nothing_else():
  """Halves that share a direction are told apart from strangers; noise is not."""
  rng = np.random.default_rng(0)
  topic, noise = rng.normal(size=(400, 4)), rng.normal(size=(2, 400, 4))
  found = ablate_quality.classify(topic + 0.1 * noise[0], topic + 0.1 * noise[1])
  nothing = ablate_quality.classify(*noise)
  assert found.value > 0.9 and abs(nothing.value - 0.5) < 4 * nothing.error
