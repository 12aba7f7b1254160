"""ONNX files of exported networks, made by torch's exporter: model.onnx next to the weights."""

import os

from electra_jax.errors import UserError
from electra_jax.files import read_json

FILE_NAME = "model.onnx"


def check_installed() -> None:
  """Raises a UserError if a package is missing, before anything is written."""
  try:
    import onnxscript  # noqa: F401 - torch's exporter needs it
    import torch  # noqa: F401
    import transformers  # noqa: F401
  except ImportError as error:
    raise UserError("--format=onnx needs packages that are not installed", got=str(error),
                    allowed="torch, transformers, onnx and onnxscript", fix="pip install '.[onnx]'") from error


def write(folder: str) -> None:
  """Adds model.onnx to a folder that transformers loads.

  Its inputs are the tokenizer's, int64 [batch, length] (for multiple choice [batch, choices, length]), and its outputs
  those of transformers' class; the inputs' axes may have any size.
  """
  import torch
  import transformers

  (architecture,) = read_json(os.path.join(folder, "config.json"))["architectures"]
  names = read_json(os.path.join(folder, "tokenizer_config.json"))["model_input_names"]
  # Plain arithmetic, as torch's fused attention becomes a larger graph that is no faster.
  model = getattr(transformers, architecture).from_pretrained(folder, attn_implementation="eager").eval()
  axes = ("batch", "choices", "length") if architecture.endswith("ForMultipleChoice") else ("batch", "length")
  token = model.config.pad_token_id + 1  # any but padding, whose positions RoBERTa counts differently
  example = {name: torch.full((2, 3, 8) if len(axes) == 3 else (2, 8),
                              token if name == "input_ids" else int(name == "attention_mask")) for name in names}
  with torch.no_grad():
    outputs = list(model(**example).keys())
  sizes = {number: torch.export.Dim(axis) for number, axis in enumerate(axes)}
  program = torch.onnx.export(model, kwargs=example, dynamo=True, verbose=False, input_names=names,
                              output_names=outputs, dynamic_shapes={name: sizes for name in names})
  assert program is not None  # torch gives none without `dynamo`
  program.save(os.path.join(folder, FILE_NAME))
