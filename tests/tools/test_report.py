"""Is a report whole and true? Of pre-training and fine-tuning, finished or not, without any other file."""

import html.parser
import json
import os

import pytest

from configs import tiny
from configs.finetune import own
from electra_jax import config as config_lib
from electra_jax import recipes
from electra_jax.errors import UserError
from electra_jax.finetuning import results
from electra_jax.tools import report, report_samples
from tests.tools.test_plot_run import electra_rows
from tests.workdirs import make_workdir

TIMES = {"split": "time", "time/start_seconds": 30.0, "time/data_wait_seconds": 0.0, "time/evaluation_seconds": 20.0,
         "time/checkpoint_seconds": 0.0, "time/steps_seconds": 150.0, "time/goodput": 0.75,
         "start/imports_seconds": 6.0, "start/compilation_seconds": 24.0}
START = {"time": "2026-01-02T03:04:05+00:00", "step": 0, "device_kind": "NVIDIA H100 80GB HBM3", "num_devices": 8,
         "num_processes": 1, "mesh": {"data": 4, "fsdp": 2, "tensor": 1}, "cpu_cores": 16, "device_memory_bytes": 2**36}


class Page(html.parser.HTMLParser):
  """Reads a page: its text by section, and that every tag is closed and nothing is loaded from elsewhere."""

  def __init__(self, content):
    super().__init__()
    self.open, self.sections, self.title = [], {"": ""}, ""
    self.feed(content)
    assert not self.open

  def handle_starttag(self, tag, attributes):
    assert tag not in ("script", "link", "img", "iframe"), tag
    for name, value in attributes:
      assert name not in ("src", "onclick") and not (name == "href" and not value.startswith("#")), (tag, name, value)
    if tag not in ("meta", "br"):
      self.open.append(tag)

  def handle_startendtag(self, tag, attributes):
    pass

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def handle_data(self, data):
    if "style" in self.open:
      return
    if self.open and self.open[-1] == "h2":
      self.title = data
    self.sections[self.title] = self.sections.get(self.title, "") + data + " "


def write_lines(path, lines):
  path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
  """An ELECTRA of a moment ago, with two checkpoints and nothing logged."""
  root = tmp_path_factory.mktemp("report")
  return root / os.path.basename(make_workdir(root, tiny, "wordpiece"))


def test_a_run_without_a_log_row(workdir):
  page = Page(report.page(report.read(str(workdir), 0)))
  assert "40 of 40 steps" in page.sections[""] and "Samples" not in page.sections
  assert "no metrics" in page.sections["Results"] and "does not say" in page.sections["Hardware and time"]


def test_a_pretraining(workdir, monkeypatch):
  finetuned = {"step": 100, "split": "finetune", "cola/matthews": 0.25, "rte/accuracy": 0.625}
  heldout = electra_rows()[-1] | {"mlm/accuracy": 0.125, "mlm/perplexity": 665.0, "rtd/loss": 0.5}
  rows = [*electra_rows()[:-1], heldout, finetuned, {"step": 100, **TIMES}]
  write_lines(workdir / "metrics.jsonl", rows)
  write_lines(workdir / "starts.jsonl", [START, START | {"step": 50, "num_devices": 4, "mesh": {"data": 4}}])
  assert "no shards" in Page(report.page(report.read(str(workdir), 3))).sections["Samples"]
  monkeypatch.setattr(report_samples, "_heldout_texts", lambda *_: ["the cat sat on the mat.", "a dog saw the rain?"])
  out = workdir / "report.html"
  assert report.write(str(workdir), str(out), 3) == str(out)
  content = out.read_text()
  page = Page(content)
  assert "100 of 40 steps" in page.sections[""] and "75.0 %" in page.sections[""]
  assert "6.500 nats" in page.sections["Results"] and "0.700" in page.sections["Results"]
  assert content.count("<svg") == 4 and "var(--curve-1)" in content and "#010203" not in content
  assert "Masked language model: loss" in page.sections["Curves"]
  assert "25.0" in page.sections["GLUE"] and "69.3" in page.sections["GLUE"] and "86.6" in page.sections["GLUE"]
  assert "step 40" in page.sections["Samples"] and page.sections["Samples"].count("%") >= 3
  assert "8 × NVIDIA H100 80GB HBM3, 64 GiB each" in page.sections["Hardware and time"]
  assert "75.0 % of 03:20 were steps" in page.sections["Hardware and time"]
  assert "data=4, fsdp=2" in page.sections["Hardware and time"]
  assert "2026-01-02 03:04:05 UTC" in page.sections["Hardware and time"]
  assert "compilation 80.0 %" in page.sections["Hardware and time"]
  assert "Appendix C" in page.sections["Floating-point operations"]
  assert "not started from a recipe" in page.sections["Recipe"]
  assert "optimizer.learning_rate" in page.sections["Configuration"]


def fine_tuned(folder, tmp_path):
  """A workdir as a fine-tuning with three answers on dev leaves it, with texts that HTML must not swallow."""
  data = tmp_path / "dev.csv"
  data.write_text("text,label\na <b>dog</b> & a cat,good\nrain,bad\nmore rain,bad\n")
  given = own.get_config()
  given.task.update(train_path=str(data), dev_path=str(data), init_from="somewhere", num_seeds=2)
  given.data.tokenizer.update(kind="wordpiece", vocab_size=400)
  given.train.num_steps = 12
  given.optimizer.warmup_steps = 1
  given.objective.name = "mlm"
  config = config_lib.resolve(given)
  (folder / "seeds").mkdir(parents=True)
  config_lib.save(str(folder / "config.json"), given, config, recipe="configs/finetune/own.py:classification")


def test_a_fine_tuning_before_and_after_its_first_seed(tmp_path):
  folder = tmp_path / "own"
  fine_tuned(folder, tmp_path)
  page = Page(report.page(report.read(str(folder), 4)))
  assert "0 of 2 seeds" in page.sections[""] and "No seed is finished" in page.sections["Results"]
  results.write_json(str(folder / "seeds" / "0.json"), {
    "seed": 0, "task": "own_classification", "metric": "accuracy", "select": "best", "scores": {"accuracy": 2 / 3},
    "curve": [{"step": 12, "accuracy": 2 / 3}]})
  page = Page(report.page(report.read(str(folder), 4)))
  assert "1 of 2 seeds" in page.sections[""] and "66.7 %" in page.sections[""]
  assert "own_classification, 1 seeds" in page.sections["Curves"] and "Samples" not in page.sections
  assert "configs/finetune/own.py:classification" in page.sections["Recipe"]
  assert "task.num_seeds 5 2" in " ".join(page.sections["Recipe"].split())
  assert "Floating-point operations" not in page.sections


@pytest.mark.parametrize("name,changes,about,differences", [
  ("configs/base.py", {"train.num_steps": 1000}, "ELECTRA Table 4",
   "recipe this run train.num_steps 766,000 1,000"),
  ("bert_base", {}, "Table 4", "Every key is the recipe's."),
  ("configs/finetune/glue.py:mrpc,roberta", {"task.num_seeds": 1}, "GLUE as the papers", "task.num_seeds 5 1"),
  ("", {}, "not started from a recipe", "20230601.en.")])
def test_whose_recipe(name, changes, about, differences, tmp_path):
  given = recipes.load(name or "base")[1]
  given.update_from_flattened_dict(changes)
  config_lib.save(str(tmp_path / "config.json"), given, given, recipe=name)
  section = " ".join(Page(report.recipe(report.read(str(tmp_path)))).sections[""].split())
  assert about in section and section.endswith(differences), section


def test_no_run(tmp_path):
  with pytest.raises(UserError, match="No run can be read"):
    report.read(str(tmp_path))
  with pytest.raises(UserError, match="about one run"):
    report.main(["report"])


def test_a_page_that_cannot_be_written(workdir):
  with pytest.raises(UserError, match="cannot be written"):
    report.write(str(workdir), str(workdir / "missing" / "page.html"), 0)
