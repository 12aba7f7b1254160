"""Files and folders that appear complete or not at all, and JSON files with null for NaN."""

import contextlib
import json
import math
import os
import shutil
from collections.abc import Generator
from typing import IO, Any

from electra_jax.errors import UserError


@contextlib.contextmanager
def atomic(path: str, mode: str = "w") -> Generator[IO, None, None]:
  """A file that gets its name when the block ends without an error; otherwise what was there stays.

  Args:
    mode: "w" for text in UTF-8, "wb" for bytes.

  Raises:
    OSError: the disk refuses.
  """
  partial = f"{path}.partial-{os.getpid()}"
  try:
    with open(partial, mode, encoding=None if "b" in mode else "utf-8") as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.replace(partial, path)
  finally:
    with contextlib.suppress(OSError):
      os.remove(partial)


def check_free(out: str) -> None:
  """Raises a UserError if the place of a new folder is taken."""
  if os.path.lexists(out) and not (os.path.isdir(out) and not os.path.islink(out) and not os.listdir(out)):
    raise UserError("The place of a new folder is taken", got=f"{out} exists and holds something",
                    allowed="a new or empty folder", fix="choose another one (--out), or move the old one away")


@contextlib.contextmanager
def new_folder(out: str) -> Generator[str, None, None]:
  """A temporary folder next to `out` that gets its name when the block ends without an error.

  Raises:
    UserError: `out` holds something, or the disk refuses; what existed stays.
  """
  check_free(out)
  partial = f"{os.path.normpath(out)}.partial-{os.getpid()}"
  try:
    os.makedirs(partial)
    yield partial
    os.rename(partial, out)  # fails if `out` has been filled meanwhile
  except OSError as error:
    raise UserError("The folder cannot be written", got=f"{out}: {error}",
                    allowed="a place that you may write to, with enough room (4 bytes per parameter)",
                    fix="choose another --out, or free space") from error
  finally:
    shutil.rmtree(partial, ignore_errors=True)


def write_json(path: str, value: Any) -> None:
  """Writes JSON atomically; NaN and infinity become null."""
  def clean(x: Any) -> Any:
    if isinstance(x, dict):
      return {key: clean(item) for key, item in x.items()}
    if isinstance(x, list | tuple):
      return [clean(item) for item in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x

  with atomic(path) as file:
    json.dump(clean(value), file, indent=2)


def read_json(path: str) -> Any:
  """What `write_json` wrote; null comes back as NaN."""
  def restore(x: Any) -> Any:
    if isinstance(x, dict):
      return {key: restore(item) for key, item in x.items()}
    if isinstance(x, list):
      return [restore(item) for item in x]
    return math.nan if x is None else x

  with open(path, encoding="utf-8") as file:
    return restore(json.load(file))
