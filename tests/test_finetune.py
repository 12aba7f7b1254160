"""Does fine-tuning keep its promises? Seeds, resume, one and eight devices, every dev example once, stored labels."""

import functools
import html
import json
import os
import pathlib
import re
import shutil
import signal

import jax
import numpy as np
import pytest

from configs import tiny
from configs.finetune import glue, own
from electra_jax import config as config_lib
from electra_jax import finetune, tasks
from electra_jax.errors import Interrupted, UserError
from electra_jax.finetuning import predictions, pretrained, results, submissions
from electra_jax.inference import loading, task_heads
from electra_jax.tasks import batches
from electra_jax.tools import export, report
from electra_jax.training import checkpoints
from electra_jax.training import workdir as workdir_lib
from tests.workdirs import make_workdir

pytestmark = pytest.mark.usefixtures("one_device")

GOOD, BAD = ["the cat sat on the mat", "a dog came in glad"], ["rain fell all night", "nobody left the roof"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
  """A pre-trained workdir and a small data set whose label is the first word."""
  root = tmp_path_factory.mktemp("finetune")
  rows = [{"text": f"{text} and {i}", "label": label} for i in range(5)
          for label, texts in (("good", GOOD), ("bad", BAD)) for text in texts]
  (root / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  (root / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:13]))
  return root, make_workdir(tmp_path_factory.getbasetemp(), tiny, "wordpiece")


def recipe(source, **keys):
  root, workdir = source
  c = own.get_config("classification")
  c.train.update(batch_size=8, compute_dtype="float32", log_every_steps=2)
  c.eval.batch_size, c.data.reader = 8, "threads"
  c.log.tensorboard = False
  c.optimizer.learning_rate = 3e-3
  c.task.update(init_from=workdir, train_path=str(root / "train.jsonl"), dev_path=str(root / "dev.jsonl"),
                max_length=16, num_epochs=2.0, num_seeds=2)
  for key, value in keys.items():
    branch, _, name = key.partition("__")
    c[branch][name] = value
  return c


@pytest.fixture(scope="module")
def finished(source, tmp_path_factory):
  workdir = str(tmp_path_factory.mktemp("finished"))
  return workdir, finetune.finetune(recipe(source), workdir)


def test_what_is_left_of_a_run(finished, source):
  workdir, summary = finished
  assert summary["accuracy"]["num_runs"] == 2
  assert [start["step"] for start in workdir_lib.read_starts(workdir)] == [0]
  labels = results.read_json(os.path.join(workdir, "labels.json"))
  assert labels["label_names"] == ["bad", "good"] and labels["head"] == "classification"
  table = pathlib.Path(workdir, "results.md").read_text()
  assert "| accuracy |" in table and "by seed: 0: " in table
  assert "On the same dev examples: always the commonest answer, accuracy " in table and "| Label \\ answer |" in table
  answers = pathlib.Path(workdir, "seeds", "1", "dev.csv").read_text().splitlines()
  assert answers[0] == "id,label,prediction,text" and len(answers) == 14
  assert pathlib.Path(workdir, "curves.png").read_bytes()[:4] == b"\x89PNG"
  _, params = checkpoints.load_params(workdir)  # the best seed: something to start from again
  assert params["encoder"]["classification_head"]["output"]["kernel"].shape[1] == 2
  again = pretrained.load(workdir)
  assert again.is_fine_tuned and not pretrained.load(source[1]).is_fine_tuned
  assert not [name for name in again.encoder if name.endswith("_head")]
  wanted = pretrained.load(source[1]).encoder
  assert jax.tree.map(np.shape, again.encoder) == jax.tree.map(np.shape, wanted)


def test_what_there_is_to_beat_is_said_everywhere(finished):
  """The same sentence in results.md, in the report and in the model card; on the console see the next test."""
  workdir, summary = finished
  told = results.describe_baselines(workdir, "accuracy", summary["accuracy"]["median"])
  assert told.startswith("On the same dev examples: always the commonest answer, accuracy ")
  assert told in pathlib.Path(workdir, "results.md").read_text()
  assert told in html.unescape(report.results_of(report.read(workdir)))
  assert export.run_so_far(workdir, 0, config_lib.load(workdir))[0]["baselines"] == told


def test_labels_are_introduced_before_the_training(source, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(finetune, "train_group", lambda *_: (_ for _ in ()).throw(InterruptedError))
  with pytest.raises(InterruptedError):
    finetune.finetune(recipe(source), str(tmp_path))
  lines = capsys.readouterr().out.replace("\n  ", " ").splitlines()  # a long one goes on below, indented
  assert lines[1:3] == ["labels of train: bad 10, good 10", "labels of dev: bad 6, good 7"]
  assert lines[3].startswith("Only 13 dev examples") and lines[4].startswith("On the same dev examples: always")
  assert "Nothing to use" not in lines[4]  # there is no median yet


def test_several_labels_at_once_from_the_table_to_the_answer_and_transformers_files(source, tmp_path):
  rows = [{"text": text, "label": ["good"] * (text in GOOD) + ["night"] * ("a" in text)} for text in [*GOOD, *BAD] * 4]
  (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  path = str(tmp_path / "train.jsonl")
  c = recipe(source, task__num_seeds=2, task__train_path=path, task__dev_path=path, task__name="own_multi_label",
             task__write_test_predictions=True, task__test_path=path)
  summary = finetune.finetune(c, str(tmp_path / "run"))
  assert summary.keys() == {"micro_f1", "f1", "accuracy"} and np.isfinite(summary["micro_f1"]["median"])
  for name in ("seeds/0/test.csv", "ensemble/dev.csv", "baselines.json"):
    assert (tmp_path / "run" / name).exists()
  loaded = loading.load(str(tmp_path / "run"))
  (said,) = task_heads.classify(loaded, [task_heads.encode_texts(loaded, "the cat sat")])
  assert said.value.scores == "sigmoid" and said.value.labels == ("good", "night")
  export.export(str(tmp_path / "run"), str(tmp_path / "out"))
  assert json.loads((tmp_path / "out/config.json").read_text())["problem_type"] == "multi_label_classification"
  assert "always the commonest answer, micro_f1 " in (tmp_path / "out/README.md").read_text()
  published = loading.load(str(tmp_path / "out"))
  (again,) = task_heads.classify(published, [task_heads.encode_texts(published, "the cat sat")])
  np.testing.assert_allclose(again.value.values, said.value.values, atol=2e-3)
  assert "always the commonest answer" in report.page(report.read(str(tmp_path / "run")))


def outputs(workdir, seed):
  with np.load(os.path.join(workdir, "seeds", f"{seed}.npz")) as arrays:
    return arrays["dev/classification_head"]


def test_seeds_differ_and_the_same_seed_gives_the_same_bits(finished, source, tmp_path):
  workdir, _ = finished
  finetune.finetune(recipe(source), str(tmp_path))
  for seed in (0, 1):
    np.testing.assert_array_equal(outputs(workdir, seed), outputs(str(tmp_path), seed))
  assert not np.array_equal(outputs(workdir, 0), outputs(workdir, 1))
  assert outputs(workdir, 0).shape == (13, 2)
  assert batches.epoch_order(0, 0, 20).tolist() != batches.epoch_order(1, 0, 20).tolist()
  assert sorted(batches.epoch_order(0, 1, 20).tolist()) == list(range(20))


def test_rows_of_the_log_have_an_epoch(finished, source):
  (path,) = pathlib.Path(finished[0]).rglob("metrics.jsonl")
  assert json.loads(path.read_text().splitlines()[-1])["epoch"] == pytest.approx(recipe(source).task.num_epochs)


def test_after_a_kill_the_run_goes_on_and_finished_seeds_are_not_run_again(finished, source, tmp_path, monkeypatch):
  workdir, summary = finished
  former, describe_scores = finetune.update, results.describe_scores

  def stopping(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    return describe_scores(*arguments)

  monkeypatch.setattr(results, "describe_scores", stopping)
  with pytest.raises(Interrupted, match="same command resumes"):
    finetune.finetune(recipe(source), str(tmp_path))
  monkeypatch.undo()
  resumed = finetune.finetune(recipe(source), str(tmp_path))
  for seed in (0, 1):
    np.testing.assert_array_equal(outputs(workdir, seed), outputs(str(tmp_path), seed))
  assert resumed == summary
  monkeypatch.setattr(finetune, "train_group", lambda *_: pytest.fail("a finished seed was run again"))
  assert finetune.finetune(recipe(source), str(tmp_path)) == summary
  with pytest.raises(UserError, match="holds another run"):
    finetune.finetune(recipe(source, optimizer__learning_rate=1.0), str(tmp_path))
  start = pretrained.load(source[1])
  grown = start._replace(encoder=jax.tree.map(lambda x: x + 1, start.encoder))  # as of a run that trains on
  with pytest.raises(UserError, match="holds a run that started from other weights"):
    finetune.finetune(recipe(source), str(tmp_path), grown)
  assert former is finetune.update
  path = source[0] / "train.jsonl"
  text = path.read_text()
  try:
    path.write_text(text + text.splitlines()[0] + "\n")  # one more label
    with pytest.raises(UserError, match="holds a run on other examples"):
      finetune.finetune(recipe(source), str(tmp_path))
  finally:
    path.write_text(text)


@pytest.mark.parametrize("select, number", [("last", 2), ("best", 3)])
def test_the_last_evaluation_is_the_result_where_its_parameters_are(select, number, source, tmp_path, monkeypatch):
  """Two epochs; the best parameters may be those of the first, and are scored again."""
  scored, evaluate = [], predictions.evaluate
  monkeypatch.setattr(predictions, "evaluate", lambda *arguments: scored.append(evaluate(*arguments)) or scored[-1])
  finished_when_met = []
  monkeypatch.setattr(finetune.distributed, "barrier",
                      lambda name: finished_when_met.append(results.finished_seeds(str(tmp_path))))
  finetune.finetune(recipe(source, task__select=select), str(tmp_path))
  assert len(scored) == number and finished_when_met[-1] == [0, 1]  # no process concludes before the first has written
  for seed in ("0", "1"):
    run = results.read_json(os.path.join(str(tmp_path), "seeds", f"{seed}.json"))
    curve = [point["accuracy"] for point in run["curve"]]
    assert run["scores"]["accuracy"] == (max(curve) if select == "best" else curve[-1])


def test_lengths_of_batches(monkeypatch):
  """A program for each: few on an accelerator, where compiling takes long."""
  assert [batches.bucket(length, 120) for length in (3, 16, 17, 33, 49, 100, 119)] == [16, 16, 32, 48, 64, 112, 120]
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  assert [batches.bucket(length, 120) for length in (3, 16, 17, 33, 49, 100, 119)] == [16, 16, 32, 64, 64, 120, 120]


@pytest.mark.parametrize("devices", [1, 8])
def test_every_dev_example_is_counted_once(source, devices, monkeypatch):
  config, task, start, data = prepared(source)
  mesh = finetune.sharding.make_mesh(config.mesh, jax.devices()[:devices])
  run = finetune.make_run(config, task, start, mesh)
  seen = []

  def outputs_of(params, batch):
    seen.append(int(batch["row_weight"].sum()))
    return {"classification_head": np.asarray(batch["input_ids"])[None, :, :2].astype(np.float32)}

  split = data["dev"]
  (found,) = predictions.predict(run, split, outputs_of, None)
  assert sum(seen) == len(split.features) == 13 and len(seen) == 2
  assert found["classification_head"].tolist() == [feature["input_ids"][:2] for feature in split.features]


def prepared(source, **keys):
  given = recipe(source, **keys)
  start = pretrained.load(given.task.init_from)
  task = finetune.tasks.make(given.task)
  data = finetune.read_data(task, start.tokenizer, given.task.max_length)
  config = config_lib.resolve(finetune.complete(given, start, len(data["train"].features)))
  return config, task, start, data


@pytest.fixture(scope="module")
def losses_on_one_device(source):
  return two_updates(source, jax.devices()[:1])[0]


def two_updates(source, devices, **mesh_sizes):
  config, task, start, data = prepared(source)
  mesh = finetune.sharding.make_mesh({**config.mesh, **mesh_sizes}, devices)
  run = finetune.make_run(config, task, start, mesh)
  state = finetune.init_seeds(run, (0, 1))
  first, second = state.params["encoder"]["classification_head"]["output"]["kernel"]
  assert not np.array_equal(first, second)  # each seed has a head of its own
  places = jax.tree.map(lambda x: x.sharding, state)
  keys = jax.numpy.stack([jax.random.key(seed) for seed in (0, 1)])
  with jax.set_mesh(mesh):
    step = jax.jit(lambda state, batch: finetune.update(state, batch, keys, run=run), out_shardings=(places, None))
    found = []
    for number in range(2):
      batch = finetune.train_batch(run, data["train"].features, (0, 1), number)
      state, loss = step(state, predictions.put(batch, mesh, row_axis=1))
      found.append(np.asarray(loss))
  return np.array(found), state


MESHES = {"data": dict(), "fsdp": dict(fsdp=4), "tensor": dict(data=2, fsdp=2, tensor=2)}  # of eight devices


@pytest.mark.parametrize("name", MESHES)
def test_eight_devices_train_as_one_does_and_split_what_the_mesh_says(name, source, losses_on_one_device):
  found, state = two_updates(source, jax.devices(), **MESHES[name])
  np.testing.assert_allclose(found, losses_on_one_device, atol=2e-4)
  sizes = {"data": 1, "fsdp": 1, "tensor": 1} | MESHES[name]
  for tree in (state.params, state.best_params, state.opt_state):
    kernels = {finetune.sharding.path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
               if finetune.sharding.path_name(path).endswith("layer_00/attention/query/kernel")}
    assert kernels
    for leaf in kernels.values():
      whole, part = leaf.shape, leaf.sharding.shard_shape(leaf.shape)
      assert part == (whole[0], whole[1] // sizes["fsdp"], whole[2] // sizes["tensor"])


def test_a_seed_that_diverges_is_counted_as_failed(source, tmp_path, capsys):
  summary = finetune.finetune(recipe(source, optimizer__learning_rate=1e30, optimizer__clip_norm=0.0,
                                     task__num_epochs=0.8, task__num_seeds=1), str(tmp_path))
  assert summary["accuracy"]["num_failed"] == 1 and np.isnan(summary["accuracy"]["median"])
  assert checkpoints.saved_steps(str(tmp_path)) == []  # nothing that is not finite is ever the best run
  shown = capsys.readouterr()
  assert "loss not finite, lr " in shown.err and "accuracy -  median -  (1 without a finite score)" in shown.err
  assert not re.search(r"\b(nan|null)\b", shown.out + shown.err + (tmp_path / "results.md").read_text())


def test_a_broken_test_file_is_told_before_the_training(source, tmp_path, monkeypatch):
  (tmp_path / "test.csv").write_text("text\nthe cat sat\nthe cat, a dog\n")
  monkeypatch.setattr(finetune, "train_group", lambda *_: pytest.fail("it was trained"))
  c = recipe(source, task__test_path=str(tmp_path / "test.csv"), task__write_test_predictions=True)
  with pytest.raises(UserError, match="too many columns"):
    finetune.finetune(c, str(tmp_path / "run"))
  assert not (tmp_path / "run").exists()


def test_lines_that_were_left_out_are_said(source, finished, tmp_path, capsys):
  """Before the training and in results.md; a metric of questions that do not occur is no failed run."""
  workdir, _ = finished
  shutil.copytree(workdir, tmp_path, dirs_exist_ok=True)
  task = tasks.make(recipe(source).task)._replace(left_out={"a.tsv:3": "3 of 6 columns", "a.tsv:9": "4 of 6 columns"})
  data = {split: predictions.Split(task.read(split), []) for split in task.splits}
  config = config_lib.load(workdir)
  assert finetune.describe(config, task, data).endswith("lines left out: 2, the first a.tsv:3 (3 of 6 columns)")
  for seed in (0, 1):
    result = results.read_json(str(tmp_path / "seeds" / f"{seed}.json"))
    result["scores"]["high"] = np.nan
    results.write_json(str(tmp_path / "seeds" / f"{seed}.json"), result)
  summary = results.conclude(config, task, str(tmp_path), print)
  assert summary.keys() == {"accuracy", "f1"} and summary["accuracy"]["num_failed"] == 0
  for text in (capsys.readouterr().out, (tmp_path / "results.md").read_text()):
    assert "lines left out: 2, the first a.tsv:3 (3 of 6 columns)" in text and "nan" not in text


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_seed_that_is_not_finite_has_no_score(source, value):
  """Not even where no answer shows it: this position is behind every text."""
  config, task, start, data = prepared(source)
  run = finetune.make_run(config, task, start, finetune.sharding.make_mesh(config.mesh, jax.devices()[:1]))
  params = finetune.init_seeds(run, (0, 1)).params
  table = params["encoder"]["embeddings"]["position"]
  table["embedding"] = table["embedding"].at[1, -1, 0].set(value)
  with jax.set_mesh(run.mesh):
    outputs_of = jax.jit(functools.partial(predictions.task_outputs, run=run))
    scores, _ = predictions.evaluate(run, data, outputs_of, params)
  assert np.isfinite(scores[0]["accuracy"]) and np.isnan(list(scores[1].values())).all()


def test_the_best_score_is_kept_and_nan_never_is():
  ones = {"w": np.ones((2, 3), np.float32)}
  state = finetune.SeedsState(0, ones, None, {"w": np.zeros((2, 3), np.float32)}, np.array([0.5, -np.inf], np.float32))
  kept = finetune.keep_best(state, [0.4, np.nan])
  assert kept.best_params["w"].sum() == 0
  kept = finetune.keep_best(state, [0.6, np.nan])
  assert kept.best_params["w"].sum(-1).tolist() == [3, 0] and kept.best_score.tolist()[0] == pytest.approx(0.6)


def test_glue_writes_a_zip_with_the_names_of_the_labels(source, tmp_path):
  import zipfile
  folder = tmp_path / "data/RTE"
  folder.mkdir(parents=True)
  rows = [f"{i}\tthe cat {i}\ta dog\t{('entailment', 'not_entailment')[i % 2]}" for i in range(8)]
  header = "index\tsentence1\tsentence2"
  for split in ("train", "dev"):
    (folder / f"{split}.tsv").write_text("\n".join([f"{header}\tlabel", *rows]) + "\n")
  (folder / "test.tsv").write_text("\n".join([header, *(row.rpartition("\t")[0] for row in rows)]) + "\n")
  c = recipe(source)
  rte = glue.get_config("rte,roberta")
  rte.train.update(c.train.to_dict())
  rte.eval.batch_size, rte.log.tensorboard, rte.data.reader = 8, False, "threads"
  rte.task.update(init_from=source[1], data_dir=str(tmp_path / "data"), max_length=16, num_epochs=1.0, num_seeds=2,
                  write_test_predictions=True)
  finetune.finetune(rte, str(tmp_path / "run"))
  with zipfile.ZipFile(tmp_path / "run/submission.zip") as archive:
    assert archive.namelist() == ["RTE.tsv"]
    lines = archive.read("RTE.tsv").decode().splitlines()
  assert lines[0] == "index\tprediction" and len(lines) == 9
  assert {line.split("\t")[1] for line in lines[1:]} <= {"entailment", "not_entailment"}
  task = finetune.tasks.make(rte.task)
  files, notes = submissions.answers(task, [(str(tmp_path / "run"), seed) for seed in (0, 1)])  # an ensemble
  assert list(files) == ["RTE.tsv"] and "8 examples; the server expects 3,000" in notes[0]


def test_a_length_beyond_the_positions_of_the_model_is_refused(source, tmp_path):
  with pytest.raises(UserError, match=r"task\.max_length 65 is longer than the 64 positions of the model"):
    finetune.finetune(recipe(source, task__max_length=65), str(tmp_path / "run"))
  assert not (tmp_path / "run").exists()
