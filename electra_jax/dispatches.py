"""Which updates go to the devices as one program? A small model's kernels take less time than their launches.

Between two things that the host does (a log line, an evaluation, a checkpoint, a change of the batch's shape) it has
nothing to say, so `train.steps_per_dispatch` updates can follow each other without it. Which ones go together depends
on their numbers alone: a restart repeats the same programs and so the same bits.
"""

import functools
from collections.abc import Callable, Iterator

import jax


def is_due(step: int, every_steps: int) -> bool:
  """Whether something that is done each so many updates is done after this one; 0 = never."""
  return every_steps > 0 and step % every_steps == 0


def ranges(start: int, stop: int, most: int, is_bound: Callable[[int], bool]) -> Iterator[range]:
  """The updates `start` + 1 to `stop` in dispatches of `most` or of one, none of which reaches over a bound.

  Args:
    start: updates that are done.
    stop: the last one.
    most: `train.steps_per_dispatch`.
    is_bound: whether the host has to do something after this many updates.

  >>> [list(steps) for steps in ranges(0, 7, 3, lambda step: step % 5 == 0)]
  [[1, 2, 3], [4], [5], [6], [7]]
  >>> [list(steps) for steps in ranges(4, 9, 3, lambda step: step % 5 == 0)]
  [[5], [6, 7, 8], [9]]
  """
  begin = start
  while most > 1 and begin > 0 and not is_bound(begin):
    begin -= 1
  while begin < stop:
    fits = begin + most <= stop and not any(map(is_bound, range(begin + 1, begin + most)))
    end = begin + (most if fits else 1)
    if start <= begin:
      yield range(begin + 1, end + 1)
    else:  # what a restart finds begun, it ends one by one
      yield from (range(step, step + 1) for step in range(start + 1, end + 1))
    begin = end


def one_after_another(update: Callable) -> Callable:
  """`update` of (state, batch) for several batches along a leading axis; the metrics get that axis, too."""
  return functools.partial(jax.lax.scan, update)
