"""Files of torch.save: tensors and plain containers, read without executing anything in the file."""

import re
from collections.abc import Iterable
from typing import Any

from electra_jax.errors import UserError
from electra_jax.exchange.mapping import damaged

PICKLES = (b"\x80", b"(", b"c", b"]", b"}")  # first bytes of pickles: protocol 2 and later, then 0 and 1
OLD_FORMAT = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # PyTorch before 1.6: a pickled number


def load(path: str, allowed: Iterable[type] = (), fix: str = "do not load this file; ask for a model.safetensors"
         ) -> Any:
  """What torch.save wrote, on the host.

  Args:
    allowed: further classes that may be built, as building them runs no code.
    fix: the advice if the file holds other objects.

  Raises:
    UserError: PyTorch is not installed, the file holds objects other than tensors, or it is damaged.
  """
  try:
    import torch
  except ImportError as error:
    raise UserError("Reading weights of torch.save needs PyTorch", got=f"{path}: {error}",
                    allowed="PyTorch 2.5 or newer, CPU only",
                    fix="pip install torch --index-url https://download.pytorch.org/whl/cpu, or use the model's "
                    "model.safetensors") from error
  try:
    with open(path, "rb") as file:
      start = file.read(64)
    with torch.serialization.safe_globals(list(allowed)):
      return torch.load(path, map_location="cpu", weights_only=True)
  except OSError as error:
    raise damaged(path, error.strerror or error) from error
  except Exception as error:  # UnpicklingError; for a damaged file RuntimeError, EOFError, KeyError, ...
    name = re.search(r"GLOBAL ([\w.]+)", str(error))
    is_other_pickle = start.startswith(PICKLES) and not OLD_FORMAT.startswith(start[:len(OLD_FORMAT)])
    if name or is_other_pickle:  # PyTorch's own message ends with how to load it nevertheless
      raise UserError("The weights hold objects that would run code when loaded",
                      got=f"{name.group(1) if name else 'a pickle that torch.save has not written'} in {path}",
                      allowed="tensors, numbers, text and containers of these as torch.save writes them, "
                      "or model.safetensors", fix=fix) from error
    if not start.startswith((b"PK", b"\x80")):
      raise damaged(path, f"begins with {start[:24]!r}, so torch.save did not write it" if start else "it is empty"
                    ) from error
    raise damaged(path, error) from error
