"""Files behind a path, on local disks and in buckets (gs://, s3://, az://), both read as streams."""

import contextlib
import fnmatch
import functools
import glob
import os
from collections.abc import Generator, Iterator
from typing import BinaryIO

from electra_jax.errors import UserError

REMOTE_PREFIXES = ("gs://", "s3://", "az://")


def find_files(path: str, hidden: list[str] | None = None) -> list[str]:
  """The files behind a file name, directory or glob, sorted; a folder that several links lead to is read once.

  What exists is taken as it stands, even above a glob: in "lr[1]/*.txt" the brackets are part of the folder's name.

  Args:
    path: one source of config.data.path.
    hidden: gets the paths that are left out because their names begin with a dot.

  Raises:
    UserError: the path is empty, missing or matches nothing; something there cannot be read, or is no file or folder.
  """
  if not path.strip():
    raise UserError("data.path is not set, so there is no text to learn from", got=repr(path),
                    allowed="text files, JSON lines or arrays, .gz or .zst of these, .parquet, a directory, a glob, "
                            "tfds:, hf: or pydoc:",
                    fix="set --config.data.path=/path/to/text, or try the embedded corpus (English that the "
                        "installed Python carries) with --config.data.path=pydoc:")
  if path.startswith(REMOTE_PREFIXES):
    return _find_remote(path)
  expanded = os.path.expanduser(path)
  roots = [expanded] if os.path.lexists(expanded) else _matches(expanded, path)
  files = {os.path.normpath(file) for root in roots for file in _walk(root, [] if hidden is None else hidden)}
  real_folder = functools.cache(os.path.realpath)
  once = {(real_folder(os.path.dirname(file)), os.path.basename(file)): file
          for file in sorted(files, key=lambda file: (-file.count(os.sep), file))}  # the shortest name stays
  if not once:
    raise _nothing_found(path)
  return sorted(once.values())


def _matches(pattern: str, path: str) -> Iterator[str]:
  """The files and folders that a glob matches, below the longest part of it that exists as it stands."""
  folder, parts = os.sep * pattern.startswith(os.sep), pattern.strip(os.sep).split(os.sep)
  while parts and os.path.lexists(os.path.join(folder, parts[0])):
    folder = os.path.join(folder, parts.pop(0))
  if not any(map(glob.has_magic, parts)):
    raise UserError("The corpus does not exist", got=f"data.path {path!r} (working directory {os.getcwd()})",
                    allowed="an existing file or directory, a glob, or pydoc:",
                    fix="check the spelling; relative paths count from the working directory")
  return _match(folder or os.curdir, parts)


def _match(path: str, parts: list[str]) -> Iterator[str]:
  """As `glob.glob`, which however skips folders that cannot be read, and loops in circles of links."""
  if not parts:
    yield path
    return
  part, *rest = parts
  if part == "**":
    for folder in [path] if not rest else [folder for folder, _ in _folders(path, [])]:
      yield from _match(folder, rest)
  elif not glob.has_magic(part):
    if os.path.lexists(os.path.join(path, part)):
      yield from _match(os.path.join(path, part), rest)
  elif os.path.isdir(path):
    _check_readable(path, os.R_OK | os.X_OK)
    for name in fnmatch.filter(os.listdir(path), part):
      if not name.startswith(".") or part.startswith("."):
        yield from _match(os.path.join(path, name), rest)


def _nothing_found(path: str) -> UserError:
  return UserError("No file was found", got=f"data.path {path!r}",
                   allowed="a directory or glob with at least one file that is not hidden",
                   fix="check the folder, or quote a glob so that the shell leaves it alone: 'corpus/**/*.txt'")


def _check_readable(path: str, mode: int = os.R_OK) -> None:
  if not os.access(path, mode):
    raise _unreadable(path, "permission denied")


def _unreadable(path: str, why: str) -> UserError:
  return UserError("A part of the corpus cannot be read", got=f"{path}: {why}",
                   allowed="files and folders that this user may read: none is skipped silently",
                   fix="change its permissions, or leave it out with a glob")


def _walk(root: str, hidden: list[str]) -> Iterator[str]:
  if not os.path.isdir(root):
    if not os.path.isfile(root):
      raise UserError("The corpus is no regular file", got=root, allowed="files and directories: a corpus is read "
                      "more than once, so pipes, devices and dangling links will not do", fix="write it to a file")
    _check_readable(root)
    yield root
    return
  for folder, names in _folders(root, hidden):
    for name in names:
      yield from _walk(os.path.join(folder, name), hidden)


def _folders(root: str, hidden: list[str]) -> Iterator[tuple[str, list[str]]]:
  """(folder, names of the files there) of a folder and all below it; circles of links are cut."""
  def stop(error: OSError) -> None:  # os.walk itself would skip the folder
    raise _unreadable(error.filename, str(error.strerror).lower()) from error

  seen = set()
  for folder, subfolders, names in os.walk(root, onerror=stop, followlinks=True):
    _check_readable(folder, os.R_OK | os.X_OK)
    seen.add(os.path.realpath(folder))
    hidden += [os.path.join(folder, name) for name in subfolders + names if name.startswith(".")]
    subfolders[:] = [name for name in sorted(subfolders) if not name.startswith(".")
                     and os.path.realpath(os.path.join(folder, name)) not in seen]
    yield folder, [name for name in names if not name.startswith(".")]


def open_file(path: str) -> BinaryIO:
  """The file, opened for reading bytes; may raise whatever `reading_errors` turns into a UserError."""
  return (_remote(path).open if path.startswith(REMOTE_PREFIXES) else functools.partial(open, path))("rb")


@contextlib.contextmanager
def reading_errors(path: str, form: str | None = None, damage: tuple[type[Exception], ...] = ()
                   ) -> Generator[None, None, None]:
  """Turns an error while a file is opened or read into a UserError: it is damaged, or its disk or bucket refuses.

  Args:
    form: of a file that a library decodes, which raises an OSError without errno, or one of `damage`, if that fails.
  """
  try:
    yield
  except UserError:
    raise
  except Exception as error:
    if form and (isinstance(error, damage) or (isinstance(error, OSError) and error.errno is None)):
      raise UserError(f"A {form} file is damaged or truncated", got=f"{path}: {error}", fix="copy or write it again",
                      allowed=f"a complete {form} file") from error
    if path.startswith(REMOTE_PREFIXES):
      raise _unreachable(path, error) from error
    if not isinstance(error, OSError):
      raise
    raise UserError("A file cannot be read", got=f"{path}: {error.strerror or error}",
                    allowed="a readable file", fix="check the file's permissions and its disk") from error


# ---- buckets ----


def _find_remote(path: str) -> list[str]:
  try:
    root = _remote(path)
    if glob.has_magic(path):
      parent, pattern = path.rsplit("/", 1)
      files = [str(file) for file in _remote(parent).glob(pattern) if not file.is_dir()]
    elif root.is_dir():
      files = [str(folder / name) for folder, _, names in root.walk() for name in names
               if not any(part.startswith(".") for part in (folder / name).relative_to(root).parts)]
    else:
      files = [path] if root.exists() else []
  except Exception as error:  # each storage library has its own types
    raise _unreachable(path, error) from error
  if not files:
    raise _nothing_found(path)
  return sorted(files)


def _remote(path: str):
  from etils import epath  # imports nothing of a cloud's libraries before a path is used

  return epath.Path(path)


def _unreachable(path: str, error: Exception) -> UserError:
  return UserError("A bucket cannot be read", got=f"{path}: {type(error).__name__}: {str(error)[:200]}",
                   allowed="a file, a folder, or a glob without `**` in a bucket that this machine may read",
                   fix="check the path, your credentials, and that TensorFlow, or gcsfs or s3fs, is installed")
