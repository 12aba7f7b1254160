"""Programs for devices that are not here: descriptions of TPU slices, and the train step lowered for them."""

import contextlib
import math
import os
import re
from typing import Any

import jax
from ml_collections import ConfigDict

from electra_jax.errors import UserError
from electra_jax.tools.compile_roofline import CHIPS
from electra_jax.training import setup
from electra_jax.training.train_state import TrainState

LIBTPU = "libtpu==0.0.42.1"  # what jax 0.10.2 needs; `pip install "jax[tpu]"` finds that of another version
MEGACORE = {"v4": {"chip_config_name": "megacore"}}  # both cores of a chip are one device, as on a TPU VM


def make_devices(topology: str, slices: int = 1) -> list:
  """The devices of slices such as `v5e:16x16`, or of `cpu:8`, to compile for but not to compute on.

  Raises:
    UserError: there is no such slice, or the compiler for TPUs is not installed.
  """
  match = re.fullmatch(r"(\w+):(\d+(?:x\d+)*)", topology or "")
  chip, sides = match.groups() if match else ("", "")
  wanted = 1 if chip == "cpu" else CHIPS[chip].dimensions if chip in CHIPS else 0
  if not wanted or len(sides.split("x")) != wanted or "0" in sides.split("x"):
    raise UserError("--topology names no slice", got=repr(topology), allowed=f"CHIP:SIDES with a chip of "
                    f"{', '.join(CHIPS)} and two sides (v5e, v6e) or three (v4, v5p); or cpu:NUMBER",
                    fix="for example --topology=v5e:16x16, v5p:4x4x8 or cpu:8")
  count = math.prod(int(side) for side in sides.split("x"))
  if chip != "cpu" and count > CHIPS[chip].largest:
    raise UserError("No slice is that large", got=f"{count} chips in {topology}",
                    allowed=f"at most {CHIPS[chip].largest} chips of {chip}",
                    fix="choose smaller sides; for example --topology=v5e:16x16 or v5p:8x8x16")
  if chip == "cpu" and slices > 1:
    raise UserError("CPU devices are in no slices", got=f"--slices={slices} of {topology}", allowed="--slices=1",
                    fix="leave out --slices, or choose a TPU's topology")
  return _cpu_devices(int(sides)) if chip == "cpu" else _tpu_devices(chip, sides, slices)


def _cpu_devices(count: int) -> list:
  with contextlib.suppress(RuntimeError):  # jax has started already
    jax.config.update("jax_num_cpu_devices", count)
  devices = jax.devices("cpu")
  if len(devices) < count:
    raise UserError("There are too few CPU devices", got=f"{len(devices)} for cpu:{count}", allowed=f"{count} or more",
                    fix="unset XLA_FLAGS and JAX_NUM_CPU_DEVICES, and start the tool anew")
  return devices[:count]


def _tpu_devices(chip: str, sides: str, slices: int) -> list:
  try:
    import libtpu  # noqa: F401 - jax loads it  # ty: ignore[import-not-found]
  except ImportError as error:
    raise UserError("The compiler for TPUs is missing", got="no module libtpu", allowed="an installed libtpu (Linux)",
                    fix=f"pip install {LIBTPU}") from error
  from jax.experimental import topologies

  os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # there is no cloud to ask where it runs
  os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
  os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")  # of this host, which has none: else libtpu complains
  os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # several processes may compile at once, without chips
  try:
    return list(topologies.get_topology_desc(f"{chip}:{sides}", platform="tpu", num_slices=slices,
                                             **MEGACORE.get(chip, {})).devices)
  except Exception as error:  # jaxlib's own, of several kinds
    raise UserError("libtpu knows no such slice", got=f"{chip}:{sides}: {str(error).splitlines()[0]}",
                    allowed="sides that hosts of 2x2 chips fill, within the chip's largest slice",
                    fix="for example --topology=v5e:2x2, v5e:16x16, v4:2x2x1 or v5p:4x4x8") from error


def lower_step(config: ConfigDict, devices: list) -> tuple[TrainState, dict, Any]:
  """(state, batch, train step of the last phase, lowered) for these devices; state and batch are abstract.

  Args:
    config: a resolved config.

  Raises:
    UserError: the mesh, the batch or the sizes do not fit the devices.
  """
  mesh = setup.make_mesh(config, devices)
  run = setup.make(config, mesh)
  batch = run.abstract_batches(1)
  with jax.set_mesh(mesh):
    return run.abstract_state, batch, run.train_step(run.objective.phases[-1]).lower(run.abstract_stacked, batch)


def out_of_memory(message: str) -> str:
  """The compiler's message about a lack of memory, in a few words.

  >>> out_of_memory("RESOURCE_EXHAUSTED: the total memory required for HLO temporaries (19.58G) exceeds HBM (15.75G).")
  'temporaries 19.58G of 15.75G'
  """
  temporaries = re.search(r"temporaries \(([\d.]+\w)\) exceeds[^(]*\(([\d.]+\w)\)", message)
  if temporaries:
    return "temporaries {} of {}".format(*temporaries.groups())
  used = re.search(r"Used ([\d.]+\w) of ([\d.]+\w)", message)
  return "{} of {}".format(*used.groups()) if used else message.splitlines()[0]
