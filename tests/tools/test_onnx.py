"""ONNX exports: the same answers as transformers' network, at sizes that the exporter has not seen."""

import pathlib
import sys

import numpy as np
import pytest
import transformers

from configs import roberta_base, tiny
from electra_jax.errors import UserError
from electra_jax.exchange import onnx_files
from electra_jax.tools import export
from tests.small_runs import assert_four_parts
from tests.workdirs import make_workdir


@pytest.mark.parametrize(("recipe", "kind"), [
  pytest.param(tiny, "sentencepiece", marks=pytest.mark.slow), (roberta_base, "byte_bpe")])
def test_onnx_answers_as_transformers_does(tmp_path, recipe, kind):
  pytest.importorskip("onnxscript", reason="torch's exporter needs it (tests/requirements.txt)")
  onnxruntime = pytest.importorskip("onnxruntime", reason="runs the exported file (tests/requirements.txt)")
  import torch

  done = export.export(make_workdir(tmp_path, recipe, kind), str(tmp_path / "out"), file_format="onnx")
  folder = pathlib.Path(done.folders[0])
  encoded = transformers.AutoTokenizer.from_pretrained(folder)(
    ["the cat sat.", "rain fell on the roof all day.", "a dog"], padding=True, return_tensors="pt")
  model = transformers.AutoModelForPreTraining.from_pretrained(folder).eval()
  with torch.no_grad():
    theirs = model(**encoded).logits.numpy()
  session = onnxruntime.InferenceSession(folder / onnx_files.FILE_NAME, providers=["CPUExecutionProvider"])
  assert {one.name for one in session.get_inputs()} == set(encoded)
  (ours,) = session.run(["logits"], {name: array.numpy() for name, array in encoded.items()})
  real = encoded["attention_mask"].numpy() == 1
  np.testing.assert_allclose(ours[real], theirs[real], atol=1e-4, rtol=1e-4)


def test_onnx_without_its_packages(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "onnxscript", None)
  with pytest.raises(UserError) as caught:
    export.export(make_workdir(tmp_path, tiny, "wordpiece"), str(tmp_path / "out"), file_format="onnx")
  assert_four_parts(caught.value, "--format=onnx", "onnxscript", "pip install '.[onnx]'")
  assert not (tmp_path / "out").exists()
