"""The walk of a new user, docs/walk.sh, with few updates; packages are those of the tests, so no network is needed."""

import os
import subprocess
import sys
import sysconfig

import pytest

from tests.conftest import ROOT

pytest.importorskip("hatchling", reason="hatchling builds the wheel (tests/requirements.txt)")


@pytest.mark.slow
def test_every_part_of_the_walk(tmp_path):
  offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PYTHONPATH": sysconfig.get_path("purelib"),
             "STEPS": "20", "EPOCHS": "1", "XLA_FLAGS": "",
             "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])}  # python3 is this one
  done = subprocess.run([ROOT / "docs/walk.sh", tmp_path / "walk"], cwd=tmp_path, env=os.environ | offline, text=True,
                        capture_output=True, timeout=1800)
  assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
  _, _, table = done.stdout.partition("The walk is done:\n")
  assert len(table.splitlines()) == 13 and "load in transformers" in table
  for name in ("demo/metrics.jsonl", "mine/report.html", "labels/results.md", "labels/report.html",
               "exported/model.safetensors"):
    assert (tmp_path / "walk" / name).exists(), name
