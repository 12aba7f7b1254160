"""How many examples does each step take, and where in their order do they begin? Batches may grow at first.

The order of all examples is `data/order.py`'s; a step takes those behind its predecessor's. What a run has rolled back
over is passed by. All of it is arithmetic on the step, so a restart needs nothing else.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Stage(NamedTuple):
  """Steps with batches of one size."""

  first_step: int
  batch_size: int


class Detour(NamedTuple):
  """From `step` on, the examples are those that would have begun at `resume_at`: what lies between is passed by."""

  step: int
  resume_at: int


def stages(config_train) -> tuple[Stage, ...]:
  """Sizes that double from `train.initial_batch_size` to `train.batch_size`, those before the last for equally long.

  >>> from types import SimpleNamespace
  >>> stages(SimpleNamespace(batch_size=64, initial_batch_size=16, batch_size_ramp_steps=10))
  (Stage(first_step=0, batch_size=16), Stage(first_step=5, batch_size=32), Stage(first_step=10, batch_size=64))
  """
  sizes = [config_train.initial_batch_size or config_train.batch_size]
  while sizes[-1] < config_train.batch_size:
    sizes.append(min(2 * sizes[-1], config_train.batch_size))
  smaller = max(1, len(sizes) - 1)
  return tuple(Stage(index * config_train.batch_size_ramp_steps // smaller, size) for index, size in enumerate(sizes))


def micro_batches(batch_size: int, config_train) -> int:
  """Micro-batches of a batch: as many as keep them no larger than those of the full batch.

  >>> from types import SimpleNamespace
  >>> [micro_batches(size, SimpleNamespace(batch_size=64, accumulation_steps=4)) for size in (8, 16, 32, 64)]
  [1, 1, 2, 4]
  """
  return -(-batch_size * config_train.accumulation_steps // config_train.batch_size)


def full_batches(config_train, num_steps: int) -> float:
  """What the first steps take, in batches of `train.batch_size`: for counts of tokens and operations."""
  return _examples_before(stages(config_train), num_steps) / config_train.batch_size


class BatchSchedule:
  """The size and the place of each step's batch; steps are counted from 0.

  Args:
    sizes: of `stages`.
    detours: of all rollbacks, in the order in which they happened.
    unit: "rows", or "tokens": places are then counted in batches, as `order.TokenBatches` has them.
  """

  def __init__(self, sizes: Sequence[Stage], detours: Sequence[Detour] = (), unit: str = "rows"):
    self._stages, self._detours, self._unit = tuple(sizes), tuple(detours), unit

  def size(self, step: int) -> int:
    """Rows of the global batch."""
    return next(stage.batch_size for stage in reversed(self._stages) if stage.first_step <= step)

  def start(self, step: int) -> int:
    """How many examples (or batches, by the unit) of the order come before this step's.

    >>> schedule = BatchSchedule([Stage(0, 4), Stage(2, 8)], [Detour(step=3, resume_at=5)])
    >>> [schedule.start(step) for step in range(6)]
    [0, 4, 8, 32, 40, 48]
    """
    return self._start(step, len(self._detours))

  def stretches(self, start_step: int, stop_step: int) -> Iterator[tuple[int, int]]:
    """(first, stop) of the parts of these steps in which batches have one size.

    >>> list(BatchSchedule([Stage(0, 4), Stage(2, 8)]).stretches(1, 6))
    [(1, 2), (2, 6)]
    """
    bounds = [start_step, *(stage.first_step for stage in self._stages if start_step < stage.first_step < stop_step),
              stop_step]
    return ((first, stop) for first, stop in itertools.pairwise(bounds) if first < stop)

  def _start(self, step: int, num_detours: int) -> int:
    for index in reversed(range(num_detours)):  # the last one that has come by holds, from where the others had led it
      detour = self._detours[index]
      if step >= detour.step:
        return self._start(detour.resume_at, index) + self._before(step) - self._before(detour.step)
    return self._before(step)

  def _before(self, step: int) -> int:
    return step if self._unit == "tokens" else _examples_before(self._stages, step)


def _examples_before(sizes: Sequence[Stage], step: int) -> int:
  ends = [stage.first_step for stage in sizes[1:]] + [step]
  return sum(stage.batch_size * max(0, min(end, step) - stage.first_step) for stage, end in zip(sizes, ends))
