"""Which files does a path name, and how is one opened? On local disks, and in buckets (gs://, s3://, az://).

A file in a bucket is read as a stream, like a local one; `bucket_cache` keeps copies.
"""

import glob
import os
from collections.abc import Iterator
from typing import BinaryIO

from electra_jax.errors import UserError

REMOTE_PREFIXES = ("gs://", "s3://", "az://")


def find_files(path: str) -> list[str]:
  """The files behind a file name, directory or glob, sorted, each once.

  Raises:
    UserError: the path is empty, missing, matches nothing, or is no regular file.
  """
  if not path.strip():
    raise UserError("data.path is not set, so there is no text to learn from", got=repr(path),
                    allowed="text files, .jsonl, .gz or .zst of these, .parquet, a directory, a glob, tfds: or pydoc:",
                    fix="set --config.data.path=/path/to/text, or try the embedded corpus (English that the "
                        "installed Python carries) with --config.data.path=pydoc:")
  if path.startswith(REMOTE_PREFIXES):
    return _find_remote(path)
  expanded = os.path.expanduser(path)
  if os.path.lexists(expanded):
    roots = [expanded]
  elif glob.has_magic(expanded):
    roots = glob.glob(expanded, recursive=True)
  else:
    raise UserError("The corpus does not exist", got=f"data.path {path!r} (working directory {os.getcwd()})",
                    allowed="an existing file or directory, a glob, or pydoc:",
                    fix="check the spelling; relative paths count from the working directory")
  files = sorted({os.path.normpath(file) for root in roots for file in _walk(root)})
  if not files:
    raise _nothing_found(path)
  return files


def _nothing_found(path: str) -> UserError:
  return UserError("No file was found", got=f"data.path {path!r}",
                   allowed="a directory or glob with at least one file that is not hidden",
                   fix="check the folder, or quote a glob so that the shell leaves it alone: 'corpus/**/*.txt'")


def _walk(root: str) -> Iterator[str]:
  if not os.path.isdir(root):
    if not os.path.isfile(root):
      raise UserError("The corpus is no regular file", got=root, allowed="files and directories: a corpus is read "
                      "more than once, so pipes, devices and dangling links will not do", fix="write it to a file")
    yield root
  for folder, subfolders, names in os.walk(root):
    subfolders[:] = [name for name in subfolders if not name.startswith(".")]
    yield from (os.path.join(folder, name) for name in names if not name.startswith("."))


def open_file(path: str) -> BinaryIO:
  """The file, opened for reading bytes; may raise OSError.

  Raises:
    UserError: a file in a bucket cannot be reached.
  """
  if not path.startswith(REMOTE_PREFIXES):
    return open(path, "rb")
  try:
    return _remote(path).open("rb")
  except Exception as error:  # each storage library has its own types
    raise unreachable(path, error) from error


# ---- buckets ----


def remote_stat(path: str) -> tuple[int, float]:
  """(bytes, time of the last change in seconds) of a file in a bucket.

  Raises:
    UserError: it cannot be reached.
  """
  try:
    status = _remote(path).stat()
    return status.length, status.mtime
  except Exception as error:  # each storage library has its own types
    raise unreachable(path, error) from error


def _find_remote(path: str) -> list[str]:
  try:
    root = _remote(path)
    if glob.has_magic(path):
      parent, pattern = path.rsplit("/", 1)
      found = [str(file) for file in _remote(parent).glob(pattern) if not file.is_dir()]
    elif root.is_dir():
      found = [str(folder / name) for folder, _, names in root.walk() for name in names
               if not any(part.startswith(".") for part in (folder / name).relative_to(root).parts)]
    else:
      found = [path] if root.exists() else []
  except Exception as error:  # each storage library has its own types
    raise unreachable(path, error) from error
  if not found:
    raise _nothing_found(path)
  return sorted(found)


def _remote(path: str):
  from etils import epath  # imports nothing of a cloud's libraries before a path is used

  return epath.Path(path)


def unreachable(path: str, error: Exception) -> UserError:
  """What to raise where a storage library fails."""
  return UserError("A bucket cannot be read", got=f"{path}: {type(error).__name__}: {str(error)[:200]}",
                   allowed="a file, a folder, or a glob without `**` in a bucket that this machine may read",
                   fix="check the path, your credentials, and that TensorFlow, or gcsfs or s3fs, is installed")
