"""Is RACE shown as RoBERTa shows it, and are both levels read, from either layout, and scored?"""

import json
import math

import numpy as np
import pytest

from configs.finetune import race as recipes
from electra_jax import tasks
from electra_jax.errors import UserError
from electra_jax.tasks import race
from tests.tasks.fake_tokenizer import Words

PASSAGE = {"article": "a bb ccc", "questions": ["Who ?", "It is _ ."], "options": [["x", "yy", "z", "w"]] * 2,
           "answers": ["B", "D"], "id": "middle1.txt"}


def write_race(root, splits=("train", "dev"), levels=race.LEVELS):
  for split in splits:
    for level in levels:
      (root / f"{split}.{level}.jsonl").write_text(json.dumps(PASSAGE | {"id": f"{level}1.txt"}) + "\n")


def task_of(root):
  c = recipes.get_config().task
  c.data_dir = str(root)
  return tasks.make(c)


def test_four_sequences_written_out(tmp_path):
  write_race(tmp_path)
  task = task_of(tmp_path)
  examples = task.read("train")
  assert [e.example_id for e in examples] == ["middle1.txt-0", "middle1.txt-1", "high1.txt-0", "high1.txt-1"]
  first, second = (task.featurize(e, Words(), 64)[0] for e in examples[:2])
  assert first["input_ids"] == [[1, 11, 12, 13, 2, 13, 11, 10 + n, 2] for n in (1, 2, 1, 1)]
  assert first["token_type_ids"] == [[0] * 5 + [1] * 4] * 4 and first["label"] == 1
  assert second["input_ids"][1] == [1, 11, 12, 13, 2, 12, 12, 12, 11, 2]  # the blank is filled
  roberta = race.featurize(examples[0], Words("byte_bpe"), 64, 128)
  assert roberta["input_ids"][0] == [1, 11, 12, 13, 2, 2, 13, 11, 11, 2]


def test_question_and_answer_are_cut_before_the_passage_is(tmp_path):
  long = race.Example("x-0", ("p " * 600, "q " * 150, ("a", "b", "c", "d"), "high"), "A", "")
  feature = race.featurize(long, Words(), 512, 128)
  assert {len(ids) for ids in feature["input_ids"]} == {512} and feature["_was_cut"]
  assert {sum(kinds) for kinds in feature["token_type_ids"]} == {128 + 1}
  short = race.featurize(long._replace(texts=("p " * 600, "q", ("a a", "b", "c", "d"), "high")), Words(), 512, 128)
  assert [sum(kinds) for kinds in short["token_type_ids"]] == [4, 3, 3, 3]
  assert {len(ids) for ids in short["input_ids"]} == {512}


def test_official_folders_are_read_too(tmp_path):
  for level in race.LEVELS:
    folder = tmp_path / "dev" / level
    folder.mkdir(parents=True)
    (folder / "1.txt").write_text(json.dumps(PASSAGE))
  task = task_of(tmp_path)
  assert task.splits == ("train", "dev") and [e.texts[3] for e in task.read("dev")] == ["middle"] * 2 + ["high"] * 2


def test_accuracy_of_both_levels_and_the_letters(tmp_path):
  write_race(tmp_path, ("train", "dev", "test"))
  task = task_of(tmp_path)
  assert task.splits == ("train", "dev", "test")
  examples = task.read("dev")  # B, D of each level
  logits = np.array([[0, 1, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 0, 0, 1]], np.float32)
  answers = task.decode({"multiple_choice_head": logits}, [], examples)
  assert answers == ["B", "D", "A", "D"]
  assert task.score(answers, examples) == {"accuracy": 0.75, "middle": 1.0, "high": 0.5}
  assert json.loads(task.files({"dev": (answers, examples)})["dev_predictions.json"])["high1.txt-0"] == "A"


@pytest.mark.parametrize("answers, wanted", [(["A"] * 4, (0.0, 0.0, 0.0)), (["B"] * 4, (0.5, 0.5, 0.5)),
                                             ([None, "D", "B", "D"], (math.nan, math.nan, 1.0))])
def test_degenerate_answers(answers, wanted, tmp_path):
  write_race(tmp_path)
  task = task_of(tmp_path)
  found = task.score(answers, task.read("dev"))
  assert (found["accuracy"], found["middle"], found["high"]) == pytest.approx(wanted, nan_ok=True)
  assert math.isnan(task.score([], [])["accuracy"]) and math.isnan(task.score([], [])["high"])


def test_nan_is_no_letter():
  assert race.decode({"multiple_choice_head": np.full((1, 4), np.nan)}, [], []) == [None]


BAD = {
  "no file": (None, ["does not exist", "train.middle.jsonl"]),
  "no JSON": ("{", ["no JSON object", "train.high.jsonl:1"]),
  "no article": ({"article": None}, ["not one list", "train.high.jsonl:1"]),
  "three options": ({"options": [["a", "b", "c"]] * 2}, ["not four options", "question 0", "['a', 'b', 'c']"]),
  "unknown answer": ({"answers": ["B", "E"]}, ["none of them", "question 1", "'E'"]),
  "questions null": ({"questions": None}, ["not one list", "train.high.jsonl:1: questions: None, 2 options"]),
  "a question null": ({"questions": ["q", None]}, ["not four options", "question 1: None"]),
  "options no lists": ({"options": ["abcd", "abcd"]}, ["not four options", "options 'abcd'"]),
  "an option null": ({"options": [["a", "b", "c", None]] * 2}, ["not four options", "question 0", "None]"]),
  "an answer a list": ({"answers": ["B", ["D"]]}, ["none of them", "question 1"]),
  "answer missing": ({"answers": ["B"]}, ["one answer for each", "2 questions, 2 options, 1 answers"]),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_names_file_and_line(what, tmp_path):
  change, named = BAD[what]
  if change is not None:
    text = change if isinstance(change, str) else json.dumps(PASSAGE | change)
    (tmp_path / "train.high.jsonl").write_text(text + "\n")
  with pytest.raises(UserError) as caught:
    task_of(tmp_path).read("train")
  assert caught.value.got and caught.value.allowed and caught.value.fix
  for part in named:
    assert part in str(caught.value)


def test_real_race_counts(shared):
  examples = race.read(str(shared / "data/race"), "dev")
  assert len(examples) == 4887
