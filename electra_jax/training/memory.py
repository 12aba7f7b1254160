"""Memory of a training step on each device: the state by its shardings, the rest by the compiler."""

import math
from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import PyTree
from ml_collections import ConfigDict

from electra_jax.errors import UserError

GIB = 2**30


@dataclass(frozen=True)
class StepMemory:
  """Bytes on one device while a training step runs."""

  parameters: int
  optimizer: int
  batch: int
  temporaries: int  # activations, gradients and the compiler's buffers, at their peak
  program: int = 0  # its machine code: hundreds of MiB on a TPU

  @property
  def total(self) -> int:
    """What the step needs at its peak; the new state takes the place of the old one."""
    return self.parameters + self.optimizer + self.batch + self.temporaries + self.program

  def __str__(self) -> str:
    parts = ", ".join(f"{what} {format_bytes(size)}" for what, size in (
      ("parameters", self.parameters), ("optimizer", self.optimizer), ("batch", self.batch),
      ("activations and other temporaries", self.temporaries), ("program", self.program)))
    return f"{format_bytes(self.total)} ({parts})"


def of_step(state: PyTree, batch: PyTree, compiled: jax.stages.Compiled) -> StepMemory:
  """The memory of one device.

  Args:
    state: TrainState of arrays or of jax.ShapeDtypeStructs with shardings.
    batch: likewise.
    compiled: `make_train_step(...).lower(state, batch).compile()`.
  """
  analysis: Any = compiled.memory_analysis()
  new = max(0, analysis.output_size_in_bytes - analysis.alias_size_in_bytes)  # what is not written over the old state
  params = bytes_per_device(state.params)
  return StepMemory(params, bytes_per_device(state.opt_state), bytes_per_device(batch),
                    analysis.temp_size_in_bytes + new, analysis.generated_code_size_in_bytes)


def at_start(train_step: jax.stages.Wrapped, state: PyTree, batch: PyTree) -> str:
  """The line that a run prints before its first step, whose compilation it does ahead: calling it compiles no more."""
  return f"memory of each device: {of_step(state, batch, train_step.lower(state, batch).compile())}"


def find_exhausted(error: BaseException, config: ConfigDict | None) -> UserError | None:
  """What the user can do about an error, if its cause is that the memory of a device or of the host is too small.

  Args:
    error: anything that was raised.
    config: of the run, which decides what makes a step smaller; None of other tools.
  """
  if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
    return None
  if config is None:
    smaller = "smaller batches or shorter rows"
  elif config.task.name:
    smaller = "--config.task.seeds_at_once=1, then a smaller --config.train.batch_size and --config.eval.batch_size"
  else:
    smaller = ("--config.train.accumulation_steps=4 (the same batch, a quarter of its rows at once), then "
               "--config.train.remat=dots or full, then more devices on --config.mesh.fsdp")
  return UserError("The memory is too small for this step", got=f"{type(error).__name__}: {error}".split("\n")[0],
                   allowed="steps that fit; a run prints what its step needs as `memory of each device`",
                   fix=smaller)


def bytes_per_device(tree: PyTree) -> int:
  """Bytes of the shard of every leaf that one device holds."""
  return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def format_bytes(size: float) -> str:
  """In GiB, small sizes in MiB.

  >>> format_bytes(3 * 2**30), format_bytes(5.5 * 2**20)
  ('3.00 GiB', '5.5 MiB')
  """
  return f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size / 2**20:.1f} MiB"
