"""Formats of published weights: one row for each code base whose files can be read."""

from electra_jax.errors import UserError
from electra_jax.exchange import fairseq, hf, tf_checkpoint
from electra_jax.exchange.mapping import Weights

# What a path may hold -> its module. find(path) is the file that the path stands for, or None; read(path) reads it.
FORMATS = {
  "a released TensorFlow checkpoint (NAME.index)": tf_checkpoint, "fairseq's RoBERTa (model.pt)": fairseq,
  # Last: a config.json with a model_type may also lie next to a TensorFlow checkpoint.
  "a Hugging Face model (config.json and model.safetensors)": hf,
}


def find(path: str) -> str | None:
  """The row of FORMATS that can read the path; None for a run's workdir, or if there is nothing."""
  return next((name for name, module in FORMATS.items() if module.find(path)), None)


def read(path: str) -> dict[str, Weights]:
  """The networks in a file or folder of any of FORMATS: {"encoder": ...}, or "discriminator" and "generator".

  Raises:
    UserError: the path holds no weights, or they cannot be read.
  """
  name = find(path)
  if name is None:
    raise UserError("No published weights are here", got=path, allowed="; ".join(FORMATS), fix="check the path")
  return FORMATS[name].read(path)
