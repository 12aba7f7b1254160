"""Page of a report: HTML, CSS and SVG without any other file, on paper, light and dark."""

import html
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from electra_jax import plotting

INK, GRID = "#010203", "#010204"  # colours that no curve has: they become the page's own
# The curves' colours on a dark page, in the order of figures.COLOURS: the same hues, lighter.
DARK_COLOURS = ("#6cb6ff", "#ff9a5c", "#4fd1a5", "#f0a6cd", "#f2c14e", "#a5dcff", "#ffffff")
PANEL_INCHES = (4.4, 3.1)  # so small that its text is readable on a telephone, 390 pixels wide

CSS = """
:root { color-scheme: light dark; --page: #fff; --card: #f6f7f9; --ink: #1c2024; --dim: #626a73; --line: #dfe3e8;
  --accent: #0072b2; --mark: #d55e00; LIGHT }
@media (prefers-color-scheme: dark) { :root { --page: #14171b; --card: #1d2127; --ink: #e7eaee; --dim: #9aa4af;
  --line: #333a43; --accent: #6cb6ff; --mark: #ff9a5c; DARK } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 70rem; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif }
h1 { margin: 0; font-size: 1.9rem; overflow-wrap: anywhere } h2 { margin: 3rem 0 .8rem; font-size: 1.25rem }
h3 { margin: 1.6rem 0 .5rem; font-size: 1rem } p { margin: .6rem 0 }
.dim, small { color: var(--dim) } small { font-size: .82rem }
code { font-size: .88em; overflow-wrap: anywhere }
.badge { border: 1px solid currentColor; border-radius: 1rem; padding: .05rem .6rem; font-size: .82rem;
  color: var(--accent); white-space: nowrap } .badge.open { color: var(--mark) }
.tiles { display: grid; gap: .75rem; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); margin: 1.6rem 0 }
.tile, .card { background: var(--card); border-radius: .6rem; padding: .8rem 1rem }
.tile b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; white-space: nowrap }
.tile span { display: block; color: var(--dim); font-size: .82rem }
.cards { display: grid; gap: .75rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 27rem), 1fr)) }
.cards svg { width: 100%; height: auto; display: block } .card h4 { margin: .8rem 0 0; font-size: .78rem;
  font-weight: 600; color: var(--dim) } .card h4:first-child { margin-top: 0 } .card p { margin: .2rem 0 .4rem }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .92rem; min-width: min(100%, 24rem) }
th, td { text-align: left; padding: .3rem 1.1rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
th { color: var(--dim); font-weight: 600; font-size: .82rem } td.n, th.n { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums } .wide { margin: .8rem 0 1.4rem }
.bar { display: flex; height: 1.4rem; border-radius: .35rem; overflow: hidden; margin: .6rem 0 .3rem }
.bar i { display: block; min-width: 1px } .key { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; font-size: .85rem }
.key i { display: inline-block; width: .75rem; height: .75rem; border-radius: .2rem; margin-right: .4rem }
.word { border-radius: .2rem; padding: 0 .12em;
  background: color-mix(in srgb, var(--mark) calc(var(--share) * 75%), transparent) }
.drawn { text-decoration: underline 2px var(--accent); text-underline-offset: .2em }
.hidden { border: 1.5px dashed var(--accent); border-radius: .25rem; padding: 0 .3em }
.right { color: var(--accent) } .wrong { color: var(--mark) }
.candidates { min-width: 0 } .candidates td { border: 0; padding: .05rem .8rem .05rem 0 }
.candidates i { display: inline-block; height: .7rem; border-radius: .2rem; background: var(--accent) }
details { margin: .5rem 0 } summary { cursor: pointer; color: var(--accent) }
pre { background: var(--card); border-radius: .6rem; padding: 1rem; overflow-x: auto; font-size: .85rem }
@media print { body { max-width: none; padding: 0 } .card, tr { break-inside: avoid } }
"""


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
  """A chapter; nothing where its body is empty."""
  return f"<section>\n<h2>{escape(title)}</h2>\n{body}\n</section>\n" if body else ""


def paragraph(text: str, *, dim: bool = False) -> str:
  """Plain text."""
  return f'<p{" class=dim" * dim}>{escape(text)}</p>\n'


def cards(bodies: Sequence[str]) -> str:
  """Boxes, two side by side where there is room."""
  return '<div class="cards">' + "".join(f'<div class="card">{body}</div>\n' for body in bodies) + "</div>\n"


def folded(summary: str, body: str) -> str:
  """Something that a click unfolds."""
  return f"<details><summary>{escape(summary)}</summary>\n{body}</details>\n"


def tiles(facts: Sequence[tuple[str, str]]) -> str:
  """Large numbers: (what, value)."""
  return '<div class="tiles">' + "".join(
    f'<div class="tile"><b>{escape(value)}</b><span>{escape(what)}</span></div>' for what, value in facts) + "</div>\n"


def table(headings: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "") -> str:
  """A table; columns in which every cell looks like a number stand to the right."""
  columns = list(zip(*rows)) or [[] for _ in headings]
  marks = [' class="n"' if column and all(re.fullmatch(r"[-+−±]?[\d.,]+(e[-+]?\d+)?( ?(%|M|s|GiB))?|[-–]|", str(cell))
                                          for cell in column) else "" for column in columns]

  def line(tag, cells):
    return "<tr>" + "".join(f"<{tag}{mark}>{escape(cell)}</{tag}>" for mark, cell in zip(marks, cells)) + "</tr>"

  head = f"<thead>{line('th', headings)}</thead>" if any(headings) else ""
  note = f"<small>{escape(caption)}</small>" if caption else ""
  return (f'<div class="wide">{note}<table>{head}<tbody>' + "\n".join(line("td", row) for row in rows)
          + "</tbody></table></div>\n")


def shares(values: Mapping[str, float], describe: Callable[[float], str]) -> str:
  """A bar cut into named shares, the largest first, with its key."""
  ordered = sorted(((name, value) for name, value in values.items() if value > 0), key=lambda row: -row[1])
  total = sum(value for _, value in ordered)
  colour = {name: f"background: var(--curve-{number})" for number, (name, _) in enumerate(ordered)}
  parts = "".join(f'<i style="flex: {value / total:.4f}; {colour[name]}"></i>' for name, value in ordered)
  key = "".join(f'<span><i style="{colour[name]}"></i>{escape(name)} {100 * value / total:.1f} % '
                f'<span class="dim">({escape(describe(value))})</span></span>' for name, value in ordered)
  return f'<div class="bar">{parts}</div><div class="key">{key}</div>\n'


def curves(drawings: Sequence[Callable]) -> str:
  """Pictures side by side; each drawing gets matplotlib's axes.

  Raises:
    UserError: matplotlib is not installed.
  """
  return cards([svg(drawing) for drawing in drawings])


def svg(drawing: Callable) -> str:
  """A drawing as inline SVG whose colours follow the page; its text stays text."""
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
