"""Vocabulary of fairseq: RoBERTa's ids of GPT-2's tokens, from the three files that fairseq reads."""

import json
import os
import pathlib

from electra_jax.errors import UserError

FILES = ("dict.txt", "encoder.json", "vocab.bpe")
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")  # fairseq's Dictionary puts them first, the task <mask> last


def find(path: str) -> list[str] | None:
  """The three files, if all are in the folder `path`, or next to `path` if that is one of them."""
  folder = path if os.path.isdir(path) else os.path.dirname(path)
  if folder != path and os.path.basename(path) not in FILES:
    return None
  paths = [os.path.join(folder, name) for name in FILES]
  return paths if all(map(os.path.exists, paths)) else None


def vocabulary(dict_path: str, encoder_path: str, merges_path: str) -> dict[str, bytes]:
  """vocab.json and merges.txt with fairseq's ids (RoBERTa's, not GPT-2's).

  Args:
    dict_path: dict.txt, a line `<GPT-2 id> <count>` for each token, most frequent first; ids begin at 4.
    encoder_path: GPT-2's encoder.json, token -> GPT-2 id.
    merges_path: GPT-2's vocab.bpe.

  Raises:
    UserError: a file is missing, is not what it should be, or names a token that encoder.json lacks.
  """
  def fault(path: str, got: object) -> UserError:
    return UserError("fairseq's vocabulary cannot be read", got=f"{path}: {got}",
                     allowed="dict.txt of the model with encoder.json and vocab.bpe of GPT-2's byte-level BPE",
                     fix="put the three files next to model.pt; the model's .tar.gz holds dict.txt")

  try:
    counts, encoder, merges = (pathlib.Path(path).read_text("utf-8") for path in (dict_path, encoder_path, merges_path))
    names = {str(i): token for token, i in json.loads(encoder).items()}
  except (OSError, ValueError, AttributeError) as error:
    raise fault(f"{dict_path}, {encoder_path} or {merges_path}", error) from error
  tokens = list(SPECIAL_TOKENS)
  for number, line in enumerate(counts.removesuffix("\n").split("\n"), 1):
    entry, _, count = line.rpartition(" ")
    if not count.isdigit() or not (entry in names or entry.startswith("madeupword")):
      raise fault(f"{dict_path}:{number}", f"{line[:60]!r} is no `<GPT-2 id> <count>` with an id of encoder.json")
    tokens.append(names.get(entry, entry))
  tokens.append("<mask>")
  if len(set(tokens)) < len(tokens):
    raise fault(dict_path, "a token occurs twice")
  return {"vocab.json": json.dumps({token: i for i, token in enumerate(tokens)}, ensure_ascii=False).encode(),
          "merges.txt": merges.encode()}
