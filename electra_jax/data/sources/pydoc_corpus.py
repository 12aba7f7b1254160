"""The embedded corpus: English without a download, the documentation that the installed Python carries.

The embedded corpus `pydoc:` is the Python language reference (`pydoc_data.topics`) and the docstrings of the standard
library and of the packages that this project installs, cleaned to sentences. Sources are read, never imported. One
document per module or topic; a repeated paragraph is left out. The documents come in the order of a hash of their
names, so that any first part of the corpus is a fair sample of it. Another Python or other packages give another
corpus; the same ones give the same.
"""

import ast
import contextlib
import copy
import functools
import hashlib
import importlib.util
import inspect
import itertools
import os
import re
import sysconfig
from collections.abc import Iterator, Sequence

STANDARD_LIBRARY = ""  # in `PACKAGES`: the modules of Python itself

# Packages with much English in their docstrings; those that are not installed are skipped.
PACKAGES = (STANDARD_LIBRARY, "numpy", "scipy", "sklearn", "matplotlib", "jax", "flax", "optax", "orbax", "chex",
            "tensorflow", "keras", "tensorflow_datasets", "absl", "etils", "google", "joblib", "tokenizers",
            "huggingface_hub", "fsspec", "tqdm", "rich", "grpc", "h5py", "PIL", "dateutil", "requests", "urllib3",
            "pip", "setuptools")

# Folders without prose of their own: tests, copies of other projects, tables.
SKIPPED_FOLDERS = frozenset({"test", "tests", "testing", "site-packages", "dist-packages", "__pycache__", "lib2to3",
                             "idlelib", "encodings", "pydoc_data", "_vendor", "_vendored", "third_party", "externals",
                             "include"})

SKIPPED_FILES = ("test", "gen_")  # the latter: TensorFlow's generated wrappers, a thousand times "A Tensor of type ..."

MIN_DOCUMENT_CHARACTERS = 400
MIN_PARAGRAPH_CHARACTERS = 40


def read(path: str = "pydoc:", reading: object = None) -> Iterator[list[str]]:
  """The documents of the embedded corpus; the arguments are those of `documents.SOURCES`, and unused.

  Making it takes some 15 s; a second reading in the same process gets the documents that the first one made.
  """
  del path, reading
  return copy.copy(_shared())


@functools.cache
def _shared() -> Iterator[list[str]]:
  return itertools.tee(make_documents(PACKAGES), 1)[0]  # never advanced, so that its copies begin at the beginning


def make_documents(packages: Sequence[str]) -> Iterator[list[str]]:
  """Documents from the docstrings of some packages; those of Python itself include the language reference."""
  sources: dict[str, str | None] = {name: path for package in packages for name, path in _modules(package)}
  if STANDARD_LIBRARY in packages:
    sources |= {f"topic {name}": None for name in _topics()}
  seen: set[int] = set()
  for name in sorted(sources, key=_digest):
    path = sources[name]
    texts = [_topics()[name.removeprefix("topic ")]] if path is None else docstrings(path)
    document = []
    for paragraph in (p for text in texts for p in prose(text)):
      key = _digest(paragraph.lower())
      if key not in seen:
        seen.add(key)
        document.append(paragraph)
    if sum(map(len, document)) >= MIN_DOCUMENT_CHARACTERS:
      yield document


def _digest(text: str) -> int:
  return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big")


@functools.cache
def _topics() -> dict[str, str]:
  try:
    from pydoc_data import topics  # some distributions ship Python without it
  except ImportError:
    return {}
  return topics.topics


def _modules(package: str) -> Iterator[tuple[str, str]]:
  """(name that is the same on every machine, source file) of each module of a package."""
  if package == STANDARD_LIBRARY:
    roots = [sysconfig.get_path("stdlib")]
  else:
    spec = importlib.util.find_spec(package)  # imports nothing for a top-level name
    roots = list(spec.submodule_search_locations or ()) if spec else []
  for root in roots:
    for folder, subfolders, names in os.walk(root):
      subfolders[:] = sorted(name for name in subfolders if name not in SKIPPED_FOLDERS)
      for name in sorted(names):
        if name.endswith(".py") and not name.startswith(SKIPPED_FILES):
          path = os.path.join(folder, name)
          yield f"{package}/{os.path.relpath(path, root)}", path


# After the head of a file or of a block. Parsing whole files with `ast` finds the same, but is several times slower.
_DOCSTRING = re.compile(r"""(?:\A|:[ \t]*(?:\#[^\n]*)?\n)(?:\s|\#[^\n]*\n)*([rRuU]?("{3}|'{3})(?:[^\\]|\\.)*?\2)""",
                        re.DOTALL)


def docstrings(path: str) -> Iterator[str]:
  """The triple-quoted docstrings of a source file, in order, with their indentation removed."""
  try:
    with open(path, encoding="utf-8") as file:
      source = file.read()
  except (OSError, UnicodeDecodeError):
    return
  for match in _DOCSTRING.finditer(source):
    with contextlib.suppress(ValueError, SyntaxError):
      yield inspect.cleandoc(ast.literal_eval(match[1]))


_HEADING = re.compile(r"^.*\n *([=\-~^\"'*+#])\1{2,} *$|^ *\w+( \w+)?: *$", re.MULTILINE)  # underlined; "Args:"
# What comes before the text of an item: a list's mark, "x, y : int", "name (type): ", ":param x: ".
_ITEM = re.compile(r"^ *(?:[-*+•] |\(?\w{1,2}[.)] |[\w*`., ]+ : .*$|[\w*`.]+(?: \([^)\n]*\))?: |:\w+[^:`\n]*: )",
                   re.MULTILINE)
_CODE = re.compile(r"^ *(?:>>>|\.\.\. |\.\. \w).*$", re.MULTILINE)
# :func:`~a.b.c` -> c, ``code`` -> code, *emphasis* -> emphasis
_MARKUP = re.compile(r":[\w:]+:`(?:[^`<]*<)?~?(?:[^`>]*\.)?([^`.>]*)>?`|`{1,2}([^`]+)`{1,2}_{0,2}|"
                     r"(?<![\w*])\*{1,2}([^*\s][^*]*?)\*{1,2}(?![\w*])")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]?[A-Z])")
_SENTENCE = re.compile(r"[\"'(]*[A-Z][^\x80-\U0010ffff]*[.!?:][\"')]*\Z", re.DOTALL)
_WORD = re.compile(r"(?<!\S)[\"'(]*[A-Za-z]+(?:['/-][A-Za-z]+)*[\"')]*[,.;:!?]?[\"')]*(?!\S)")
_SYMBOLS = re.compile(r"[=<>{}\\|^~@$#_\[\]*]|->|\w\(")


def prose(text: str) -> Iterator[str]:
  """The paragraphs of a documentation text that read as English, one line each, without most of the markup."""
  text = _CODE.sub("\n", _ITEM.sub("\n\n", _HEADING.sub("\n\n", text.expandtabs())))
  for block in re.split(r"\n\s*\n", text):
    if len(block) >= MIN_PARAGRAPH_CHARACTERS:
      plain = " ".join(_MARKUP.sub(lambda match: match[1] or match[2] or match[3] or "", block).split())
      paragraph = " ".join(filter(_is_sentence, _SENTENCE_END.split(plain)))
      if len(paragraph) >= MIN_PARAGRAPH_CHARACTERS:
        yield paragraph


def _is_sentence(text: str) -> bool:
  """At least four words, from a capital to a full stop, ASCII, with few symbols and four of five words all letters."""
  num_words = text.count(" ") + 1
  return (num_words >= 4 and "//" not in text and _SENTENCE.match(text) is not None
          and len(_SYMBOLS.findall(text)) * 12 <= num_words and len(_WORD.findall(text)) >= 0.8 * num_words)
