"""How do the processes of a run start and stop together? On a laptop, SLURM, TPU pods and Kubernetes alike."""

import ctypes
import os
import re
import signal
import threading

import jax

from electra_jax.errors import NoAnswerError, UserError

VARIABLES = ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID")
BARRIER_SECONDS = 7 * 24 * 3600
MEETING_SECONDS = 300  # from the start of one process until all have joined: schedulers start them minutes apart
# A process that is silent for so long is lost, and the others end. One that is killed on a host that lives is noticed
# at once by those that exchange numbers with it on CPUs; a GPU's collectives only wait.
HEARTBEAT_SECONDS = 60
# What jax, Gloo and NCCL say in the process that lives when another one is gone.
LOST = re.compile(r"Gloo .*failed|NCCL .*(failed|error)|stopped sending heartbeats|[Cc]oordination ?[Ss]ervice|"
                  r"UNAVAILABLE: ")


def start() -> None:
  """Joins the other processes of the job, if there are any; call it before any other use of jax.

  COORDINATOR_ADDRESS (host:port), NUM_PROCESSES and PROCESS_ID describe any cluster. Without them jax detects SLURM
  (several tasks), Open MPI and TPU pods by itself, and a single process needs nothing.

  If they do not meet within MEETING_SECONDS, or one of them is lost later (HEARTBEAT_SECONDS), this process ends with
  the text and the status of `lost_process`.

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
    _join(given["COORDINATOR_ADDRESS"], count, index)
  elif _cluster_is_known():
    _join()


def _join(*address) -> None:
  _explain_aborts()
  jax.distributed.initialize(*address, initialization_timeout=MEETING_SECONDS,
                             heartbeat_timeout_seconds=HEARTBEAT_SECONDS)


def _explain_aborts() -> None:
  """jax aborts a process whose group has broken; from now on it says what to do and has a status that tells it apart.

  The abort comes in a thread of C++, whatever this process waits for. A handler of Python's `signal` would have to
  wait for the main thread, which may never return.
  """
  text = f"\nError: {lost_process('jax has ended this process; the reason is above')}\n".encode()

  def end(number):
    del number
    os.write(2, text)
    os._exit(NoAnswerError.STATUS)

  _explain_aborts.kept = ctypes.CFUNCTYPE(None, ctypes.c_int)(end)  # as long as the process lives
  ctypes.CDLL(None).signal(signal.SIGABRT, _explain_aborts.kept)


def lost_process(got: object) -> NoAnswerError:
  """What those that are left say of it."""
  return NoAnswerError(
    "Another process of this run does not answer", got=got,
    allowed=f"all processes meet within {MEETING_SECONDS} s, and none is silent for {HEARTBEAT_SECONDS} s",
    fix="look into the logs of the others for the one that ended first; then start all again, in the same number or "
    "another: they go on from the last checkpoint")


def find_lost_process(error: BaseException) -> NoAnswerError | None:
  """The error in place of what a collective or a barrier raised because another process is gone; else None."""
  if not jax.distributed.is_initialized() or isinstance(error, UserError):
    return None
  said = f"{type(error).__name__}: {error}"
  return lost_process(said.splitlines()[0][:300]) if LOST.search(said) else None


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
  Ctrl-C is for background jobs) stays so. If the loop ends because another process is gone, `with` raises what
  `find_lost_process` makes of it.

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

  def __exit__(self, kind, error, trace):
    del kind, trace
    self._restore()
    lost = find_lost_process(error) if error is not None else None
    if lost is not None:
      raise lost from error

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
