"""The embedded corpus: English without a download, the documentation that the installed Python carries.

The embedded corpus `pydoc:` is the Python language reference (`pydoc_data.topics`) and the docstrings of the standard
library and of the packages that this project installs, cleaned to sentences. Sources are read, never imported. One
document per module or topic; a paragraph that was seen before is left out. The documents come in the order of a hash
of their names, so that any first part of the corpus is a fair sample of it. Another Python or other packages give
another corpus; the same ones give the same.
"""

import ast
import copy
import functools
import hashlib
import importlib.util
import inspect
import itertools
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator

STANDARD_LIBRARY = ""  # in `PACKAGES`: the modules of Python itself

# Packages with much English in their docstrings; those that are not installed are passed over.
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
  """The documents of the embedded corpus; the arguments only fit it into `documents.SOURCES`.

  Making it takes some 15 s; a second reading in the same process gets the documents that the first one made.
  """
  del path, reading
  return copy.copy(_shared())


@functools.cache
def _shared() -> Iterator[list[str]]:
  return itertools.tee(make_documents(PACKAGES), 1)[0]  # never advanced, so that its copies begin at the beginning


def make_documents(packages: Iterable[str], topics: bool = True) -> Iterator[list[str]]:
  """Documents from the docstrings of some packages, and from the language reference if `topics`."""
  sources: dict[str, str | None] = {name: path for package in packages for name, path in _modules(package)}
  if topics:
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
  """(dotted-like name that is the same on every machine, source file) of each module of a package."""
  if package == STANDARD_LIBRARY:
    roots = [sysconfig.get_path("stdlib")]
  else:
    spec = importlib.util.find_spec(package)  # of a top-level name this imports nothing
    roots = list(spec.submodule_search_locations or ()) if spec else []
  for root in roots:
    for folder, subfolders, names in os.walk(root):
      subfolders[:] = sorted(name for name in subfolders if name not in SKIPPED_FOLDERS)
      for name in sorted(names):
        if name.endswith(".py") and not name.startswith(SKIPPED_FILES):
          path = os.path.join(folder, name)
          yield f"{package}/{os.path.relpath(path, root)}", path


# ---- source file -> docstrings ----

# A lexer for what may hold quotation marks: comments, triple-quoted and plain strings. Parsing whole files with `ast`
# finds the same docstrings several times as slowly.
_LITERAL = re.compile(r"""
  \#[^\n]*
  | (\"{3}) [^"\\]* (?: (?:\\.|"(?!"")) [^"\\]* )* \"{3}
  | ('{3}) [^'\\]* (?: (?:\\.|'(?!'')) [^'\\]* )* '{3}
  | "(?:[^"\\\n]|\\.)*"
  | '(?:[^'\\\n]|\\.)*'""", re.DOTALL | re.VERBOSE)
_BEFORE_DOCSTRING = re.compile(r"""(?:\A|:[ \t]*(?:\#[^\n]*)?\n)(?:\s|\#[^\n]*\n)*([rRuU]?)\Z""")


def docstrings(path: str) -> Iterator[str]:
  """The triple-quoted docstrings of a source file, in order, with their indentation removed."""
  try:
    with open(path, encoding="utf-8") as file:
      source = file.read()
  except (OSError, UnicodeDecodeError):
    return
  quoted = sum(map(len, source.split('"""')[1::2])) + sum(map(len, source.split("\'\'\'")[1::2]))
  if quoted < MIN_DOCUMENT_CHARACTERS:
    return
  for match in _LITERAL.finditer(source):
    if not (match[1] or match[2]):
      continue
    end = match.start()
    before = _BEFORE_DOCSTRING.search(source[:end] if end < 4000 else source[end - 200:end])
    if before:
      try:
        text = ast.literal_eval(before[1] + match[0])
      except (ValueError, SyntaxError):
        continue
      yield inspect.cleandoc(text)


# ---- docstring -> prose ----

_CODE_SECTION = re.compile(r"(?:examples?|see also|references?|methods?|usage|example usage|shape|"
                           r"(?:in|out)put shapes?|routine listings|functions|classes|exceptions|doctests?)\b.{0,30}",
                           re.IGNORECASE)
_ITEM_SECTION = re.compile(r"(?:\w+ )?(?:parameters?|params?|args|arguments?|returns?|yields?|raises?|receives|warns|"
                           r"attributes?|fields|properties|inputs?|outputs?)\b.{0,30}", re.IGNORECASE)
_ITEM = re.compile(r"\*{0,2}`{0,2}[\w.]+`{0,2}(?:, \*{0,2}\w+)*(?: ?\([^)]*\))?:(?:\s+|\Z)")  # "name (type): text"
_FIELD = re.compile(r":\w+[^:`]*:(?!`)\s*|@\w+.*|[\w*]+(?:, [\w*]+)* : .*")  # ":param x: text", "x, y : int"
_UNDERLINE = re.compile(r"[=\-~^\"'*+#]{3,}\s*\Z")
_CODE_STARTS = (">>>", "... ", "In [", "Out[", "$ ", "|")
_CODE_MARKS = ("::=", "+---", "====", "----", "Traceback")
_IMPORT = re.compile(r"import \w+$|import \w+ as |from [\w.]+ import ")
_KEPT_DIRECTIVE = re.compile(r"\.\. (?:note|warning|important|tip|caution|hint)::")
_MARKUP = (
  (re.compile(r":(?:\w+:)?\w+:`(?:[^`<]*?<)?~(?:[^`>]*\.)?([^`.>]*)>?`"), r"\1"),  # :func:`~a.b.c` -> c
  (re.compile(r":(?:\w+:)?\w+:`([^`<]+?)(?:\s*<[^`]*>)?`"), r"\1"),
  (re.compile(r"`([^`<]+?)\s*<[^`>]*>`_{0,2}"), r"\1"),  # `text <url>`_ -> text
  (re.compile(r"`{1,2}([^`]+)`{1,2}_{0,2}"), r"\1"),
)
_MORE_MARKUP = (
  (re.compile(r"\[([^\]]+)\]\([^)]*\)"), r"\1"),  # [text](url) -> text
  (re.compile(r"\s*\[[#\w, ]+\]_"), ""),  # footnote mark
)
_EMPHASIS = re.compile(r"(?<![\w*])\*{1,2}([^*\s][^*]*?)\*{1,2}(?![\w*])")
_LIST_MARK = re.compile(r"(?:[-*+•]|\(?\d{1,2}[.)]|\([a-z]\))\s+")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]?[A-Z])")
_SENTENCE = re.compile(r"[\"'(]*[A-Z][^\x80-\U0010ffff]*[.!?:][\"')]*\Z", re.DOTALL)
_WORD = re.compile(r"(?<!\S)[\"'(]*[A-Za-z]+(?:['/-][A-Za-z]+)*[\"')]*[,.;:!?]?[\"')]*(?!\S)")
_SYMBOLS = re.compile(r"[=<>{}\\|^~@$#_\[\]*]|->|\w\(")


def prose(text: str) -> Iterator[str]:
  """The paragraphs of a documentation text that read as English, one line each, without markup."""
  for block in _blocks(text):
    if len(block) < MIN_PARAGRAPH_CHARACTERS:
      continue
    paragraph = " ".join(sentence for sentence in _SENTENCE_END.split(_plain(block)) if _is_sentence(sentence))
    if len(paragraph) >= MIN_PARAGRAPH_CHARACTERS:
      yield paragraph


def _plain(block: str) -> str:
  if "`" in block:
    for pattern, replacement in _MARKUP:
      block = pattern.sub(replacement, block)
  if "[" in block:
    for pattern, replacement in _MORE_MARKUP:
      block = pattern.sub(replacement, block)
  if "*" in block:
    block = _EMPHASIS.sub(r"\1", block)
  return " ".join(block.split())


def _is_sentence(text: str) -> bool:
  """At least four words, capital to full stop, ASCII, hardly a symbol, and four words of five without digits."""
  num_words = text.count(" ") + 1
  return (num_words >= 4 and "//" not in text and _SENTENCE.match(text) is not None
          and len(_SYMBOLS.findall(text)) * 12 <= num_words and len(_WORD.findall(text)) >= 0.8 * num_words)


def _is_underline(line: str) -> bool:
  return not line[:1].isalnum() and _UNDERLINE.match(line) is not None


def _is_code(line: str) -> bool:
  return line.startswith(_CODE_STARTS) or any(mark in line for mark in _CODE_MARKS) or (
    line.startswith(("import ", "from ")) and _IMPORT.match(line) is not None)


def _blocks(text: str) -> Iterator[str]:
  """Runs of prose lines. Code, tables, headings, names and types of parameters are left out."""
  block: list[str] = []
  for line in [*_prose_lines(text), None]:
    if line:
      block.append(line)
    elif block:
      yield "\n".join(block)
      block = []


def _prose_lines(text: str) -> Iterator[str | None]:
  """The lines of a text without indentation; None where a paragraph ends."""
  code_indent = items_indent = item_indent = None  # lines deeper than these are code, or items of a section
  numpy_section = None  # "code" or "items" below an underlined heading
  fenced = False
  lines = text.expandtabs().split("\n")
  for line, following in zip(lines, [*lines[1:], ""]):
    bare = line.lstrip()
    if not bare:
      yield None
      continue
    indent = len(line) - len(bare)
    if following and len(bare) < 80 and _is_underline(following.strip()):
      numpy_section = ("code" if _CODE_SECTION.match(bare) else "items" if _ITEM_SECTION.match(bare) else None)
      code_indent = items_indent = None
      yield None
      continue
    if bare.startswith(("```", "~~~")):
      fenced = not fenced
    if code_indent is not None and indent <= code_indent:
      code_indent = None
    if items_indent is not None and indent <= items_indent:
      items_indent = None
    if (fenced or code_indent is not None or numpy_section == "code" or (numpy_section == "items" and indent == 0)
        or _is_code(bare) or _is_underline(bare)):
      yield None
    elif bare.startswith(".. "):
      code_indent = None if _KEPT_DIRECTIVE.match(bare) else indent
      yield None
    elif bare.rstrip().endswith(":") and len(bare) < 40 and (_ITEM_SECTION.match(bare) or _CODE_SECTION.match(bare)):
      if _CODE_SECTION.match(bare):
        code_indent = indent
      else:
        items_indent, item_indent = indent, None
      yield None
    else:
      item_indent = indent if items_indent is not None and item_indent is None else item_indent
      mark = (_LIST_MARK.match(bare) or ((bare[0] in ":@" or " : " in bare) and _FIELD.match(bare))
              or (items_indent is not None and indent == item_indent and _ITEM.match(bare)))
      if mark:
        yield None
        bare = bare[mark.end():]
      if bare.rstrip().endswith("::"):
        code_indent, bare = indent, bare.rstrip()[:-1]
      yield bare
