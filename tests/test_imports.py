"""Do imports point one way? The table of layers in docs' and the design's words, held with `ast`."""

import ast
import pathlib

import pytest

from tests.conftest import ROOT

# Module or folder -> layer. A module imports from lower layers or from its own folder only.
LAYERS = {
  "main": 4, "tools": 4,
  "pretrain": 3, "finetune": 3, "predictions": 3, "pretrained": 3, "inference": 3, "published": 3, "fine_tuned": 3,
  "runs": 3, "evaluation": 3, "inputs": 3,
  "objectives": 2, "exchange": 2, "tasks": 2, "training": 2,
  "models": 1, "optim": 1, "data": 1, "train_state": 1, "checkpoints": 1, "workdir": 1,
  "config": 0, "errors": 0, "sharding": 0, "distributed": 0, "metrics": 0, "nonfinite": 0, "progress": 0, "flops": 0,
  "flops_tables": 0, "recipes": 0, "memory": 0, "config_rules": 0, "norms": 0,
  "figures": 0, "checkpoint_reading": 0, "warning_signs": 0,
}
# Modules of one layer that may see each other, from left to right.
SIDEWAYS = {("config_rules", "objectives"), ("flops", "objectives"),  # its table, which is without jax
            ("tools", "main"), ("training", "objectives"), ("checkpoints", "train_state"), ("workdir", "checkpoints"),
            ("inference", "runs"), ("runs", "published"), ("fine_tuned", "inference"), ("pretrain", "published"),
            ("pretrain", "finetune"), ("pretrain", "pretrained"), ("pretrain", "evaluation"),
            ("pretrain", "inputs"), ("inputs", "evaluation"),
            ("finetune", "predictions"),
            ("finetune", "pretrained"), ("predictions", "pretrained"), ("pretrained", "published"),
            ("config", "errors"), ("config", "config_rules"), ("recipes", "errors"),
            ("recipes", "config"), ("memory", "errors"), ("sharding", "errors"),
            ("distributed", "errors"), ("metrics", "errors"), ("nonfinite", "errors"), ("progress", "flops"),
            ("flops_tables", "flops"), ("norms", "sharding"),
            ("figures", "errors"), ("checkpoint_reading", "sharding"),
            ("checkpoint_reading", "errors")}
FORBIDDEN = {  # folder -> packages it must never import
  "data": {"jax", "flax", "optax"},
  "models": {"tensorflow", "tensorflow_datasets"},
  "objectives": {"tensorflow", "tensorflow_datasets"},
  "optim": {"tensorflow", "tensorflow_datasets"},
}
ONLY_IN = {  # package -> files that may import it
  "tensorflow": {"data/pipeline.py",  # tf.data
                 "exchange/tf_checkpoint.py"},  # nothing else reads the table and the shards of a released checkpoint
  "tensorflow_datasets": {"data/documents.py", "tasks/records.py"}, "pyarrow": {"data/records.py"},
  "etils": {"data/files.py"},
  "datasets": {"data/hf_datasets.py", "tools/bench_data.py"}, "sentencex": {"data/sentence_splitting.py"},
  "torch": {"exchange/torch_files.py"},  # pickled tensors, weights only; optional
  "safetensors": {"exchange/hf.py"},
  "matplotlib": {"figures.py", "tools/plot_run.py", "tools/report_page.py"},  # the last two: lines of a key; its text
}
FILES = sorted((ROOT / "electra_jax").rglob("*.py"))


def imports(path: pathlib.Path) -> set[str]:
  """Every imported module, also within functions: `from electra_jax.data import shards` is electra_jax.data.shards."""
  found = set()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      found |= {name.name for name in node.names}
    elif isinstance(node, ast.ImportFrom):
      found |= {f"{node.module}.{name.name}" for name in node.names}
  return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_table(path):
  relative = path.relative_to(ROOT / "electra_jax")
  own = relative.parts[0].removesuffix(".py")
  for name in imports(path):
    package, *rest = name.split(".")
    where = f"electra_jax/{relative} imports {name}"
    assert package not in FORBIDDEN.get(own, ()), where
    assert package not in ONLY_IN or str(relative) in ONLY_IN[package], f"{where}; only {ONLY_IN.get(package)} may"
    assert package != "configs", f"{where}; the package never imports the recipes"
    if package == "electra_jax" and rest and own != "__init__":
      other = rest[0]
      assert other in LAYERS, f"{where}; {other} has no layer in the table"
      assert own == other or LAYERS[own] > LAYERS[other] or (own, other) in SIDEWAYS, where


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_stay_readable(path):
  assert len(path.read_text().splitlines()) <= 400, "the hard limit of a file is 400 lines"
  assert path.stem not in {"utils", "helpers", "misc", "common"}
  assert ast.get_docstring(ast.parse(path.read_text())), "a module says which question it answers"


def test_recipes_load_without_jax():
  import subprocess
  import sys

  code = "import sys; from configs import base; base.get_config(); assert 'jax' not in sys.modules"
  subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
