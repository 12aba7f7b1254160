"""What do several runs answer together, whatever their head, and do all files hold every question?"""

import os

import numpy as np
import pytest

from configs.finetune import race as race_recipe
from configs.finetune import squad as squad_recipe
from electra_jax import config as config_lib
from electra_jax import tasks
from electra_jax.data import tokenizers
from electra_jax.errors import UserError
from electra_jax.finetuning import ensembles, report, results, submissions
from electra_jax.tasks import race
from tests.tasks.test_race import write_race
from tests.tasks.test_squad import Characters, outputs_for, squad_json


def finished(root, monkeypatch, given, outputs):
  """A workdir with a seed for each {split: outputs}, as the page leaves it."""
  monkeypatch.setattr(tokenizers, "load_tokenizer", lambda path: Characters())
  given.task.update(init_from="x", data_dir=str(root))
  workdir = root / "run"
  (workdir / "seeds").mkdir(parents=True)
  config_lib.save(str(workdir / "config.json"), given, config_lib.resolve(given))
  for seed, splits in enumerate(outputs):
    np.savez(workdir / f"seeds/{seed}.npz", **{f"{split}/{name}": x for split, found in splits.items()
                                               for name, x in found.items()})
  return tasks.make(given.task), str(workdir), [(str(workdir), seed) for seed in range(len(outputs))]


def race_outputs(*best):
  return {"multiple_choice_head": np.eye(4, dtype=np.float32)[[race.LETTERS.index(letter) for letter in best]]}


def test_race(tmp_path, monkeypatch):
  write_race(tmp_path)
  task, workdir, members = finished(tmp_path, monkeypatch, race_recipe.get_config(), [
    {"dev": race_outputs(*letters)} for letters in ("BDBD", "BDAA", "AAAD")])  # right: BDBD
  assert ensembles.score(task, members) == {"accuracy": 0.75, "middle": 1.0, "high": 0.5}
  assert ensembles.score(task, members[:1]) == {}
  os.makedirs(f"{workdir}/seeds/0")
  said = submissions.write_ensemble(task, workdir, members, with_tests=True)
  together = results.read_json(f"{workdir}/ensemble/dev_predictions.json")
  assert list(together.values()) == ["B", "D", "A", "D"] and "Those of 3 runs together" in said


def test_squad(tmp_path, monkeypatch):
  text = squad_json(("a bc d e", "q ?", "bc", 2), ("x y", "q ?", None, 0))
  for split in ("train", "dev", "test"):
    (tmp_path / f"{split}-v2.0.json").write_text(text)
  given = squad_recipe.get_config("v2.0,roberta")
  given.task.update(write_test_predictions=True, max_length=32, data_dir=str(tmp_path))
  task = tasks.make(given.task)
  features = [f for e in task.read("dev") for f in task.featurize(e, Characters(), 32)]
  runs = [outputs_for(features, [[(place, place, value)], [(0, 0, 1.0)]], odds) for place, value, odds in (
    (1, 3.0, [-2.0, 1.0]), (2, 2.0, [1.5, 1.0]), (1, 2.0, [-2.0, 1.0]))]
  task, workdir, members = finished(tmp_path, monkeypatch, given, [{"dev": run, "test": run} for run in runs])
  answers, examples = ensembles.answer(task, members, "dev")
  assert [answer.candidates[0].text for answer in answers] == ["bc", "x"]
  assert answers[0].null_odds == pytest.approx(-2.5 / 3) and ensembles.score(task, members)["best_f1"] == 1.0
  submissions.write_files(f"{workdir}/seeds/0", task.files({"dev": (answers, examples), "test": (answers, examples)}))
  said = submissions.write_ensemble(task, workdir, members, with_tests=True)
  assert "test has 2 questions; the official set has 8,862" in said
  assert results.read_json(f"{workdir}/ensemble/test_predictions.json") == {"q0": "bc", "q1": ""}


def test_the_papers_scores_stand_next_to_their_own_metric_alone():
  assert dict(report.papers_of("mrpc", "accuracy"))["ELECTRA-Large"] == 90.6 and not report.papers_of("mrpc", "f1")
  assert report.papers_of("squad_v2.0", "best_f1") and not report.papers_of("own_classification", "accuracy")


def test_a_run_without_answers_to_a_split_is_named(tmp_path, monkeypatch):
  write_race(tmp_path)
  task, _, members = finished(tmp_path, monkeypatch, race_recipe.get_config(), [{"dev": race_outputs("A", "B", "C")}])
  with pytest.raises(UserError, match="has not answered the split dev") as caught:
    ensembles.answer(task, members, "dev")
  assert caught.value.got.startswith("3 answers of seed 0") and caught.value.got.endswith("for 4 examples")
