"""What a process finds around it: a console without a reader, a scheduler's variables, devices and keys that miss."""

import json
import os
import pty
import re
import socket
import subprocess
import sys

import jax
import pytest
from ml_collections import ConfigDict

from electra_jax import distributed, metrics
from electra_jax.errors import NoAnswerError, UserError
from tests.conftest import ROOT

TALKS = """
import sys
from electra_jax import main
main.outlive_console()
for number in range(3000):
  print("step", number)
  print("warning", number, file=sys.stderr)
sys.stdout.flush()
with open(sys.argv[1], "w") as file:
  file.write("done")
"""


def gone():
  """A pipe's end for writing that nobody reads."""
  reader, writer = os.pipe()
  os.close(reader)
  return writer


def hung_up():
  """A terminal that is closed: writing to it is an I/O error."""
  master, terminal = pty.openpty()
  os.close(master)
  return terminal


def full():
  return os.open("/dev/full", os.O_WRONLY)


CONSOLES = {  # redirections of bash, with the file descriptors that they name
  "stdout closed": (">&-", ()), "stderr closed": ("2>&-", ()), "both closed": (">&- 2>&-", ()),
  "all three closed": ("<&- >&- 2>&-", ()),
  "reader of stdout gone": (">&{}", (gone,)), "reader of stderr gone": ("2>&{}", (gone,)),
  "reader of both gone": (">&{0} 2>&{0}", (gone,)), "terminal closed": (">&{0} 2>&{0}", (hung_up,)),
  "disk of the log full": (">&{0} 2>&{0}", (full,)), "stdout full, stderr gone": (">&{} 2>&{}", (full, gone)),
}


@pytest.fixture(scope="module")
def after_talking(tmp_path_factory):
  """{console: (exit status, file that was written at the end)}, all at once."""
  folder, started = tmp_path_factory.mktemp("consoles"), {}
  for index, (name, (redirections, make)) in enumerate(CONSOLES.items()):
    numbers = [one() for one in make]
    command = ["bash", "-c", f'exec "$@" {redirections.format(*numbers)}', "bash",
               sys.executable, "-c", TALKS, str(folder / str(index))]
    started[name] = subprocess.Popen(command, cwd=ROOT, pass_fds=numbers, stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL)
    for number in numbers:
      os.close(number)
  return {name: (process.wait(timeout=120), folder / str(index))
          for index, (name, process) in enumerate(started.items())}


@pytest.mark.parametrize("name", CONSOLES)
def test_a_process_outlives_its_console(after_talking, name):
  status, path = after_talking[name]
  assert status == 0 and path.read_text() == "done"  # nothing of the console in it


STEP = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8", "SLURM_STEP_NODELIST": "n1", "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0"}
INCOMPLETE = re.compile("The description of the process group is incomplete or wrong")
GROUP = {"COORDINATOR_ADDRESS": "h:1234", "NUM_PROCESSES": "4", "PROCESS_ID": "3"}
STARTS = {  # the environment -> the arguments of the meeting, what is said by a process alone, or the error
  "nothing": ({}, None),
  "an interactive step of one": (STEP | {"SLURM_STEP_NUM_TASKS": "1"}, "alone, in a SLURM job of 8 tasks"),
  "a batch script without srun": ({"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8"}, "alone, in a SLURM job of 8 tasks"),
  "a step of one task in a job of one": (STEP | {"SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"}, None),
  "a step of all tasks": (STEP | {"SLURM_STEP_NUM_TASKS": "8"}, (None, 8)),
  "a step of some tasks": (STEP | {"SLURM_STEP_NUM_TASKS": "2"}, (None, 2)),
  "an older srun": (STEP, (None, 8)),
  "SLURM_NTASKS empty": (STEP | {"SLURM_NTASKS": ""}, None),
  "SLURM_NTASKS=4x": ({"SLURM_NTASKS": "4x"}, re.compile("SLURM_NTASKS is malformed")),
  "SLURM_NTASKS=2(x3)": ({"SLURM_NTASKS": "2(x3)"}, re.compile("SLURM_NTASKS is malformed")),
  "SLURM_NTASKS=-1": ({"SLURM_NTASKS": "-1"}, re.compile("SLURM_NTASKS is malformed")),
  "SLURM_STEP_NUM_TASKS=one": (STEP | {"SLURM_STEP_NUM_TASKS": "one"}, re.compile("SLURM_STEP_NUM_TASKS is malformed")),
  "mpirun of two": ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}, ()),
  "mpirun of one": ({"OMPI_COMM_WORLD_SIZE": "1"}, None),
  "OMPI_COMM_WORLD_SIZE=two": ({"OMPI_COMM_WORLD_SIZE": "two"}, re.compile("OMPI_COMM_WORLD_SIZE is malformed")),
  "two hosts of a TPU slice": ({"TPU_WORKER_HOSTNAMES": "a,b"}, ()),
  "the three variables": (GROUP, ("h:1234", 4, 3)),
  "the three variables inside SLURM": (STEP | GROUP, ("h:1234", 4, 3)),
  "an address without a port": (GROUP | {"COORDINATOR_ADDRESS": "h"}, INCOMPLETE),
  "one of the three missing": (GROUP | {"PROCESS_ID": ""}, INCOMPLETE),
  "an index beyond the number": (GROUP | {"PROCESS_ID": "4"}, INCOMPLETE),
  "a number in words": (GROUP | {"NUM_PROCESSES": "four"}, INCOMPLETE),
}


@pytest.mark.parametrize("name", STARTS)
def test_whom_a_process_waits_for(monkeypatch, capsys, name):
  variables, expected = STARTS[name]
  for variable in list(os.environ):
    if variable.startswith(("SLURM_", "OMPI_", "TPU_")) or variable in distributed.VARIABLES:
      monkeypatch.delenv(variable)
  for variable, value in variables.items():
    monkeypatch.setenv(variable, value)
  joined = []
  monkeypatch.setattr(distributed, "_join", lambda told, *address: joined.append(address))
  if isinstance(expected, re.Pattern):
    with pytest.raises(UserError, match=expected) as caught:
      distributed.start()
    assert any(variable in str(caught.value) for variable in variables)
    return
  distributed.start()
  said = capsys.readouterr().out
  assert joined == ([expected] if isinstance(expected, tuple) else [])
  assert expected in said if isinstance(expected, str) else not said


MEETING = """
from electra_jax import distributed, main
from electra_jax.errors import UserError
distributed.MEETING_SECONDS = 1
main.run(lambda argv: distributed.start(), "")
"""


def test_processes_that_do_not_come_are_told_in_four_lines():
  """No coordinator, none of the others: after one line that says who waits for whom, the error, and nothing else."""
  variables = {name: value for name, value in os.environ.items() if name not in distributed.VARIABLES}
  started = [subprocess.Popen([sys.executable, "-c", MEETING], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, env=variables | {
                                "COORDINATOR_ADDRESS": address, "NUM_PROCESSES": "2", "PROCESS_ID": index})
             for address, index in (("127.0.0.1:1", "1"), ("no.such.host.invalid:1234", "1"))]
  for process in started:
    said = process.communicate(timeout=120)[0]
    assert process.returncode == NoAnswerError.STATUS, said
    waits, _, error = said.partition("\n\n")
    assert "meets the others at" in waits and "stack trace" not in said
    assert error.startswith("Error: Another process of this run does not answer") and error.count("\n") <= 4, said


def test_a_coordinator_whose_port_is_taken(monkeypatch):
  with socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET) as other:
    other.bind(("", 0))
    other.listen()
    for name, value in (GROUP | {"COORDINATOR_ADDRESS": f"h:{other.getsockname()[1]}", "PROCESS_ID": "0"}).items():
      monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="port cannot be opened") as caught:
      distributed.start()
    assert "COORDINATOR_ADDRESS" in caught.value.fix


def test_a_coordinator_on_a_host_without_ipv6(monkeypatch):
  class Socket(socket.socket):
    def __init__(self, family=socket.AF_INET, *arguments, **options):
      if family == socket.AF_INET6:
        raise OSError("Address family not supported by protocol")
      super().__init__(family, *arguments, **options)

  monkeypatch.setattr(socket, "socket", Socket)
  distributed._check_port(0)  # any that is free


DEVICES = {  # (environment, jax's backend or what it raises) -> words of the error; none = fine
  "CPU asked for": ({"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "0"}, "cpu", ()),
  "nothing asked for": ({}, "cpu", ()),
  "GPUs, and they are there": ({"CUDA_VISIBLE_DEVICES": "0,1"}, "gpu", ()),
  "GPUs that jax does not see": ({"CUDA_VISIBLE_DEVICES": "0"}, "cpu", ("CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS=cpu")),
  "GPUs of a SLURM job": ({"SLURM_JOB_GPUS": "2,3"}, "cpu", ("SLURM_JOB_GPUS",)),
  "no GPUs by SLURM": ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, "cpu", ()),
  "no GPUs by -1": ({"CUDA_VISIBLE_DEVICES": "-1"}, "cpu", ()),
  "CUDA asked for": ({"JAX_PLATFORMS": "cuda"}, RuntimeError("Unable to initialize backend 'cuda': no driver\nmore"),
                     ("JAX_PLATFORMS='cuda'", "no driver", "unset JAX_PLATFORMS")),
  "a platform that is none": ({"JAX_PLATFORMS": "gpux"}, RuntimeError("Unknown backend gpux"), ("gpux",)),
}


@pytest.mark.parametrize("name", DEVICES)
def test_devices_that_the_environment_asks_for(monkeypatch, name):
  variables, backend, words = DEVICES[name]
  for variable in ("JAX_PLATFORMS", *distributed.GPUS):
    monkeypatch.delenv(variable, raising=False)
  for variable, value in variables.items():
    monkeypatch.setenv(variable, value)

  def default_backend():
    if isinstance(backend, Exception):
      raise backend
    return backend

  monkeypatch.setattr(jax, "default_backend", default_backend)
  if not words:
    distributed.check_devices()
    return
  with pytest.raises(UserError) as caught:
    distributed.check_devices()
  assert all(word in str(caught.value) for word in words) and str(caught.value).count("\n") == 3


KEYS = {  # environment -> part of the error; None = fine
  "no key": ({}, "WANDB_API_KEY"), "a key that is cut": ({"WANDB_API_KEY": "abc"}, "40"),
  "an empty key": ({"WANDB_API_KEY": ""}, "wandb login"), "offline": ({"WANDB_MODE": "offline"}, None),
  "disabled": ({"WANDB_MODE": "disabled"}, None), "dryrun": ({"WANDB_MODE": "dryrun"}, None),
}


LOGIN = """
import json, os, sys
import jax, wandb
from ml_collections import ConfigDict
from electra_jax import main, metrics
cases, log = json.loads(sys.argv.pop()), ConfigDict(dict(tensorboard=False, wandb_project="p"))
for name, variables in cases.items():
  if os.fork():
    print(os.waitstatus_to_exitcode(os.wait()[1]))
  else:
    os.environ.update(variables)
    os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), 2)
    main.run(lambda argv: metrics.check_services(log), "")
"""


@pytest.fixture(scope="module")
def after_login(tmp_path_factory):
  """{case: (exit status, what is said)}; each in a process of its own, behind one import of the package and wandb."""
  pytest.importorskip("wandb")
  folder = tmp_path_factory.mktemp("keys")
  kept = {name: value for name, value in os.environ.items() if name not in ("WANDB_MODE", "WANDB_API_KEY", "NETRC")}
  done = subprocess.run([sys.executable, "-c", LOGIN, json.dumps({name: row[0] for name, row in KEYS.items()})],
                        cwd=folder, env=kept | {"HOME": str(folder), "PYTHONPATH": str(ROOT)}, text=True,
                        capture_output=True, stdin=subprocess.DEVNULL, timeout=120)
  statuses = [int(line) for line in done.stdout.split()]
  assert len(statuses) == len(KEYS), done.stdout + done.stderr
  return {name: (status, (folder / name).read_text()) for name, status in zip(KEYS, statuses)}


@pytest.mark.parametrize("name", KEYS)
def test_wandb_without_a_key(after_login, name):
  part, (status, said) = KEYS[name][1], after_login[name]
  assert status == (0 if part is None else 2), said
  assert part is None or (part in said and "Traceback" not in said)


def test_wandb_that_is_not_installed_is_missed_at_once(monkeypatch):
  monkeypatch.setitem(sys.modules, "wandb", None)
  with pytest.raises(UserError, match="wandb is not installed"):
    metrics.check_installed(ConfigDict(dict(wandb_project="p")))
