"""Experiments: fair budgets, resumed runs, sober tables, and the page of results."""

import contextlib
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from ml_collections import ConfigDict, FrozenConfigDict

from configs.finetune import glue as glue_recipe
from electra_jax import config as config_lib
from electra_jax import flops, metrics, pretrain, recipes
from electra_jax.errors import Interrupted, UserError
from electra_jax.finetuning import results
from electra_jax.tasks import glue, scoring
from electra_jax.tools import appendix_e
from electra_jax.tools.experiments import __main__ as command
from electra_jax.tools.experiments import finetuning, probe, processes, publish, records, report, rows, runs
from electra_jax.tools.experiments import results as figures
from electra_jax.tools.experiments.finetuning import Point, Tuning
from electra_jax.tools.experiments.rows import Budget
from electra_jax.training import checkpoints
from tests.conftest import ONE_DEVICE, ROOT
from tests.small_runs import write_corpus

RECIPES = list(recipes.load_file(recipes.find("evidence")).ROWS)
# What may differ from ELECTRA-Small's recipe in a row of the same table.
VARIED = {"bert_batch": {"train.batch_size", "optimizer.learning_rate"},
          "electra_lamb": {"optimizer.name", "optimizer.learning_rate"},
          "bert_segment_pair": {"data.short_sequence_share"},
          "electra_sinusoids": {"model.position_init"}, "bert_sinusoids": {"model.position_init"},
          "preprint_adamw": set(), "preprint_uncorrected": {"optimizer.bias_correction"},
          "preprint": {"optimizer.name", "optimizer.learning_rate"},
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
               if not key.startswith(("objective.", "data.masking.", "data.format", "generator.",
                                       "train.steps_per_dispatch"))}
  differing -= allowed | ({"eval.batch_size"} if "train.batch_size" in allowed else set())
  assert not differing
  assert name not in VARIED or allowed <= set(config_lib.diff(base, config))
  assert config.optimizer.warmup_steps == config.train.num_steps // 10
  for budget in (3e16, 1e17):
    per_step = flops.paper_flops(config).per_step
    assert abs(flops.steps_within(config, budget) * per_step - budget) <= per_step / 2
  assert flops.steps_within(config, 1.0) == 1


def plan(name, out, flops=1e14, **options):
  """The models of a table of configs/evidence.py, or of another one by FILE:NAME."""
  fields = {key: options.pop(key) for key in list(options) if key in Budget._fields}
  (table,) = rows.tables_of([name])
  return rows.plan(table, str(out), Budget(flops=flops, **fields), **options)


def test_every_row_is_in_a_table_and_the_papers_numbers_are_theirs():
  for file, names in (("evidence", RECIPES), ("ablations", recipes.load_file(recipes.find("ablations")).ROWS)):
    used = {model.recipe.partition(":")[2].partition(",")[0] for one in rows.tables(file).values()
            for model in one.models}
    assert used == set(names)
  numbers = {name: [list(model.paper.values()) for model in one.models] for name, one in rows.tables().items()}
  assert numbers["small-vs-bert"] == [[79.0], [74.7]]  # ELECTRA Table 1
  assert numbers["table3"] == [[85.0], [84.3], [82.4], [82.4], [82.2]]
  assert numbers["roberta-masking"] == [[84.3, 92.5], [84.0, 92.9]]
  assert numbers["roberta-formats"] == [[84.0, 92.9], [82.9, 92.1], [84.7, 92.5], [84.7, 92.7]]
  assert numbers["roberta-batch"] == [[3.99, 84.7, 92.7], [3.68, 85.2, 92.9], [3.77, 84.6, 92.8]]
  ablations = rows.tables("ablations")
  assert [model.paper["average"] for model in ablations["tying"].models] == [83.6, 84.3, 84.4]  # section 3.2
  for name, model in [(name, model) for name, one in ablations.items() for model in one.models]:
    about = recipes.load(model.recipe)[0]  # says the same numbers
    assert all(f"{number:g}" in about or f"{number:.1f}" in about for number in model.paper.values()), (name, model)


def test_every_task_of_a_table_can_be_run():
  assert set(rows.tables()["small-vs-bert"].tasks) == set(glue.GLUE)
  for one in rows.tables().values():
    assert set(one.tasks) <= set(finetuning.ORDER)
    assert {f"{task}:task.max_length" for task in one.tasks} <= {key.partition("=")[0] for key in one.fine_tuning}


def test_a_grid_has_a_run_for_every_choice(tmp_path):
  """ELECTRA Appendix A's search of lambda and rates, Appendix B's of the layer decay."""
  (table,) = rows.tables_of(["ablations:roberta_table4"])
  assert [row.num_steps for row in rows.plan(table, "out", Budget(steps=10))] == [10, 10, 30, 50]
  (table,) = rows.tables_of(["small-vs-bert"])
  grid = ["objective.rtd_weight=10,50", "optimizer.learning_rate=1e-4,5e-4"]
  found = rows.plan(rows.with_grid(table, grid), "out", Budget(steps=10, grid=grid))
  assert [(row.config.objective.rtd_weight, row.config.optimizer.learning_rate) for row in found[:4]] == [
    (10, 1e-4), (10, 5e-4), (50, 1e-4), (50, 5e-4)]
  assert len({row.folder for row in found}) == len({row.model.name for row in found}) == 8
  assert found[0].folder == "out/models/evidence_electra_small-rtd_weight=10-learning_rate=1e-4-10"
  assert "--config.objective.rtd_weight=10.0" in runs.pretrain_command(found[0], paths(tmp_path))
  grid = ["optimizer.learning_rate=1e-4,5e-5", "task.layer_decay=0.9,0.8,0.7"]
  points = finetuning.grid(["cola"], Tuning(grid=grid))
  assert len(points) == 6 and points[0].folder("out") == "out/cola/learning_rate=1e-4_layer_decay=0.9"
  assert "task.layer_decay=0.9" in finetuning.recipe_and_settings(points[0], Tuning(), "w", "GLUE")[1]


def test_budgets_are_equal_in_flops_or_steps():
  electra, bert = plan("small-vs-bert", "out", 1e17)
  assert electra.flops == pytest.approx(1e17, rel=1e-4) and bert.flops == pytest.approx(1e17, rel=1e-4)
  assert electra.config.train.num_steps == electra.num_steps == 77_260
  assert electra.folder == "out/models/evidence_electra_small-77260"
  assert bert.num_steps == 102_150  # of 102 157: the last seven would need a program of their own
  long = runs.pretrain_command(bert, paths(pathlib.Path("out")))
  assert "--config.eval.every_steps=10210" in long and "--config.checkpoint.every_steps=10210" in long
  papers = plan("small-vs-bert", "out", 1e17, settings=["generator.width_fraction=0.5"])
  assert bert.num_steps / papers[0].num_steps == pytest.approx(1.45, abs=0.01)  # the paper's 1.45M and 1M steps
  sizes = plan("generator-size", "out", 1e16)
  assert len({row.num_steps for row in sizes}) == 1 and sizes[0].flops < sizes[1].flops < sizes[2].flops
  faithful, _, longer, fast, timed = plan("fast-vs-faithful", "out", 1e16)
  assert fast.config.train.batch_size == 4 * faithful.config.train.batch_size
  assert fast.flops == pytest.approx(faithful.flops, rel=1e-3) and ":" not in fast.folder
  assert longer.num_steps / faithful.num_steps == pytest.approx(5.08 / 5.02, rel=2e-3)
  assert timed.num_steps / faithful.num_steps == pytest.approx(7.83 / 5.30 / 4, rel=2e-3)
  assert "1,266 M tokens" in rows.describe(rows.tables()["small-vs-bert"], [electra])
  assert [row.model.recipe for row in plan("table3", "out", 1e16, only=["electra_15"])] == ["evidence:electra_15"]


def test_equal_flops_give_each_recipe_its_own_steps():
  ablation = plan("ablations:table3", "out", 1e19)
  assert all(flops.paper_flops(row.config).per_run == pytest.approx(1e19, rel=1e-4) for row in ablation)
  steps = {row.model.name: row.num_steps for row in ablation}
  assert steps["BERT"] > steps["ELECTRA"] > steps["All-Tokens MLM"]


def test_warm_up_and_stages_follow_the_steps():
  (table,) = rows.tables_of(["configs/base.py", "ablations:figure3_two_stage"])
  base, two_stage = rows.plan(table, "out", Budget(steps=7660))
  assert base.config.optimizer.warmup_steps == 100 and two_stage.config.objective.generator_steps == 3830
  fixed, _ = rows.plan(table, "out", Budget(steps=7660, settings=["optimizer.warmup_steps=7"]))
  assert fixed.config.optimizer.warmup_steps == 7


def test_equal_data_is_shared_and_masks_do_not_count(tmp_path):
  tables = rows.tables_of(["ablations:table3_electra,tiny", "ablations:table3_bert,tiny",
                           "ablations:roberta_table2_doc_sentences,tiny"])
  planned = rows.plan(tables[0], str(tmp_path), Budget(steps=4, pretrainings=2))
  shards = [runs.shards_path(row, paths(tmp_path)) for row in planned]
  assert planned[0].config.data.masking != planned[1].config.data.masking
  assert shards[0] == shards[1] == shards[3] and shards[2] != shards[0]
  assert [os.path.basename(row.folder) for row in planned[::3]] == ["ablations_table3_electra_tiny-4",
                                                                    "ablations_table3_electra_tiny-4-seed_1"]


@pytest.mark.parametrize("arguments, changes, said", [
  (["table3"], dict(settings=["model.hiden_size=3"]), "write model.hidden_size=3"),
  (["table3"], dict(settings=["train.num_steps=3"]), "--steps, --flops"),
  (["table3"], dict(settings=["train.batch_size=many"]), "not an integer"),
  (["table3"], dict(steps=4, flops=1.0), "budget is unclear"), (["ablations:table3"], {}, "budget is unclear"),
  (["nowhere.py"], {}, "experiment is unknown"), (["table9"], {}, "choose table3, or"), ([], {}, "is unknown"),
  (["small", "configs/small.py"], {}, "same name")])
def test_mistakes_are_reported(arguments, changes, said):
  with pytest.raises(UserError, match=said):
    for table in rows.tables_of(arguments):
      rows.plan(table, "out", Budget(**changes))


@pytest.mark.parametrize("arguments, flags, said", [
  (["small-vs-bert"], dict(only=["electra_smal"]), "use --only=electra_small"),
  (["small-vs-bert"], dict(init_from="runs/base"), "leave them out"),
  ([], dict(init_from="runs/base", set=["task.num_epochs=1"]), "--glue_set"),
  ([], dict(tasks=["rte", "colla"]), "use --tasks=cola"),
  (["small-vs-bert"], dict(glue_set=["rtee:task.num_epochs=1"]), "write rte:KEY=VALUE"),
  (["small-vs-bert"], dict(glue="nowhere"), "check the path"),
  (["small-vs-bert"], dict(glue_grid=["task.epochs=1,2"]), "write task.num_epochs=1"),
  ([], dict(tasks=["rte", "mrpc"], from_mnli=True), "use --tasks=mnli,rte,mrpc")])
def test_a_command_that_would_do_less_than_it_says(tmp_path, monkeypatch, arguments, flags, said):
  use_flags(monkeypatch, tmp_path, **flags)
  with pytest.raises(UserError) as caught:
    command.run(arguments)
  assert said in caught.value.fix


def test_a_folder_without_experiments_is_not_published(tmp_path):
  with pytest.raises(UserError, match="no experiments to publish"):
    publish.publish(str(tmp_path / "misspelt"), str(tmp_path))
  assert not (tmp_path / "misspelt").exists()


def test_a_probe_without_a_workdir(monkeypatch):
  monkeypatch.setattr(probe, "FLAGS", SimpleNamespace(workdir=None))
  with pytest.raises(UserError, match="--workdir is missing"):
    probe.main(["probe"])


# ---- running: the commands are replaced by ones that only leave what the real ones would ----


def fake_commands(monkeypatch, script):
  monkeypatch.setattr(runs, "pretrain_command", lambda row, paths: [sys.executable, "-c", script, row.folder])
  monkeypatch.setattr(runs, "is_trained", lambda row: os.path.exists(os.path.join(row.folder, "done")))


def paths(tmp_path, **changes):
  return runs.Paths(data="", shards=str(tmp_path / "data"))._replace(**changes)


def run(planned, where, after=lambda: None, devices=("3", "5"), tasks=("rte",)):
  running = processes.Running(devices, 4)
  processes.run_all([(row.model.name, lambda row=row: runs.make(
    row, tasks, where, Tuning(), running, probe=False, after_each=after)) for row in planned], running)


def use_flags(monkeypatch, tmp_path, **changes):
  """The command's flags, with the defaults of those that are read here."""
  values = {"out": str(tmp_path), "data": "", "shards": "", "vocabulary": "", "glue": "", "devices": [],
            "glue_at_once": None, "probe": False, "only": [], "tasks": [], "init_from": "",
            "set": [], "glue_set": [], "grid": [], "glue_grid": [], "paper": "", "from_mnli": False, "ensemble": 0}
  monkeypatch.setattr(command, "FLAGS", SimpleNamespace(**values | changes))


def record(name, tmp_path, tuning=None, command="cmd", **budget):
  (table,) = rows.tables_of([name])
  records.record(str(tmp_path), table, Budget(**{"flops": 1e14, **budget}), tuning or {}, command)
  return table


def test_models_run_side_by_side_and_only_once(tmp_path, monkeypatch, capsys):
  fake_commands(monkeypatch, "import os, sys; f = sys.argv[1]; os.makedirs(f + '/pretrain', exist_ok=True); "
                             "open(f + '/done', 'w'); open(f + '/gpu', 'a').write(os.environ['CUDA_VISIBLE_DEVICES'])")
  planned, after = plan("small-vs-bert", tmp_path), []
  for _ in range(2):
    run(planned, paths(tmp_path), lambda: after.append(1))
  assert sorted(pathlib.Path(row.folder, "gpu").read_text() for row in planned) == ["3", "5"]  # each once
  assert len(after) == 4
  assert "pre-training is finished" in capsys.readouterr().out


def test_models_on_one_device_share_its_memory(tmp_path, monkeypatch):
  monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
  fake_commands(monkeypatch, "import os, sys; f = sys.argv[1]; os.makedirs(f + '/pretrain', exist_ok=True); open("
                             "f + '/done', 'w').write(os.environ.get('XLA_PYTHON_CLIENT_MEM_FRACTION', 'all of it'))")
  for devices, share in ((("3", "3"), "0.425"), (("3", "5"), "all of it")):
    planned = plan("small-vs-bert", tmp_path / share)
    run(planned, paths(tmp_path / share), devices=devices)
    assert {pathlib.Path(row.folder, "done").read_text() for row in planned} == {share}


def test_tables_share_models_and_devices(tmp_path, monkeypatch):
  seen = {}
  use_flags(monkeypatch, tmp_path)
  monkeypatch.setattr(runs, "make", lambda row, tasks, *_, **__: seen.update({row.model.recipe: tasks}))
  monkeypatch.setattr(runs, "prepare", lambda *_: None)
  tables = [record(name, tmp_path) for name in ("roberta-masking", "table3")]
  command.run_rows(tables)
  assert set(seen) == {f"evidence:{name}" for name in ("bert_static", "bert_small", "electra_small", "all_tokens_mlm",
                                                       "replace_mlm", "electra_15")}
  assert seen["evidence:bert_static"] == ["mnli", "sst2"]
  assert sorted(seen["evidence:bert_small"]) == sorted(rows.GLUE)


def test_a_failure_names_its_log(tmp_path, monkeypatch):
  planned = plan("small-vs-bert", tmp_path)
  fake_commands(monkeypatch, "raise SystemExit('no such thing')")
  with pytest.raises(UserError, match="2 of 2 runs failed") as caught:
    run(planned, paths(tmp_path))
  assert "no such thing" in caught.value.got and "pretrain.log" in caught.value.got


def test_commands_carry_budget_data_and_settings_of_glue(tmp_path):
  row = plan("small-vs-bert", tmp_path, settings=["log.tensorboard=false"])[0]
  words = runs.pretrain_command(row, paths(tmp_path))
  assert {"--config.eval.every_steps=7", "--config.train.num_steps=70", "--config.log.tensorboard=False",
          f"--config.data.shards_path={runs.shards_path(row, paths(tmp_path))}"} <= set(words)
  assert re.search(r"/data/wordpiece-\w+/ELECTRA-128-\w+/shards", runs.shards_path(row, paths(tmp_path)))
  tuning = Tuning(settings=[*rows.tables()["table3"].fine_tuning, "task.num_epochs=1"])
  points = finetuning.grid(["rte", "mnli"], tuning)
  assert [point.task for point in points] == ["mnli", "rte"]
  recipe_name, settings = finetuning.recipe_and_settings(points[1], tuning, row.workdir, "GLUE")
  words = finetuning.command(points[1], "out", recipe_name, settings)
  assert {"--config=configs/finetune/glue.py:rte", "--config.optimizer.learning_rate=3e-4", "--workdir="
          "out/rte/recipe", "--config.task.max_train_examples=12000", "--config.task.max_length=128",
          "--config.task.num_epochs=1", "--config.task.data_dir=GLUE"} <= set(words)
  with pytest.raises(UserError, match="no shards of this format"):
    runs.prepare([row], paths(tmp_path))


# ---- what came out ----


def finish(row, score, loss, speed=1e6):
  """A model's folder as its runs leave it, with `leave_scores`."""
  folder = os.path.join(row.folder, "pretrain")
  os.makedirs(folder)
  given = ConfigDict(row.given.to_dict())
  given.log.tensorboard = False
  config_lib.save(os.path.join(folder, "config.json"), given, row.config)
  writer = metrics.MetricWriter(folder, given.log, per_step={"tokens": 1000})
  writer.write(row.num_steps, "train", {"mlm/loss": loss, "train/tokens_per_second": speed})
  writer.write(row.num_steps, "eval", {"mlm/loss": loss, "mlm/perplexity": 2.0, "time/goodput": 0.9})
  writer.close()
  leave_scores(row, score)


def leave_scores(row, score):
  """What a sweep leaves; the score of seed i is `score` + i per cent."""
  for task in rows.GLUE:
    metric = {"cola": "matthews", "stsb": "spearman"}.get(task, "accuracy")
    scores = [{metric: score + i / 100} | ({"matched/accuracy": score + i / 100} if task == "mnli" else {})
              for i in range(3)]
    path = task_results(row, task)
    os.makedirs(os.path.dirname(path))
    results.write_json(path, {"summary": {name: scoring.summarise([one[name] for one in scores])
                                          for name in scores[0]},
                              "runs": [{"seed": i, "scores": one} for i, one in enumerate(scores)]})


def task_results(row, task):
  return Point(task).results(figures.sweep_folder(row, row.num_steps))


def test_figures_table_and_verdict(tmp_path):
  planned = plan("small-vs-bert", tmp_path)
  table = rows.tables()["small-vs-bert"]
  assert figures.rows_of(table, planned[0], "cmd", Tuning()) == []  # not begun
  failed = pathlib.Path(planned[0].folder, "pretrain")
  failed.mkdir(parents=True)
  (failed / metrics.FILE_NAME).touch()
  assert figures.rows_of(table, planned[0], "cmd", Tuning()) == []  # ended before its first line
  shutil.rmtree(failed)
  finish(planned[0], 0.80, 3.0)
  finish(planned[1], 0.70, 4.0)
  found = [one for row in planned for one in figures.rows_of(table, row, "cmd", Tuning())]
  average = found[0]
  assert {"claim", "model", "metric", "value", "seeds", "spread", "train_flops", "minutes", "card",
          "command"} <= average.keys()
  assert (average["metric"], average["seeds"], average["paper"]) == ("glue/average", 3, 79.0)
  assert average["value"] == pytest.approx(81.0) and average["spread"] == pytest.approx(1.0)
  assert average["runs"] == [80.0, 81.0, 82.0]
  assert average["train_flops"] == pytest.approx(planned[0].flops) and average["tokens"] == 1000 * average["steps"]
  assert average["minutes"] == pytest.approx(70 * 128 * 128 / 1e6 / 60, abs=0.01)
  text = report.table(table, found)
  assert "| ELECTRA-Small | 79.0 | 81.0 ± 1.0 | 81.0 |" in text and "| BERT-Small | 74.7 | 71.0 ± 1.0 |" in text
  assert "MLM loss 3.000" in text
  assert report.differences(table, found) == [
    "* BERT-Small − ELECTRA-Small, GLUE: -4.30 in the paper, -10.00 ± 1.41 here: the same sign."]
  closer = [one | {"value": one["value"] + 9} if one["model"] == "BERT-Small" else one for one in found]
  assert "within noise" in report.differences(table, closer)[0]
  os.remove(task_results(planned[1], "rte"))
  partial = {one["metric"] for one in figures.rows_of(table, planned[1], "cmd", Tuning())}
  assert "glue/average" not in partial and "glue/mnli" in partial
  assert report.draw(table, planned, found, str(tmp_path / "curves.png"))
  assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_several_pretrainings_of_each_model(tmp_path):
  table = record("small-vs-bert", tmp_path, pretrainings=2)
  planned = records.planned(str(tmp_path), table)
  assert [(row.model.key, row.config.seed) for row in planned] == [
    ("electra_small", 0), ("bert_small", 0), ("electra_small", 1), ("bert_small", 1)]  # all of seed 0 first
  assert planned[2].folder == f"{planned[0].folder}-seed_1"
  assert "--config.seed=1" in runs.pretrain_command(planned[2], paths(tmp_path))
  assert "2 pre-trainings" in rows.describe(table, planned)
  for row, score in zip(planned, (0.8, 0.7, 0.9, 0.74)):
    finish(row, score, 3.0)
  found = records.collect(str(tmp_path))
  average = found[0]
  assert average["value"] == pytest.approx(86.0) and average["spread"] == pytest.approx(math.sqrt(50))
  assert (average["runs"], average["pretrainings"], average["seeds"]) == ([81.0, 91.0], 2, 3)
  assert "| Pre-trainings |" in report.table(table, found) and "| 86.0 ± 7.1 |" in report.table(table, found)
  error = math.hypot(math.sqrt(50), math.sqrt(8)) / math.sqrt(2)
  assert report.compare(table, found)[0].noise == pytest.approx(error)
  assert report.differences(table, found)[0].endswith("-13.00 ± 5.39 here: within noise.")  # 2.4 times
  assert report.draw(table, planned, found, str(tmp_path / "curves.png"))
  behind = planned[0]._replace(folder=f"{planned[0].folder}-seed_2",  # half-way
                               config=FrozenConfigDict(with_steps(planned[0].config, 35)))
  finish(behind, 0.1, 9.0)
  assert figures.figures_of(table, [planned[0], planned[2], behind], "cmd", Tuning())[0]["value"] == pytest.approx(86.0)


def with_steps(config, num_steps):
  changed = ConfigDict(config.to_dict())
  changed.train.num_steps = num_steps
  return changed


def test_one_line_for_each_difference(tmp_path):
  found = []
  scores_of = {"small-vs-bert": (0.8, 0.7), "roberta-formats": (0.7, 0.5, 0.7, 0.9), "two-stage": (0.7,)}
  for name, scores in scores_of.items():
    for row, score in zip(plan(name, tmp_path / name), scores):
      finish(row, score, 3.0)
      found += figures.rows_of(rows.tables()[name], row, "cmd", Tuning())
  notebook = tmp_path / "notebook.md"
  notebook.write_text("## sinusoids\n\nThe curves of runs that were stopped.\n")
  lines = publish.claims(found, notebook).splitlines()
  assert lines[2].startswith("| [small-vs-bert](small-vs-bert.md): ELECTRA-Small is ahead of BERT-Small")
  assert "| BERT-Small − ELECTRA-Small, GLUE | -4.3 | -10.0 ± 1.4 |" in lines[2] and lines[2].endswith("| confirmed |")
  expected = [("-20.0", "confirmed"), ("+0.0", "within noise"), ("+20.0", "budget too small")]
  for line, (ours, word) in zip(lines[3:6], expected):
    assert f"| {ours} ± 1.4 |" in line and line.endswith(f"| {word} |")
  assert lines[6].startswith("| [two-stage](two-stage.md): ") and lines[6].endswith("| one model only |")
  assert any(line.startswith("| table3: ") and line.endswith("| not run |") for line in lines)
  in_part = [line for line in lines if line.endswith("| curves only |")]
  assert len(in_part) == 1 and in_part[0].startswith("| [sinusoids](notebook.md#sinusoids): ")


def test_a_column_without_seeds_has_no_spread(tmp_path):
  """A perplexity is of one pre-training."""
  planned, table = plan("roberta-batch", tmp_path), rows.tables()["roberta-batch"]
  for row in planned:
    finish(row, 0.5, 3.0)
  text = report.table(table, [one for row in planned for one in figures.rows_of(table, row, "cmd", Tuning())])
  assert "| batch 128 (256) | 3.99 | 2.00 | 84.7 | 51.0 ± 1.0 |" in text, text


def test_a_failed_seed_is_not_among_the_scores(tmp_path):
  scores = [0.5, math.nan, 0.75]
  leave_results(tmp_path, Point("rte"), "accuracy", scores)
  assert figures.glue_figures(str(tmp_path), ["rte"], Tuning())["rte"][2] == [50.0, 75.0]


def leave_results(out, point, metric, scores):
  path = point.results(str(out))
  os.makedirs(os.path.dirname(path))
  results.write_json(path, {"summary": {metric: scoring.summarise(scores)},
                            "runs": [{"seed": i, "scores": {metric: one}} for i, one in enumerate(scores)]})


def test_a_task_counts_at_its_best_learning_rate(tmp_path):
  tuning = Tuning(grid=["optimizer.learning_rate=1e-4,3e-4"])
  for point, score in zip(finetuning.grid(["rte"], tuning), (0.6, 0.7)):
    leave_results(tmp_path, point, "accuracy", [score])
  assert figures.glue_figures(str(tmp_path), ["rte"], tuning)["rte"][0] == pytest.approx(70.0)


def test_a_folder_holds_one_budget_of_a_table_and_one_set_of_settings(tmp_path):
  """Tables share models, which other settings would change."""
  settings = ["train.batch_size=4"]
  for _ in range(2):
    record("table3", tmp_path, settings=settings)
  record("two-stage", tmp_path, flops=2e14, settings=settings)  # another table may have another budget
  path = tmp_path / records.FILE
  path.write_text(path.read_text().replace('"flops"', '"hours"'))
  with pytest.raises(UserError, match="of another version"):
    records.recorded(str(tmp_path))
  path.write_text(path.read_text().replace('"hours"', '"flops"'))
  with pytest.raises(UserError, match="runs of another budget"):
    record("table3", tmp_path, flops=2e14, settings=settings)
  with pytest.raises(UserError, match="runs of another budget"):
    record("table3", tmp_path, flops=None, steps=4, settings=settings)
  with pytest.raises(UserError, match="runs with other settings") as error:
    record("roberta-masking", tmp_path)
  assert "train.batch_size=4" in error.value.got and set(records.recorded(str(tmp_path))) == {"table3", "two-stage"}


def test_each_way_to_fine_tune_has_its_own_figures(tmp_path, monkeypatch):
  """Other passes, seeds or examples start from the same pre-training, and never show the scores of another way."""
  def scores():
    return {one["value"]: one["command"] for one in records.collect(str(tmp_path)) if one["metric"] == "glue/rte"}

  table = record("small-vs-bert", tmp_path)
  row = records.planned(str(tmp_path), table)[0]
  finish(row, 0.5, 3.0)
  assert os.path.isdir(os.path.join(row.folder, "glue")) and scores().keys() == {51.0}
  use_flags(monkeypatch, tmp_path, glue_set=["task.num_seeds=3", "task.num_epochs=10",
                                             "rte:optimizer.learning_rate=1e-4"])
  record("small-vs-bert", tmp_path, command.own_tuning(), "again")
  assert not scores()  # not those of three passes
  again = records.planned(str(tmp_path), table)[0]
  assert again.workdir == row.workdir
  assert os.path.basename(again.sweeps) == (
    "glue-task.num_seeds=3-task.num_epochs=10-rte_optimizer.learning_rate=1e-4")
  leave_scores(again, 0.7)
  assert scores() == {71.0: "again"}
  record("small-vs-bert", tmp_path)
  assert scores().keys() == {51.0}


def test_the_command_of_a_figure_has_no_places(tmp_path, monkeypatch):
  monkeypatch.delenv(command.COMMAND_VARIABLE, raising=False)
  monkeypatch.setattr(sys, "argv", ["x", "run", "table3", "--flops=1e15", "--glue_set=task.num_epochs=1",
                                    "--glue=/glue", "--out=/out", "--devices=0,1"])
  assert command.repeated() == ("python -m electra_jax.tools.experiments run table3 --flops=1e15 "
                                "--glue_set=task.num_epochs=1")


def test_new_figures_replace_those_of_the_same_models(tmp_path):
  old = [{"claim": "table3", "model": "BERT", "metric": "glue/rte", "value": 1.0},
         {"claim": "small-vs-bert", "model": "BERT-Small", "metric": "glue/rte", "value": 2.0}]
  new = [{"claim": "table3", "model": "BERT", "metric": "glue/cola", "value": 3.0}]
  assert [one["value"] for one in publish.merge(old, new)] == [2.0, 3.0]
  path = str(tmp_path / "docs/evidence.json")
  figures.save(path, new)
  assert figures.load(path) == new and figures.load(str(tmp_path / "none.json")) == []


def test_a_picture_is_not_replaced_by_one_of_fewer_models(tmp_path, capsys):
  table = record("small-vs-bert", tmp_path)
  electra, bert = plan("small-vs-bert", tmp_path)
  picture = tmp_path / "small-vs-bert.png"
  finish(electra, 0.5, 3.0)
  publish.draw(table, str(tmp_path), str(picture))  # there was none
  picture.write_bytes(b"of both")
  publish.draw(table, str(tmp_path), str(picture))
  assert picture.read_bytes() == b"of both" and "no runs of BERT-Small" in capsys.readouterr().out
  finish(bert, 0.5, 3.0)
  publish.draw(table, str(tmp_path), str(picture))
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
                              "XLA_FLAGS": ONE_DEVICE}
  settings = ["--only=bert_static", "--tasks=sst2", "--glue_at_once=1", "--glue_set=task.num_seeds=2",
              "--glue_set=task.num_epochs=1", "--glue_set=train.compute_dtype=float32",
              *(f"--set={key}={value}" for key, value in small.items())]

  def reproduce(*arguments):
    done = subprocess.run([ROOT / "launch/reproduce.sh", *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

  assert "| static | 84.3 |" in reproduce("roberta-masking", *settings)
  (out,) = (tmp_path / "out/models").glob("evidence_bert_static-*")
  (steps,) = checkpoints.saved_steps(str(out / "pretrain"))[-1:]
  written = json.loads((tmp_path / "out/results.json").read_text())
  metric = {one["metric"]: one for one in written}
  assert {"glue/sst2", "heldout/mlm/perplexity"} <= metric.keys() and metric["glue/sst2"]["seeds"] == 2
  assert metric["glue/sst2"]["steps"] == metric["glue/sst2"]["planned_steps"] == steps
  assert metric["glue/sst2"]["command"].startswith("FLOPS=4e7 launch/reproduce.sh roberta-masking")
  assert "| static | 84.3 |" in (tmp_path / "out/roberta-masking.md").read_text()
  assert (tmp_path / "out/roberta-masking.png").exists()
  monkeypatch.setattr(processes.Running, "call", None)  # what is finished is not run again
  table, tuning = rows.tables()["roberta-masking"], records.recorded(str(tmp_path / "out"))["roberta-masking"]["tuning"]
  row = records.planned(str(tmp_path / "out"), table)[0]
  assert row.num_steps == steps == 2
  running = processes.Running()
  runs.make(row, ["sst2"], paths(tmp_path, glue=environment["GLUE"]), Tuning(**tuning), running, probe=False,
            after_each=lambda: None)
  environment["PYTHON"] = "echo"  # only says what it would run
  assert reproduce("publish").startswith(f"-m electra_jax.tools.experiments publish --out={tmp_path}/out ")
  use_flags(monkeypatch, tmp_path, out=f"{tmp_path}/out", results=f"{tmp_path}/docs/results")
  command.COMMANDS["publish"]([])
  assert "[roberta-masking](roberta-masking.md)" in (tmp_path / "docs/results/README.md").read_text()
  assert "![roberta-masking](roberta-masking.png)" in (tmp_path / "docs/results/roberta-masking.md").read_text()
  assert (tmp_path / "docs/results/roberta-masking.png").exists()


def test_the_pages_show_the_figures_that_are_here():
  """If this fails: python -m electra_jax.tools.experiments publish"""
  folder = ROOT / "docs/results"
  texts = publish.pages(figures.load(str(folder / "evidence.json")), str(folder))
  assert len(texts) > 9 and texts == {name: (folder / name).read_text() for name in texts}


def test_verdicts_count_the_chance_of_pretraining():
  of = rows.tables()["table3"]

  def row(model, value, **more):
    return {"claim": "table3", "model": model, "metric": "glue/average", "value": value, "spread": 0.1,
            "train_flops": 8e15} | more

  figures_of = [row("ELECTRA", 60.0), row("BERT", 58.0)]
  several = [row("Replace MLM", 50.0, spread=2.0, pretrainings=3),
             row("Replace MLM", 45.0, spread=3.0, pretrainings=3, train_flops=2e15)]
  chance = publish.chance_of_pretraining(several, 1e17)
  assert chance == {"glue/average": 2.0}
  assert [publish.chance_of_pretraining(several, budget) for budget in (4e15, 1e15)] == [{"glue/average": 3.0}] * 2
  (alone,), (counted,) = report.compare(of, figures_of), report.compare(of, figures_of, chance)
  assert [publish.verdict(of, one) for one in (alone, counted)] == ["confirmed", "within noise"]
  assert publish.verdict(of, counted._replace(ours=6.0)) == "opposite"
  assert publish.verdict(of._replace(too_small=("BERT",)), counted._replace(ours=6.0)) == "budget too small"
  behind, = report.compare(of._replace(behind=("BERT",), models=tuple(model._replace(paper={}) for model in of.models)),
                           figures_of)
  assert (behind.in_paper(1), publish.verdict(of, behind)) == ("behind", "confirmed")
  assert publish.verdict(of, behind._replace(ours=2.0)) == "opposite"
  assert publish.verdict(of, behind._replace(is_behind=False)) == ""
  smaller = [dict(one, budget=1e15) for one in figures_of]
  assert list(publish.by_budget(of, [*figures_of, *smaller])) == [1e15, 8e15]
  assert smaller[1] in publish.merge([*figures_of, *smaller], [row("BERT", 59.0)])


def test_who_does_not_stop_is_ended(tmp_path, monkeypatch):
  monkeypatch.setattr(processes, "GRACE_SECONDS", 0.1)
  running = processes.Running()
  log = str(tmp_path / "log.txt")
  script = ("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); "
            "time.sleep(30)")

  def call():
    with contextlib.suppress(Interrupted):
      running.call([sys.executable, "-c", script], log, 1)

  thread = threading.Thread(target=call)
  thread.start()
  with running.stop_all_on_signals():
    while "ready\n" not in (pathlib.Path(log).read_text().split("\n", 1)[-1] if os.path.exists(log) else ""):
      time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)  # noted, and passed on
    while thread.is_alive():
      thread.join(0.05)
      running.end_stragglers()
  with pytest.raises(Interrupted):
    running.call(["false"], log, 1)  # nothing starts any more
  assert running.stopped


def test_a_stop_while_a_process_starts_reaches_it(tmp_path, monkeypatch):
  running, start = processes.Running(), subprocess.Popen

  def start_and_stop(*words, **options):
    started = start(*words, **options)
    running.stopped = time.monotonic()  # before it is among those that a signal is passed on to
    return started

  monkeypatch.setattr(subprocess, "Popen", start_and_stop)
  with pytest.raises(Interrupted):
    running.call(["sleep", "60"], str(tmp_path / "log.txt"), 1)


# ---- fine-tunings alone ----

NAN = float("nan")


def finish_point(point, out, values):
  """A point's folder as the page leaves it, without outputs."""
  folder = pathlib.Path(point.folder(out))
  (folder / "seeds").mkdir(parents=True)
  given = glue_recipe.get_config(point.task)
  given.task.update(init_from="x", data_dir="y")
  config_lib.save(str(folder / "config.json"), given, config_lib.resolve(given))
  seeds = [{"seed": i, "scores": {"accuracy": v, "f1": v}} for i, v in enumerate(values)]
  for run in seeds:
    results.write_json(str(folder / f"seeds/{run['seed']}.json"), run)
  summary = {name: scoring.summarise(values) for name in ("accuracy", "f1")}
  results.write_json(str(folder / "results.json"), {"summary": summary, "runs": seeds})


def test_the_best_median_wins_and_the_table_names_it(tmp_path):
  points = finetuning.grid(["mrpc", "rte"], Tuning(grid=["optimizer.learning_rate=1e-5,2e-5", "train.batch_size=16"]))
  low, high = ((f"optimizer.learning_rate={rate}", "train.batch_size=16") for rate in ("1e-5", "2e-5"))
  assert points == [Point("rte", low), Point("rte", high), Point("mrpc", low), Point("mrpc", high)]
  for point, values in zip(points, ([NAN, NAN], [0.5, 0.5, NAN], [0.8, 0.9, 0.7], [0.6, 0.99, 0.7])):
    finish_point(point, str(tmp_path), values)
  best = finetuning.best_points(points, str(tmp_path))
  assert (best["mrpc"].settings, best["rte"].settings) == (low, high)
  text = finetuning.summarise(points, str(tmp_path), ensemble_size=0)
  assert f"| mrpc | accuracy | {', '.join(low)} | 80.0 | 70.0 | 90.0 | 10.0 | 3 | * |" in text
  assert f"| rte | accuracy | {', '.join(low)} | - | - | - | - | 0 | |" in text
  assert "eight tasks): -" in text and "| ELECTRA-Large | 86.8 | 90.6 |" in text
  assert (tmp_path / "summary.md").read_text() == text


def test_a_ranking_task_is_in_the_table_but_in_no_average(tmp_path):
  points = finetuning.grid(["wnli_ranking"], Tuning())
  finish_point(points[0], str(tmp_path), [0.5, 0.75])
  text = finetuning.summarise(points, str(tmp_path), ensemble_size=0)
  assert "| wnli_ranking | accuracy | the recipe's | 62.5 |" in text and "nine tasks): -" in text


def test_a_failed_fine_tuning_names_its_log(tmp_path, monkeypatch):
  monkeypatch.setattr(finetuning, "command", lambda *_: [sys.executable, "-c", "raise SystemExit('no such thing')"])
  with pytest.raises(processes.Failed, match="1 of 1 runs failed") as caught:
    finetuning.sweep(str(tmp_path), "x", ["rte"], Tuning(), "y", processes.Running())
  assert "no such thing" in str(caught.value) and "log.txt" in str(caught.value)


def test_later_tasks_start_from_the_best_mnli_run_and_more_seeds_are_run(tmp_path, monkeypatch):
  out, started = str(tmp_path), []

  def call(running, words, log, size):
    started.append(words)
    point = next(point for point in points if f"--workdir={point.folder(out)}" in words)
    if not os.path.exists(point.folder(out)):
      finish_point(point, out, [0.5 if point.settings[0].endswith("=1e-5") else 0.6])

  monkeypatch.setattr(processes.Running, "call", call)
  tuning = Tuning(grid=["optimizer.learning_rate=1e-5,2e-5"], from_mnli=True)
  points = finetuning.grid(["rte", "mnli"], tuning)
  finetuning.sweep(out, "x", ["rte", "mnli"], tuning, "y", processes.Running())
  best = Point("mnli", ("optimizer.learning_rate=2e-5",)).folder(out)
  assert [f"--config.task.init_from={best}" in words for words in started] == [False, False, True, True]
  recipe, settings = finetuning.recipe_and_settings(Point("rte"), Tuning(), "x", "y")
  finish_point(Point("rte"), out, [0.5])
  assert finetuning.is_finished(Point("rte"), out, recipe, settings)
  assert not finetuning.is_finished(Point("rte"), out, recipe, [*settings, "task.num_seeds=20"])


# ---- the probe ----


def test_the_probe_finds_what_is_there_and_nothing_else():
  """Halves that share a direction are told apart from strangers; noise is not."""
  rng = np.random.default_rng(0)
  topic, noise = rng.normal(size=(400, 4)), rng.normal(size=(2, 400, 4))
  found = probe.classify(topic + 0.1 * noise[0], topic + 0.1 * noise[1])
  nothing = probe.classify(*noise)
  assert found.value > 0.9 and abs(nothing.value - 0.5) < 4 * nothing.error


SMALL = ["model.hidden_size=16", "model.embedding_size=16", "model.num_hidden_layers=1", "model.intermediate_size=32",
         "data.sequence_length=16", "data.tokenizer.vocab_size=100", "data.heldout_share=0.5", "data.num_workers=1",
         "data.reader=threads", "train.batch_size=8", "optimizer.name=adamw", "log.tensorboard=false",
         "objective.rtd_weight=10", "model.hidden_dropout_prob=0.0", "model.attention_probs_dropout_prob=0.0"]


def test_from_recipes_to_a_table_with_the_probe(tmp_path, monkeypatch, one_device):
  """Four steps of two recipes in this process; again: nothing runs, a lost end is made again."""
  settings = [*SMALL, f"data.path={write_corpus(tmp_path / 'corpus.txt')}"]
  (table,) = rows.tables_of(["ablations:table3_electra,tiny", "ablations:table3_bert,tiny"])
  out, calls = str(tmp_path / "out"), []
  budget = Budget(steps=4, settings=settings, points=2, probe=True)
  records.record(out, table, budget, {}, "cmd")
  planned = records.planned(out, table)

  def call(running, words, log, size):
    calls.append(words[2])
    row = next(row for row in planned if any(row.workdir in word for word in words))
    if words[2].endswith("probe"):
      probe.probe(row.workdir)
    else:
      given = ConfigDict(row.given.to_dict())
      given.data.shards_path = runs.shards_path(row, where)
      given.data.tokenizer.path = os.path.join(runs.tokenizer_folder(row, where), "tokenizer")
      pretrain.pretrain(given, row.workdir)

  where = paths(tmp_path)
  monkeypatch.setattr(processes.Running, "call", call)
  runs.prepare(planned, where)

  def make():
    calls.clear()
    for row in planned:
      runs.make(row, [], where, Tuning(), processes.Running(), probe=True, after_each=lambda: None)
    return records.collect(out)

  found = make()
  assert [sorted(figures.read_probe(row.workdir)) for row in planned] == [[0, 2, 4]] * 2  # untrained, half-way, the end
  assert [len(calls), len(os.listdir(tmp_path / "data"))] == [4, 1]
  assert {"probe/trained", "probe/untrained", "heldout/rtd/auc"} <= {one["metric"] for one in found}
  assert appendix_e.evaluate(planned[0].workdir, 8)["electra_mlm/upper_bound"] == 1
  with pytest.raises(UserError, match="Appendix E does not apply"):
    appendix_e.evaluate(planned[1].workdir, 8)
  probed = [figures.read_probe(row.workdir) for row in planned]
  shutil.rmtree(os.path.join(planned[1].workdir, "checkpoints", "4"))
  assert repr(make()) != "" and calls.count("electra_jax.main") == 1
  assert checkpoints.saved_steps(planned[1].workdir) == [2, 4]
  assert [figures.read_probe(row.workdir) for row in planned] == probed
  text = report.table(table, found)
  assert "| Probe, ours | Probe, untrained |" in text
  assert "Probe: " in report.differences(table, found)[0]
  assert report.draw(table, planned, found, str(tmp_path / "curves.png"))
  assert (tmp_path / "curves.png").stat().st_size > 5_000
