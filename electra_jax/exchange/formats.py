"""Formats of published weights: one row for each code base whose files can be read."""

from electra_jax.errors import UserError
from electra_jax.exchange import fairseq, hf, tf_checkpoint
from electra_jax.exchange.mapping import Weights

# What a path may hold -> its module. find(path) is the file or folder that the path stands for, or None; read(FOUND)
# reads that.
FORMATS = {
  "a released TensorFlow checkpoint (NAME.index)": tf_checkpoint, "fairseq's RoBERTa (model.pt)": fairseq,
  # Last: a config.json with a model_type may also lie next to a TensorFlow checkpoint.
  "a Hugging Face model (config.json and model.safetensors)": hf,
}


def is_published(path: str) -> bool:
  """Whether the path holds other code bases' weights, rather than a run's workdir or nothing."""
  return any(module.find(path) for module in FORMATS.values())


def read(path: str) -> dict[str, Weights]:
  """The networks in a file or folder of any of FORMATS: {"encoder": ...}, or "discriminator" and "generator".

  Raises:
    UserError: the path holds no weights, or they cannot be read.
  """
  for module in FORMATS.values():
    if found := module.find(path):
      return module.read(found)
  raise UserError("No published weights are here", got=path, allowed="; ".join(FORMATS),
                  fix="check the path; unpack what was downloaded, all files of the model")
