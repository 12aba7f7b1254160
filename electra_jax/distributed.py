"""How does a process find the others? One start-up for a laptop, SLURM, TPU pods and Kubernetes."""

import os

import jax

from electra_jax.errors import UserError

VARIABLES = ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID")


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
  """Returns when every process has come here."""
  if jax.process_count() > 1:
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices(name)
