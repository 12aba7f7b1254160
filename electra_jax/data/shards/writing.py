"""Writing of shards so that a kill or a full disk does no harm: next to their place, then moved there whole."""

import contextlib
import fcntl
import io
import os
import shutil
import zlib
from collections.abc import Generator

import numpy as np
from jaxtyping import Int32

from electra_jax.errors import UserError

MANIFEST = "manifest.json"  # the file that marks a directory as a complete set of shards
CHECK_BYTES = 1 << 18  # of a shard that one checksum covers: the first batch of a run may read this much for each row


class SplitWriter:
  """Collects the rows of one split and writes each `shard_examples` of them as one .npy file.

  The first column, the number of tokens, also goes to a file of its own, from which batches of equal lengths are made.
  Two shards and that column are held in memory.
  """

  def __init__(self, folder: str, shard_examples: int, dtype: np.dtype):
    self.folder, self.shard_examples, self.dtype = folder, shard_examples, dtype
    self.waiting = np.zeros((0, 0), dtype)  # rows after the last full shard
    self.files, self.lengths = [], []

  def restore(self, files: list[dict], waiting: np.ndarray) -> None:
    """Continues after shards that are there already.

    Args:
      files: `self.files` at that time.
      waiting: `self.waiting` at that time.
    """
    self.files, parent = list(files), os.path.dirname(self.folder)
    with disk_errors(self.folder):
      self.lengths = [np.load(os.path.join(parent, file["file"]), mmap_mode="r")[:, 0].copy() for file in files]
    self.add(waiting)

  def add(self, rows: Int32[np.ndarray, "examples columns"]) -> None:
    """Takes rows in order; writes a shard whenever one is full."""
    if not len(rows):
      return
    rows = rows.astype(self.dtype)
    self.lengths.append(rows[:, 0].copy())
    if len(self.waiting):
      rows = np.concatenate([self.waiting, rows])
    while len(rows) >= self.shard_examples:
      self._write(rows[:self.shard_examples])
      rows = rows[self.shard_examples:]
    self.waiting = rows

  def finish(self) -> dict:
    """Writes the last, smaller shard and the lengths; returns every file with its checksum, and how many examples have
    each length.
    """
    if len(self.waiting):
      self._write(self.waiting)
    lengths = np.concatenate(self.lengths or [np.zeros(0, self.dtype)])
    histogram = np.bincount(lengths)
    return {"examples": len(lengths), "shards": self.files, "lengths": self._write_file("lengths.npy", lengths),
            "examples_of_length": {str(length): int(histogram[length]) for length in np.flatnonzero(histogram)}}

  def _write(self, rows: np.ndarray) -> None:
    self.files.append(self._write_file(f"{len(self.files):05d}.npy", rows))

  def _write_file(self, name: str, rows: np.ndarray) -> dict:
    """The manifest's entry of an .npy file, with the CRC-32 of each CHECK_BYTES, so that single rows can be checked."""
    path, buffer = os.path.join(self.folder, name), io.BytesIO()
    np.save(buffer, rows)
    content = buffer.getbuffer()
    with disk_errors(path):
      os.makedirs(self.folder, exist_ok=True)
      with open(f"{path}.new", "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # a full network disk may say so only here
      os.replace(f"{path}.new", path)
    blocks = [zlib.crc32(content[start:start + CHECK_BYTES]) for start in range(0, len(content), CHECK_BYTES)]
    return {"file": f"{os.path.basename(self.folder)}/{name}", "examples": len(rows), "bytes": len(content),
            "block_crc32": blocks}


class DiskError(UserError):
  """The disk refuses; the unfinished set is deleted to free its space."""


@contextlib.contextmanager
def disk_errors(path: str) -> Generator[None, None, None]:
  """Turns an OSError while writing `path` into a DiskError that names the path and the free space."""
  try:
    yield
  except OSError as error:
    folder = path
    while not os.path.isdir(folder):
      folder = os.path.dirname(folder)
    free = shutil.disk_usage(folder).free
    raise DiskError("The shards could not be written; shards that were there before are unharmed",
                    got=f"{path}: {error.strerror or error} ({free:,} bytes free)",
                    allowed="a writable folder on a disk with room for about 2 bytes per token (4 bytes where the "
                            "vocabulary exceeds 65,536)",
                    fix="free some space, or set --config.data.shards_path to a folder on another disk") from error


def check_replaceable(directory: str) -> None:
  """Refuses a directory that finished shards cannot replace.

  Raises:
    UserError: it is a file, a mount point, or a folder with files but without a manifest.
  """
  if not os.path.lexists(directory):
    return
  if os.path.ismount(directory):
    raise UserError("The folder for the shards is a mount point, which cannot be renamed", got=directory,
                    allowed="a folder on a mounted disk", fix=f"set --config.data.shards_path={directory}/shards")
  if os.path.isdir(directory) and (not os.listdir(directory) or os.path.exists(os.path.join(directory, MANIFEST))):
    return
  raise UserError("The folder for the shards holds something else", got=f"{directory} has no {MANIFEST}",
                  allowed="a new folder, an empty one, or one with shards, which are replaced",
                  fix="choose another folder with --config.data.shards_path (or --out)")


@contextlib.contextmanager
def partial_folder(directory: str) -> Generator[str, None, None]:
  """`<directory>.partial`, in which a set is written; what an earlier process has left there stays.

  It is held by a lock on the folder itself, which ends with the process, however that ends; on file systems without
  locks it is not held.

  Raises:
    UserError: another process writes there, or the disk refuses.
  """
  partial = f"{directory}.partial"
  with disk_errors(partial):
    if os.path.lexists(f"{directory}.replaced") and not os.path.lexists(directory):
      os.rename(f"{directory}.replaced", directory)  # killed between the two renames of move_into_place
    os.makedirs(partial, exist_ok=True)
    folder = os.open(partial, os.O_RDONLY)
  try:
    with contextlib.suppress(OSError):
      try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError as error:
        raise UserError("Another process prepares these shards", got=f"{partial} is in use",
                        allowed="one preparation of a folder at a time", fix="wait for it, or end it") from error
    yield partial
  finally:
    os.close(folder)


def move_into_place(partial: str, directory: str) -> None:
  """Renames a complete set to its place; the set that was there is kept until the new one is."""
  old = f"{directory}.replaced"
  with disk_errors(directory):
    shutil.rmtree(old, ignore_errors=True)
    if os.path.lexists(directory):
      os.rename(directory, old)
    os.rename(partial, directory)
    shutil.rmtree(old, ignore_errors=True)
