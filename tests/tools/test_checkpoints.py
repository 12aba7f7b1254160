"""What the checkpoint tool says and writes, on the two checkpoints of a small workdir."""

import doctest
import json
import os
import pathlib
import shutil

import jax
import numpy as np
import pytest

from configs import base
from electra_jax.errors import UserError
from electra_jax.inference import pretraining_heads
from electra_jax.tools import checkpoints as tool
from electra_jax.training import checkpoints
from tests.workdirs import make_workdir


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
  return make_workdir(tmp_path_factory.getbasetemp(), base, "sentencepiece")


@pytest.fixture
def given(monkeypatch):
  """Sets the flags that a command reads."""
  def set_flags(**values):
    class Flags:
      last, out = values.get("last", 2), values.get("out")
    monkeypatch.setattr(tool, "FLAGS", Flags)

  set_flags()
  return set_flags


def test_show_names_shapes_norms_and_the_step(workdir, given):
  saved = tool.load(f"{workdir}/checkpoints/20")
  lines = tool.show([f"{workdir}/checkpoints/20"]).splitlines()
  assert lines[0] == f"{workdir}, step 20" and len(lines) == len(saved.params) + 3
  row = next(line.split() for line in lines if line.startswith("discriminator/layer_00/attention/query/kernel "))
  kernel = saved.params["discriminator/layer_00/attention/query/kernel"]
  assert row[1:3] == ["64x64", "float32"] and float(row[3]) == pytest.approx(np.linalg.norm(kernel), rel=1e-4)
  total = sum(value.size for value in saved.params.values())
  assert lines[-1].startswith(f"{len(saved.params)} arrays, {total:,} parameters, norm ")


def test_compare_two_steps_and_itself(workdir, given):
  assert tool.compare([workdir, f"{workdir}/checkpoints/40"]).endswith("The parameters are equal, bit for bit.")
  said = tool.compare([f"{workdir}/checkpoints/{step}" for step in (20, 40)])
  old, new = (tool.load(f"{workdir}/checkpoints/{step}").params for step in (20, 40))
  most = {name: float(np.abs(new[name] - old[name]).max()) for name in old}
  largest = max(most.values())
  rows = said.splitlines()[3:-1]
  assert len(rows) == sum(value > 0 for value in most.values()) and "config " not in said
  assert float(rows[0].split()[1]) == pytest.approx(largest, rel=1e-5)
  assert said.endswith(f"{len(rows)} of {len(old)} arrays differ.")


def test_compare_names_configs_and_arrays_that_do_not_fit(workdir, given, tmp_path):
  other = shutil.copytree(workdir, tmp_path / "other")
  record = json.loads((other / "config.json").read_text())
  record["resolved"]["optimizer"]["learning_rate"] = 0.5
  (other / "config.json").write_text(json.dumps(record))
  assert "config optimizer.learning_rate: 0.0002 in a, 0.5 in b" in tool.compare([workdir, str(other)])


def test_compare_names_arrays_of_one_side_and_of_another_shape(monkeypatch):
  sides = {"x": {"same": np.ones(2), "lost": np.ones(1), "wide": np.ones(3), "near": np.ones(1)},
           "y": {"same": np.ones(2), "wide": np.ones(4), "near": np.full(1, 1.5)}}
  monkeypatch.setattr(tool, "load", lambda path: tool.Saved(path, {}, sides[path]))
  *_, shapes, lost, near, last = (" ".join(line.split()) for line in tool.compare(["x", "y"]).splitlines())
  assert (shapes, lost, near) == ("wide shapes (3,) and (4,)", "lost only in a", "near 0.5 0.5")
  assert last == "3 of 4 arrays differ."


def test_average_is_the_mean_and_answers(workdir, given, tmp_path):
  out = str(tmp_path / "mean")
  given(out=out)
  assert "the mean of the steps 20, 40" in tool.average([workdir])
  old, new, mean = (tool.load(path).params for path in (f"{workdir}/checkpoints/20", workdir, out))
  for name, value in mean.items():
    np.testing.assert_array_equal(value, ((old[name].astype(np.float64) + new[name]) / 2).astype(np.float32))
  run = pretraining_heads.load(out)
  assert run.step == 40 and pretraining_heads.fill_mask(run, ["the [MASK] sat"], top_k=1)[0][0]
  assert json.loads((tmp_path / "mean/config.json").read_text())["average_of"]["steps"] == [20, 40]
  wanted = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), run.params)
  assert checkpoints.load_params(out, wanted)[0] == 40  # as checkpoint.init_from reads it
  with pytest.raises(UserError, match="taken"):
    tool.average([workdir])
  assert os.listdir(tmp_path) == ["mean"]


def test_seeds_of_a_fine_tuning_are_not_averaged(workdir, given, tmp_path):
  record = json.loads(pathlib.Path(workdir, "config.json").read_text())
  record["resolved"]["task"]["name"] = "rte"
  (tmp_path / "config.json").write_text(json.dumps(record))
  given(out=str(tmp_path / "mean"))
  with pytest.raises(UserError, match="different seeds"):
    tool.average([str(tmp_path)])


@pytest.mark.parametrize("command, paths, options, said", [
  ("average", ["W"], dict(last=3, out="new"), "too few checkpoints"),
  ("average", ["W"], {}, "needs one run"),
  ("average", ["W/checkpoints/20"], dict(out="new"), "needs one run"),
  ("compare", ["W"], {}, "needs two checkpoints"),
  ("show", ["W/checkpoints/30"], {}, "No checkpoint to read"),
])
def test_mistakes(workdir, given, command, paths, options, said):
  given(**options)
  with pytest.raises(UserError, match=said):
    tool.COMMANDS[command]([path.replace("W", workdir) for path in paths])


def test_main_prints_and_explains(workdir, given, monkeypatch, capsys):
  monkeypatch.setattr(tool.main_lib, "start_jax", lambda: None)
  tool.main(["checkpoints", "show", workdir])
  assert capsys.readouterr().out.count("discriminator/rtd_head/") == 4
  for wrong in (["show"], ["shwo", workdir], []):
    with pytest.raises(UserError, match="What to do is not clear"):
      tool.main(["checkpoints", *wrong])


def test_doctests():
  assert doctest.testmod(tool).failed == 0
