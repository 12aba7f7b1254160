"""Does the table of speeds have every point of the published one, and go on where it stopped?"""

import json
import pathlib
import re

import pytest

from benchmarks import speed_table
from electra_jax import config as config_lib
from electra_jax import recipes

PUBLISHED = pathlib.Path(__file__).parents[1] / "docs" / "results" / "speed.json"


def said(ours, first, again):
  peer = {"kind": "gathered", "torch": "2", "transformers": "5"}
  return {"ours": {"tokens_per_second": ours, "step_ms": 1.0, "share_of_matmul": 0.25, "matmul_tflops": 800.0,
                   "device": "a card", "jax": "0.11"},
          "peer": peer | {"tokens_per_second": first}, "peer_again": peer | {"tokens_per_second": again}}


def test_goes_on_after_a_kill(tmp_path):
  out, asked = str(tmp_path / "speed.json"), []

  def run(arguments):
    if len(asked) == 1:
      raise KeyboardInterrupt
    asked.append(arguments)
    return said(3000, 1000, 1500)

  with pytest.raises(KeyboardInterrupt):
    speed_table.measure(out, "ELECTRA-Base, length 512", run)
  assert asked == [["--recipe=configs/base.py", "--set=data.sequence_length=512", "--set=train.batch_size=64"]]
  rows = speed_table.measure(out, "ELECTRA-Base, length 512", lambda arguments: said(4000, 2000, 1000))
  assert json.loads(pathlib.Path(out).read_text()) == rows
  assert [(row["recipe"], row["peer_tokens_per_second"]) for row in rows] == [
    (speed_table.FAITHFUL, 1500), (speed_table.WITHOUT, 2000)]
  assert rows[1]["command"].endswith("--set=model.attention_probs_dropout_prob=0.0")
  assert speed_table.table(rows).splitlines()[-1] == (
    "| ELECTRA-Base, length 512, batch 64 | a card | no attention dropout | 4,000 | 2,000 | 2.00 | 25% |")


def test_compiles_several_points_before_it_times_the_first(tmp_path, monkeypatch):
  commands = []
  monkeypatch.setattr(speed_table.subprocess, "run", lambda command, **_: commands.append(command))
  speed_table.measure(str(tmp_path / "speed.json"), "BERT-Base", lambda arguments: said(len(commands), 1, 1), at_once=2)
  assert sorted(command[3] for command in commands) == ["--recipe=configs/bert_base.py"] * 2
  assert json.loads((tmp_path / "speed.json").read_text())[0]["tokens_per_second"] == 2


def test_points_are_the_published_ones_and_their_recipes_load():
  published = {(row["point"], row["recipe"]) for row in json.loads(PUBLISHED.read_text())}
  for point in speed_table.POINTS:
    assert published >= {(point.name, recipe) for recipe in point.recipes}
    _, given = recipes.load(point.recipe)
    recipes.override(given, point.settings)
    config_lib.resolve(given)


def test_the_page_shows_the_published_figures():
  """Every number of tokens per second in the first table of docs/speed.md is one of speed.json."""
  page = (PUBLISHED.parents[1] / "speed.md").read_text().split("\n\n¹")[0]
  keys = ("tokens_per_second", "peer_tokens_per_second")
  published = {row[key] for row in json.loads(PUBLISHED.read_text()) for key in keys}
  shown = {int(number.replace(",", "")) for number in re.findall(r"\b\d+(?:,\d{3})+\b", page)} - {1024}
  assert len(shown) > 20 and shown <= published
