"""Objectives of pre-training; a new one is a file in this folder and a row of `table.ROWS`."""

import importlib
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from electra_jax.objectives.table import ROWS, counts_tokens


def make(transformer: Any, config_generator: ConfigDict, config_objective: ConfigDict, num_steps: int,
         token_counts: np.ndarray | None = None) -> Any:
  """The `Objective` that `config_objective.name` names; the arguments are the fields of `base.Parts`."""
  from electra_jax.objectives.base import Parts  # here, as the table needs no jax

  make_row = ROWS[config_objective.name].make
  if isinstance(make_row, str):
    module, _, function = make_row.partition(".")
    make_row = getattr(importlib.import_module(f"electra_jax.objectives.{module}"), function or "make")
  return make_row(Parts(transformer, config_generator, config_objective, num_steps, token_counts))


__all__ = ["ROWS", "counts_tokens", "make"]
