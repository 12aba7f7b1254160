"""How do the processes of a run start and stop together? On a laptop, SLURM, TPU pods and Kubernetes alike."""

import os
import signal
import threading

import jax

from electra_jax.errors import UserError

VARIABLES = ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID")
BARRIER_SECONDS = 7 * 24 * 3600


def start() -> None:
  """Joins the other processes of the job, if there are any; call it before any other use of jax.

  COORDINATOR_ADDRESS (host:port), NUM_PROCESSES and PROCESS_ID describe any cluster. Without them jax detects SLURM
  (several tasks), Open MPI and TPU pods by itself, and a single process needs nothing.

  Raises:
    UserError: some of the three variables are set, but not all, or not to numbers that fit.
  """
  given = {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
  if given:
    try:
      count, index = int(given["NUM_PROCESSES"]), int(given["PROCESS_ID"])
      if not 0 <= index < count:
        raise ValueError
    except (KeyError, ValueError):
      raise UserError("The description of the process group is incomplete or wrong", got=given,
                      allowed=f"all of {', '.join(VARIABLES)}, with 0 <= PROCESS_ID < NUM_PROCESSES",
                      fix="export all three, or none for a single process") from None
    jax.distributed.initialize(given["COORDINATOR_ADDRESS"], count, index)
  elif _cluster_is_known():
    jax.distributed.initialize()


def _cluster_is_known() -> bool:
  """A scheduler that jax can ask for the addresses, with more than one process."""
  several_tasks = int(os.environ.get("SLURM_NTASKS", "1")) > 1 and "SLURM_STEP_NODELIST" in os.environ
  several_hosts = len(os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")) > 1
  open_mpi = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1")) > 1
  return several_tasks or several_hosts or open_mpi


def barrier(name: str) -> None:
  """Returns when every process has come here, be it after hours in which one of them prepares the data.

  A collective on the devices would not wait so long: Gloo, which connects CPUs, gives up after half a minute.
  """
  if jax.process_count() == 1:
    return
  from jax._src import distributed as coordination  # jax has no public barrier but the collective
  from jax.experimental import multihost_utils

  if coordination.global_state.client is None:  # processes that the TPU runtime alone has brought together
    multihost_utils.sync_global_devices(name)
  else:
    coordination.global_state.client.wait_at_barrier(f"electra_jax/{name}", BARRIER_SECONDS * 1000)


class StopRequest:
  """Ctrl-C and SIGTERM (what schedulers send before they take a machine away), noted for the loop to look at.

  Inside `with`, the first signal is noted and the second has its usual effect at once. A signal that is ignored (as
  Ctrl-C is for background jobs) stays so.

  With several processes all must leave the loop after the same step, although the signal reaches them at different
  times or only some of them. jax's coordination service sees to that; it listens to SIGTERM, so that is left to it.
  """

  def __init__(self):
    self._noted, self._former = False, {}

  def __enter__(self):
    if threading.current_thread() is threading.main_thread():  # Python allows it nowhere else
      for number in (signal.SIGINT, signal.SIGTERM) if jax.process_count() == 1 else (signal.SIGINT,):
        if signal.getsignal(number) != signal.SIG_IGN:
          self._former[number] = signal.signal(number, self._note)
    return self

  def __exit__(self, *_):
    self._restore()

  def reached(self, step: int) -> bool:
    """Whether the loop ends after this step. To be called once after each step, in every process."""
    if jax.process_count() == 1:
      return self._noted
    from jax.experimental import multihost_utils

    return multihost_utils.reached_preemption_sync_point(step)

  def _note(self, number, frame):
    del number, frame
    self._noted = True
    self._restore()
    if jax.process_count() > 1:
      os.kill(os.getpid(), signal.SIGTERM)

  def _restore(self):
    for number, handler in self._former.items():
      signal.signal(number, signal.SIG_DFL if handler is None else handler)
    self._former = {}
