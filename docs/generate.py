"""The generated pages: every configuration key, every difference from the papers, every module.

`python -m docs.generate` writes docs/configuration.md, docs/differences.md and docs/modules.md; a test keeps them
current.
"""

import ast
import pathlib
import re
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]
GENERATED = "This page is generated (`python -m docs.generate`), and a test keeps it current."

CONFIGURATION = f"""# Configuration

Every key of every recipe, as `configs/common.py` defines it. {GENERATED}
Change a key in a recipe, or on the command line: `--config.train.batch_size=64`.
*derived* keys are filled in by `electra_jax/config.py` unless they are set.
"""
DIFFERENCES = f"""# Differences from the papers and from released code

Every paragraph of a docstring that begins "Differs", with the place it stands at. {GENERATED}
"""
MODULES = f"""# Every module

The first sentence of each file. {GENERATED}
[design.md](design.md) says how they depend on each other and in which order to read them.
"""

ASSIGNMENT = re.compile(r"^  c\.([a-z0-9_.]+) = (.*?)(?:  # (.*))?$")
SECTION = re.compile(r"^  # ---- (.*)$")
COMMENT = re.compile(r"^  # (.*)$")
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef)


def configuration(text: str) -> str:
  """The page of a file whose `defaults` consists of lines `c.KEY = VALUE  # reason`.

  A comment of its own line belongs to the key below it.

  >>> print(configuration('  # ---- data\\n  # where\\n  c.data.path = ""\\n').splitlines()[-1])
  | `data.path` | `""` | where |
  """
  header = ["| Key | Default | Meaning |", "|---|---|---|"]
  lines, above, has_header = [CONFIGURATION], [], False
  for line in text.splitlines():
    if section := SECTION.match(line):
      lines += ["", f"## {section[1][0].upper()}{section[1][1:]}", "", *header]
      above, has_header = [], True
    elif assignment := ASSIGNMENT.match(line):
      key, value, reason = assignment.groups()
      lines += [] if has_header else header
      has_header = True
      if not value.startswith("ConfigDict()"):
        default = "*derived*" if value.startswith("placeholder(") else f"`{_cell(value)}`"
        lines.append(f"| `{key}` | {default} | {_cell(' '.join([*above, *([reason] if reason else [])]))} |")
      above = []
    else:
      comment = COMMENT.match(line)
      above = [*above, comment[1]] if comment else []
  return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
  return text.replace("|", "\\|")


def differences() -> str:
  """The page: a heading for each file, an item for each paragraph."""
  lines = [DIFFERENCES]
  for path in sorted(path for folder in ("configs", "electra_jax") for path in (ROOT / folder).rglob("*.py")):
    name = path.relative_to(ROOT)
    items = [f"- `{owner}`: {text}" if owner else f"- {text}" for owner, text in paragraphs(path.read_text("utf-8"))]
    lines += [f"## [{name}](../{name})", "", *items, ""] if items else []
  return "\n".join(lines)


def paragraphs(source: str) -> Iterator[tuple[str, str]]:
  """(name of the function or class, "" for the module; the paragraph on one line), in the order of the file.

  >>> list(paragraphs('def f():\\n  \"\"\"Does.\\n\\n  Differs from A:\\n  it is B.\\n\\n  More.\\n  \"\"\"'))
  [('f', 'Differs from A: it is B.')]
  """
  nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, DEFINITIONS)]
  for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
    for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
      if paragraph.startswith("Differs "):
        yield getattr(node, "name", ""), " ".join(paragraph.split())


def modules() -> str:
  """The page: a table for each folder of the package."""
  package = ROOT / "electra_jax"
  parts = [MODULES]
  for folder in sorted({path.parent for path in package.rglob("*.py")}):
    rows = [f"| `{path.name}` | {first_sentence(path.read_text('utf-8'))} |"
            for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
    if rows:
      parts.append(f"## {folder.relative_to(ROOT)}/\n\n| File | What it is |\n|---|---|\n" + "\n".join(rows) + "\n")
  return "\n".join(parts)


def first_sentence(source: str) -> str:
  """The first sentence of a module's docstring, on one line.

  >>> first_sentence('\"\"\"Norms of trees:\\nglobal, per group. Means ...\"\"\"')
  'Norms of trees: global, per group.'
  """
  text = " ".join((ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0].split())
  return re.split(r"(?<=[?.]) (?=[A-Z`])", text)[0]


def pages() -> dict[str, str]:
  """File name in docs/ -> its text."""
  return {"configuration.md": configuration((ROOT / "configs/common.py").read_text("utf-8")),
          "differences.md": differences(), "modules.md": modules()}


if __name__ == "__main__":
  for name, text in pages().items():
    (ROOT / "docs" / name).write_text(text, "utf-8")
