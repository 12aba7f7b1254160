"""How many examples does each step take, and where in their order do they begin? At first batches may be smaller, and
rows cut into shorter ones (`data/pieces.py`).

The order of all examples is `data/order.py`'s; a step takes those behind its predecessor's. What a run has rolled back
over is passed by. All of it is arithmetic on the step, so a restart needs nothing else.
"""

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple


class Stage(NamedTuple):
  """Steps with batches of one shape."""

  first_step: int
  batch_size: int  # rows as they are read
  pieces: int = 1  # of each of these rows


class Detour(NamedTuple):
  """From `step` on, the examples are those that would have begun at `resume_at`: what lies between is passed by."""

  step: int
  resume_at: int


def sizes(config_train) -> tuple[Stage, ...]:
  """Sizes that double from `train.initial_batch_size` to `train.batch_size`, those before the last for equally long.

  >>> from types import SimpleNamespace
  >>> ramp = sizes(SimpleNamespace(batch_size=64, initial_batch_size=16, batch_size_ramp_steps=10))
  >>> [tuple(stage) for stage in ramp]
  [(0, 16, 1), (5, 32, 1), (10, 64, 1)]
  """
  found = [config_train.initial_batch_size or config_train.batch_size]
  while found[-1] < config_train.batch_size:
    found.append(min(2 * found[-1], config_train.batch_size))
  smaller = max(1, len(found) - 1)
  return tuple(Stage(index * config_train.batch_size_ramp_steps // smaller, size) for index, size in enumerate(found))


def stages(config) -> tuple[Stage, ...]:
  """`sizes`, whose rows have `data.initial_sequence_length` tokens until `data.initial_length_steps` are done.

  >>> from types import SimpleNamespace as Branch
  >>> data = Branch(sequence_length=512, initial_sequence_length=128, initial_length_steps=7)
  >>> train = Branch(batch_size=64, initial_batch_size=32, batch_size_ramp_steps=5)
  >>> [tuple(stage) for stage in stages(Branch(data=data, train=train))]
  [(0, 32, 4), (5, 64, 4), (7, 64, 1)]
  """
  data, ramp = config.data, sizes(config.train)
  pieces = data.sequence_length // (data.initial_sequence_length or data.sequence_length)
  if pieces == 1:
    return ramp
  switch = data.initial_length_steps
  cut = [stage._replace(pieces=pieces) for stage in ramp if stage.first_step < switch]
  goes_on = [stage for stage in ramp if stage.first_step <= switch][-1]._replace(first_step=switch)
  return (*cut, goes_on, *(stage for stage in ramp if stage.first_step > switch))


def steps_of(all_stages: Collection[Stage], num_steps: int) -> Iterator[tuple[Stage, int]]:
  """How many of the first `num_steps` steps each stage has."""
  ends = [*(stage.first_step for stage in all_stages), num_steps][1:]
  return ((stage, max(0, min(end, num_steps) - stage.first_step)) for stage, end in zip(all_stages, ends))


def micro_batches(batch_size: int, config_train) -> int:
  """Micro-batches of a batch: as many as keep them no larger than those of the full batch.

  >>> from types import SimpleNamespace
  >>> [micro_batches(size, SimpleNamespace(batch_size=64, accumulation_steps=4)) for size in (8, 16, 32, 64)]
  [1, 1, 2, 4]
  """
  return -(-batch_size * config_train.accumulation_steps // config_train.batch_size)


def full_batches(config_train, num_steps: int) -> float:
  """What the first steps take, in batches of `train.batch_size`: for counts of tokens."""
  return _examples_before(sizes(config_train), num_steps) / config_train.batch_size


class BatchSchedule:
  """The size and the place of each step's batch; steps are counted from 0.

  Args:
    all_stages: of `stages`.
    detours: of all rollbacks, in the order in which they happened.
    unit: "rows", or "tokens": places are then counted in batches, as `order.TokenBatches` has them.
  """

  def __init__(self, all_stages: Sequence[Stage], detours: Sequence[Detour] = (), unit: str = "rows"):
    self._stages, self._detours, self._unit = tuple(all_stages), tuple(detours), unit

  def stage(self, step: int) -> Stage:
    """The shape of the global batch."""
    return next(stage for stage in reversed(self._stages) if stage.first_step <= step)

  def size(self, step: int) -> int:
    """Examples of the global batch."""
    return self.stage(step).batch_size

  def start(self, step: int) -> int:
    """How many examples (or batches, by the unit) of the order come before this step's.

    >>> schedule = BatchSchedule([Stage(0, 4), Stage(2, 8)], [Detour(step=3, resume_at=5)])
    >>> [schedule.start(step) for step in range(6)]
    [0, 4, 8, 32, 40, 48]
    """
    return self._start(step, len(self._detours))

  def stretches(self, start_step: int, stop_step: int) -> Iterator[tuple[int, int]]:
    """(first, stop) of the parts of these steps in which batches have one shape.

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


def _examples_before(all_stages: Sequence[Stage], step: int) -> int:
  return sum(stage.batch_size * number for stage, number in steps_of(all_stages, step))
