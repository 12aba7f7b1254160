"""Weights as every reader of this folder gives them: networks as Hugging Face would store them."""

from typing import NamedTuple

import numpy as np


class Weights(NamedTuple):
  """One network. A reader gives {"encoder": ...}, or {"discriminator": ..., "generator": ...} of an ELECTRA pair."""

  config: dict  # as in config.json: model_type, vocab_size, hidden_size, ... (with Hugging Face's keys)
  tensors: dict[str, np.ndarray]  # as in model.safetensors: its names, kernels [out, in]; tied copies left out
