"""Does plot_run draw what the logs hold, and say what is wrong when they hold nothing?"""

import json
from types import SimpleNamespace

import pytest

from electra_jax import plotting
from electra_jax.errors import UserError
from electra_jax.tools import plot_run


def write_run(workdir, rows):
  workdir.mkdir(parents=True, exist_ok=True)
  (workdir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  return str(workdir)


def electra_rows():
  train = [{"step": s, "split": "train", "mlm/loss": 8 - s / 50, "rtd/loss": 0.6, "rtd/accuracy": 0.8,
            "train/tokens_per_second": 9e3} for s in range(10, 110, 10)]
  heldout = {"step": 100, "split": "eval", "mlm/loss": 6.5, "rtd/loss": None, "rtd/accuracy": 0.8, "rtd/auc": 0.7,
             "eval/unigram_entropy": 6.8}
  return [*train, heldout]


def mlm_rows():
  return [{"step": 10, "split": "train", "mlm/loss": 7.0}]


def panels(monkeypatch, workdirs, out, **options):
  """{title: {label: number of points}} of what is drawn."""
  drawn = {}
  save = plotting.save

  def record(figure, path):
    drawn.update({axes.get_title(): {line.get_label(): len(line.get_xdata()) for line in axes.lines}
                  for axes in figure.axes})
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes)
    save(figure, path)

  monkeypatch.setattr(plotting, "save", record)
  assert plot_run.plot_runs(workdirs, str(out), **options) == str(out)
  assert out.read_bytes()[:4] == b"\x89PNG"
  return drawn


def test_one_run(tmp_path, monkeypatch):
  drawn = panels(monkeypatch, [write_run(tmp_path / "a", electra_rows())], tmp_path / "c.png")
  assert drawn == {
    "Masked language model: loss": {"training": 10, "held-out": 1, "unigram entropy of held-out tokens": 2},
    "Replaced-token detection: loss": {"training": 10},
    "Replaced-token detection: quality": {"accuracy, training": 10, "accuracy, held-out": 1, "AUC, held-out": 1},
    "Speed": {"training": 10}}
  assert not list(tmp_path.glob("*.partial*"))


def test_runs_overlaid_and_panels_without_data_left_out(tmp_path, monkeypatch):
  runs = [write_run(tmp_path / folder / "run", mlm_rows()) for folder in ("x", "y")]
  drawn = panels(monkeypatch, runs, tmp_path / "c.png")
  assert drawn == {"Masked language model: loss": {f"{run}: training": 1 for run in runs}}
  names = [write_run(tmp_path / name, mlm_rows()) for name in ("one", "two")]
  assert list(panels(monkeypatch, names, tmp_path / "c.png").values()) == [{"one: training": 1, "two: training": 1}]


def test_with_several_runs_the_key_names_runs_by_colour_and_curves_by_line(tmp_path, monkeypatch):
  keys = {}
  monkeypatch.setattr(plotting, "save", lambda figure, path: keys.update(
    {axes.get_title(): [text.get_text() for text in axes.get_legend().get_texts()] for axes in figure.axes}))
  plot_run.plot_runs([write_run(tmp_path / "one", electra_rows()), write_run(tmp_path / "two", mlm_rows())], "c.png")
  assert keys["Masked language model: loss"] == ["one", "two", "training", "held-out",
                                                 "unigram entropy of held-out tokens"]
  assert keys["Speed"] == ["one"]


@pytest.mark.parametrize("content,message", [(None, "No such file"), ("", "no row"), ("not json\n", "no row"),
                                             ('{"step": 1, "split": "train", "x/y": 1.0}\n', "no curve")])
def test_nothing_to_draw(tmp_path, content, message):
  if content is not None:
    (tmp_path / "metrics.jsonl").write_text(content)
  with pytest.raises(UserError) as error:
    plot_run.plot_runs([str(tmp_path)], str(tmp_path / "curves.png"))
  assert message in str(error.value)
  assert not (tmp_path / "curves.png").exists()


@pytest.mark.parametrize("out", ["missing/c.png", "c.docx"])
def test_unwritable_picture(tmp_path, out):
  workdir = write_run(tmp_path / "a", mlm_rows())
  with pytest.raises(UserError, match="cannot be written"):
    plot_run.plot_runs([workdir], str(tmp_path / out))
  assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_command_writes_into_the_first_workdir(tmp_path, capsys, monkeypatch):
  workdir = write_run(tmp_path / "a", electra_rows())
  monkeypatch.setattr(plot_run, "FLAGS", SimpleNamespace(out=""))
  plot_run.main(["plot_run", workdir])
  assert capsys.readouterr().out.strip() == f"{workdir}/curves.png"
