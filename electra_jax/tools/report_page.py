"""Self-contained pages of HTML with inline SVG, for light and dark screens and for paper."""

import html
import io
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tqdm import tqdm

from electra_jax import plotting

INK, GRID = "#010203", "#010204"  # colours that no curve has: they become the page's own
# The curves' colours on a dark page, in the order of plotting.COLOURS: the same hues, lighter.
DARK_COLOURS = ("#6cb6ff", "#ff9a5c", "#4fd1a5", "#f0a6cd", "#f2c14e", "#a5dcff", "#ffffff")
PANEL_INCHES = (4.4, 3.1)  # small, so that its text is readable on a phone, 390 pixels wide

CSS = (pathlib.Path(__file__).parent / "report.css").read_text(encoding="utf-8")


def escape(text: object) -> str:
  """Text as HTML shows it."""
  return html.escape(str(text))


def document(title: str, body: str) -> str:
  """The whole page."""
  def variables(colours):
    return "; ".join(f"--curve-{number}: {colour}" for number, colour in enumerate(colours))

  css = CSS.replace("LIGHT", variables(plotting.COLOURS)).replace("DARK", variables(DARK_COLOURS)).strip()
  return ('<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
          '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
          f"<title>{escape(title)}</title>\n<style>\n{css}\n</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n")


def section(title: str, body: str) -> str:
  """A section; nothing if its body is empty."""
  return f"<section>\n<h2>{escape(title)}</h2>\n{body}\n</section>\n" if body else ""


def paragraph(text: str, *, dim: bool = False) -> str:
  """Plain text."""
  return f'<p{" class=dim" * dim}>{escape(text)}</p>\n'


def cards(bodies: Sequence[str]) -> str:
  """Boxes, two side by side where there is room."""
  return '<div class="cards">' + "".join(f'<div class="card">{body}</div>\n' for body in bodies) + "</div>\n"


def folded(summary: str, body: str) -> str:
  """A body that a click unfolds."""
  return f"<details><summary>{escape(summary)}</summary>\n{body}</details>\n"


def tiles(facts: Sequence[tuple[str, str]]) -> str:
  """Large numbers: (what, value)."""
  return '<div class="tiles">' + "".join(
    f'<div class="tile"><b>{escape(value)}</b><span>{escape(what)}</span></div>' for what, value in facts) + "</div>\n"


def table(headings: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "") -> str:
  """A table; columns whose cells all look like numbers are aligned to the right."""
  columns = list(zip(*rows)) or [[] for _ in headings]
  marks = [' class="n"' if column and all(re.fullmatch(r"[-+−±]?[\d.,]+(e[-+]?\d+)?( ?(%|M|s|GiB))?|[-–]|", str(cell))
                                          for cell in column) else "" for column in columns]

  def line(tag, cells):
    return "<tr>" + "".join(f"<{tag}{mark}>{escape(cell)}</{tag}>" for mark, cell in zip(marks, cells)) + "</tr>"

  head = f"<thead>{line('th', headings)}</thead>" if any(headings) else ""
  note = f"<small>{escape(caption)}</small>" if caption else ""
  return (f'<div class="wide">{note}<table>{head}<tbody>' + "\n".join(line("td", row) for row in rows)
          + "</tbody></table></div>\n")


def shares(seconds: Mapping[str, float]) -> str:
  """A bar cut into named shares of a time, the largest first, with its key."""
  ordered = sorted(((name, value) for name, value in seconds.items() if value > 0), key=lambda row: -row[1])
  total = sum(value for _, value in ordered)
  colour = {name: f"background: var(--curve-{number})" for number, (name, _) in enumerate(ordered)}
  parts = "".join(f'<i style="flex: {value / total:.4f}; {colour[name]}"></i>' for name, value in ordered)
  key = "".join(f'<span><i style="{colour[name]}"></i>{escape(name)} {100 * value / total:.1f} % '
                f'<span class="dim">({tqdm.format_interval(value)})</span></span>' for name, value in ordered)
  return f'<div class="bar">{parts}</div><div class="key">{key}</div>\n'


def svg(drawing: Callable) -> str:
  """A drawing on matplotlib's axes as inline SVG whose colours follow the page; its text stays text."""
  figure = plotting.new(*PANEL_INCHES)
  import matplotlib
  ink: Any = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color",
                       "ytick.color"), INK) | {"grid.color": GRID}
  file = io.StringIO()
  with matplotlib.rc_context({"svg.fonttype": "none", "axes.facecolor": "none", **ink}):
    drawing(figure.add_subplot())
    figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
  picture = file.getvalue()
  picture = picture[picture.index("<svg"):].replace(INK, "currentColor").replace(GRID, "var(--dim)")
  for number, colour in enumerate(plotting.COLOURS):
    picture = picture.replace(colour.lower(), f"var(--curve-{number})")
  return picture.replace("\n", " ")
