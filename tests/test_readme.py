"""Is the README true? Its files, recipes and tools exist, its scripts are sound."""

import re
import subprocess

import pytest

from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()


def test_every_named_file_and_tool_exists():
  for path in re.findall(r"^\| `(\w+/[\w/]+\.py)` \|", README, re.MULTILINE):
    assert (ROOT / path).exists(), path
  for path in re.findall(r"\]\(([\w/.]+)\)|!\[[^]]*\]\(([\w/.]+)\)", README):
    assert (ROOT / "".join(path)).exists(), path


@pytest.mark.parametrize("script", ["launch/demo.sh", "launch/environment.sh", "tests/run.sh", ".ci/run"])
def test_scripts_parse_and_can_be_run(script):
  subprocess.run(["bash", "-n", ROOT / script], check=True)
  assert (ROOT / script).stat().st_mode & 0o111


def test_demo_summary_reads_a_run(tmp_path, capsys):
  from configs import tiny
  from electra_jax import config as config_lib
  from electra_jax import metrics
  from electra_jax.errors import UserError
  from electra_jax.tools import summary

  given = tiny.get_config()
  config = config_lib.resolve(given)
  config_lib.save(str(tmp_path / "config.json"), given, config)
  writer = metrics.MetricWriter(str(tmp_path), config.log)
  writer.write(50, "train", {"mlm/loss": 6.0, "train/tokens_per_second": 1000.0})
  with pytest.raises(UserError, match="has not been evaluated"):
    summary.rows_of(str(tmp_path))
  writer.write(50, "eval", {"mlm/loss": 5.0, "mlm/accuracy": 0.25, "mlm/perplexity": 148.4, "rtd/auc": 0.8,
                            "rtd/loss": 0.4, "eval/unigram_entropy": 5.9})
  writer.close()
  lines = {what: (value, beside) for what, value, beside in summary.rows_of(str(tmp_path))}
  assert lines["held-out MLM loss"] == ("5.000 nats", "5.900: unigram entropy of the same tokens")
  assert lines["held-out RTD AUC"] == ("0.800", "0.500: chance")
  assert lines["training speed"][0] == "1,000 tokens/s"
