"""Formats of published weights: one row for each code base whose files can be read."""

from collections.abc import Callable
from typing import NamedTuple

from electra_jax.errors import UserError
from electra_jax.exchange import fairseq, hf, tf_checkpoint
from electra_jax.exchange.mapping import Weights


class Format(NamedTuple):
  """A row of FORMATS."""

  find: Callable[[str], str | None]  # the file that a path means; None: it holds nothing of the kind
  read: Callable[[str], dict[str, Weights]]


FORMATS = {
  "a released TensorFlow checkpoint (NAME.index)": Format(tf_checkpoint.find, tf_checkpoint.read),
  "fairseq's RoBERTa (model.pt)": Format(fairseq.find, fairseq.read),
  # Last: a config.json with a model_type may lie beside a checkpoint of TensorFlow too.
  "a Hugging Face model (config.json and model.safetensors)": Format(hf.find, hf.read),
}


def find(path: str) -> str | None:
  """The row of FORMATS that can read the path; None: it is a run's workdir, or nothing."""
  return next((name for name, row in FORMATS.items() if row.find(path)), None)


def read(path: str) -> dict[str, Weights]:
  """The networks in a file or folder of any of FORMATS: {"encoder": ...}, or "discriminator" and "generator".

  Raises:
    UserError: there is nothing of the kind, or it cannot be read.
  """
  name = find(path)
  if name is None:
    raise UserError("No published weights are here", got=path, allowed="; ".join(FORMATS), fix="check the path")
  return FORMATS[name].read(path)
