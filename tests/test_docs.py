"""Are the documents true? The tour runs, the example trains, lists are current, and commands are tested or excused."""

import ast
import doctest
import json
import os
import re
import runpy
import subprocess
import sys
import tomllib

import pytest

import electra_jax
from electra_jax.__main__ import COMMANDS
from electra_jax.inference import pretraining_heads, task_heads
from electra_jax.objectives import table
from tests.conftest import ROOT

PAGES = ["README.md", "CONTRIBUTING.md", "launch/README.md",
         *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/**/*.md")))]

EXAMPLES = ("configs/detective.py", "electra_jax/tools/x.py", "electra_jax/objectives/detective.py")


def test_every_named_module_and_recipe_exists():
  for page in PAGES:
    text = (ROOT / page).read_text()
    for module in re.findall(r"python -m ((?:electra_jax|tests|docs|benchmarks)[\w.]*\w)", text):
      path = ROOT / module.replace(".", "/")
      assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), f"{page}: {module}"
    for recipe in re.findall(r"--config=(configs/[\w/]+\.py)", text):
      assert (ROOT / recipe).exists() or recipe in EXAMPLES, f"{page}: {recipe}"


def test_troubleshooting_quotes_real_errors():
  source = re.sub(r'"\s+f?"', "", "".join(path.read_text() for path in (ROOT / "electra_jax").rglob("*.py")))
  page = (ROOT / "docs/troubleshooting.md").read_text()
  quoted = re.findall(r"^\| `([^`]+)`", page, re.MULTILINE)
  assert [error for error in quoted if error not in source] == ["1 cpu device(s)"]  # a line with numbers
  printed = "".join(re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
  assert not [error for error in quoted if error not in printed]
  for line in re.findall(r"^  (?:allowed|fix): +(.*)$", printed, re.MULTILINE):  # but for names and numbers in them
    words = line.split()
    parts = [" ".join(words[i:i + 4]) for i in range(len(words) - 3)]
    assert len(parts) < 3 or sum(part in source for part in parts) > len(parts) / 4, line


def test_the_speeds_say_whose_they_are():
  """They are of another jax than the pinned one (A14): the page names both, and the package allows both."""
  from packaging.requirements import Requirement
  page = " ".join((ROOT / "docs/speed.md").read_text().split())
  timed = re.search(r"All of it is of jax ([\d.]+),", page).group(1)
  pinned = re.search(r"^jax==(.+)$", (ROOT / "requirements.txt").read_text(), re.MULTILINE).group(1)
  allowed = next(one for one in map(Requirement, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
                                    ["dependencies"]) if one.name == "jax").specifier
  assert timed in allowed and pinned in allowed
  assert timed == pinned or f"pins {pinned}, where nothing here was timed on a GPU" in page


@pytest.mark.parametrize("path", sorted((ROOT / "electra_jax/tools").glob("*.py")), ids=lambda path: path.stem)
def test_help_teaches(path):
  """A tool's USAGE begins with a sentence, shows how it is called, and names only flags that there are."""
  source = path.read_text()
  if "__main__" not in source:
    return
  usage = next(node.value.value for node in ast.parse(source).body if isinstance(node, ast.Assign)
               and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "USAGE")
  assert re.match(r"[A-Z][^\n]{20,}[.:,]\n", usage), usage
  assert f"python -m electra_jax.tools.{path.stem}" in usage
  family = "".join(other.read_text() for other in path.parent.glob(f"{path.stem}*.py"))
  defined = set(re.findall(r'(?:DEFINE_\w+|add_argument|declare_key_flag)\(\s*"(?:--)?(\w+)"', family))
  used = set(re.findall(r"--(\w+)", usage)) - {"config"}
  assert used - {"workdir"} <= defined, used - defined
  if re.search(rf"tools\.{path.stem} .*--workdir", usage):
    assert "workdir" in defined or "adopt_module_key_flags" in source, "--workdir is missing in --help"


def anchors(text):
  """GitHub's anchors of a page's headings."""
  titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
  return {re.sub(r"[^\w -]", "", re.sub(r"\]\([^)]*\)", "]", title).lower()).replace(" ", "-") for title in titles}


def test_links_and_named_files_exist():
  for page in PAGES:
    text = (ROOT / page).read_text()
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", re.sub("`[^`\n]*`", "", text)):
      path = (ROOT / page).parent / target if target else ROOT / page
      assert path.exists(), (page, target)
      assert not anchor or anchor in anchors(path.read_text()), (page, target, anchor)
    named = re.findall(r"`((?:electra_jax/|configs/|tests/|docs/|launch/|benchmarks/)[\w/]+(?:\.\w+)?)`", text)
    assert not [path for path in named if not (ROOT / path).exists() and path not in EXAMPLES], page


def test_what_the_table_of_the_papers_names_exists():
  text = (ROOT / "docs/papers.md").read_text()
  tests = "".join(f"{path.stem}::{name} " for path in (ROOT / "tests").rglob("test_*.py")
                  for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE))
  named = re.findall(r"`(test_\w+::test_\w+)`", text)
  assert len(named) > 50 and not [name for name in named if f"{name} " not in tests]
  paths = re.findall(r"`([a-z_]+/[\w/]+\.py|[a-z_]+\.py)`", text)
  bases = [ROOT / base for base in ("", "electra_jax", "configs", "configs/finetune")]
  assert not [path for path in paths if not any((base / path).exists() for base in bases)]


def test_every_page_of_the_site_is_in_its_navigation():
  """Built and checked whole by `mkdocs build --strict`, nightly."""
  listed = re.findall(r"^ +- .*: ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
  pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
  assert sorted(listed) == sorted(page for page in pages if page != "ablations/table3.md" and (
    page[:8] != "results/" or page == "results/README.md"))


def test_named_functions_exist():
  text = (ROOT / "docs/api.md").read_text()
  named = set(re.findall(r"\belectra_jax\.(\w+)\(", text))
  assert len(named) == 6 and not [name for name in named if not hasattr(electra_jax, name)]
  for module in (pretraining_heads, task_heads):
    section = text.split(f"{module.__name__}`")[1].split("\n## ")[0]
    functions = re.findall(r"`([a-z_]+)\(", section) or re.findall(r"`([a-z_]+)`", section)
    functions += re.findall(r"`([A-Z]\w+)[(.]", section)  # and classes
    assert functions and not [name for name in functions if not hasattr(module, name)]


def test_short_forms():
  listed = dict(re.findall(r"^\| `electra-jax ([\w-]+)` \| `python -m electra_jax\.([\w.]+)` \|$",
                           (ROOT / "docs/tools.md").read_text(), re.MULTILINE))
  assert listed == {command: module for command, (module, _) in COMMANDS.items()}


def test_examples_of_the_data_formats():
  found = doctest.testfile(str(ROOT / "docs/data_formats.md"), module_relative=False)
  assert found.attempted >= 10 and not found.failed


def test_modules_named_by_the_design_exist():
  named = set(re.findall(r"`((?:objectives|tasks|models|data|optim|exchange|tools)/\w*(?:\.py)?|\w+\.py)`",
                         (ROOT / "docs/design.md").read_text()))
  assert len(named) > 20
  assert not [path for path in named if not (ROOT / "electra_jax" / path).exists()]


def test_tour_shows_every_array(capsys):
  runpy.run_path(str(ROOT / "docs/tour.py"))
  printed = capsys.readouterr().out
  for name in ("input_ids", "token_type_ids", "attention_mask", "masked_positions", "masked_ids", "masked_weights",
               "masked_input_ids", "generator_logits", "sampled_ids", "corrupted_ids", "is_replaced",
               "discriminator_logits"):
    assert f"\n{name}  " in printed, name
  assert "[CLS]" in printed and "[MASK]" in printed


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
  """From another folder, in an interpreter of its own, with few updates."""
  notebook = json.loads((ROOT / "docs/tour.ipynb").read_text())
  code = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
  for whole, few in (("log.tensorboard = False\n_", "train.num_steps = 20\n_"), ("num_epochs=6.0", "num_epochs=1.0")):
    assert whole in code
    code = code.replace(whole, few)
  environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"PYTHONPATH": str(ROOT)}
  done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
  assert done.returncode == 0 and "the name of the file is" in done.stdout, done.stdout + done.stderr


def test_worked_example_of_an_objective_trains():
  before = set(table.ROWS)
  page = (ROOT / "docs/add_an_objective.md").read_text()
  names = {}
  exec("\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)), names)
  assert set(table.ROWS) - before == {"detective"}
  del table.ROWS["detective"]
  history = names["history"]
  assert int(names["state"].step) == len(history) == 30
  assert history[-1] < 0.5 * history[0]
