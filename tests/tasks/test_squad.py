"""Are SQuAD's windows complete and its answers exact slices of the original text, whatever is in it?"""

import gzip
import json
import random
import tracemalloc

import numpy as np
import pytest

from configs import tiny
from configs.finetune import squad as recipes
from electra_jax import tasks
from electra_jax.data import tokenizers
from electra_jax.data.sources import lines
from electra_jax.errors import UserError
from electra_jax.tasks import squad
from electra_jax.tasks.base import Example
from tests.tasks.fake_tokenizer import Words
from tests.workdirs import TEXT


class Characters(Words):
  """`Words` whose tokens know their place."""

  def encode_words(self, text):
    found, place = [], 0
    for word in text.split():
      place = text.index(word, place)
      for piece in word.split("-"):
        place = text.index(piece, place)
        found.append((place, place + len(piece)))
        place += len(piece)
    return self.encode(text), found


def squad_json(*questions, version="v2.0"):
  """(context, question, text, start) each; text None: unanswerable."""
  paragraphs = [{"context": context, "qas": [
    {"id": f"q{number}", "question": question, "answers": [] if text is None else [
      {"text": text, "answer_start": start}], **({"is_impossible": text is None} if version == "v2.0" else {})}]}
                for number, (context, question, text, start) in enumerate(questions)]
  return json.dumps({"version": version, "data": [{"title": "t", "paragraphs": paragraphs}]})


def task_of(root, text, version="v2.0", split="train", **keys):
  path = root / f"{split}-{version}.json"
  path.write_text(text, newline="")
  c = recipes.get_config(version)
  c.task.update({"span_head": "independent", **keys}, data_dir=str(root))
  return tasks.make(c.task)


def featurised(task, split="train", tokenizer=None, max_length=64):
  return [task.featurize(example, tokenizer or Characters(), max_length) for example in task.read(split)]


def test_features_written_out(tmp_path):
  task = task_of(tmp_path, squad_json(("one  two\r\nthree", "who is it ?", "two", 5), ("one two", "why ?", None, 0)))
  (answered,), (unanswerable,) = featurised(task)
  assert answered["input_ids"] == [1, 13, 12, 12, 11, 2, 13, 13, 15, 2]
  assert answered["token_type_ids"] == [0] * 6 + [1] * 4
  assert (answered["start"], answered["end"], answered["is_impossible"]) == (7, 7, 0.0)
  assert (unanswerable["start"], unanswerable["end"], unanswerable["is_impossible"]) == (0, 0, 1.0)
  (roberta,), _ = featurised(task, tokenizer=Characters("byte_bpe"))
  assert roberta["input_ids"][:8] == [1, 13, 12, 12, 11, 2, 2, 13] and roberta["start"] == 8
  v1 = task_of(tmp_path, squad_json(("one two", "why ?", "one", 0), version="v1.1"), "v1.1")
  assert "is_impossible" not in featurised(v1)[0][0]


def test_windows_cover_every_token_of_the_context_also_behind_a_long_question(tmp_path):
  context = " ".join(f"{i:04}" for i in range(157))
  task = task_of(tmp_path, squad_json((context, "q " * 11, "0120", 5 * 120)))
  (windows,) = featurised(task, max_length=128)
  assert [(int(w["_offsets"][0, 0]) // 5, len(w["_offsets"])) for w in windows] == [(0, 114), (114, 43)]
  assert [w["start"] for w in windows] == [0, 13 + 120 - 114]  # outside of the first window: nothing there
  assert [w["is_impossible"] for w in windows] == [1.0, 0.0]
  task = task_of(tmp_path, squad_json((context, "q " * 70, "0120", 5 * 120)), window_stride=16)
  (windows,) = featurised(task, max_length=128)
  assert all(w["_was_cut"] and len(w["input_ids"]) <= 128 for w in windows)  # the question at 64 tokens
  assert {int(start) // 5 for w in windows for start in w["_offsets"][:, 0]} == set(range(157))
  assert sum(w["_owned"].sum() for w in windows) == 157  # each token begins answers in one window


def test_a_window_without_the_answer_says_so(tmp_path):
  context = " ".join(f"w{i:03d}" for i in range(60))
  task = task_of(tmp_path, squad_json((context, "q ?", "w050", 250)), window_stride=8)
  (windows,) = featurised(task, max_length=32)
  inside = [bool((w["_offsets"][:, 0] == 250).any()) for w in windows]
  assert any(inside) and not all(inside)
  for window, holds in zip(windows, inside):
    assert window["is_impossible"] == (not holds)
    if holds:
      assert window["_offsets"][window["start"] - window["_begin"]].tolist() == [250, 254]
    assert (window["start"] > 0) == (window["end"] > 0) == holds


def test_windows_of_a_book_take_memory_for_each_token_once():
  count, room = 40_000, 350
  tracemalloc.start()
  owned = squad.owners(range(0, count - room + 128, 128), room, count)
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert sum(map(np.sum, owned)) == count and peak < 5e6  # 99 MB with a row for each window


SPANS = {  # context, answer, its start -> the tokens' own slice
  "line break": ("ab\r\ncd", "cd", 4, "cd"),
  "double spaces": ("a  b   c d", "c", 7, "c"),
  "umlaut before": ("naïve  1854-55", "1854", 7, "1854"),
  "combining": ("nai\u0308ve  cafe\u0301 x", "cafe\u0301", 8, "cafe\u0301"),
  "blank behind": ("a bc d", "bc ", 2, "bc"),
  "part of a token": ("the 1850s ended", "1850", 4, "1850s"),  # the shortest tokens that hold it
  "whole context": ("abc", "abc", 0, "abc"),
  "astral": ("😀 ab 😀", "ab", 2, "ab"),
}


@pytest.mark.parametrize("what", SPANS)
def test_spans_are_slices_of_the_original(what, tmp_path):
  context, answer, start, wanted = SPANS[what]
  ((feature,),) = featurised(task_of(tmp_path, squad_json((context, "q ?", answer, start))))
  offsets = feature["_offsets"]
  first, last = (feature[name] - feature["_begin"] for name in ("start", "end"))
  assert context[offsets[first, 0]:offsets[last, 1]] == wanted


PIECES = ["the", "cat", "naïve", "cafe\u0301", "1854-55", "(d.", "ﬁne", "Straße", "İst", "日本", "e\u0301e\u0301", "😀",
          "nai\u0308ve", "½", "a\u200db", "…", "\u0915\u094d\u0937\u093f"]
BLANKS = [" ", "  ", "\r\n", "\n\n", "\t", " \u00a0", "\u3000", "\u2028"]


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe", "sentencepiece"])
def test_any_answer_of_whole_words_comes_back_exactly(kind, tmp_path, monkeypatch):
  monkeypatch.setattr(squad, "MAX_ANSWER_LENGTH", 96)
  c = tiny.get_config()
  c.data.tokenizer.update(kind=kind, vocab_size=400)
  tokenizer = tokenizers.train_tokenizer(c.data.tokenizer, iter([*TEXT, " ".join(PIECES)] * 20), str(tmp_path), seed=0)
  rng, config = random.Random(0), recipes.get_config("v2.0,roberta").task
  task = tasks.make(config)
  for _ in range(150):
    context, places = rng.choice(["", " ", "\r\n"]), []
    for piece in rng.choices(PIECES, k=rng.randint(1, 30)):
      places.append((len(context), len(context) + len(piece)))
      context += piece + rng.choice(BLANKS)
    first = rng.randrange(len(places))
    last = min(len(places) - 1, first + rng.randint(0, 2))
    answer = context[places[first][0]:places[last][1]]
    example = Example("q", ("the cat ?", context), squad.Reference((answer,), (places[first][0],)), "")
    windows = task.featurize(example, tokenizer, 96)
    held = [w for w in windows if not w["is_impossible"]]
    assert held or len(windows) > 1
    outputs = {"span_head": np.zeros((len(windows), 96, 2), np.float32), "answerable_head": np.zeros(len(windows))}
    for row, window in enumerate(windows):
      window["_example"] = 0
      if window in held:
        owns = window["_owned"][window["start"] - window["_begin"]]
        outputs["span_head"][row, window["start"], 0] = outputs["span_head"][row, window["end"], 1] = 5 + owns
    if any(w["_owned"][w["start"] - w["_begin"]] for w in held):
      (found,) = squad.decode(outputs, windows, [example])
      assert found.candidates[0].text == answer == context[found.candidates[0].start:found.candidates[0].end]


def outputs_for(features, spans, odds):
  """Logits that are high at given (start, end, score) tokens of the context, one list a window."""
  logits = np.zeros((len(features), 32, 2), np.float32)
  for row, (feature, wanted) in enumerate(zip(features, spans)):
    logits[row] = -9
    for start, end, value in wanted:
      logits[row, feature["_begin"] + start, 0] = logits[row, feature["_begin"] + end, 1] = value
    logits[row, 1] = 99  # the question and [CLS] are no answers
  return {"span_head": logits, "answerable_head": np.array(odds, np.float32)}


def test_candidates_and_the_files_of_a_run(tmp_path, monkeypatch):
  text = squad_json(("a bc d\u0301e  f", "q ?", "bc", 2), ("x y", "q ?", None, 0))
  task = task_of(tmp_path, text, split="dev")
  examples = task.read("dev")
  features = [f | {"_example": i} for i, e in enumerate(examples) for f in task.featurize(e, Characters(), 32)]
  outputs = outputs_for(features, [[(1, 1, 3.0), (3, 3, 2.5)], [(0, 1, 1.0)]], [-1.0, 2.0])
  monkeypatch.setattr(squad, "MAX_ANSWER_LENGTH", 2)
  answers = squad.decode(outputs, features, examples)
  assert [c.text for c in answers[0].candidates[:3]] == ["bc", "f", "bc d\u0301e"]  # the longer one is too long
  best = answers[0].candidates[0]
  assert (best.start, best.end, best.start_logit, best.end_logit) == (2, 4, 3.0, 3.0)
  assert sum(c.probability for c in answers[0].candidates) == pytest.approx(1)
  assert [answer.null_odds for answer in answers] == [-1.0, 2.0]
  assert task.score(answers, examples)["f1"] == task.score(answers, examples)["best_f1"] == 1.0
  files = task.files({"dev": (answers, examples), "test": (answers, examples)})
  for split in ("dev", "test"):
    assert json.loads(files[f"{split}_predictions.json"]) == {"q0": "bc", "q1": ""}
  assert json.loads(files["dev_null_odds.json"]) == {"q0": -1.0, "q1": 2.0}
  assert json.loads(files["threshold.json"]) == {"null_odds_threshold": -1.0, "dev_best_f1": 1.0}
  assert json.loads(files["dev_nbest.json"])["q1"][0]["text"] == "x y"
  broken = task.decode({**outputs, "answerable_head": np.array([np.nan, 0])}, features, examples)
  assert broken[0] is None and np.isnan(task.score(broken, examples)["best_f1"])
  assert task.files({"dev": (broken, examples)}) == {}


def test_version_1_always_answers(tmp_path):
  task = task_of(tmp_path, squad_json(("a bc", "q ?", "bc", 2), version="v1.1"), "v1.1", split="dev")
  examples = task.read("dev")
  features = [f | {"_example": 0} for f in task.featurize(examples[0], Characters(), 32)]
  answers = task.decode(outputs_for(features, [[(1, 1, 3.0)]], [99.0]), features, examples)
  assert task.metric == "f1" and task.score(answers, examples) == {"f1": 1.0, "exact": 1.0}
  assert json.loads(task.files({"dev": (answers, examples)})["dev_predictions.json"]) == {"q0": "bc"}


BAD = {
  "no file": (None, ["does not exist", "train-v2.0.json"]),
  "no JSON": ("{", ["no SQuAD JSON"]),
  "another JSON": ("[1]", ["no SQuAD JSON"]),
  "empty": ('{"data": []}', ["no example", "train-v2.0.json:1"]),
  "moved": (squad_json(("ab\ncd", "q", "cd", 4)), ["not where it should be", "question q0: 'cd'", "at 4 there is 'd'"]),
  "no context": (squad_json((" ", "q", "c", 0)), ["context is empty", "q0"]),
  "no answer": (squad_json(("a", "q", None, 0), version="v1.1"), ["has no answer", "q0"]),
  "twice": (squad_json(("a", "q", None, 0)).replace("}]}]}]}", '}, {"id": "q0", "question": "q", "answers": [], '
                                                    '"is_impossible": true}]}]}]}'), ["occurs twice", "q0"]),
  "question null": (squad_json(("a", None, "a", 0)), ["'question'", "question q0: question is null"]),
  "question a list": (squad_json(("a", ["q"], "a", 0)), ["'question'", 'q0: question is ["q"]']),
  "no question": (squad_json(("a", "q", "a", 0)).replace('"question"', '"query"'), [
    "'question'", "q0: question is missing"]),
  "no id": (squad_json(("a", "q", "a", 0)).replace('"id": "q0", ', ""), ["'id'", "question number 1: id is missing"]),
  "context null": (squad_json((None, "q", "a", 0)), ["context is empty", "q0: None"]),
  "answers null": (squad_json(("a", "q", "a", 0)).replace('[{"text": "a", "answer_start": 0}]', "null"), [
    "'answers'", "q0: answers is null"]),
  "an answer without text": (squad_json(("a", "q", 3, 0)), ["'text'", "q0, an answer: text is 3"]),
  "a start that is text": (squad_json(("a", "q", "a", "0")), ["'answer_start'", 'q0, an answer: answer_start is "0"']),
  "impossible in words": (squad_json(("a", "q", "a", 0)).replace("false", '"false"'), ["'is_impossible'", '"false"']),
  "half a character": (squad_json(("a", "\ud83d", "a", 0)), ["no SQuAD JSON", "surrogates not allowed"]),
  "a field twice": (squad_json(("a", "q", "a", 0)).replace('"id": "q0"', '"id": "q0", "id": "q1"'), [
    "no SQuAD JSON", "'id' occurs twice"]),
  "a question that is text": ('{"data": [{"paragraphs": [{"context": "a", "qas": ["q"]}]}]}', ["no SQuAD JSON"]),
  "no room": (squad_json(("a", "q " * 60, "a", 0)), ["leaves no room", "q0: 60 tokens"]),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_names_the_question(what, tmp_path):
  text, named = BAD[what]
  with pytest.raises(UserError) as caught:
    task = task_of(tmp_path, text or "")
    if text is None:
      (tmp_path / "train-v2.0.json").unlink()
    featurised(task)
  assert caught.value.got and caught.value.allowed and caught.value.fix
  for part in named:
    assert part in str(caught.value)


@pytest.mark.parametrize("split", ["train", "dev"])
def test_version_1_has_an_answer_to_each_question(split, tmp_path):
  """Its score is not defined without one: told before the training, not after it."""
  text = squad_json(("a", "q ?", "a", 0), ("b", "q ?", None, 0))
  with pytest.raises(UserError, match="questions without an answer") as caught:
    task_of(tmp_path, text, "v1.1", split).read(split)
  assert "1 of 2" in caught.value.got and "question q1" in caught.value.got and "squad.py:v2.0" in caught.value.fix
  assert len(task_of(tmp_path, text, "v2.0", split).read(split)) == 2


def test_the_official_files_are_one_line(tmp_path, monkeypatch):
  monkeypatch.setattr(lines, "MAX_LINE_CHARACTERS", 1 << 16)
  context = "Anna built the mill. " * 60
  text = squad_json(*[(context, f"q {number} ?", "Anna", 0) for number in range(100)])
  assert len(text) > lines.MAX_LINE_CHARACTERS and "\n" not in text
  assert len(task_of(tmp_path, text).read("train")) == 100


def test_the_hidden_test_set_has_no_label(tmp_path):
  text = squad_json(("a bc", "q ?", "bc", 2)).replace('"answers": [{"text": "bc", "answer_start": 2}], ', "")
  path = tmp_path / "other.json.gz"
  path.write_bytes(gzip.compress(text.encode()))
  config = recipes.get_config("v2.0").task
  config.test_path = str(path)
  (example,) = tasks.make(config).read("test")
  assert example.label is None and example.texts == ("q ?", "a bc")
  config.update(test_path=f"{path}.none", write_test_predictions=True)
  with pytest.raises(UserError, match="does not exist"):
    tasks.make(config)  # before the training, not after it


def test_real_squad_1_has_an_answer_to_each_question(shared):
  config = recipes.get_config("v1.1").task
  config.dev_path = str(shared / "data/squad/dev-v1.1.rebuilt.json.gz")
  assert len(tasks.make(config).read("dev")) == 10_505


def test_real_squad_answers_are_slices(shared):
  for name, count in {"train-v1.1.part1.json.gz": 8153, "dev-v2.0.half.json.gz": 6078}.items():
    assert len(squad.read(str(shared / "data/squad" / name), "train")) == count
