"""Are the documents true? The tour runs, the example trains, lists are current, and commands are tested or excused."""

import ast
import doctest
import re
import runpy

import pytest

from electra_jax import config_rules, flops, objectives
from electra_jax.tools import differences, module_index
from tests.conftest import ROOT

PAGES = ["README.md", "launch/README.md"] + [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/**/*.md"))]

COMMAND = re.compile(r"(?:python -m [\w.]+|(?:launch|tests)/[\w/]+\.sh|sbatch --|kubectl apply|docker (?:build|run)|"
                     r"pip install|source \.venv|tensorboard --|wandb sync|iconv )[^`\n#]*")

# How a command begins -> the test that runs what it does: on small data, most of them within the test's process.
RUN = {
  "python -m docs.tour": "tests/test_docs.py::test_tour_shows_every_array",
  "python -m electra_jax.main --config=configs/tiny.py":
    "tests/test_launch.py::test_local_starts_two_processes_and_passes_signals_on",
  "python -m electra_jax.main --config=configs/roberta_base.py:tiny":
    "tests/test_formats_run.py::test_from_text_to_evaluation",
  "python -m electra_jax.main --config=configs/finetune/glue.py:mrpc":
    "tests/test_finetune.py::test_glue_writes_a_zip_with_the_names_of_the_labels",
  "python -m electra_jax.main --config=configs/finetune/own.py": "tests/test_finetune.py::test_what_is_left_of_a_run",
  "python -m electra_jax.main --config=configs/detective.py":
    "tests/test_docs.py::test_worked_example_of_an_objective_trains",
  "python -m electra_jax.main --config=... --workdir=...":
    "tests/test_faults.py::test_sigterm_saves_and_ends_with_status_75",
  "python -m electra_jax.tools.ablate": "tests/tools/test_ablate.py::test_from_recipes_to_table",
  "python -m electra_jax.tools.bench step": "tests/tools/test_bench_step.py::test_a_step_is_timed",
  "python -m electra_jax.tools.bench data": "tests/tools/test_bench_data.py::test_every_figure_is_there",
  "python -m electra_jax.tools.checkpoints": "tests/tools/test_checkpoints.py::test_main_prints_and_explains",
  "python -m electra_jax.tools.compile_check": "tests/tools/test_compile_check.py::test_meshes_of_eight_fake_devices",
  "python -m electra_jax.tools.config_reference": "tests/tools/test_config_reference.py::test_the_page_is_current",
  "python -m electra_jax.tools.differences": "tests/test_docs.py::test_differences_are_current",
  "python -m electra_jax.tools.export": "tests/tools/test_export.py::test_there_and_back_is_bitwise",
  "python -m electra_jax.tools.flops_report": "tests/tools/test_flops_report.py::test_every_row_is_there",
  "python -m electra_jax.tools.glue_sweep":
    "tests/tools/test_glue_sweep.py::test_the_best_median_wins_and_the_table_names_it",
  "python -m electra_jax.tools.import_weights": "tests/tools/test_export.py::test_there_and_back_is_bitwise",
  "python -m electra_jax.tools.module_index": "tests/test_docs.py::test_every_module_is_in_the_index",
  "python -m electra_jax.tools.plot_run": "tests/tools/test_plot_run.py::test_command_writes_into_the_first_workdir",
  "python -m electra_jax.tools.predict --workdir=runs/base \"":
    "tests/tools/test_predict.py::test_command_fills_judges_and_corrupts",
  "python -m electra_jax.tools.predict --workdir=runs/mine \"":
    "tests/tools/test_predict.py::test_command_fills_judges_and_corrupts",
  "python -m electra_jax.tools.predict --workdir=runs/base --task=embed":
    "tests/tools/test_predict.py::test_embeddings_are_means_of_the_encoder_and_keep_their_order",
  "python -m electra_jax.tools.predict --workdir=runs/squad --task=question":
    "tests/exchange/test_fine_tuned.py::test_answers_come_from_every_window",
  "python -m electra_jax.tools.predict --workdir=runs/labels --task=classify":
    "tests/exchange/test_fine_tuned.py::test_classes_of_a_run",
  "python -m electra_jax.tools.prepare_data": "tests/tools/test_prepare_data.py::test_prepare_data",
  "python -m electra_jax.tools.report": "tests/tools/test_report.py::test_a_pretraining",
  "python -m electra_jax.tools.show_batch": "tests/tools/test_show_batch.py::test_prepare_then_show",
  "python -m electra_jax.tools.soak": "tests/tools/test_soak.py::test_a_run_survives_each_damage",
  "python -m electra_jax.tools.summary": "tests/test_readme.py::test_demo_summary_reads_a_run",
  "python -m electra_jax.tools.train_tokenizer": "tests/data/test_tokenizers.py::test_the_tool",
  "python -m tests.peers.gradient_peer": "tests/test_gradient_peer.py::test_losses_and_gradients",
  "launch/local.sh": "tests/test_launch.py::test_local_starts_two_processes_and_passes_signals_on",
  "launch/reproduce.sh": "tests/tools/test_evidence.py::test_from_text_to_the_readme",
  "launch/tpu_vm.sh": "tests/test_launch.py::test_gcloud_is_called_so",
  "sbatch --": "tests/test_launch.py::test_slurm_trains_on_two_tasks_and_requeues",
}
# How a command begins -> why no test runs it.
NOT_RUN = {
  "python -m electra_jax.main --config=configs/base.py": "days of training; tests/test_pretrain.py runs small recipes",
  "python -m tests.peers.precision": "it trains six runs, on a GPU",
  "python -m tests.peers.pretrain_peer": "it trains with PyTorch for minutes",
  "python -m tests.peers.speed_table": "an hour on a GPU; tests/test_speed_table.py checks what it asks and writes",
  "python -m tests.peers.step_peer": "it times PyTorch, too; a machine that tests is no place for that",
  "launch/demo.sh": "minutes; its script is checked by tests/test_readme.py, its parts are run one by one",
  "launch/environment.sh": "it installs; tests/run.sh begins with it",
  "tests/run.sh": "it runs this very test",
  "launch/peers/glue_from_random.sh": "minutes a start; it calls glue_sweep for each",
  "python -m spacy download": "it fetches a pipeline of spaCy; tests/tasks/test_pronouns.py has another in its place",
  "launch/peers/minilm_glue.sh": "it fine-tunes a published model several times over, beside transformers, on a GPU",
  "kubectl apply": "it needs a cluster; tests/test_launch.py checks the manifests",
  "docker": "it needs a daemon; tests/test_launch.py checks what the image copies and starts",
  "pip install": "it changes the environment that the tests run in",
  "source .venv/bin/activate": "it is the shell's; tests/run.sh calls .venv/bin/python by its path",
  "tensorboard --logdir": "another project's server; tests/test_metrics.py reads its files",
  "wandb sync": "it needs an account; tests/test_metrics.py::test_wandb_offline makes the folder",
  "iconv": "the system's, named by an error; tests/test_bad_input.py has the error",
}


def commands() -> set[str]:
  texts = ((ROOT / page).read_text().replace("\\\n", " ") for page in PAGES)
  return {" ".join(found.split()) for text in texts for found in COMMAND.findall(text)}


def test_every_command_is_run_or_has_a_reason_why_not():
  """If this fails: add a row to RUN or NOT_RUN above."""
  found = commands()
  assert len(found) > 25
  assert not [command for command in found if not command.startswith((*RUN, *NOT_RUN))]
  for test in RUN.values():
    file, name = test.split("::")
    assert f"def {name}(" in (ROOT / file).read_text(), test


def test_every_line_of_a_shell_block_is_a_command():
  """Nothing in a block for the shell escapes the test above."""
  blocks = [block for page in PAGES
            for block in re.findall(r"^```bash\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)]
  lines = [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
  assert len(lines) > 8
  assert not [line for line in lines if line and not line.startswith("#") and not COMMAND.match(line)]


def test_troubleshooting_quotes_real_errors():
  source = re.sub(r'"\s+f?"', "", "".join(path.read_text() for path in (ROOT / "electra_jax").rglob("*.py")))
  text = (ROOT / "README.md").read_text().split("## Troubleshooting")[1].split("\n## ")[0]
  quoted = re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)
  assert len(quoted) == 10
  missing = [error for error in quoted if error not in source]
  assert missing == ["1 cpu device(s)"]  # a line with numbers
  page = (ROOT / "docs/troubleshooting.md").read_text()
  assert not [error for error in quoted if error not in page]
  whole = re.findall(r"^```text\nError: (.*?)\n  got:.*?\n  allowed: .*?\n  fix: ", page, re.MULTILINE | re.DOTALL)
  assert len(whole) == 9  # of the ten, those that are the project's own


# Developers' generators of pages of docs/, without flags.
NO_HELP = ("config_reference", "differences", "module_index")


@pytest.mark.parametrize("path", sorted((ROOT / "electra_jax/tools").glob("*.py")), ids=lambda path: path.stem)
def test_help_teaches(path):
  """A tool's USAGE begins with a sentence, shows how it is called, and names only flags that there are."""
  source = path.read_text()
  if "__main__" not in source or path.stem in NO_HELP:
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


def test_links_and_named_files_exist():
  for page in PAGES:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([\w./]+)\)", text):
      assert ((ROOT / page).parent / target).exists(), (page, target)
  named = re.findall(r"`((?:electra_jax/|configs/|tests/|docs/|launch/)[\w/]+(?:\.\w+)?)`",
                     "".join((ROOT / page).read_text() for page in ("docs/design.md", "docs/data_formats.md",
                                                                    "docs/checkpoints.md", "docs/troubleshooting.md",
                                                                    "README.md")))
  assert len(named) > 40
  assert not [path for path in named if not path.endswith("/x.py") and not (ROOT / path).exists()]


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


def test_worked_example_of_an_objective_trains(monkeypatch):
  for module, table in ((objectives, "OBJECTIVES"), (config_rules, "CHOICES"), (flops, "NETWORKS")):
    monkeypatch.setattr(module, table, dict(getattr(module, table)))
  page = (ROOT / "docs/add_an_objective.md").read_text()
  names = {}
  exec("\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)), names)
  assert "detective" in objectives.OBJECTIVES
  history = names["history"]
  assert int(names["state"].step) == len(history) == 30
  assert history[-1] < 0.5 * history[0]


def test_every_module_is_in_the_index():
  """If this fails: python -m electra_jax.tools.module_index > docs/modules.md"""
  def names(page):
    return re.findall(r"^(?:## |\| `)([\w./]+)", page, re.MULTILINE)

  assert names((ROOT / "docs/modules.md").read_text()) == names(module_index.page())


def test_differences_are_current():
  """If this fails: python -m electra_jax.tools.differences > docs/differences.md"""
  page = differences.page()
  assert (ROOT / "docs/differences.md").read_text() == page
  lines = [line for folder in ("configs", "electra_jax") for path in (ROOT / folder).rglob("*.py")
           for line in path.read_text().splitlines() if re.match(r" *Differs from ", line)]
  assert len(lines) == len(re.findall("^- ", page, re.MULTILINE))  # each begins a paragraph of a docstring
