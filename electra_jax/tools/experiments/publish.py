"""Published results: a table of all claims with their verdicts, and a page for each with its table and pictures."""

import os
import pathlib
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence

from electra_jax import files, metrics, plotting
from electra_jax.errors import UserError
from electra_jax.tools.experiments import records, report, results
from electra_jax.tools.experiments.report import TITLES, Difference, compare, differences, metric_key, table
from electra_jax.tools.experiments.results import pretrainings_of
from electra_jax.tools.experiments.rows import FILES, Table, tables

INTRODUCTION, NOTEBOOK = "introduction.md", "notebook.md"  # written by hand
BUDGETS = "{}-budgets.png"  # the picture of a claim at several budgets


def chance_of_pretraining(rows: Sequence[Mapping], budget: float) -> dict[str, float]:
  """Metric of GLUE -> standard deviation between pre-trainings of a model, pooled over the models with several.

  Args:
    rows: of evidence.json.
    budget: training FLOPs of the models in question. Models count whose budget, to one digit, is the largest up to this
      one, or else the smallest: close to a plateau, pre-trainings vary more.
  """
  spreads: dict[float, dict[str, list[float]]] = {}
  for row in rows:
    if pretrainings_of(row) > 1 and row["metric"].startswith("glue/"):
      own = spreads.setdefault(float(f"{row['train_flops']:.1g}"), {})
      own.setdefault(row["metric"], []).append(row["spread"])
  below = [of for of in spreads if of <= float(f"{budget:.1g}")]
  nearest = spreads[max(below) if below else min(spreads)] if spreads else {}
  return {metric: statistics.fmean(spread**2 for spread in each) ** 0.5 for metric, each in nearest.items()}


def verdict(of: Table, difference: Difference) -> str:
  """A difference in a word: confirmed, opposite, within noise, or budget too small; "" if the paper names no sign."""
  if difference.model in of.too_small and not difference.is_noise:
    return "budget too small"
  if difference.is_noise or not difference.noise:
    return "within noise"
  return "opposite" if difference.contradicts else "confirmed" if difference.expected else ""


def main_rows(of: Table, rows: Sequence[Mapping]) -> list[Mapping]:
  """A table's figures without those of other budgets."""
  return [row for row in rows if row["claim"] == of.name and "budget" not in row]


def by_budget(of: Table, rows: Sequence[Mapping]) -> dict[float, list[Difference]]:
  """Training FLOPs -> the differences at that budget; one entry if a table was run once."""
  budgets: dict[float | None, list[Mapping]] = {}
  for row in rows:
    if row["claim"] == of.name and row["metric"] == metric_key(of.metrics[0]):
      budgets.setdefault(row.get("budget"), []).append(row)
  main = main_rows(of, rows)
  compared = {budget or main[0]["train_flops"]: compare(of, own, chance_of_pretraining(rows, own[0]["train_flops"]))
              for budget, own in budgets.items()}
  return dict(sorted(compared.items()))


def pages(rows: Sequence[Mapping], folder: str) -> dict[str, str]:
  """Name -> text of README.md and of a page for each table that was run.

  Args:
    rows: of evidence.json.
    folder: docs/results, which has the introduction, the notebook and the pictures.
  """
  root, run = pathlib.Path(folder), [of for of in tables().values() if main_rows(of, rows)]
  introduction = root / INTRODUCTION
  texts = {"README.md": "\n\n".join(
    ["# Results", *([introduction.read_text(encoding="utf-8").strip()] if introduction.exists() else []),
     claims(rows, root / NOTEBOOK)]) + "\n"}
  return texts | {f"{of.name}.md": _page(of, rows, root) for of in run}


def claims(rows: Sequence[Mapping], notebook: pathlib.Path) -> str:
  """A Markdown table: a line for each difference that was run, and for each table that was not run to its end."""
  lines, not_run = [], []
  for file in FILES:
    for of in tables(file).values():
      own = main_rows(of, rows)
      if not own:
        not_run.append(of)
        continue
      compared = compare(of, own, chance_of_pretraining(rows, own[0]["train_flops"]))
      link = f"[{of.name}]({of.name}.md): {of.says}"
      several = max(map(pretrainings_of, own))
      budget = _flops(own[0]["train_flops"]) + f", {several} pre-trainings" * (several > 1)
      for number, difference in enumerate(compared):
        lines.append(["" if number else link, f"{difference.model} − {difference.first}, {TITLES[difference.metric]}",
                      difference.in_paper(1), difference.value(1), budget,
                      verdict(of, difference)])
      lines += [] if compared else [[link, "", "", "", budget, "one model only"]]
  for of in not_run:
    has_section = first_paragraph(notebook, of.name)
    link = f"[{of.name}]({NOTEBOOK}#{of.name})" if has_section else of.name
    lines.append([f"{link}: {of.says or of.source}", "", "", "", "", "curves only" if has_section else "not run"])
  return plotting.markdown(["Claim", "Difference", "Paper", "Ours", "Budget", "Verdict"], lines)


def _page(of: Table, rows: Sequence[Mapping], root: pathlib.Path) -> str:
  own, budgets = main_rows(of, rows), by_budget(of, rows)
  parts = [f"# {of.name}: {of.source}", f"*{of.says}* `{own[0]['command']}`", table(of, own)]
  parts += ["\n".join(lines) for lines in [differences(
    of, own, chance_of_pretraining(rows, own[0]["train_flops"]))] if lines]
  if len(budgets) > 1:
    values = {model.name: [next((difference.value(1) for difference in each if difference.model == model.name), "")
                           for each in budgets.values()] for model in of.models[1:]}
    parts.append(plotting.markdown(
      [f"{TITLES[of.metrics[0]]}, difference from {of.models[0].name}", *map(_flops, budgets)],
      [[name, *row] for name, row in values.items() if any(row)]))
  parts += [text for text in [first_paragraph(root / NOTEBOOK, of.name)] if text]
  parts += [f"![{of.name}]({name})" for name in (f"{of.name}.png", BUDGETS.format(of.name)) if (root / name).exists()]
  return "\n\n".join(parts) + "\n"


def _flops(number: float) -> str:
  return f"{number:.2g} FLOPs".replace("e+", "e")


def first_paragraph(notebook: pathlib.Path, name: str) -> str:
  """The first paragraph of the notebook's section on a table, with a link to it; "" if there is no section."""
  text = notebook.read_text(encoding="utf-8") if notebook.exists() else ""
  section = re.search(rf"^## {re.escape(name)}\n+(.+?)\n(\n|\Z)", text, re.MULTILINE | re.DOTALL)
  return f"{section[1]} [More]({NOTEBOOK}#{name})." if section else ""


def draw_budgets(of: Table, rows: Sequence[Mapping], out: str) -> None:
  """The differences of a table against its budgets, with the paper's at its own (Table.paper_flops), as a PNG."""
  budgets = by_budget(of, rows)
  figure = plotting.new(6.0, 4.2)
  axes = figure.add_subplot()
  for number, model in enumerate(of.models[1:]):
    points = [(budget, difference) for budget, differences_there in budgets.items() for difference in differences_there
              if difference.model == model.name]
    if not points:
      continue
    axes.errorbar([budget for budget, _ in points], [difference.ours for _, difference in points],
                  [difference.noise for _, difference in points], fmt="o-", capsize=3, color=plotting.COLOURS[number],
                  label=model.name)
    if of.paper_flops and points[0][1].paper is not None:
      axes.plot(of.paper_flops, points[0][1].paper, "*", markersize=11, color=plotting.COLOURS[number],
                label=f"{model.name}, paper")
  axes.axhline(0.0, color="grey", linewidth=0.8)
  axes.set(xscale="log", xlabel="training FLOPs (ELECTRA Appendix C)",
           ylabel=f"{TITLES[of.metrics[0]]}, difference from {of.models[0].name}")
  plotting.finish(axes)
  plotting.save(figure, out)


def merge(before: Iterable[dict], new: Iterable[dict]) -> list[dict]:
  """The figures of tables of configs/evidence.py, with all figures of a model replaced if there are new ones.

  Rows with a "budget" are of another one than the table's, and stay.
  """
  new = list(new)
  models = {(figure["claim"], figure["model"]) for figure in new}
  rows = [figure for figure in before if "budget" in figure or (figure["claim"], figure["model"]) not in models] + new
  order = {(table.name, model.name): (i, j) for i, table in enumerate(tables().values())
           for j, model in enumerate(table.models)}
  return sorted((row for row in rows if (row["claim"], row["model"]) in order),
                key=lambda row: order[row["claim"], row["model"]])


def publish(out: str, folder: str) -> None:
  """Writes the pages of a folder such as docs/results; first merges in the figures of experiments in `out`, if given.

  Raises:
    UserError: `out` has no experiments, or there are no results at all.
  """
  path = os.path.join(folder, "evidence.json")
  rows = results.load(path)
  if out:
    if not records.recorded(out):
      raise UserError("There are no experiments to publish", got=f"--out={out} without {records.FILE}",
                      allowed="the --out of a `run`", fix="check the path")
    rows = merge(rows, records.collect(out))
    for name in [name for name in records.recorded(out) if name in tables()]:
      draw(tables()[name], out, os.path.join(folder, f"{name}.png"))
    results.save(path, rows)
  if not rows:
    raise UserError("There are no results to publish", got=f"{path} and --out={out}",
                    allowed="runs of `run`", fix="launch/reproduce.sh small-vs-bert")
  for of in tables().values():
    if len(by_budget(of, rows)) > 1:
      draw_budgets(of, rows, os.path.join(folder, BUDGETS.format(of.name)))
  for name, text in pages(rows, folder).items():
    with files.atomic(os.path.join(folder, name)) as file:
      file.write(text)
  print(f"{len(rows)} figures: {path}, {os.path.join(folder, 'README.md')}")


def draw(of: Table, out: str, path: str) -> None:
  """Draws the curves of a table, unless that would replace a picture that may show models which --out lacks."""
  rows = records.planned(out, of)
  missing = [row.model.name for row in rows if not metrics.rows_so_far(row.workdir)]
  if missing and os.path.exists(path):
    print(f"{path} stays as it is: {out} has no runs of {', '.join(missing)}")
  else:
    report.draw(of, rows, records.figures_of(out, of), path)
