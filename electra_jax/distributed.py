"""Joint start and stop of a run's processes: on a laptop, SLURM, TPU pods and Kubernetes alike."""

import contextlib
import ctypes
import functools
import os
import re
import signal
import socket
import threading
import time

import jax
from jax._src import distributed as coordination  # jax's only public barrier is a collective
from jax._src.lib import _jax

from electra_jax.errors import Interrupted, NoAnswerError, UserError

VARIABLES = ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID")
GPUS = ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS")  # name the GPUs that a process was given
NO_GPUS = ("", "-1", "NoDevFiles")
BARRIER_SECONDS = 7 * 24 * 3600
MEETING_SECONDS = 300  # from the start of one process until all have joined: schedulers start them minutes apart
# A process that is silent for this long is lost, and the others end. If only the process and not its host dies, those
# that exchange data with it on CPUs notice at once; collectives on GPUs just wait.
HEARTBEAT_SECONDS = 60
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
TWICE_SECONDS = 1.0  # the same signal within this time is the same request
# What jax, Gloo and NCCL say in a surviving process when another one is gone.
LOST = re.compile(r"Gloo .*failed|NCCL .*(failed|error)|stopped sending heartbeats|[Cc]oordination ?[Ss]ervice|"
                  r"UNAVAILABLE: ")


def start() -> None:
  """Joins the other processes of the job, if there are any; call it before any other use of jax.

  COORDINATOR_ADDRESS (host:port), NUM_PROCESSES and PROCESS_ID describe any cluster. Without them jax detects SLURM
  (several tasks in this step), Open MPI and TPU pods by itself; a single process needs nothing.

  If a process is lost later (HEARTBEAT_SECONDS), this one ends with the text and the status of `lost_process`.

  Raises:
    UserError: only some of the three variables are set, or to invalid values; or a scheduler's variable is malformed.
    NoAnswerError: the others did not come within MEETING_SECONDS.
  """
  given = {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
  if given:
    try:
      address, count, index = given["COORDINATOR_ADDRESS"], int(given["NUM_PROCESSES"]), int(given["PROCESS_ID"])
      if not 0 <= index < count or not re.fullmatch(r".+:\d{1,5}", address):
        raise ValueError
    except (KeyError, ValueError):
      raise UserError("The description of the process group is incomplete or wrong", got=given,
                      allowed=f"all of {', '.join(VARIABLES)}, with host:port and 0 <= PROCESS_ID < NUM_PROCESSES",
                      fix="export all three, or none for a single process") from None
    if index == 0:
      _check_port(int(address.rpartition(":")[2]))
    _join(f"process {index} of {count} meets the others at {address}", address, count, index)
    return
  tasks = _count("SLURM_NTASKS")
  in_step = _count("SLURM_STEP_NUM_TASKS") if os.environ.get("SLURM_STEP_NUM_TASKS") else tasks
  if in_step > 1 and "SLURM_STEP_NODELIST" in os.environ:
    _join(f"task {os.environ.get('SLURM_PROCID')} of a SLURM step of {in_step} meets the others", None, in_step)
  elif (size := _count("OMPI_COMM_WORLD_SIZE")) > 1:
    _join(f"process {os.environ.get('OMPI_COMM_WORLD_RANK')} of {size} of Open MPI meets the others")
  elif (hosts := len(os.environ.get("TPU_WORKER_HOSTNAMES", "").split(","))) > 1:
    _join(f"this host meets the others of a TPU slice of {hosts}")
  elif tasks > 1:
    print(f"One process alone, in a SLURM job of {tasks} tasks. Started with srun, all of them train together.",
          flush=True)


def _check_port(port: int) -> None:
  """Raises if the coordinator's port is taken, where jaxlib would crash without a message."""
  with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as trial:
    trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
      trial.bind(("", port))
    except (OSError, OverflowError) as error:
      raise UserError("The coordinator's port cannot be opened on this host", got=f"port {port}: {error}",
                      allowed="a free port above 1023", fix="choose another one in COORDINATOR_ADDRESS of all "
                      "processes, or end the process that holds it") from None


def _count(name: str) -> int:
  """A scheduler's number of processes; 1 if the variable is missing or empty."""
  text = os.environ.get(name) or "1"
  if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
    raise UserError(f"The environment variable {name} is malformed", got=repr(text[:100]),
                    allowed="a number of processes, as the scheduler sets it",
                    fix=f"unset {name} for a single process, or start through the scheduler (srun, mpirun)")
  return int(text)


def _join(meeting: str, *address) -> None:
  """Waits for the other processes, after a line that says who meets whom."""
  print(f"This run has several processes: {meeting}, within {MEETING_SECONDS} s.", flush=True)
  _explain_aborts()
  make = _jax.get_distributed_runtime_client
  if "missed_heartbeat_callback" in (make.__doc__ or ""):  # jax itself offers no way to give one
    _jax.get_distributed_runtime_client = functools.partial(make, missed_heartbeat_callback=_end_as_lost)
  try:
    jax.distributed.initialize(*address, initialization_timeout=MEETING_SECONDS,
                               heartbeat_timeout_seconds=HEARTBEAT_SECONDS)
  except RuntimeError as error:  # a time-out; jaxlib 0.10 turns the callback's argument into a bad_cast
    raise lost_process("not all of them came in time" if "bad_cast" in str(error) else str(error)[:200]) from error


def _end_as_lost(*reason) -> None:
  """Ends this process, even from a C++ thread while Python waits."""
  del reason
  os.write(2, f"\nError: {lost_process('one is gone, frozen, or cannot be reached any more')}\n".encode())
  os._exit(NoAnswerError.STATUS)


_handlers: list = []  # signal handlers, which must live as long as the process


def _explain_aborts() -> None:
  """Makes a process that jax aborts, because its group has broken, say what to do and exit with a status of its own.

  The abort comes in a C++ thread, whatever this process waits for. A handler set with Python's `signal` would wait for
  the main thread, which may never return. jax would also print a C++ stack first; with our callback (`_join`) it does
  not, whether the callback is called or, as with jaxlib 0.10, the call itself aborts.
  """
  handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(_end_as_lost)
  _handlers.append(handler)
  ctypes.CDLL(None).signal(signal.SIGABRT, handler)


def lost_process(got: object) -> NoAnswerError:
  """The error that the remaining processes report."""
  return NoAnswerError(
    "Another process of this run does not answer", got=got,
    allowed=f"all processes meet within {MEETING_SECONDS} s, and none is silent for {HEARTBEAT_SECONDS} s",
    fix="look in the others' logs for the one that ended first; then start all again, as many as before or not: they "
    "resume from the last checkpoint")


def find_lost_process(error: BaseException) -> NoAnswerError | None:
  """`lost_process` if a collective or a barrier raised the error because another process is gone; else None."""
  if not jax.distributed.is_initialized() or isinstance(error, UserError):
    return None
  said = f"{type(error).__name__}: {error}"
  return lost_process(said.splitlines()[0][:300]) if LOST.search(said) else None


def check_devices() -> None:
  """Checks, before the data is prepared, that jax can use the intended devices.

  Raises:
    UserError: it cannot, or the environment gives it GPUs and it finds none.
  """
  asked = os.environ.get("JAX_PLATFORMS", "")
  try:
    backend = jax.default_backend()
  except RuntimeError as error:
    raise UserError("jax cannot use the devices that it was asked for", got=f"JAX_PLATFORMS={asked!r}: "
                    f"{str(error).splitlines()[0][:300]}", allowed="cpu, or a platform with its devices and driver",
                    fix="unset JAX_PLATFORMS, or install the jax of this platform (see requirements.txt)") from error
  given = {name: os.environ[name] for name in GPUS if os.environ.get(name, "") not in NO_GPUS}
  if backend == "cpu" and not asked and given:
    raise UserError("The environment gives this process GPUs, but jax has none", got=given,
                    allowed="a jax that can use them, or JAX_PLATFORMS=cpu",
                    fix="install the jax for CUDA (see requirements.txt), or export JAX_PLATFORMS=cpu")


def barrier(name: str) -> None:
  """Returns when every process has come here, even if one of them first prepares the data for hours.

  A collective on the devices would not wait that long: Gloo, which connects CPUs, gives up after half a minute.
  """
  if jax.process_count() == 1:
    return
  from jax.experimental import multihost_utils

  if coordination.global_state.client is None:  # processes joined by the TPU runtime alone
    multihost_utils.sync_global_devices(name)
  else:
    coordination.global_state.client.wait_at_barrier(f"electra_jax/{name}", BARRIER_SECONDS * 1000)


class StopRequest:
  """Ctrl-C and the signals by which schedulers and closed terminals end a process, recorded for the loop to check.

  Inside `with`, the first signal is recorded, and a message says so. Ctrl-C again has its usual effect at once; another
  signal ends the process when it comes again at least TWICE_SECONDS later, as schedulers send the same one to a process
  and to its parent. A signal that is ignored (Ctrl-C in background jobs, SIGHUP under nohup) stays ignored. If the loop
  ends because another process is gone, `with` raises the error of `find_lost_process`.

  With several processes all must leave the loop after the same step, although the signal reaches them at different
  times, or only some of them. jax's coordination service takes care of that and of SIGTERM, to which it listens.
  """

  def __init__(self):
    self._noted, self._former = {}, {}  # signal -> when it came; -> what it did before

  def __enter__(self):
    if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
      for number in SIGNALS:
        is_ours = jax.process_count() == 1 or number != signal.SIGTERM
        if is_ours and signal.getsignal(number) != signal.SIG_IGN:
          self._former[number] = signal.signal(number, self._note)
    return self

  def __exit__(self, kind, error, trace):
    del trace
    # After Interrupted a checkpoint is still being written: other signals must not have their usual effect then.
    self._restore([signal.SIGINT] if kind is not None and issubclass(kind, Interrupted) else SIGNALS)
    lost = find_lost_process(error) if error is not None else None
    if lost is not None:
      raise lost from error

  def reached(self, step: int) -> bool:
    """Whether the loop ends after this step; every process must call it once after each step."""
    if jax.process_count() == 1:
      return bool(self._noted)
    from jax.experimental import multihost_utils

    return multihost_utils.reached_preemption_sync_point(step)

  def _note(self, number, frame):
    del frame
    name, now = signal.Signals(number).name, time.monotonic()
    if number not in self._noted:
      if not self._noted:
        _say(f"{name}: this run saves a checkpoint after the current step and ends. {name} again ends it at once.")
        if jax.process_count() > 1:
          os.kill(os.getpid(), signal.SIGTERM)
      self._noted[number] = now
      self._restore([signal.SIGINT])
    elif now - self._noted[number] >= TWICE_SECONDS:
      _say(f"{name} again: ended at once. The next start resumes from the last complete checkpoint.")
      os._exit(128 + number)

  def _restore(self, numbers):
    for number in numbers:
      if number in self._former:
        former = self._former.pop(number)
        signal.signal(number, signal.SIG_DFL if former is None else former)


def _say(text: str) -> None:
  """Prints a line from within a signal handler, which may have interrupted another print."""
  with contextlib.suppress(OSError):  # the console may be gone
    os.write(2, f"\n{text}\n".encode())
