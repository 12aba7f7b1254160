"""How does a run keep to hours instead of steps? It counts the seconds behind its parameters (`train.max_hours`).

They are part of the optimizer's state: a restart counts on from its checkpoint, and the rate has decayed by them. What
a kill or a rollback has lost is not behind the parameters and does not count.
"""

import time
from collections.abc import Callable

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

HOURS = "train/hours"


class Budget:
  """The time of one process of a run, and whether it is up.

  Args:
    max_hours: 0 = no budget; nothing is measured, and the state holds no time.
    opt_state: of the step that the run goes on from.
    mesh: of the run.
    clock: seconds that never go back; another one in tests.
  """

  def __init__(self, max_hours: float, opt_state: PyTree, mesh: Mesh, clock: Callable[[], float] = time.monotonic):
    self._hours, self._clock = max_hours, clock
    self._before = float(optax.tree.get(opt_state, "seconds")) if max_hours else 0.0
    self._begun, self._previous = clock(), None
    self._place = NamedSharding(mesh, PartitionSpec(mesh.axis_names))

  def now(self) -> tuple[Array, ...]:
    """What `update` wants besides the batch: the seconds, as each device's process has them; () without a budget.

    The update takes the largest: processes whose clocks differ still compute the same rate.
    """
    if not self._hours:
      return ()
    seconds = np.float32(self._before + max(0.0, self._clock() - self._begun))
    size = self._place.mesh.size
    return (jax.make_array_from_callback((size,), self._place, lambda index: np.full(size, seconds)[index]),)

  def is_spent(self, pairs: dict | None = None) -> bool:
    """Whether the run ends here; without metrics, whether it had ended before it went on.

    Args:
      pairs: the metrics of the step just started. The answer is that of the step before it, which is done or nearly:
        the devices never run dry. It is the same in all processes.
    """
    if not self._hours:
      return False
    previous, self._previous = self._previous, pairs
    hours = self._before / 3600 if pairs is None else 0.0 if previous is None else float(previous[HOURS][0])
    return hours >= self._hours


def pairs(opt_state: PyTree) -> dict[str, tuple[Array, Array]]:
  """Time and learning rate of an update whose rate goes by time, for the logs."""
  one = jax.numpy.ones(())
  return {HOURS: (optax.tree.get(opt_state, "seconds") / 3600, one),
          "train/learning_rate": (optax.tree.get(opt_state, "learning_rate"), one)}
