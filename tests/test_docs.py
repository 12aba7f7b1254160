"""Are the documents true? The tour runs, the example trains, lists are current, and commands are tested or excused."""

import re
import runpy

from electra_jax import config, flops, objectives
from electra_jax.tools import differences
from tests.conftest import ROOT


def test_tour_shows_every_array(capsys):
  runpy.run_path(str(ROOT / "docs/tour.py"))
  printed = capsys.readouterr().out
  for name in ("input_ids", "token_type_ids", "attention_mask", "masked_positions", "masked_ids", "masked_weights",
               "masked_input_ids", "generator_logits", "sampled_ids", "corrupted_ids", "is_replaced",
               "discriminator_logits"):
    assert f"\n{name}  " in printed, name
  assert "[CLS]" in printed and "[MASK]" in printed


def test_worked_example_of_an_objective_trains(monkeypatch):
  for module, table in ((objectives, "OBJECTIVES"), (config, "CHOICES"), (flops, "NETWORKS")):
    monkeypatch.setattr(module, table, dict(getattr(module, table)))
  page = (ROOT / "docs/add_an_objective.md").read_text()
  names = {}
  exec("\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)), names)
  assert "detective" in objectives.OBJECTIVES
  history = names["history"]
  assert int(names["state"].step) == len(history) == 30
  assert history[-1] < 0.5 * history[0]


def test_differences_are_current():
  """If this fails: python -m electra_jax.tools.differences > docs/differences.md"""
  page = differences.page()
  assert (ROOT / "docs/differences.md").read_text() == page
  lines = [line for folder in ("configs", "electra_jax") for path in (ROOT / folder).rglob("*.py")
           for line in path.read_text().splitlines() if re.match(r" *Differs from ", line)]
  assert len(lines) == len(re.findall("^- ", page, re.MULTILINE))  # each begins a paragraph of a docstring
