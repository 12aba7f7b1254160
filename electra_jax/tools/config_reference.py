"""Which keys does a config have? Writes the table of docs/configuration.md from the recipe file that defines them."""

import argparse
import re
import sys

from electra_jax.errors import UserError

TITLE = """# Configuration

Every key of every recipe, as `{source}` defines it; this page is generated from that file
(`python -m electra_jax.tools.config_reference {source} > docs/configuration.md`).
Change a key in a recipe, or on the command line: `--config.train.batch_size=64`.
*derived* keys are filled in by `electra_jax/config.py` unless they are set.
"""

ASSIGNMENT = re.compile(r"^  c\.([a-z0-9_.]+) = (.*?)(?:  # (.*))?$")
SECTION = re.compile(r"^  # ---- (.*)$")
COMMENT = re.compile(r"^  # (.*)$")


def reference(text: str, source: str) -> str:
  """The Markdown page of a file whose `defaults` consists of lines `c.KEY = VALUE  # reason`.

  A comment of its own line belongs to the key below it.

  >>> print(reference('  # ---- data\\n  # where\\n  c.data.path = ""\\n', "x.py").splitlines()[-1])
  | `data.path` | `""` | where |
  """
  lines, above, open_section = [TITLE.format(source=source)], [], False
  for line in text.splitlines():
    if section := SECTION.match(line):
      heading = section[1][0].upper() + section[1][1:]
      lines += ["", f"## {heading}", "", "| Key | Default | Meaning |", "|---|---|---|"]
      above, open_section = [], True
    elif assignment := ASSIGNMENT.match(line):
      key, value, reason = assignment.groups()
      meaning = " ".join([*above, *([reason] if reason else [])])
      if not open_section:
        lines += ["| Key | Default | Meaning |", "|---|---|---|"]
        open_section = True
      if not value.startswith("ConfigDict()"):
        lines.append(f"| `{key}` | {_shown(value)} | {_cell(meaning)} |")
      above = []
    elif comment := COMMENT.match(line):
      above.append(comment[1])
    else:
      above = []
  return "\n".join(lines) + "\n"


def _shown(value: str) -> str:
  return "*derived*" if value.startswith("placeholder(") else f"`{_cell(value)}`"


def _cell(text: str) -> str:
  return text.replace("|", "\\|")


def main(argv: list[str]) -> None:
  """Entry point."""
  parser = argparse.ArgumentParser(prog="python -m electra_jax.tools.config_reference", description=__doc__)
  parser.add_argument("source", help="the file that defines the keys: configs/common.py")
  source = parser.parse_args(argv[1:]).source
  try:
    with open(source, encoding="utf-8") as file:
      text = file.read()
  except OSError as error:
    raise UserError("The file of the keys cannot be read", got=error, allowed="a Python file",
                    fix="python -m electra_jax.tools.config_reference configs/common.py") from error
  sys.stdout.write(reference(text, source))


if __name__ == "__main__":
  try:
    main(sys.argv)
  except UserError as error:
    print(f"\nError: {error}", file=sys.stderr)
    sys.exit(2)
