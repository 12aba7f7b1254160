"""Figures and Markdown tables in one style."""

import os
from collections.abc import Iterable, Sequence
from typing import Any

from electra_jax import files
from electra_jax.errors import UserError

# Okabe and Ito's palette: distinct for colour-blind readers and in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def new(width: float, height: float) -> Any:
  """An empty matplotlib Figure, in inches."""
  from matplotlib.figure import Figure  # pyplot would have global state; here, as it takes a second to import
  return Figure(figsize=(width, height), layout="constrained")


def finish(axes: Any, handles: Sequence | None = None) -> None:
  """Adds the grid, frame and legend that all pictures share."""
  axes.grid(alpha=0.3)
  axes.spines[["top", "right"]].set_visible(False)
  axes.legend(handles=handles, fontsize="small", frameon=False)


def save(figure: Any, out: str) -> None:
  """Writes png, pdf or svg by the path's ending, png if there is none; the file appears complete or not at all.

  Raises:
    UserError: the path has another ending, or the disk refuses.
  """
  try:
    with files.atomic(out, "wb") as file:
      figure.savefig(file, format=os.path.splitext(out)[1].lstrip(".").lower() or "png", dpi=120)
  except (OSError, ValueError) as error:
    raise UserError(f"The picture {out} cannot be written", got=str(error),
                    allowed="a path in a writable folder that ends in .png, .pdf or .svg",
                    fix="choose another place, or free space") from error


def markdown(headings: Sequence[object], rows: Iterable[Iterable[object]]) -> str:
  r"""A Markdown table without a final line break.

  >>> print(markdown(["Label", "F1"], [["a|b", 0.5]]))
  | Label | F1 |
  |---|---|
  | a\|b | 0.5 |
  """
  def line(cells: Iterable[object]) -> str:
    texts = (" ".join(str(cell).split()).replace("|", "\\|") for cell in cells)
    return "|" + "".join(f" {text} |" if text else " |" for text in texts)

  return "\n".join([line(headings), "|---" * len(headings) + "|", *map(line, rows)])
