"""Do SQuAD and RACE go through the fine-tuning page, from their files to the answers of every question?"""

import json
import os
import signal

import numpy as np
import pytest

from configs import tiny
from configs.finetune import race, squad
from electra_jax import finetune
from electra_jax.errors import Interrupted, UserError
from electra_jax.finetuning import results
from electra_jax.inference import pretraining_heads
from electra_jax.tasks import squad_scoring
from electra_jax.tools import export
from electra_jax.training import checkpoints
from tests.small_runs import devices
from tests.workdirs import make_workdir, records

PLACES = ["roof", "mat", "rain"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
  """A pre-trained workdir, SQuAD of both versions and RACE: where was the cat?"""
  root = tmp_path_factory.mktemp("reading")
  questions = []
  for number in range(12):
    place, is_impossible = PLACES[number % 3], number % 4 == 3
    # No punctuation or article: an answer of these alone has no word, which the official script counts in two ways.
    context = f"one dog came in  wet and glad\r\n{'it rained ' * (number % 3)}her cat sat on this {place}"
    answer = {"text": place, "answer_start": context.rindex(place)}
    questions.append((context, {"id": f"q{number}", "question": "who had seen it?" if is_impossible else
                                "where sat the cat?", "is_impossible": is_impossible,
                                "answers": [] if is_impossible else [answer]}))
  for version in squad.VERSIONS:
    rows = [{"context": c, "qas": [q]} for c, q in questions if version == "v2.0" or not q["is_impossible"]]
    for split in ("train", "dev", "test"):
      (root / f"{split}-{version}.json").write_text(json.dumps({"version": version, "data": [{"paragraphs": rows}]}))
  for split in ("train", "dev"):
    for level in ("middle", "high"):
      passages = [{"id": f"{level}{n}.txt", "article": questions[n][0], "options": [[*PLACES, "dog"]] * 2,
                   "questions": ["where sat the cat?", "on the _ ."], "answers": ["ABC"[n]] * 2} for n in range(3)]
      (root / f"{split}.{level}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in passages))
  return root, make_workdir(tmp_path_factory.getbasetemp(), tiny, "wordpiece")


def run(c, source, workdir, rate=2e-3, **keys):
  root, start = source
  c.train.update(batch_size=8, compute_dtype="float32", log_every_steps=2)
  c.eval.batch_size, c.data.reader = 8, "threads"
  c.log.tensorboard = False
  c.optimizer.learning_rate = rate
  c.task.update({"num_seeds": 1, "num_epochs": 1.0, **keys}, init_from=start, data_dir=str(root))
  return finetune.finetune(c, workdir)


def read(workdir, name):
  with open(os.path.join(workdir, "seeds", "0", name), encoding="utf-8") as file:
    return json.load(file)


SHORT = dict(max_length=32, max_question_length=8, window_stride=8)


@pytest.mark.parametrize("argument", ["v1.1,roberta", "v2.0"])  # an independent and a joint head
def test_squad(argument, source, tmp_path, capsys, one_device):
  version = argument[:4]
  summary = run(squad.get_config(argument), source, str(tmp_path), **SHORT, write_test_predictions=True)
  data = json.loads((source[0] / f"dev-{version}.json").read_text())["data"][0]["paragraphs"]
  assert f"dev has {len(data)} questions; the official set has 1" in " ".join(capsys.readouterr().out.split())
  predictions = read(tmp_path, "dev_predictions.json")
  assert list(predictions) == list(read(tmp_path, "test_predictions.json")) == [row["qas"][0]["id"] for row in data]
  for row in data:
    i = row["qas"][0]["id"]
    for candidate in read(tmp_path, "dev_nbest.json")[i]:
      assert candidate["text"] == row["context"][candidate["start"]:candidate["end"]] != ""
    assert predictions[i] in ("", read(tmp_path, "dev_nbest.json")[i][0]["text"])
  golds = [[answer["text"] for answer in row["qas"][0]["answers"]] for row in data]
  if version == "v1.1":
    found = squad_scoring.score_v1(list(predictions.values()), golds)
  else:
    odds, threshold = read(tmp_path, "dev_null_odds.json"), read(tmp_path, "threshold.json")["null_odds_threshold"]
    texts = [rows[0]["text"] for rows in read(tmp_path, "dev_nbest.json").values()]
    found = squad_scoring.score_v2(texts, list(odds.values()), golds)
    shown = squad_scoring.score_v2(texts, list(odds.values()), golds, threshold)["f1"]
    assert shown == pytest.approx(summary["best_f1"]["median"])
    assert [text == "" for text in predictions.values()] == [value > threshold for value in odds.values()]
  for name, value in found.items():  # what is on the page comes from the files next to it
    assert value == pytest.approx(summary[name]["median"])
  _, params = checkpoints.load_params(str(tmp_path))
  bias = float(np.abs(params["encoder"]["answerable_head"]["output"]["bias"]).sum())
  assert (bias > 0) == (version == "v2.0")  # trained jointly, or idle
  head, layer = ("span_head", "output") if version == "v1.1" else ("joint_span_head", "dense")
  assert np.abs(params["encoder"][head][layer]["bias"]).sum() > 0


def test_a_joint_head_learns_every_answer_and_goes_on_after_a_kill(source, tmp_path, monkeypatch):
  """Two seeds in one program, parameters split over devices; what is predicted later is what the dev set was told."""
  workdir, start = str(tmp_path / "run"), make_workdir(source[0], tiny, "wordpiece", num_layers=2)

  def train():
    c = squad.get_config("v2.0")
    c.mesh.fsdp = 2
    c.model.update(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return run(c, (source[0], start), workdir, **SHORT, rate=5e-3, num_epochs=12.0, num_seeds=2, seeds_at_once=2)

  scored = []
  monkeypatch.setattr(results, "describe_scores", lambda *_: scored.append(
    len(scored) == 1 and os.kill(os.getpid(), signal.SIGTERM)) or "")
  with devices(2):
    with pytest.raises(Interrupted, match="same command resumes"):
      train()
    monkeypatch.undo()
    summary = train()
  assert summary["best_exact"]["min"] == 1.0  # every answer, and "" where there is none
  assert results.read_json(f"{workdir}/results.json")["ensemble"]["best_exact"] == 1.0
  with np.load(f"{workdir}/seeds/0.npz") as arrays:
    assert arrays["dev/joint_span_head"].shape[1:] == (21, 4)  # [CLS] and task.num_best

  loaded, dev = pretraining_heads.load(workdir), os.path.join(workdir, "seeds", "0", "dev_")
  rows = json.loads((source[0] / "dev-v2.0.json").read_text())["data"][0]["paragraphs"]
  items = [{"question": row["qas"][0]["question"], "context": row["context"]} for row in rows]
  said = records(loaded, "question", items)
  best, odds = (results.read_json(f"{dev}{name}.json") for name in ("nbest", "null_odds"))
  for one, candidates in zip(said, best.values(), strict=True):
    assert [c["text"] for c in one["candidates"]] == [c["text"] for c in candidates[:5]]
    assert one["candidates"][0]["score"] == pytest.approx(candidates[0]["start_logit"] + candidates[0]["end_logit"],
                                                          abs=1e-4)
  np.testing.assert_allclose([one["null_odds"] for one in said], list(odds.values()), atol=1e-4)
  with pytest.raises(UserError, match="No class of transformers has this head") as caught:
    export.export(workdir, str(tmp_path / "exported"))
  assert "task.span_head=independent" in caught.value.fix and not os.path.exists(tmp_path / "exported")


def test_race(source, tmp_path, one_device):
  summary = run(race.get_config(), source, str(tmp_path), max_length=48, max_question_length=16)
  assert {name for name, row in summary.items() if np.isfinite(row["median"])} == {"accuracy", "middle", "high"}
  answers = read(tmp_path, "dev_predictions.json")
  assert list(answers) == [f"{level}{n}.txt-{q}" for level in ("middle", "high") for n in range(3) for q in (0, 1)]
  right = [answer == "ABC"[int(i.split(".")[0][-1])] for i, answer in answers.items()]
  assert np.mean(right) == pytest.approx(summary["accuracy"]["median"])
  assert results.read_json(str(tmp_path / "labels.json"))["head"] == "multiple_choice"
