"""Are the papers' claims repeated fairly, within limits, again after a kill, and told soberly?"""

import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from electra_jax import checkpoints, flops, metrics, recipes
from electra_jax import config as config_lib
from electra_jax.errors import Interrupted, UserError
from electra_jax.tasks import glue, results, scoring
from electra_jax.tools import evidence
from electra_jax.tools import evidence_claims as claims
from electra_jax.tools import evidence_curves as curves
from electra_jax.tools import evidence_report as report
from electra_jax.tools import evidence_runs as runs
from tests.conftest import ROOT

RECIPES = list(recipes.load_file(recipes.find("evidence")).ROWS)
# What may differ from ELECTRA-Small's recipe in a row of the same table.
VARIED = {"bert_batch": {"train.batch_size", "optimizer.learning_rate"},
          "electra_lamb": {"optimizer.name", "optimizer.learning_rate"},
          "bert_segment_pair": {"data.short_sequence_share"},
          "electra_no_attention_dropout": {"model.attention_probs_dropout_prob"}}


@pytest.fixture(autouse=True)
def at_root(monkeypatch):
  monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_compare_equals(name):
  config = config_lib.resolve(recipes.load(f"evidence:{name}")[1])
  base = config_lib.resolve(recipes.load("evidence:electra_small")[1])
  allowed = next((keys for start, keys in VARIED.items() if name.startswith(start)), set())
  differing = {key for key in config_lib.diff(base, config)
               if not key.startswith(("objective.", "data.masking.", "data.format", "data.batch_unit", "generator.",
                                       "train.steps_per_dispatch"))}
  differing -= allowed | ({"eval.batch_size"} if "train.batch_size" in allowed else set())
  assert not differing
  assert name not in VARIED or allowed <= set(config_lib.diff(base, config))
  assert config.optimizer.warmup_steps == config.train.num_steps // 10
  for budget in (3e16, 1e17):
    per_step = flops.paper_flops(config).per_step
    assert abs(flops.steps_within(config, budget) * per_step - budget) <= per_step / 2
  assert flops.steps_within(config, 1.0) == 1


def test_every_recipe_is_in_a_claim_and_the_papers_numbers_are_theirs():
  files = {model.recipe.partition(":")[0] for claim in claims.CLAIMS.values() for model in claim.models}
  assert files == set(RECIPES)
  numbers = {name: [list(model.paper.values()) for model in claim.models] for name, claim in claims.CLAIMS.items()}
  assert numbers["small-vs-bert"] == [[79.0], [74.7]]  # ELECTRA Table 1
  assert numbers["table3"] == [[85.0], [84.3], [82.4], [82.4], [82.2]]
  assert numbers["roberta-masking"] == [[84.3, 92.5], [84.0, 92.9]]
  assert numbers["roberta-formats"] == [[84.0, 92.9], [82.9, 92.1], [84.7, 92.5], [84.7, 92.7]]
  assert numbers["roberta-batch"] == [[84.7, 92.7, 3.99], [85.2, 92.9, 3.68], [84.6, 92.8, 3.77]]


def test_every_task_of_a_claim_is_run():
  assert set(claims.CLAIMS["small-vs-bert"].tasks) == set(glue.GLUE)
  for claim in claims.CLAIMS.values():
    assert set(claim.tasks) <= set(runs.GLUE_LENGTHS)


def test_budgets_are_equal_in_flops_steps_or_time():
  electra, bert = claims.plan("small-vs-bert", "out", 1e17)
  assert electra.flops == pytest.approx(1e17, rel=1e-4) and bert.flops == pytest.approx(1e17, rel=1e-4)
  assert electra.config.train.num_steps == electra.num_steps == 77_260
  assert electra.folder == "out/models/electra_small-77260"
  assert bert.num_steps == 102_150  # of 102 157: the last seven would need a program of their own
  long = runs.pretrain_command(bert, place(pathlib.Path("out")))
  assert "--config.eval.every_steps=10210" in long and "--config.checkpoint.every_steps=10210" in long
  papers = claims.plan("small-vs-bert", "out", 1e17, ["generator.width_fraction=0.5"])
  assert bert.num_steps / papers[0].num_steps == pytest.approx(1.45, abs=0.01)  # the paper's 1.45M and 1M steps
  sizes = claims.plan("generator-size", "out", 1e16)
  assert len({row.num_steps for row in sizes}) == 1 and sizes[0].flops < sizes[1].flops < sizes[2].flops
  given = claims.plan("fast-vs-faithful", "out", 1e16)
  assert [row.model.name for row in given] == ["faithful", "no attention dropout", "fast"]
  assert given[2].config.train.batch_size == 4 * given[0].config.train.batch_size
  assert given[2].flops == pytest.approx(given[0].flops, rel=1e-3) and ":" not in given[2].folder
  speeds = {"electra_small": 0.2, "electra_no_attention_dropout": 0.1}
  rows = claims.plan("fast-vs-faithful", "out", 1e16, seconds_per_step=speeds)
  assert rows[2].num_steps == 2 * rows[0].num_steps
  assert "rows of equal time follow" in claims.describe("fast-vs-faithful", given)
  assert "1,266 M tokens" in claims.describe("small-vs-bert", [electra])
  assert [row.recipe for row in claims.plan("table3", "out", 1e16, only=["electra_15"])] == [
    "evidence:electra_15"]
  with pytest.raises(UserError, match="claim is unknown"):
    claims.plan("table9", "out")


# ---- running: the commands are replaced by ones that only leave what the real ones would ----


def fake_commands(monkeypatch, script):
  monkeypatch.setattr(runs, "pretrain_command", lambda row, place: [sys.executable, "-c", script, row.folder])
  monkeypatch.setattr(runs, "is_trained", lambda row: os.path.exists(os.path.join(row.folder, "done")))
  monkeypatch.setattr(runs, "last_step", lambda folder: 7 * os.path.exists(os.path.join(folder, "..", "begun")))


def place(tmp_path, **changes):
  return runs.Place(out=str(tmp_path), data="", shards=str(tmp_path / "data"), vocabulary="", glue="",
                    devices=("3", "5"))._replace(**changes)


def use_flags(monkeypatch, tmp_path, **changes):
  """The tool's flags with their defaults."""
  values = {"out": str(tmp_path), "flops": 1e14, "pretrainings": 1, "set": [], "speed": [], "seeds": 5,
            "max_train_examples": 12_000, "glue_set": [], "data": "", "shards": "", "vocabulary": "", "glue": "",
            "devices": "", "train_seconds": 0.0, "glue_seconds": 0.0, "glue_at_once": 4, "tasks": "", "only": ""}
  flags = SimpleNamespace(**values | changes)
  monkeypatch.setattr(evidence, "FLAGS", flags)
  return flags


def test_models_run_side_by_side_and_only_once(tmp_path, monkeypatch, capsys):
  fake_commands(monkeypatch, "import os, sys; f = sys.argv[1]; os.makedirs(f + '/pretrain', exist_ok=True); "
                             "open(f + '/done', 'w'); open(f + '/gpu', 'a').write(os.environ['CUDA_VISIBLE_DEVICES'])")
  rows, after = claims.plan("small-vs-bert", str(tmp_path), 1e14), []
  for _ in range(2):
    runs.run([(row, ["rte"]) for row in rows], place(tmp_path), lambda: after.append(1))
  assert sorted(pathlib.Path(row.folder, "gpu").read_text() for row in rows) == ["3", "5"]  # each once
  assert len(after) == 8
  assert "pre-training is finished" in capsys.readouterr().out


def test_models_on_one_device_share_its_memory(tmp_path, monkeypatch):
  monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
  fake_commands(monkeypatch, "import os, sys; f = sys.argv[1]; os.makedirs(f + '/pretrain', exist_ok=True); open("
                             "f + '/done', 'w').write(os.environ.get('XLA_PYTHON_CLIENT_MEM_FRACTION', 'all of it'))")
  for devices, share in ((("3", "3"), "0.425"), (("3", "5"), "all of it")):
    rows = claims.plan("small-vs-bert", str(tmp_path / share), 1e14)
    runs.run([(row, ["rte"]) for row in rows], place(tmp_path / share, devices=devices), lambda: None)
    assert {pathlib.Path(row.folder, "done").read_text() for row in rows} == {share}


def test_claims_share_models_and_devices(monkeypatch):
  seen = []
  monkeypatch.setattr(evidence, "FLAGS", SimpleNamespace(tasks="", out="out"))
  monkeypatch.setattr(evidence, "place", lambda: None)
  monkeypatch.setattr(runs, "run", lambda work, place, after_each: seen.extend(work))
  evidence.run_plans({name: claims.plan(name, "out", 1e14) for name in ("roberta-masking", "table3")})
  names = [row.model.recipe for row, _ in seen]
  assert names == ["bert_static", "bert_small", "electra_small", "all_tokens_mlm", "replace_mlm", "electra_15"]
  tasks = {row.model.recipe: tasks for row, tasks in seen}
  assert tasks["bert_static"] == ["mnli", "sst2"] and sorted(tasks["bert_small"]) == sorted(claims.GLUE)


def test_a_limit_stops_with_a_checkpoint_and_a_failure_names_its_log(tmp_path, monkeypatch, capsys):
  sleeps = ("import os, signal, sys, time; f = sys.argv[1]; os.makedirs(f + '/pretrain', exist_ok=True); "
            f"signal.signal(signal.SIGTERM, lambda *_: (open(f + '/begun', 'w'), os._exit({Interrupted.STATUS}))); "
            "open(f + '/ready', 'w'); time.sleep(30)")
  fake_commands(monkeypatch, sleeps)
  rows = claims.plan("small-vs-bert", str(tmp_path), 1e14)
  runs.run([(row, ["rte"]) for row in rows], place(tmp_path, train_seconds=1.5), lambda: None)
  assert "stopped at step 7 of 70 by the limit" in capsys.readouterr().out
  fake_commands(monkeypatch, "raise SystemExit('no such thing')")
  with pytest.raises(UserError, match="2 of 2 models failed") as caught:
    runs.run([(row, ["rte"]) for row in rows], place(tmp_path), lambda: None)
  assert "no such thing" in caught.value.got and "pretrain.log" in caught.value.got


def test_commands_carry_budget_data_and_limits_of_glue(tmp_path):
  row = claims.plan("small-vs-bert", str(tmp_path), 1e14, ["log.tensorboard=false"])[0]
  where = place(tmp_path, glue="GLUE", settings=("log.tensorboard=false",), glue_settings=("task.num_epochs=1",))
  command = runs.pretrain_command(row, where)
  assert "--config.eval.every_steps=7" in command
  assert "--config.train.num_steps=70" in command and "--config.log.tensorboard=false" in command
  assert f"--config.data.shards_path={tmp_path}/data/ELECTRA-128/shards" in command
  sweep = runs.glue_command(row, ["rte", "mnli"], 18, where, "1")
  rates = [setting for setting in sweep if "learning_rate" in setting]
  assert rates == ["--set=optimizer.learning_rate=3e-4"]
  assert "--tasks=mnli,rte" in sweep and "--devices=1,1,1,1" in sweep and "--set=task.max_train_examples=12000" in sweep
  assert "--set=cola:task.max_length=48" in sweep and "--set=task.num_epochs=1" in sweep
  with pytest.raises(UserError, match="no shards of this format"):
    runs.prepare([row], where)


# ---- what came out ----


def finish(row, score, loss, speed=1e6):
  """A model's folder as its runs leave it, with `leave_scores`."""
  folder = os.path.join(row.folder, "pretrain")
  os.makedirs(folder)
  given = recipes.load(row.recipe)[1]
  given.train.num_steps = row.num_steps
  given.log.tensorboard = False
  config_lib.save(os.path.join(folder, "config.json"), given, row.config)
  writer = metrics.MetricWriter(folder, given.log)
  writer.write(row.num_steps, "train", {"mlm/loss": loss, "train/tokens_per_second": speed})
  writer.write(row.num_steps, "eval", {"mlm/loss": loss, "mlm/perplexity": 2.0, "time/goodput": 0.9})
  writer.close()
  leave_scores(row, score)


def leave_scores(row, score):
  """What a sweep leaves; the score of seed i is `score` + i per cent."""
  for task in claims.GLUE:
    metric = {"cola": "matthews", "stsb": "spearman"}.get(task, "accuracy")
    scores = [{metric: score + i / 100} | ({"matched/accuracy": score + i / 100} if task == "mnli" else {})
              for i in range(3)]
    path = runs.task_results(runs.glue_folder(row, row.num_steps), task)
    os.makedirs(os.path.dirname(path))
    results.write_json(path, {"summary": {name: scoring.summarise([one[name] for one in scores])
                                          for name in scores[0]},
                              "runs": [{"seed": i, "scores": one} for i, one in enumerate(scores)]})


def test_figures_table_and_verdict(tmp_path):
  rows = claims.plan("small-vs-bert", str(tmp_path), 1e14)
  assert report.rows_of("small-vs-bert", rows[0], "cmd") == []  # not begun
  failed = pathlib.Path(rows[0].folder, "pretrain")
  failed.mkdir(parents=True)
  (failed / metrics.FILE_NAME).touch()
  assert report.rows_of("small-vs-bert", rows[0], "cmd") == []  # ended before its first line
  shutil.rmtree(failed)
  finish(rows[0], 0.80, 3.0)
  finish(rows[1], 0.70, 4.0)
  found = [one for row in rows for one in report.rows_of("small-vs-bert", row, "cmd")]
  average = found[0]
  assert {"claim", "model", "metric", "value", "seeds", "spread", "train_flops", "minutes", "card",
          "command"} <= average.keys()
  assert (average["metric"], average["seeds"], average["paper"]) == ("glue/average", 3, 79.0)
  assert average["value"] == pytest.approx(81.0) and average["spread"] == pytest.approx(1.0)
  assert average["runs"] == [80.0, 81.0, 82.0]
  assert average["train_flops"] == pytest.approx(rows[0].flops)
  assert average["minutes"] == pytest.approx(70 * 128 * 128 / 1e6 / 60, abs=0.01)
  claim = claims.CLAIMS["small-vs-bert"]
  text = report.table(claim, found)
  assert "| ELECTRA-Small | 79.0 | 81.0 ± 1.0 | 81.0 |" in text and "| BERT-Small | 74.7 | 71.0 ± 1.0 |" in text
  assert "MLM loss 3.000" in text
  assert report.differences(claim, found) == [
    "* BERT-Small − ELECTRA-Small, GLUE: -4.30 in the paper, -10.00 ± 1.41 here: the same sign."]
  closer = [one | {"value": one["value"] + 9} if one["model"] == "BERT-Small" else one for one in found]
  assert "within noise" in report.differences(claim, closer)[0]
  os.remove(runs.task_results(runs.glue_folder(rows[1], rows[1].num_steps), "rte"))
  partial = {one["metric"] for one in report.rows_of("small-vs-bert", rows[1], "cmd")}
  assert "glue/average" not in partial and "glue/mnli" in partial
  assert curves.draw("small-vs-bert", rows, str(tmp_path / "curves.png"))
  assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_several_pretrainings_of_each_model(tmp_path, monkeypatch):
  flags = use_flags(monkeypatch, tmp_path, pretrainings=2)
  flags.seeds = 3
  evidence.record("small-vs-bert")
  rows = evidence.planned(str(tmp_path), "small-vs-bert")
  assert [(row.model.recipe, row.config.seed) for row in rows] == [
    ("electra_small", 0), ("bert_small", 0), ("electra_small", 1), ("bert_small", 1)]  # all of seed 0 first
  assert rows[2].folder == f"{rows[0].folder}-seed_1"
  assert "--config.seed=1" in runs.pretrain_command(rows[2], place(tmp_path))
  assert "2 pre-trainings" in claims.describe("small-vs-bert", rows)
  assert "--pretrainings=2" in evidence.read_facts(str(tmp_path), "small-vs-bert")["command"]
  for row, score in zip(rows, (0.8, 0.7, 0.9, 0.74)):
    finish(row, score, 3.0)
  found = evidence.collect(str(tmp_path))
  average = found[0]
  assert average["value"] == pytest.approx(86.0) and average["spread"] == pytest.approx(math.sqrt(50))
  assert (average["runs"], average["pretrainings"], average["seeds"]) == ([81.0, 91.0], 2, 3)
  claim = claims.CLAIMS["small-vs-bert"]
  assert "| Pre-trainings |" in report.table(claim, found) and "| 86.0 ± 7.1 |" in report.table(claim, found)
  error = math.hypot(math.sqrt(50), math.sqrt(8)) / math.sqrt(2)
  assert report.compare(claim, found)[0].noise == pytest.approx(error)
  assert report.differences(claim, found)[0].endswith("-13.00 ± 5.39 here: within noise.")  # 2.4 times
  assert curves.draw("small-vs-bert", rows, str(tmp_path / "curves.png"))
  behind = rows[0]._replace(num_steps=35, folder=f"{rows[0].folder}-seed_2")  # half-way
  finish(behind, 0.1, 9.0)
  assert report.figures_of("small-vs-bert", [rows[0], rows[2], behind], "cmd")[0]["value"] == pytest.approx(86.0)


def test_one_line_for_each_claim(tmp_path):
  rows = []
  scores_of = {"small-vs-bert": (0.8, 0.7), "roberta-formats": (0.7, 0.7, 0.5, 0.9), "two-stage": (0.7,)}
  for name, scores in scores_of.items():
    for row, score in zip(claims.plan(name, str(tmp_path / name), 1e14), scores):
      finish(row, score, 3.0)
      rows += report.rows_of(name, row, "cmd")
  lines = report.overview(rows).splitlines()
  assert len(lines) == 5 and "[small-vs-bert](#small-vs-bert-electra-table-1)" in lines[2]
  assert "| BERT-Small -10.0 ± 1.4 (paper -4.3) | ELECTRA-Small, GLUE |" in lines[2]
  assert lines[3].endswith(
    "SENTENCE-PAIR, NSP +0.0 ± 1.4 (paper -1.1), noise; FULL-SENTENCES -20.0 ± 1.4 (paper +0.7), **the other sign**; "
    "DOC-SENTENCES +20.0 ± 1.4 (paper +0.7) | SEGMENT-PAIR, NSP, MNLI |")
  assert lines[4].endswith("| held-out losses only | |") and "(#two-stage-electra-figure-3-right)" in lines[4]


def test_a_column_without_seeds_has_no_spread(tmp_path):
  """A perplexity is of one pre-training."""
  rows = claims.plan("roberta-batch", str(tmp_path), 1e14)
  for row in rows:
    finish(row, 0.5, 3.0)
  text = report.table(claims.CLAIMS["roberta-batch"],
                      [one for row in rows for one in report.rows_of("roberta-batch", row, "cmd")])
  assert "| batch 128 (256) | 3.99 | 2.00 | 84.7 | 51.0 ± 1.0 |" in text, text


def test_a_failed_seed_is_not_among_the_scores(tmp_path):
  path = runs.task_results(str(tmp_path), "rte")
  os.makedirs(os.path.dirname(path))
  scores = [0.5, math.nan, 0.75]
  results.write_json(path, {"summary": {"accuracy": scoring.summarise(scores)},
                            "runs": [{"seed": i, "scores": {"accuracy": one}} for i, one in enumerate(scores)]})
  assert report.glue_figures(str(tmp_path), ["rte"])["rte"][2] == [50.0, 75.0]


def test_rows_of_equal_time_follow_the_measured_speeds(tmp_path):
  folder = tmp_path / "fast-vs-faithful"
  folder.mkdir()
  (folder / evidence.CLAIM_FILE).write_text(json.dumps({"flops": 1e14, "settings": [], "command": "cmd"}))
  for row, speed in zip(claims.plan("fast-vs-faithful", str(tmp_path), 1e14), (1e6, 2e6)):
    finish(row, 0.5, 3.0, speed)
  rows = evidence.planned(str(tmp_path), "fast-vs-faithful")
  assert [row.num_steps for row in rows] == [70, 70, 140, 10]  # of :fast the speed is not known yet
  assert {one["model"] for one in evidence.collect(str(tmp_path))} == {"faithful", "no attention dropout"}


def test_rows_of_equal_time_by_speeds_that_were_measured_elsewhere(tmp_path, monkeypatch):
  """Runs that share a device are slower than each would be alone."""
  flags = use_flags(monkeypatch, tmp_path,
                    speed=["electra_small=1e6", "electra_small:fast=3e6", "bert_static=2e6"])
  evidence.record("fast-vs-faithful")
  finish(claims.plan("fast-vs-faithful", str(tmp_path), 1e14)[0], 0.5, 3.0, 1e5)
  flags.speed = []
  evidence.record("fast-vs-faithful")  # goes on with the same
  rows = evidence.planned(str(tmp_path), "fast-vs-faithful")
  assert [(row.model.name, row.num_steps) for row in rows[-2:]] == [("fast", 10), ("fast, equal time", 50)]
  for wrong in ("electra_smal=1e6", "electra_small", "electra_small=0", "electra_small=nan"):
    flags.speed = [wrong]
    with pytest.raises(UserError, match="--speed cannot be used"):
      evidence.record("fast-vs-faithful")


def test_a_folder_holds_one_budget_of_a_claim_and_one_set_of_settings(tmp_path, monkeypatch):
  """Claims share models, which other settings would change."""
  flags = use_flags(monkeypatch, tmp_path, set=["train.batch_size=4"])
  evidence.record("table3")
  evidence.record("table3")
  flags.flops = 2e14
  evidence.record("two-stage")  # another claim may have another budget
  with pytest.raises(UserError, match="runs of another budget"):
    evidence.record("table3")
  flags.set = []
  with pytest.raises(UserError, match="runs with other settings") as error:
    evidence.record("roberta-masking")
  assert "train.batch_size=4" in error.value.got and not (tmp_path / "roberta-masking").exists()


def test_each_way_to_fine_tune_has_its_own_figures(tmp_path, monkeypatch):
  """Other passes, seeds or examples start from the same pre-training, and never show the scores of another way."""
  flags = use_flags(monkeypatch, tmp_path)

  def scores():
    return {one["value"]: one["command"] for one in evidence.collect(str(tmp_path)) if one["metric"] == "glue/rte"}

  evidence.record("small-vs-bert")
  row = evidence.planned(str(tmp_path), "small-vs-bert")[0]
  finish(row, 0.5, 3.0)
  assert os.path.isdir(os.path.join(row.folder, "glue")) and scores().keys() == {51.0}
  flags.glue_set, flags.seeds = ["task.num_epochs=10", "rte:optimizer.learning_rate=1e-4"], 3
  evidence.record("small-vs-bert")
  assert not scores()  # not those of three passes
  again = evidence.planned(str(tmp_path), "small-vs-bert")[0]
  assert again.workdir == row.workdir
  assert os.path.basename(again.sweeps) == "glue-seeds=3-task.num_epochs=10-rte_optimizer.learning_rate=1e-4"
  leave_scores(again, 0.7)
  assert scores() == {71.0: "python -m electra_jax.tools.evidence run small-vs-bert --flops=1e+14 --seeds=3 "
                            "--glue_set=task.num_epochs=10 --glue_set=rte:optimizer.learning_rate=1e-4"}
  flags.glue_set, flags.seeds = [], 5
  evidence.record("small-vs-bert")
  assert scores().keys() == {51.0}
  path = tmp_path / "small-vs-bert" / evidence.CLAIM_FILE
  path.write_text(json.dumps({"flops": 1e14, "settings": [], "command": "of before"}))
  assert scores() == {51.0: "of before"}


def test_new_figures_replace_those_of_the_same_models(tmp_path):
  old = [{"claim": "table3", "model": "BERT", "metric": "glue/rte", "value": 1.0},
         {"claim": "small-vs-bert", "model": "BERT-Small", "metric": "glue/rte", "value": 2.0}]
  new = [{"claim": "table3", "model": "BERT", "metric": "glue/cola", "value": 3.0}]
  assert [one["value"] for one in report.merge(old, new)] == [2.0, 3.0]
  path = str(tmp_path / "docs/evidence.json")
  report.save(path, new)
  assert report.load(path) == new and report.load(str(tmp_path / "none.json")) == []
  (tmp_path / "docs/evidence.json").write_text("[")
  with pytest.raises(UserError, match="damaged"):
    report.load(path)


def test_a_picture_is_not_replaced_by_one_of_fewer_models(tmp_path, monkeypatch, capsys):
  (tmp_path / "small-vs-bert").mkdir()
  (tmp_path / "small-vs-bert" / evidence.CLAIM_FILE).write_text(
    json.dumps({"flops": 1e14, "settings": [], "command": "cmd"}))
  monkeypatch.setattr(evidence, "FLAGS", SimpleNamespace(out=str(tmp_path)))
  electra, bert = claims.plan("small-vs-bert", str(tmp_path), 1e14)
  picture = tmp_path / "small-vs-bert.png"
  finish(electra, 0.5, 3.0)
  evidence.draw("small-vs-bert", str(picture))  # there was none
  picture.write_bytes(b"of both")
  evidence.draw("small-vs-bert", str(picture))
  assert picture.read_bytes() == b"of both" and "no runs of BERT-Small" in capsys.readouterr().out
  finish(bert, 0.5, 3.0)
  evidence.draw("small-vs-bert", str(picture))
  assert picture.stat().st_size > 10_000


# ---- all of it, with the real commands ----


def test_from_text_to_the_page(tmp_path, monkeypatch):
  """`launch/reproduce.sh`: two steps of a tiny BERT, one task of GLUE; again: nothing runs; publish writes."""
  corpus = "".join("".join(f"word{(i * j) % 19} and word{j % 7} meet\n" for j in range(12)) + "\n" for i in range(60))
  (tmp_path / "text.txt").write_text(corpus)
  glue = tmp_path / "glue/SST-2"
  glue.mkdir(parents=True)
  for split in ("train", "dev"):
    (glue / f"{split}.tsv").write_text("sentence\tlabel\n" + "".join(f"word{i} meet\t{i % 2}\n" for i in range(8)))
  small = {"model.hidden_size": 16, "model.embedding_size": 16, "model.num_hidden_layers": 1,
           "model.num_attention_heads": 1, "model.intermediate_size": 16, "model.max_position_embeddings": 128,
           "data.tokenizer.vocab_size": 120, "data.heldout_share": 0.5, "data.num_workers": 1,
           "data.reader": "threads", "train.batch_size": 4, "train.compute_dtype": "float32",
           "train.log_every_steps": 1, "log.tensorboard": "false"}
  environment = os.environ | {"DATA": str(tmp_path / "text.txt"), "GLUE": str(tmp_path / "glue"), "FLOPS": "4e7",
                              "OUT": str(tmp_path / "out"), "PYTHON": sys.executable,
                              "XLA_FLAGS": "--xla_backend_optimization_level=0"}
  settings = ["--only=bert_static", "--tasks=sst2", "--seeds=2", "--glue_at_once=1", "--glue_set=task.num_epochs=1",
              "--glue_set=train.compute_dtype=float32", *(f"--set={key}={value}" for key, value in small.items())]

  def reproduce(*arguments):
    done = subprocess.run([ROOT / "launch/reproduce.sh", *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

  assert "| static | 84.3 |" in reproduce("roberta-masking", *settings)
  (out,) = (tmp_path / "out/models").glob("bert_static-*")
  (steps,) = checkpoints.saved_steps(str(out / "pretrain"))[-1:]
  written = json.loads((tmp_path / "out/evidence.json").read_text())
  metric = {one["metric"]: one for one in written}
  assert {"glue/sst2", "heldout/mlm/perplexity"} <= metric.keys() and metric["glue/sst2"]["seeds"] == 2
  assert metric["glue/sst2"]["steps"] == metric["glue/sst2"]["planned_steps"] == steps
  assert metric["glue/sst2"]["command"].startswith("FLOPS=4e7 launch/reproduce.sh roberta-masking")
  monkeypatch.setattr(runs.Running, "call", None)  # what is finished is not run again
  row = evidence.planned(str(tmp_path / "out"), "roberta-masking")[0]
  assert row.num_steps == steps == 2
  runs.run([(row, ["sst2"])], place(tmp_path, glue=environment["GLUE"]), lambda: None)
  reproduce("publish", f"--results={tmp_path}/docs/results", f"--page={tmp_path}/docs/results.md")
  page = (tmp_path / "docs/results.md").read_text()
  assert "\n## roberta-masking:" in page and "![curves of roberta-masking](results/roberta-masking.png)" in page
  assert (tmp_path / "docs/results/roberta-masking.png").exists()


def test_the_page_shows_the_figures_that_are_here():
  """If this fails: python -m electra_jax.tools.evidence publish"""
  rows = report.load(str(ROOT / "docs/results/evidence.json"))
  assert rows and (ROOT / "docs/results.md").read_text() == report.page(rows, str(ROOT / "docs/results"), "results")


def test_who_does_not_stop_is_ended(tmp_path, monkeypatch):
  monkeypatch.setattr(runs, "GRACE_SECONDS", 0.1)
  running = runs.Running()
  log = str(tmp_path / "log.txt")
  script = ("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); "
            "time.sleep(30)")
  thread = threading.Thread(target=running.call, args=([sys.executable, "-c", script], log, "", 0.0))
  thread.start()
  with running.stop_all_on_signals():
    while "ready\n" not in (pathlib.Path(log).read_text().split("\n", 1)[-1] if os.path.exists(log) else ""):
      time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)  # noted, and passed on
    while thread.is_alive():
      thread.join(0.05)
      running.end_stragglers()
  assert running.stopped and running.call(["false"], log, "", 0.0) == Interrupted.STATUS  # nothing starts any more
