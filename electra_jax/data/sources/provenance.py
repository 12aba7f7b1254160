"""Provenance of shards: the text that they were made from, and whether a run asks for the same one.

`manifest.json` holds it under `source`: the keys of config.data that choose the text, the files with their sizes, and a
checksum of the text itself.
"""

import os

from ml_collections import ConfigDict

from electra_jax.data.sources.documents import SOURCES, parse_path
from electra_jax.data.sources.files import REMOTE_PREFIXES, find_files
from electra_jax.errors import UserError, listed

KEYS = ("path", "text_field", "text_format", "max_documents")  # of config.data: which text there is


def describe(config_data: ConfigDict) -> dict:
  """KEYS, the local files behind the path with their sizes in bytes, and the hidden ones that are left out."""
  files, hidden = {}, []
  for source, _ in parse_path(config_data.path):
    if not source.startswith((*SOURCES, *REMOTE_PREFIXES)):
      files |= {file: os.path.getsize(file) for file in find_files(source, hidden)}
  return {key: config_data[key] for key in KEYS} | {"files": files, "left_out": hidden}


def check(source: dict, config_data: ConfigDict, directory: str) -> str | None:
  """Compares the source of shards with the text that a config asks for; returns a note or warning, if any.

  Without data.path the config asks for none, and the shards are used as they are.

  Raises:
    UserError: the config asks for another text, or for other parts of it.
  """
  if not config_data.path:
    return None
  differing = [key for key in KEYS[1:] if source[key] != config_data[key]]
  is_same_path = os.path.abspath(source["path"]) == os.path.abspath(config_data.path)
  try:
    changes = _changes(source["files"], describe(config_data)["files"])
  except UserError:  # it is no longer there
    changes = [] if is_same_path else ["there is nothing to compare with"]
  weights = [[weight for _, weight in parse_path(path)] for path in (source["path"], config_data.path)]
  is_moved = not is_same_path and bool(source["files"]) and not changes and weights[0] == weights[1]
  if differing or not (is_same_path or is_moved):
    keys = differing + ["path"] * (not is_same_path and not is_moved)
    raise UserError("The shards were made from another text",
                    got=listed([f"data.{key} is {config_data[key]!r}, {source[key]!r} of the shards in {directory}"
                                for key in keys] + changes, most=5),
                    allowed="the text that the shards were made from, or --config.data.path= to use them as they are",
                    fix="for the other text choose a new --workdir or --config.data.shards_path, or remove the shards "
                        "if nothing was trained on them")
  if is_moved:
    return f"The text of the shards has moved from {source['path']} to {config_data.path}."
  if changes:
    return (f"Warning: the text under {config_data.path} has changed since the shards in {directory} were made; they "
            f"are used as they are:{listed(changes, most=5)}")
  return None


def check_same_text(before: dict | None, source: dict, workdir: str) -> None:
  """Checks that a run resumes on the text that it was trained on.

  Args:
    before: path and checksum that the run has recorded; None if it has no checkpoint.

  Raises:
    UserError: the shards now hold another text.
  """
  if before and before["checksum"] != source["checksum"]:
    raise UserError(f"The shards hold another text than the one that {workdir} was trained on",
                    got=f"{source['path']} (checksum {source['checksum']}), {before['path']} (checksum "
                        f"{before['checksum']}) until its last checkpoint",
                    allowed="the same text", fix="restore the text and remove these shards, or restore the shards; to "
                    "train on the new text use a new --workdir, with --config.checkpoint.init_from for the parameters")


def _changes(before: dict[str, int], now: dict[str, int]) -> list[str]:
  """How the files differ, by their names below their common folder."""
  before, now = _relative(before), _relative(now)
  return [f"{name}: {_size(before, name)} then, {_size(now, name)} now" for name in sorted(before.keys() | now.keys())
          if before.get(name) != now.get(name)]


def _relative(files: dict[str, int]) -> dict[str, int]:
  if not files:
    return {}
  root = os.path.commonpath([os.path.dirname(os.path.abspath(file)) for file in files])
  return {os.path.relpath(file, root): size for file, size in files.items()}


def _size(files: dict[str, int], name: str) -> str:
  return f"{files[name]:,} bytes" if name in files else "missing"
