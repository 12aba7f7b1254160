"""Lines of text files: unpacked (.gz, .zst), checked to be UTF-8 text, split at universal newlines.

`read_lines` streams: one chunk and one line are in memory. Errors name the file and the line or byte offset, which in
compressed files counts unpacked bytes.
"""

import codecs
import io
import itertools
import os
from collections.abc import Iterator
from typing import Any

from electra_jax.data.sources.files import open_file, reading_errors
from electra_jax.errors import UserError

CHUNK_BYTES = 1 << 20
MAX_LINE_CHARACTERS = 1 << 24  # a longer "line" is hardly text; a JSONL record may hold a whole book
HEAD_BYTES = 1 << 16  # the beginning of a file, which tells its form
_CONVERT = "convert it, for example with `iconv -f LATIN1 -t UTF-8 OLD > NEW`"
# Suffix that is ignored in a file name -> how the file is packed.
COMPRESSIONS = {".gz": "gzip", ".tgz": "gzip", ".zst": "zstd"}
TAR_MARK = slice(257, 262)  # where a tar archive says "ustar"

# First bytes of files that are not text, such as users leave in a corpus folder.
BINARY_MAGIC = {
  b"\x1f\x8b": "gzip (the name must end in .gz)", b"\x28\xb5\x2f\xfd": "zstd (the name must end in .zst)",
  b"PK\x03\x04": "zip", b"%PDF": "PDF", b"PAR1": "Parquet", b"\x89PNG": "PNG", b"\xff\xd8\xff": "JPEG",
  b"\x7fELF": "ELF program", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16",
  b"7z\xbc\xaf": "7-Zip", b"Rar!\x1a": "RAR", b"ARROW1": "Arrow", b"Obj\x01": "Avro", b"\x89HDF": "HDF5",
  b"SQLite format 3": "SQLite", b"\xd0\xcf\x11\xe0": "an Office document", b"{\\rtf": "RTF", b"GIF8": "GIF",
  b"\x93NUMPY": "NumPy",
}


def read_lines(path: str, any_length: bool = False) -> Iterator[tuple[int, str]]:
  r"""(line number from 1, line without its end) of a text file, unpacked if it has a suffix of COMPRESSIONS.

  Lines end at \n, \r\n and \r alone; str.splitlines would also cut at U+2028, U+0085 and form feeds. A UTF-8 byte order
  mark and NUL characters are dropped.

  Raises:
    UserError: the file cannot be read, is binary or not UTF-8, is truncated, or (unless `any_length`) has a line over
      MAX_LINE_CHARACTERS.
  """
  decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8-sig")(), translate=True)
  offset, count = 0, 0  # bytes and whole lines so far
  pending: list[str] = []  # the parts of the line that has not ended
  for chunk in itertools.chain(_chunks(path), [b""]):
    if not offset:
      _check_text(chunk, path)
    nuls = chunk.count(0)
    if nuls >= 16 and nuls * 32 > len(chunk):
      raise _no_text(path, f"{nuls} NUL bytes in {len(chunk)}, the first at byte offset {offset + chunk.index(0)}")
    offset += len(chunk)
    try:
      text = decoder.decode(chunk, final=not chunk)
    except UnicodeDecodeError as error:
      raise _no_utf8(path, error, offset, count) from error
    *ended, rest = text.replace("\0", "").split("\n")
    if ended:
      ended[0] = "".join([*pending, ended[0]])
      yield from enumerate(ended, count + 1)
      count += len(ended)
      pending = []
    pending.append(rest)
    if not any_length and sum(map(len, pending)) > MAX_LINE_CHARACTERS:
      limit = f"{MAX_LINE_CHARACTERS:,} characters"
      raise UserError("A line is too long for text", got=f"{path}:{count + 1}: more than {limit} without a line break",
                      allowed=f"lines up to {limit}",
                      fix="put each paragraph on its own line, for example with `fold -s -w 2000`")
  if last := "".join(pending):
    yield count + 1, last


def read_text(path: str) -> str:
  """A whole file as one text, unpacked and checked; raises as `read_lines`."""
  return "\n".join(line for _, line in read_lines(path, any_length=True))


def read_head(path: str) -> tuple[bytes, bool]:
  """The first HEAD_BYTES of a file, unpacked, and whether they are all of it; raises as `read_lines`."""
  head = next(_chunks(path))
  return head, len(head) < HEAD_BYTES


def _chunks(path: str) -> Iterator[bytes]:
  """The unpacked bytes of a file: HEAD_BYTES, then CHUNK_BYTES at a time."""
  kind = COMPRESSIONS.get(os.path.splitext(path.lower())[1])
  with reading_errors(path, kind), open_file(path) as file:
    unpacked: Any = file
    if kind:
      import pyarrow  # takes a while

      unpacked = pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), kind)
    yield unpacked.read(HEAD_BYTES)
    yield from iter(lambda: unpacked.read(CHUNK_BYTES), b"")


def _no_utf8(path: str, error: UnicodeDecodeError, offset: int, lines_before: int) -> UserError:
  """What is said of the bytes `error.object`, which end at `offset`."""
  before, byte = error.object[:error.start], error.object[error.start]
  line = lines_before + 1 + before.count(b"\n") + before.replace(b"\r\n", b"").count(b"\r")
  return UserError("A file is not UTF-8", got=f"{path}: byte 0x{byte:02x} at byte offset "
                   f"{offset - len(error.object) + error.start}, line {line} ({error.reason})",
                   allowed="UTF-8 text", fix=_CONVERT)


def _check_text(head: bytes, path: str) -> None:
  if head[TAR_MARK] == b"ustar":
    raise _no_text(path, "it begins like a tar archive")
  for magic, name in BINARY_MAGIC.items():
    if head.startswith(magic):
      got = f"it begins like {name} (byte offset 0: {head[:4].hex(' ')})"
      if name == "UTF-16":
        raise UserError("A file is in UTF-16, not in UTF-8", got=f"{path}: {got}", allowed="UTF-8 text",
                        fix=_CONVERT.replace("LATIN1", name))
      raise _no_text(path, got)


def _no_text(path: str, got: str) -> UserError:
  return UserError("A file is binary, not text", got=f"{path}: {got}",
                   allowed="UTF-8 text or JSONL, plain, .gz or .zst",
                   fix="convert it to text, or leave it out with a glob: --config.data.path='DIR/**/*.txt'")
