"""Settings of a sentence-transformers folder: how token states become one vector."""

import json
import os
from typing import NamedTuple

from electra_jax.errors import UserError, named

# Their name, old or new -> a row of heads.POOLINGS.
POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_mean": "mean",
            "pooling_mode_cls": "cls"}


class Embedding(NamedTuple):
  """What follows the encoder."""

  pooling: str = "mean"
  is_normalised: bool = False  # to length 1
  lowercase: bool = False  # of the text, whatever the vocabulary does


def read(folder: str) -> Embedding | None:
  """The settings in a folder; None if sentence-transformers did not write it.

  Raises:
    UserError: a file is damaged, or a module is not supported.
  """
  if not os.path.exists(os.path.join(folder, "modules.json")):
    return None
  try:
    modules = {module["type"].rpartition(".")[2]: module["path"] for module in _read(folder, "modules.json")}
    pooling = _read(folder, modules.get("Pooling", ""), "config.json") if "Pooling" in modules else {}
    encoder = _read(folder, modules.get("Transformer", ""), "sentence_bert_config.json")
    modes = [key for key, value in pooling.items() if key.startswith("pooling_mode_") and value is True] or [
      f"pooling_mode_{pooling.get('pooling_mode', 'mean')}"]
    lowercase = bool(encoder.get("do_lower_case"))
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
    raise UserError("The modules of sentence-transformers cannot be read", got=f"{folder}: {error!r}",
                    allowed="modules.json and the folders that it names, as they were saved",
                    fix="download the whole repository again, or choose with --pooling") from error
  others = sorted({*modules} - {"Transformer", "Pooling", "Normalize"}) + [m for m in modes if m not in POOLINGS]
  if others or len(modes) != 1:
    raise UserError("The folder makes its vectors in a way that is not supported",
                    got=f"{folder}: {named(others or modes)}",
                    allowed=f"modules Transformer, Pooling ({named(POOLINGS)}) and Normalize",
                    fix="choose with --pooling=mean or cls, which gives other vectors")
  return Embedding(POOLINGS[modes[0]], "Normalize" in modules, lowercase)


def _read(*parts: str):
  """The content of a JSON file; {} if there is none."""
  path = os.path.join(*parts)
  if not os.path.exists(path):
    return {}
  with open(path, "rb") as file:
    return json.load(file)
