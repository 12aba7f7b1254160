"""How is a file of a bucket kept for the next reading? A folder of copies with a limit in bytes, oldest use out first.

Preparation reads a corpus once or twice (a new vocabulary reads it before) and once more when it goes on after a
kill. Any number of processes may share a folder: a copy appears whole or not at all, room is reserved before it is
filled, and an open file can be read to its end though it is put out meanwhile. What finds no room is read as a stream.
"""

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from electra_jax.data.files import REMOTE_PREFIXES, open_file, remote_stat, unreachable
from electra_jax.errors import UserError

COPY_BYTES = 1 << 20  # that are copied at once
LOCK = "lock"
PARTIAL = ".partial"  # ending of a copy that is being made; its maker holds a lock on it


class BucketCache(NamedTuple):
  """Copies of files in buckets; a limit of 0 bytes keeps none."""

  folder: str = ""  # "" = electra_jax in the user's cache folder
  limit_bytes: int = 0

  def open(self, path: str) -> BinaryIO:
    """The file, opened for reading bytes: a local one itself, one of a bucket by way of its copy; may raise OSError.

    Raises:
      UserError: a file in a bucket cannot be reached; the folder cannot be written.
    """
    if not self.limit_bytes or not path.startswith(REMOTE_PREFIXES):
      return open_file(path)
    size, changed = remote_stat(path)  # a file that was written anew has another copy
    digest = hashlib.blake2b(f"{path}\n{size}\n{changed}".encode(), digest_size=16).hexdigest()
    folder = os.path.expanduser(self.folder) or default_folder()
    copy = os.path.join(folder, f"{digest}-{size}")
    try:
      os.makedirs(folder, exist_ok=True)
      with contextlib.suppress(FileNotFoundError):
        return _open_used(copy)
      if not (reserved := _reserve(folder, copy, size, self.limit_bytes)):
        return open_file(path)
      with reserved:
        with open_file(path) as source:
          while data := _read(source, path):
            reserved.write(data)
        reserved.flush()
        if reserved.tell() != size:
          return open_file(path)  # it changes while it is read; the lock goes, so the next process clears the rest
        file = open_file(reserved.name)
        with _locked(folder):
          os.replace(reserved.name, copy)
        return file
    except OSError as error:
      raise UserError("The cache of files from buckets cannot be used", got=f"{folder}: {error.strerror or error}",
                      allowed="a writable folder on a local disk with room for --config.data.cache_bytes",
                      fix="free some space, choose another --config.data.cache_dir, or read without copies: "
                          "--config.data.cache_bytes=0") from error


def _read(source: BinaryIO, path: str) -> bytes:
  try:
    return source.read(COPY_BYTES)
  except Exception as error:  # each storage library has its own types
    raise unreachable(path, error) from error


NO_CACHE = BucketCache()


def default_folder() -> str:
  """`electra_jax` in the folder that the system names for what can be fetched again."""
  return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "electra_jax")


def _open_used(copy: str) -> BinaryIO:
  file = open_file(copy)
  with contextlib.suppress(FileNotFoundError):  # put out in this moment; what is open stays readable
    os.utime(copy)  # the time of the last use: many disks do not keep their own
  return file


def _reserve(folder: str, copy: str, size: int, limit_bytes: int) -> BinaryIO | None:
  """An empty file that counts with `size` bytes, locked; None if there is no room or another process makes the copy."""
  if size > limit_bytes:
    return None
  with _locked(folder):
    held = []  # (time of last use, size, path)
    for entry in os.scandir(folder):
      if entry.name == LOCK:
        continue
      status = entry.stat()
      if not entry.name.endswith(PARTIAL):
        held.append((status.st_mtime_ns, status.st_size, entry.path))
      elif _is_abandoned(entry.path):
        os.remove(entry.path)
      elif entry.path == copy + PARTIAL:
        return None
      else:
        limit_bytes -= status.st_size
    total = sum(held_size for _, held_size, _ in held)
    if size > limit_bytes:
      return None  # others fill the folder at this moment
    for _, held_size, path in sorted(held):
      if total + size <= limit_bytes:
        break
      os.remove(path)
      total -= held_size
    file = open(copy + PARTIAL, "wb")  # noqa: SIM115 - it and its lock outlive this function
    fcntl.flock(file, fcntl.LOCK_EX)
    file.truncate(size)
    return file


def _is_abandoned(partial: str) -> bool:
  """Whether nobody fills it any more: the lock of a process ends with it."""
  with open(partial, "r+b") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      return False
  return True


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
  with open(os.path.join(folder, LOCK), "wb") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    yield
