"""The README: its size, its commands, its lines of Python. Its links are in tests/test_docs.py."""

import json
import re
import subprocess

import pytest

from configs import base
from electra_jax.inference import loading
from tests.conftest import ROOT
from tests.workdirs import make_workdir

README = (ROOT / "README.md").read_text()


def test_the_page_is_short():
  assert len(README.splitlines()) <= 200 and len(README.encode()) <= 12_000


def test_setup_commands():
  assert "\nlaunch/demo.sh " in README and "\ntests/run.sh " in README
  assert (ROOT / ".ci/run").read_text().splitlines()[-1] == "tests/run.sh"


def test_the_demo_reads_as_it_is_printed_on_both_pages():
  def shown(page):
    return re.search(r"^```text\n(┌.*?)^```$", page, re.MULTILINE | re.DOTALL).group(1)

  assert shown(README) == shown((ROOT / "docs/index.md").read_text())
  rows = re.findall(r"^│ (\w.*?) *│.*│ (?:[\d.]+: )?(.*?) *│$", shown(README), re.MULTILINE)
  printed = (ROOT / "electra_jax/tools/summary.py").read_text()
  assert len(rows) == 9
  for label, note in rows:
    assert label in printed and note.removesuffix(" of the same") in printed, (label, note)  # a line that is wrapped


def test_lines_of_python_run(tmp_path, monkeypatch, capsys):
  """Those of the README and of the API page, with a small run of random parameters in place of runs/mine."""
  run = loading.load(make_workdir(tmp_path, base, "sentencepiece"))
  capsys.readouterr()
  monkeypatch.setattr(loading, "load", lambda path, step: {"runs/mine": run}[path])
  for page in (README, (ROOT / "docs/api.md").read_text()):
    names = {}
    exec(re.search(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL).group(1), names)
    candidate, words = capsys.readouterr().out.splitlines()
    assert "TokenCandidate(" in candidate and "TokenScore(" in words
    assert [vector.shape for vector in names["vectors"]] == [(run.config.model.hidden_size,)] * 2


@pytest.mark.parametrize("script", ["launch/demo.sh", "launch/environment.sh", "tests/run.sh", ".ci/run"])
def test_scripts_parse_and_can_be_run(script):
  subprocess.run(["bash", "-n", ROOT / script], check=True)
  assert (ROOT / script).stat().st_mode & 0o111


def test_demo_summary_reads_a_run(tmp_path, capsys):
  from configs import tiny
  from electra_jax import config as config_lib
  from electra_jax import metrics
  from electra_jax.tools import summary

  given = tiny.get_config()
  config = config_lib.resolve(given)
  config_lib.save(str(tmp_path / "config.json"), given, config)
  writer = metrics.MetricWriter(str(tmp_path), config.log)
  for step, speed in ((25, 500.0), (50, 1500.0)):
    writer.write(step, "train", {"mlm/loss": 6.0, "train/tokens_per_second": speed})
  assert ("held-out text", "not evaluated yet") in [line[:2] for line in summary.rows_of(str(tmp_path))]
  writer.write(50, "eval", {"mlm/loss": 5.0, "mlm/accuracy": 0.25, "mlm/perplexity": 148.4, "rtd/auc": 0.8,
                            "rtd/loss": 0.4, "eval/unigram_entropy": 5.9})
  for seconds in (30.0, 0.0):  # two starts
    writer.write(50, "time", {"time/start_seconds": seconds, "time/steps_seconds": 15.0, "time/goodput": 1.0})
  writer.close()
  lines = {what: (value, beside) for what, value, beside in summary.rows_of(str(tmp_path))}
  assert lines["held-out MLM loss"] == ("5.000 nats", "5.900: unigram entropy of the same tokens")
  assert lines["held-out RTD AUC"] == ("0.800", "0.500: chance")
  assert lines["training speed"][0] == "1,000 tokens/s" and lines["goodput"][0] == "50.0 %"
  results = tmp_path / "results.json"
  results.write_text(json.dumps({"summary": {"accuracy": {"median": 0.875}, "f1": {"median": None}}}))
  summary.main(["summary", str(tmp_path), str(tmp_path / "no_run")])  # as of runs/*
  said = capsys.readouterr().out
  assert "accuracy │ 87.5" in said and "f1       │ -" in said and "left out │ No run can be read" in said
