"""Do imports point one way? The table of layers in docs' and the design's words, held with `ast`."""

import ast
import pathlib

import pytest

from tests.conftest import ROOT

# Module or folder -> layer. A module imports from lower layers or from its own folder only.
LAYERS = {
  "errors": 0, "files": 1,
  **dict.fromkeys(("config", "config_rules", "sharding", "distributed", "metrics", "progress", "flops",
                   "plotting", "recipes"), 2),
  **dict.fromkeys(("data", "models", "optim"), 3), **dict.fromkeys(("objectives", "tasks"), 4),
  "training": 5, "exchange": 6, "finetuning": 7, "inference": 8, **dict.fromkeys(("pretrain", "finetune"), 9),
  "main": 10, "tools": 11, "__main__": 11,
}
# Modules that may see another of their layer or above, each with its reason.
EXCEPTIONS = {
  ("config", "config_rules"): "the rules are a part of `resolve` that is too long for its file",
  ("config_rules", "objectives"): "objectives/table.py alone, which is data without jax",
  ("flops", "objectives"): "likewise",
  ("flops", "config"): "how many tokens of a row are masked",
  ("recipes", "config"): "the keys that a command line may set",
  ("pretrain", "finetune"): "a pre-training can fine-tune on the way",
}
FORBIDDEN = {  # folder -> packages it must never import
  "data": {"jax", "flax", "optax"},
  "models": {"tensorflow", "tensorflow_datasets"},
  "objectives": {"tensorflow", "tensorflow_datasets"},
  "optim": {"tensorflow", "tensorflow_datasets"},
}
ONLY_IN = {  # package -> files that may import it
  "tensorflow": {"data/readers.py",  # tf.data
                 "exchange/tf_checkpoint.py"},  # nothing else reads the table and the shards of a released checkpoint
  "tensorflow_datasets": {"data/sources/tfds.py"}, "pyarrow": {"data/sources/records.py", "data/sources/lines.py"},
  "etils": {"data/sources/files.py"},
  "datasets": {"data/sources/hf_datasets.py"},
  "sentencex": {"data/sources/sentence_splitting.py"},
  "torch": {"exchange/torch_files.py",  # pickled tensors, weights only; optional
            "exchange/onnx_files.py"},  # its exporter; optional
  "transformers": {"data/tokenizers/published_vocabulary.py",  # its AutoTokenizer; optional
                   "exchange/onnx_files.py"},
  "safetensors": {"exchange/hf.py"},
  "matplotlib": {"plotting.py", "tools/plot_run.py", "tools/report_page.py"},  # the last two: lines of a key; its text
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
      assert own == other or LAYERS[own] > LAYERS[other] or (own, other) in EXCEPTIONS, where


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
