"""The command from end to end, its screen with and without colours, its files, and its errors."""

import io
import json
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict
from rich.console import Console

from configs import base
from electra_jax.errors import UserError
from electra_jax.inference import pretraining_heads
from electra_jax.tools import predict, predict_screen
from electra_jax.tools.predict_tasks import TASKS, items_of
from tests.conftest import ONE_DEVICE, ROOT
from tests.workdirs import TEXT, make_workdir, records

AUTO = TASKS["auto"]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
  return make_workdir(tmp_path_factory.getbasetemp(), base, "sentencepiece")


@pytest.fixture(scope="module")
def run(workdir):
  return pretraining_heads.load(workdir)


def command(*arguments, **environment):
  # One device: start-up is quicker than with the eight of conftest.
  return subprocess.run([sys.executable, "-m", "electra_jax.tools.predict", *arguments], cwd=ROOT, text=True,
                        capture_output=True, stdin=subprocess.DEVNULL,
                        env={**os.environ, "XLA_FLAGS": ONE_DEVICE, **environment})


def test_command_fills_and_judges(workdir):
  done = command(f"--workdir={workdir}", "--step=20", "--top_k=3", "--threshold=0",
                 "the <mask> sat on the [MASK].", TEXT[1])
  assert done.returncode == 0 and done.stderr == "", done.stderr
  lines = done.stdout.splitlines()
  assert lines[0].startswith(f"{workdir}, step 20: rtd, sentencepiece of ")
  first = lines.index("the <mask> sat on the [MASK].")
  assert [line.split()[0] for line in lines[first + 1:first + 8:3]] == ["mask", "mask", "filled"]
  assert lines[first + 8].startswith("  judged    [the") and "%]" in lines[first + 8]  # threshold 0 marks everything
  second = lines.index(TEXT[1])
  assert lines[second + 1].startswith("  judged    [rain ")
  assert lines[-1].startswith("Legend: [word 87%] = looks replaced") and "most suspicious piece" in lines[-1]
  assert "\x1b" not in done.stdout


MISTAKES = {  # what is said -> the arguments
  "No run can be read from /nowhere": ["--workdir=/nowhere", "the cat"], "--workdir is missing": ["the cat"],
  "There is nothing to answer": ["--workdir=/nowhere"],
  "threshold": ["--workdir=/nowhere", "--treshold=0.2", "the cat"],
}
COMMANDS = """
import json, os, runpy, sys
import electra_jax.tools.predict_tasks, electra_jax.tools.predict_screen
for arguments in json.loads(sys.argv.pop()):
  if os.fork():
    print(os.waitstatus_to_exitcode(os.wait()[1]), file=sys.stderr)
  else:
    sys.argv = ["predict", *arguments]
    runpy.run_module("electra_jax.tools.predict", run_name="__main__", alter_sys=True)
"""


def test_command_tells_mistakes_in_four_lines():
  """Each in a process of its own, behind one import of what the command needs."""
  done = subprocess.run([sys.executable, "-c", COMMANDS, json.dumps(list(MISTAKES.values()))], cwd=ROOT, text=True,
                        capture_output=True, stdin=subprocess.DEVNULL, env={**os.environ, "XLA_FLAGS": ONE_DEVICE})
  *texts, rest = re.split(r"^2\n", done.stderr, flags=re.MULTILINE)
  assert len(texts) == len(MISTAKES) and not rest and "Traceback" not in done.stderr, done.stderr
  for said, text in zip(MISTAKES, texts):
    assert said in text and all(part in text for part in ("Error: ", "got: ", "allowed: ", "fix: ")), text


def shown(run, texts, threshold, **options):
  screen = io.StringIO()
  console = Console(file=screen, highlight=False, force_terminal=True, color_system="standard", width=80)
  predict_screen.show(pretraining_heads.answer(run, texts, **options), predict_screen.Screen(console, threshold))
  return screen.getvalue()


def test_colours_take_the_place_of_brackets(run, monkeypatch):
  monkeypatch.delenv("NO_COLOR", raising=False)
  everything = shown(run, TEXT[:1], 0.0)
  assert "\x1b[1;31mthe" in everything and "[the" not in everything.replace("\x1b[", "")
  nothing = shown(run, TEXT[:1], 1.0)
  assert "nothing reaches 100%; closest: " in nothing and "\x1b[1;31mthe" not in nothing


def test_both_networks_together_rank_beside_the_generator(run):
  """Appendix E: the same 100 candidates in another order; a lone mask's p_data is D p_G / (a (1 - D) + p_G)."""
  text = "the cat sat on the [MASK]"
  (one,) = pretraining_heads.answer(run, [text], top_k=100, with_combined=True)
  (alone,), (together,) = one.candidates, one.combined
  assert {c.token_id for c in alone} == {c.token_id for c in together} and len(together) == 100
  assert sorted(together, key=lambda c: -c.probability) == together
  best, a = together[0], 0.85 / 0.15
  p_g = next(c.probability for c in alone if c.token_id == best.token_id)
  ids = list(one.sentence.ids)
  ids[one.sentence.masks[0]] = best.token_id
  judged = pretraining_heads.detect_replaced(run, [one.sentence._replace(ids=ids)])[0]
  d = 1 - judged[list(one.sentence.ordinary).index(one.sentence.masks[0])].probability
  # fill_mask leaves p_G of special tokens out of the candidates, but not out of the softmax
  assert best.probability == pytest.approx(d * p_g / (a * (1 - d) + p_g), rel=0.05)
  record = TASKS["auto"].record({}, one)
  assert [c["id"] for c in record["masks"][0]["combined"]] == [c.token_id for c in together]
  screen = shown(run, [text], 1.0, with_combined=True)
  assert "discriminator together" in screen and f"{best.probability:6.1%}" in screen
  assert "together" not in shown(run, [text], 1.0)


def test_markup_in_a_sentence_is_text(run):
  assert "[bold]the[/bold] cat" in shown(run, ["[bold]the[/bold] cat"], 1.0)


def test_file_in_and_out_keeps_order_and_line_numbers(run, tmp_path, monkeypatch):
  monkeypatch.setattr(predict, "CHUNK_LINES", 3)
  texts = [*TEXT, "the [MASK] sat", *TEXT[:2]]
  (tmp_path / "in.txt").write_text("\n\n".join(texts))
  (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
  out = str(tmp_path / "out.jsonl")
  for name, step in (("in.txt", 2), ("in.jsonl", 1)):
    answers = predict.answer_file(run, str(tmp_path / name), AUTO, top_k=7)
    assert predict.write_records(answers, out, AUTO) == 8
    with open(out, encoding="utf-8") as file:
      rows = [json.loads(line) for line in file]
    assert [(row["line"], row["text"]) for row in rows] == [(1 + step * i, text) for i, text in enumerate(texts)]
    (mask,) = rows[5]["masks"]
    assert (mask["start"], mask["end"], len(mask["candidates"])) == (4, 10, 7)
    for row in rows:
      text = row.get("filled", row["text"])
      assert all(text[word["start"]:word["end"]] == word["word"] for word in row["words"])
      assert all(0 <= word["replaced"] <= 1 for word in row["words"])


@pytest.mark.parametrize("data_field, text_fields, task, expected", [
  ("text", "text", "classify", ["text", "pair"]), ("body", "text", "auto", ["body"]),
  ("text", "question, answer", "classify", ["question", "answer"]), ("text", "tokens", "tag", ["tokens"]),
  ("body", "text", "tag", ["words"]), ("body", "text", "question", ["question", "context"])])
def test_columns_of_a_file_are_called_as_in_the_data_of_the_run(data_field, text_fields, task, expected):
  config = ConfigDict({"data": {"text_field": data_field}, "task": {"text_fields": text_fields}})
  assert list(predict.columns_of(config, TASKS[task]).values()) == expected


def test_a_table_with_the_columns_of_the_run_is_answered(run, tmp_path):
  (tmp_path / "in.csv").write_text("number,review\n1,the cat sat\n2,a dog\n")
  own = ConfigDict(run.config.to_dict())
  own.task.text_fields = "review"
  answers = predict.answer_file(run._replace(config=own), str(tmp_path / "in.csv"), AUTO, top_k=1)
  assert [(number, item["text"]) for number, item, _ in answers] == [(2, "the cat sat"), (3, "a dog")]


@pytest.mark.parametrize("name, content, said", [
  ("in.txt", None, "does not exist"),
  ("in.txt", "\n \n", "holds no sentence"),
  ("in.jsonl", '{"text": "a"}\n{"txt": "b"}\n', "in.jsonl:2"),
  ("in.jsonl", '{"text": "a"}\n{"text": 3}\n', "in.jsonl:2"),
  ("in.jsonl", '{"text": "a"}\nplain\n', "in.jsonl:2"),
  ("in.txt", "the cat\n\n" + "the cat " * 80, "in.txt:3"),
])
def test_files_that_cannot_be_answered_leave_nothing_behind(run, tmp_path, name, content, said):
  if content is not None:
    (tmp_path / name).write_text(content)
  before = set(os.listdir(tmp_path))
  with pytest.raises(UserError, match=said):
    answers = predict.answer_file(run, str(tmp_path / name), AUTO, top_k=7)
    predict.write_records(answers, str(tmp_path / "out.jsonl"), AUTO)
  assert set(os.listdir(tmp_path)) == before


# ---- --task ----


def test_embeddings_are_means_of_the_encoder_and_keep_their_order(run, tmp_path):
  (tmp_path / "in.txt").write_text("\n".join(TEXT))
  embed, out = TASKS["embed"], str(tmp_path / "out.jsonl")
  predict.write_records(predict.answer_file(run, str(tmp_path / "in.txt"), embed), out, embed)
  with open(out, encoding="utf-8") as file:
    rows = [json.loads(line) for line in file]
  assert [row["text"] for row in rows] == TEXT
  for text, row in zip(TEXT, rows):
    batch = jax.tree.map(jnp.asarray, pretraining_heads.make_batch(run, [pretraining_heads.encode(run, text)]))
    hidden = np.asarray(jax.jit(run.network.encode)(run.params, batch, batch["input_ids"]))[0]
    np.testing.assert_allclose(row["embedding"], hidden[batch["attention_mask"][0]].mean(axis=0), atol=1e-5)
  (first,) = records(run, "embed", [{"text": text}], pooling="cls")
  np.testing.assert_allclose(first["embedding"], hidden[0], atol=1e-5)


@pytest.mark.parametrize("task, line, said", [
  ("embed", "the cat " * 80, "too long"), ("auto", "the cat " * 80, "too long")])
def test_bad_lines_are_named_in_every_task(run, tmp_path, task, line, said):
  (tmp_path / "in.txt").write_text(f"the [MASK] sat\n\n{line}\n")
  with pytest.raises(UserError, match=said) as error:
    list(predict.answer_file(run, str(tmp_path / "in.txt"), TASKS[task], top_k=7))
  assert error.value.got.startswith(f"{tmp_path}/in.txt:3: ")


@pytest.mark.parametrize("task", TASKS)
def test_with_a_file_no_task_asks_for_arguments(task):
  assert items_of(TASKS[task], []) == []
  with pytest.raises(UserError, match="--pair belongs to one text"):
    items_of(TASKS[task], [], pair="It is ignored.")


COLUMNS = {"question": "question", "context": "context"}
QUESTIONS = [("in.jsonl", '{"context": "A cat.", "question": "Who?", "id": 3}\n', 1),
             ("in.csv", 'context,id,question\n\n"A cat.",3,Who?\n', 3),
             ("in.TSV", "question\tcontext\nWho?\tA cat.\n", 2),
             ("in.json", '\n{"question": "Who?", "context": "A cat."}\n', 2)]


@pytest.mark.parametrize("name, content, line", QUESTIONS)
def test_questions_of_several_fields_come_from_tables(tmp_path, name, content, line):
  (tmp_path / name).write_text(content)
  assert list(predict.read_questions(str(tmp_path / name), TASKS["question"], COLUMNS)) == [
    (line, {"question": "Who?", "context": "A cat."})]


def test_questions_of_several_fields_do_not_come_from_text(tmp_path):
  (tmp_path / "in.txt").write_text("Who?\n")
  with pytest.raises(UserError, match=r"no \.jsonl file"):
    list(predict.read_questions(str(tmp_path / "in.txt"), TASKS["question"], COLUMNS))


@pytest.mark.parametrize("name, content, said", [
  ("in.csv", "question,context\nWho?,A cat,\n", "in.csv:2: 3 fields"),
  ("in.csv", 'question,context\n"Who?,A cat\n', "in.csv:2: the quote"),
  ("in.csv", "question;context\nWho?;A cat\n", "in.csv:1: 'question;context'"),
  ("in.tsv", "question\nWho?\n", "in.tsv:2: there is no field 'context'"),
  ("in.jsonl", '{"question": "Who?", "context": null}\n', "in.jsonl:1: the field 'context' holds no text"),
  ("in.jsonl", '{"question": NaN, "context": "A cat."}\n', "in.jsonl:1: the field 'question' holds no text"),
  ("in.jsonl", '{"question": ["Who?"], "context": "A cat."}\n', "in.jsonl:1: the field 'question' holds no text"),
  ("in.json", '[{"question": "Who?"}]\n', "in.json:1: of type list"),
])
def test_questions_are_read_strictly(tmp_path, name, content, said):
  (tmp_path / name).write_text(content)
  with pytest.raises(UserError) as caught:
    list(predict.read_questions(str(tmp_path / name), TASKS["question"], COLUMNS))
  assert said in caught.value.got
