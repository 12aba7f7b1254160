"""Is what a mistake prints short, does it name the cause first, and does its fix repair it?"""

import os
import re
import subprocess
import sys

import pytest
from ml_collections import ConfigDict

from electra_jax import config as config_lib
from electra_jax import main as main_lib  # noqa: F401 - defines the flags
from electra_jax import recipes, tasks
from electra_jax.data import tokenizers
from electra_jax.errors import UserError, listed, named, unknown
from electra_jax.exchange import mapping
from electra_jax.tasks import custom, sequences
from electra_jax.tasks.records import Record
from electra_jax.training import memory
from tests.conftest import ROOT
from tests.small_runs import assert_four_parts, environment


def test_recipes_of_the_project_do_not_import_another_projects(tmp_path, monkeypatch):
  (tmp_path / "configs").mkdir()
  (tmp_path / "configs/common.py").write_text("raise RuntimeError")
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])  # as python -m has it
  recipes.load("tiny")
  assert sys.path[0] == recipes.ROOTS[0]


# ---- length: whatever the input ----

LONG = {
  "what": lambda: UserError("w" * 9000, got="g", allowed="a", fix="f"),
  "got": lambda: UserError("w", got="g" * 9_000_000, allowed="a", fix="f"),
  "all parts": lambda: UserError("w" * 9000, got="g\n" * 9000, allowed="a" * 9000, fix="f" * 9000),
  "a list of faults": lambda: UserError("w", got=listed(["fault " * 1000] * 1000), allowed="a", fix="f"),
  "a list of names": lambda: UserError("w", got=named(["n" * 999] * 999), allowed="a", fix="f"),
  "an unknown name": lambda: unknown("w", "x" * 9000, ["n" * 999] * 999, "set --x=CLOSEST"),
  "an object": lambda: UserError("w", got={"key": list(range(10_000))}, allowed="a", fix="f"),
  "other scripts": lambda: UserError("語" * 9000, got="語" * 9000, allowed="語" * 9000, fix="語" * 9000),
}


@pytest.mark.parametrize("row", LONG)
def test_no_message_is_longer_than_a_screen(row):
  error = LONG[row]()
  assert_four_parts(error)
  assert len(str(error)) < 2000
  function, arguments = error.__reduce__()
  assert str(function(*arguments)) == str(error)  # as the parent of a worker process sees it


def many_columns(number=5000):
  return Record({f"column_{i}": "x" for i in range(number)}, "big.csv:2")


INPUTS = {  # what makes messages long by what it holds
  "a label among 10,000": (lambda: sequences.parse_label("other", [f"class_{i}" for i in range(10_000)], "dev.csv:2"),
                           ["dev.csv:2", "'other'", "class_0", "and 9,9"]),
  "a label of a megabyte": (lambda: sequences.parse_label("x" * 10**6, ["a", "b"], "dev.csv:2"), ["dev.csv:2", "a, b"]),
  "a column among 5,000": (lambda: many_columns().get("label"), ["big.csv:2", "column_0", "and 4,9"]),
  "a thousand missing tensors": (
    lambda: mapping.from_hf({}, {f"layer_{i:02d}/attention/query/kernel": (2, 2) for i in range(99)}, "bert"),
    ["is missing", "and 89 more"]),
  "a score of a megabyte": (lambda: sequences.parse_label("9" * 10**6 + "x", (), "dev.csv:2"), ["dev.csv:2"]),
  "tags that are no list": (lambda: custom._list({"a": "b" * 10**6}, "dev.jsonl:2"), ["dev.jsonl:2"]),
  "a path of a megabyte": (lambda: config_lib.load("x" * 10**6), ["No run can be read from x"]),
  "a metric of a megabyte": (lambda: tasks.check(recipe("finetune/own", **{"task.metric": "x" * 10**6}).task),
                             ["task.metric", "accuracy"]),
}


@pytest.mark.parametrize("row", INPUTS)
def test_no_input_makes_a_message_long(row):
  call, words = INPUTS[row]
  with pytest.raises(UserError) as caught:
    call()
  assert_four_parts(caught.value, *words)
  assert len(str(caught.value)) < 2000


def recipe(name, **changes):
  _, given = recipes.load(name)
  given.update_from_flattened_dict(changes)
  return given


# ---- options: (arguments after the recipe, what the message says, the fix) ----

OPTIONS = {
  "a branch that is cut": ("--config.optim.learning_rate=1", ["unknown", "did you mean optimizer.learning_rate?"],
                           "write --config.optimizer.learning_rate=1"),
  "a key in the wrong branch": ("--config.train.learning_rate=1", ["did you mean optimizer.learning_rate?"],
                                "write --config.optimizer.learning_rate=1"),
  "a key without its branch": ("--config.num_steps=7", ["did you mean train.num_steps?"],
                               "write --config.train.num_steps=7"),
  "a misspelt key": ("--config.train.num_stepz=7", ["did you mean train.num_steps?"],
                     "write --config.train.num_steps=7"),
  "a key below a value": ("--config.train.num_steps.x=7", ["--config.train.num_steps.x"],
                          "write --config.train.num_steps=7"),
  "a key like no other": ("--config.qqqq=7", ["--config.qqqq"], "leave it out"),
  "a key without config": ("--train.num_steps=7", ["did you mean train.num_steps?"],
                           "write --config.train.num_steps=7"),
  "a key without branch and config": ("--learning_rate=1", ["did you mean optimizer.learning_rate?"],
                                      "write --config.optimizer.learning_rate=1"),
  "a misspelt key without config": ("--train.num_stepz=7", ["did you mean train.num_steps?"],
                                    "write --config.train.num_steps=7"),
  "an exponent": ("--config.train.num_steps=1e5", ["not an integer"], "for example --config.train.num_steps=100000"),
  "thousands": ("--config.train.num_steps=1,000", ["not an integer"], "for example --config.train.num_steps=1000"),
  "a broken integer": ("--config.train.batch_size=12.5", ["not an integer"],
                       "for example --config.train.batch_size=128"),
  "a word for an integer": ("--config.train.batch_size=many", ["not an integer"],
                            "for example --config.train.batch_size=128"),
  "nothing for a number": ("--config.optimizer.learning_rate=", ["not a number"],
                           "for example --config.optimizer.learning_rate=0.003"),
  "a word for a truth": ("--config.log.tensorboard=perhaps", ["not True or False"],
                         "for example --config.log.tensorboard=True"),
  "a derived integer": ("--config.data.num_workers=few", ["not an integer"], "--config.data.num_workers="),
  "a group": ("--config.train={}", ["group of keys", "train.batch_size"], "for example --config.train."),
  "a group with a number": ("--config.optimizer=5", ["group of keys"], "for example --config.optimizer."),
  "a group in a group": ("--config.data.masking={'rate':1}", ["group of keys"], "--config.data.masking."),
}


@pytest.mark.parametrize("row", OPTIONS)
def test_an_option_that_is_wrong_names_the_right_one(row):
  option, words, fix = OPTIONS[row]
  for name in ("--config={}", "-config={}"):
    with pytest.raises(UserError) as caught:
      recipes.check_command(["main", name.format(ROOT / "configs/tiny.py"), option])
    assert_four_parts(caught.value, *words)
    assert fix in caught.value.fix


@pytest.mark.parametrize("options", [
  ["--config.train.num_steps=20"], ["--config.optimizer.warmup_steps=3"], ["--config.data.reader=tf"],
  ["--config.optimizer.learning_rate=1e-3"], ["--config.log.tensorboard"], ["--config.log.tensorboard=false"],
  ["--config.train.num_steps", "20"], ["--config.data.path=a file with = and --config.foo=1"], ["--help"],
  ["--workdir=runs/--train.num_steps=1"], ["--noconfig.log.tensorboard"], ["--alsologtostderr"]])
def test_right_options_pass(options):
  recipes.check_command(["main", "--config", str(ROOT / "configs/tiny.py"), *options])
  recipes.check_command(["main", *options])


# ---- recipes: (what stands behind --config, the words, the fix) ----

RECIPES = {
  "a kind of own task": ("configs/finetune/own.py:classify", ["classify", "regression, tagging"],
                         "own.py:classification"),
  "another kind": ("configs/finetune/own.py:tags", ["tags", "tagging"], "own.py:tagging"),
  "a task of GLUE": ("configs/finetune/glue.py:sst-2", ["sst-2", "cola, sst2"], "glue.py:sst2"),
  "a paper": ("configs/finetune/glue.py:rte,robert", ["robert", "large, roberta"], "glue.py:rte,roberta"),
  "a version": ("configs/finetune/squad.py:2.0", ["2.0", "v1.1, v2.0"], "squad.py:v2.0"),
  "a size of RACE": ("configs/finetune/race.py:big", ["big", "large"], "race.py:"),
  "a variant": ("configs/base.py:tinny", [":tinny", ":tiny"], "base.py:tiny"),
  "no file": ("configs/nope.py", ["configs/nope.py", "No such file"], "--config=tiny"),
  "no Python": ("requirements.txt", ["requirements.txt", ".py"], "--config=tiny"),
  "no recipe": ("tests/conftest.py", ["get_config"], "--config=tiny"),
}


@pytest.mark.parametrize("row", RECIPES)
def test_a_recipe_that_is_wrong_names_the_right_one(row):
  argument, words, fix = RECIPES[row]
  with pytest.raises(UserError) as caught:
    recipes.load(str(ROOT / argument))
  assert_four_parts(caught.value, *words)
  assert fix in caught.value.fix and "Error" not in caught.value.what


# ---- fine-tuning: names that no table has ----


@pytest.mark.parametrize(("changes", "words"), [
  ({"task.name": "own_clasification"}, ["task.name is unknown", "--config.task.name=own_classification"]),
  ({"task.name": "squad"}, ["task.name is unknown", "--config.task.name=squad_v"]),
  ({"task.name": ""}, ["task.name is unknown", "cola"]),
  ({"task.metric": "acuracy"}, ["task.metric", "--config.task.metric=accuracy"]),
  ({"task.name": "own_tagging", "task.metric": "f1"}, ["own_tagging", "entity_f1"]),
  ({"task.name": "own_regression", "task.metric": "accuracy"}, ["own_regression", "spearman, pearson"]),
  ({"task.name": "mrpc", "task.metric": "matthews"}, ["mrpc", "f1"]),
  ({"task.name": "squad_v1.1", "task.metric": "best_f1"}, ["squad_v1.1", "f1, exact"]),
  ({"task.name": "race", "task.metric": "f1"}, ["race", "middle, high"])])
def test_an_unknown_task_or_metric_is_told_before_any_file_is_read(changes, words):
  with pytest.raises(UserError) as caught:
    tasks.check(recipe("finetune/own", **changes).task)
  assert_four_parts(caught.value, *words)


def test_every_task_has_its_metrics():
  assert tasks.METRICS.keys() == tasks.TASKS.keys()
  for name, metrics in tasks.METRICS.items():
    for metric in ("", *metrics):
      tasks.check(recipe("finetune/own", **{"task.name": name, "task.metric": metric}).task)


# ---- config.json and what to start from ----

CONFIGS = {
  "a list": ("[1, 2]", "no object"), "a number": ("3", "no object"), "null": ("null", "no object"),
  "empty": ("", "Expecting value"), "cut off": ('{"resolved": {', "Expecting"),
  "of another program": ('{"model_type": "bert", "hidden_size": 768}', "resolved"),
  "with a list inside": ('{"resolved": [1]}', "resolved"),
  "with null inside": ('{"resolved": null, "format": 2}', "resolved"), "a text": ('"resolved"', "no object"),
  "nested too deeply": ("[" * 100_000, "recursion"),
  "no UTF-8": (b"\xff\xfe{", "utf-8"),
}


@pytest.mark.parametrize("row", CONFIGS)
def test_a_config_json_of_anything_is_refused_and_kept(tmp_path, row):
  text, said = CONFIGS[row]
  content = text if isinstance(text, bytes) else text.encode()
  (tmp_path / "config.json").write_bytes(content)
  with pytest.raises(UserError) as caught:
    config_lib.load(str(tmp_path))
  assert_four_parts(caught.value, "No run can be read", "config.json", said)
  from electra_jax.training import workdir

  with pytest.raises(UserError):
    workdir.claim(config_lib.resolve(recipe("tiny")), str(tmp_path))
  assert (tmp_path / "config.json").read_bytes() == content


@pytest.mark.parametrize(("path", "is_hub_name"), [
  ("google/electra-small-discriminator", True), ("bert-base-uncased", True), ("roberta-base", True),
  ("microsoft/deberta-v3-base", True), ("/nowhere/run", False), ("runs/a/b", False), ("../runs/x", False),
  ("~/runs", False), ("a folder", False)])
def test_a_start_that_is_not_there(tmp_path, monkeypatch, path, is_hub_name):
  """Without a network; what the hub has is in tests/exchange/test_hub.py."""
  import huggingface_hub

  from electra_jax.exchange import published
  from electra_jax.finetuning import pretrained
  from electra_jax.inference import loading

  def no_network(self, name, timeout):
    assert is_hub_name
    raise ConnectionError("nowhere\nand more")

  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(huggingface_hub.HfApi, "model_info", no_network)
  given = recipe("tiny", **{"checkpoint.init_from": path})
  for call in (lambda: pretrained.load(path), lambda: published.fit(given, str(tmp_path / "new")),
               lambda: loading.load(path), lambda: config_lib.load(path)):
    with pytest.raises(UserError) as caught:
      call()
    assert_four_parts(caught.value, f"No run can be read from {path}", "no such file or folder")
    if is_hub_name and "hub" in caught.value.got:
      assert "no model of that name (ConnectionError: nowhere)" in caught.value.got
      assert f"hf download {path} --local-dir=models/{path.split('/')[-1]}" in caught.value.fix
  assert "hub" not in caught.value.got  # a workdir alone is not asked for there
  assert not list(tmp_path.iterdir())


# ---- steps: few of them, and others on resume ----

TABLES = {name: recipes.load_file(recipes.find(name)).ROWS for name in ("ablations", "evidence")}
ALL_RECIPES = sorted([f"{path.stem}:tiny" for path in (ROOT / "configs").glob("*.py")
                      if path.stem not in ("__init__", "common", "variants", *TABLES)]
                     + [f"{name}:{row},tiny" for name, rows in TABLES.items() for row in rows])


@pytest.mark.parametrize("name", ALL_RECIPES)
def test_a_try_of_a_few_steps_needs_no_other_key(name):
  for num_steps in (2, 6, 40, 1000):
    _, given = recipes.load(name)
    given.train.num_steps = num_steps
    assert config_lib.resolve(given).optimizer.warmup_steps <= num_steps // 4


@pytest.mark.parametrize(("name", "changes", "refused"), [
  ("tiny", {"train.num_steps": 8000}, ""),
  ("tiny", {"train.num_steps": 1000}, ""),
  ("small", {"train.num_steps": 20_000}, ""),  # its warm-up is no longer 10,000 but a tenth
  ("evidence:electra_small", {"train.num_steps": 70_000}, ""),
  ("tiny", {"train.num_steps": 8000, "optimizer.warmup_steps": 25}, ""),
  ("tiny", {"optimizer.warmup_steps": 25}, "--config.optimizer.warmup_steps=50"),
  ("tiny", {"train.num_steps": 8000, "optimizer.beta1": 0.8}, "--config.optimizer.beta1=0.9"),
  ("evidence:two_stage", {"train.num_steps": 70_000}, "--config.objective.generator_steps=")])
def test_another_number_of_steps_on_resume(name, changes, refused):
  """A derived warm-up follows; what else is derived and decides about the state is kept by the fix."""
  before = config_lib.resolve(recipe(name))
  after = config_lib.resolve(recipe(name, **changes))
  if not refused:
    assert "train.num_steps" in config_lib.check_resumable(before, after, "w")
    return
  with pytest.raises(UserError) as caught:
    config_lib.check_resumable(before, after, "w")
  assert_four_parts(caught.value, refused)


# ---- memory ----


@pytest.mark.parametrize(("error", "task", "fix"), [
  (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 17592186044416 bytes."), "",
   "accumulation_steps"),
  (RuntimeError("XLA:TPU compile permanent error. RESOURCE_EXHAUSTED: Ran out of memory"), "", "train.remat"),
  (RuntimeError("RESOURCE_EXHAUSTED: " + "allocation\n" * 10_000), "", "mesh.fsdp"),
  (MemoryError("Unable to allocate 3.05 TiB for an array"), "", "accumulation_steps"),
  (MemoryError(), "", "accumulation_steps"),
  (RuntimeError("RESOURCE_EXHAUSTED: Out of memory"), "cola", "seeds_at_once"),
  (MemoryError(), "cola", "seeds_at_once"),
  (RuntimeError("RESOURCE_EXHAUSTED: Out of memory"), None, "smaller batches"),
  (RuntimeError("INTERNAL: something else"), "", None),
  (ValueError("memory"), "cola", None)])
def test_memory_that_is_too_small(error, task, fix):
  config = None if task is None else ConfigDict({"task": {"name": task}})
  known = memory.find_exhausted(error, config)
  if fix is None:
    assert known is None
    return
  assert_four_parts(known, "memory is too small", type(error).__name__)
  assert fix in known.fix and len(str(known)) < 2000


# ---- a fault of the text under a trainer of vocabularies ----


@pytest.mark.parametrize("kind", ["sentencepiece", "sentencepiece_bpe", "wordpiece", "byte_bpe"])
@pytest.mark.parametrize("error", [UserError("A JSONL record is broken", got="a.jsonl:3", allowed="JSON", fix="repair"),
                                   MemoryError("none left"), OSError(5, "Input/output error")])
def test_what_the_text_raises_is_told_as_it_is(tmp_path, kind, error):
  def texts():
    yield "a line of text"
    raise error

  given = recipe("tiny", **{"data.tokenizer.kind": kind})
  with pytest.raises(type(error)) as caught:
    tokenizers.train_tokenizer(given.data.tokenizer, texts(), str(tmp_path / "tokenizer"), 0)
  assert str(caught.value) == str(error)
  assert not list(tmp_path.iterdir())


# ---- time: what needs no file is reported before jax and TensorFlow are imported ----

QUICK = {
  "unknown key": "--config=configs/tiny.py --workdir=W --config.optim.learning_rate=1",
  "unknown key behind a blank": "--config configs/tiny.py --workdir=W --config.optim.learning_rate=1",
  "exponent": "--config=configs/tiny.py --workdir=W --config.train.num_steps=1e5",
  "without config": "--config=configs/tiny.py --workdir=W --train.num_steps=5",
  "group": "--config=configs/tiny.py --workdir=W --config.train={}",
  "kind of task": "--config=configs/finetune/own.py:classify --workdir=W",
  "metric": "--config=configs/finetune/own.py --workdir=W --config.task.init_from=a --config.task.train_path=b "
            "--config.task.metric=f2",
  "rule": "--config=configs/tiny.py --workdir=W --config.train.batch_size=0",
  "choice": "--config=configs/tiny.py --workdir=W --config.optimizer.name=adam",
  "name of the hub": "--config=configs/bert_base.py:continued --workdir=W --config.checkpoint.init_from=me/bert",
  "name of the hub for labels": "--config=configs/finetune/own.py --workdir=W --config.task.init_from=me/bert "
                                "--config.task.train_path=b",
  "no text": "--config=configs/base.py --workdir=W --config.data.path=",
  "no W&B": "--config=configs/tiny.py --workdir=W --config.log.wandb_project=mine",
}


@pytest.mark.parametrize("row", QUICK)
def test_a_mistake_is_told_before_jax_is_imported(tmp_path, row):
  command = [sys.executable, "-X", "importtime", "-m", "electra_jax.main", *QUICK[row].split()]
  (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['wandb'] = None  # as if not installed\n")
  variables = environment() | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "HF_HUB_OFFLINE": "1"}
  done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60)
  imported = set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE))
  said = "\n".join(line for line in done.stderr.splitlines() if not line.startswith("import time:"))
  assert done.returncode == 2 and "Traceback" not in said, said
  assert said.strip().startswith("Error: ") and all(f"\n  {part}:" in said for part in ("got", "allowed", "fix")), said
  assert "ml_collections" in imported and not imported & {"jax", "tensorflow", "flax", "sklearn", "torch"}
