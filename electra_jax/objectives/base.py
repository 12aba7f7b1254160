"""The protocol of an objective: a named tuple of pure functions, as optax's transformations are."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from flax import linen as nn
from jaxtyping import Array, PyTree
from ml_collections import ConfigDict

from electra_jax.models.transformer import TransformerConfig

Batch = dict[str, Array]
Metrics = dict[str, tuple[Array, Array]]  # (sum, weight)
# (params, batch, rng, train, num_targets) -> (loss, metrics). The loss divides each of its sums by `num_targets`, which
# counts the whole global batch: micro-batches and devices then add up to exactly the loss of the undivided batch.
LossFn = Callable[[PyTree, Batch, Array, bool, dict[str, Array]], tuple[Array, Metrics]]


def apply(model: nn.Module, params: PyTree, *arguments, **options) -> Any:
  """`model.apply` with parameters alone: the outputs of `options["method"]`."""
  return model.apply({"params": params}, *arguments, **options)


class Parts(NamedTuple):
  """What an objective is made from."""

  transformer: TransformerConfig  # the kept encoder
  generator: ConfigDict  # branches of the resolved config
  objective: ConfigDict
  num_steps: int = 1  # updates of the run
  token_counts: np.ndarray | None = None  # int [tokens] in the training corpus, 0 for special ids; see `counts_tokens`


class Phase(NamedTuple):
  """A stretch of training with one loss; nearly every objective has a single one."""

  num_steps: int
  loss: LossFn
  trainable: str = ".*"  # whole-match regular expression over parameter paths; the rest gets no update at all
  on_enter: Callable[[PyTree], PyTree] = lambda params: params


class Objective(NamedTuple):
  """Which networks exist, how they start, and what they minimise."""

  init: Callable[[Array, Batch], PyTree]  # (rng, batch) -> params
  count_targets: Callable[[Batch], dict[str, Array]]  # what each sum of the loss is divided by
  phases: tuple[Phase, ...]

  def phase_at(self, step: int) -> tuple[Phase, int]:
    """The phase of optimizer update `step` (from 0) and the step it starts at; a restart lands in the right one."""
    start = 0
    for phase in self.phases[:-1]:
      if step < start + phase.num_steps:
        return phase, start
      start += phase.num_steps
    return self.phases[-1], start
