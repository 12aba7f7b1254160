"""Where does the code depart from the papers and from released code? Collects every docstring's "Differs"."""

import ast
import pathlib
import sys
from collections.abc import Iterator, Sequence

USAGE = "Prints docs/differences.md: python -m electra_jax.tools.differences > docs/differences.md"

TITLE = """# Differences from the papers and from released code

Every paragraph of a docstring that begins "Differs", with the place it stands at. This page is generated
(`python -m electra_jax.tools.differences > docs/differences.md`), and a test keeps it current.
"""

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef)


def paragraphs(source: str) -> Iterator[tuple[str, str]]:
  """(name of the function or class, "" for the module; the paragraph on one line), in the order of the file.

  >>> list(paragraphs('def f():\\n  \"\"\"Does.\\n\\n  Differs from A:\\n  it is B.\\n\\n  More.\\n  \"\"\"'))
  [('f', 'Differs from A: it is B.')]
  """
  tree = ast.parse(source)
  nodes = [node for node in ast.walk(tree) if isinstance(node, DEFINITIONS)]
  for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
    for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
      if paragraph.startswith("Differs "):
        yield getattr(node, "name", ""), " ".join(paragraph.split())


def page(folders: Sequence[str] = ("configs", "electra_jax")) -> str:
  """The Markdown page: a heading for each file, an item for each paragraph."""
  lines = [TITLE]
  for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
    found = list(paragraphs(path.read_text(encoding="utf-8")))
    if found:
      name = path.relative_to(ROOT)
      items = [f"- `{owner}`: {text}" if owner else f"- {text}" for owner, text in found]
      lines += [f"## [{name}](../{name})", "", *items, ""]
  return "\n".join(lines)


def main(argv: list[str]) -> None:
  """Prints the page, or how to."""
  print(USAGE if len(argv) > 1 else page(), end="\n" if len(argv) > 1 else "")


if __name__ == "__main__":
  main(sys.argv)
