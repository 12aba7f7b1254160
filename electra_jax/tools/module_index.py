"""Which question does each file answer? Collects the first sentence of every module of the package."""

import ast
import pathlib
import re
import sys

USAGE = "Prints docs/modules.md: python -m electra_jax.tools.module_index > docs/modules.md"

TITLE = """# Every module and its question

A question has one file; each file's docstring begins with it. This page is generated
(`python -m electra_jax.tools.module_index > docs/modules.md`), and a test asks that it knows every module.
[design.md](design.md) says how they depend on each other, [README.md](../README.md) in which order to read them.
"""

PACKAGE = pathlib.Path(__file__).resolve().parents[1]


def question(source: str) -> str:
  """The first sentence of a module's docstring, on one line.

  >>> question('\"\"\"How do (sum, weight) pairs become\\nnumbers? JSONL, TensorBoard.\\n\\nMeans ...\"\"\"')
  'How do (sum, weight) pairs become numbers?'
  """
  text = " ".join((ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0].split())
  return re.split(r"(?<=[?.:]) (?=[A-Z`])", text)[0]


def page(package: pathlib.Path = PACKAGE) -> str:
  """The page: a table for each folder."""
  parts = [TITLE]
  for folder in (package, *sorted(path for path in package.iterdir() if (path / "__init__.py").exists())):
    rows = [f"| `{path.name}` | {question(path.read_text(encoding='utf-8'))} |"
            for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
    name = folder.relative_to(package.parent).as_posix()
    parts.append(f"## {name}/\n\n| File | Question |\n|---|---|\n" + "\n".join(rows) + "\n")
  return "\n".join(parts)


def main(argv: list[str]) -> None:
  """Prints the page, or how to."""
  print(USAGE if len(argv) > 1 else page(), end="\n" if len(argv) > 1 else "")


if __name__ == "__main__":
  main(sys.argv)
