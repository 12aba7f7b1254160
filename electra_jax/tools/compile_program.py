"""What is compiled for devices that are not here? A slice of TPUs without its chips, and the train step for it."""

import contextlib
import functools
import math
import os
import re

from electra_jax.errors import UserError

LIBTPU = "libtpu==0.0.42.1"  # what jax 0.10.2 asks for; `pip install "jax[tpu]"` finds that of any other jax
MEGACORE = {"v4": {"chip_config_name": "megacore"}}  # both cores of a chip are one device, as on a TPU VM


def make_devices(topology: str) -> list:
  """The devices of `v5e:16x16` or `cpu:8`; they can be compiled for, not computed on.

  Raises:
    UserError: there is no such slice, or the compiler for TPUs is not installed.
  """
  from electra_jax.tools.compile_roofline import CHIPS

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
  return _cpu_devices(int(sides)) if chip == "cpu" else _tpu_devices(chip, sides)


def _cpu_devices(count: int) -> list:
  import jax

  with contextlib.suppress(RuntimeError):  # jax has started already
    jax.config.update("jax_num_cpu_devices", count)
  devices = jax.devices("cpu")
  if len(devices) < count:
    raise UserError("There are too few CPU devices", got=f"{len(devices)} for cpu:{count}", allowed=f"{count} or more",
                    fix="unset XLA_FLAGS and JAX_NUM_CPU_DEVICES, and start the tool anew")
  return devices[:count]


def _tpu_devices(chip: str, sides: str) -> list:
  try:
    import libtpu  # noqa: F401 - jax loads it
  except ImportError as error:
    raise UserError("The compiler for TPUs is missing", got="no module libtpu", allowed="an installed libtpu (Linux)",
                    fix=f"pip install {LIBTPU}") from error
  from jax.experimental import topologies

  os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # no cloud tells it where it runs
  os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
  os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")  # of this host, which has none: else libtpu complains
  os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # several may compile at once: none touches a chip
  try:
    return list(topologies.get_topology_desc(f"{chip}:{sides}", platform="tpu", **MEGACORE.get(chip, {})).devices)
  except Exception as error:  # jaxlib's own, of several kinds
    raise UserError("libtpu knows no such slice", got=f"{chip}:{sides}: {str(error).splitlines()[0]}",
                    allowed="sides that hosts of 2x2 chips fill, within the chip's largest slice",
                    fix="for example --topology=v5e:2x2, v5e:16x16, v4:2x2x1 or v5p:4x4x8") from error


def lower_step(config, devices: list):
  """(state, batch, lower): of the last phase, for these devices; state and batch are abstract, `lower()` traces.

  Args:
    config: a resolved config.

  Raises:
    UserError: the mesh, the batch or the sizes do not fit the devices.
  """
  import jax
  import jax.numpy as jnp
  import numpy as np

  from electra_jax import objectives, optim, pretrain, sharding, train_state
  from electra_jax.models.bert import make_transformer_config

  mesh = sharding.make_mesh(config.mesh, devices)
  steps = config.train.accumulation_steps
  sharding.check_batch_size(config.train.batch_size // steps, mesh, "train.batch_size / train.accumulation_steps")
  transformer = make_transformer_config(config.model, num_tokens=config.data.tokenizer.vocab_size,
                                        dtype=config.train.compute_dtype, remat=config.train.remat)
  objective = objectives.make(transformer, config.generator, config.objective, config.train.num_steps,
                              np.ones(config.data.tokenizer.vocab_size, int))
  tx, _ = optim.make(config.optimizer, config.train.num_steps)
  # `auto` asks for the backend of this process; it must be that of the target.
  impl = config.train.prng_impl
  if impl == "auto":
    impl = "threefry2x32" if devices[0].platform == "cpu" else "rbg"
  key = jax.random.key(config.seed, impl=impl)
  shapes = batch_shapes(config)
  example = {name: jnp.zeros((1, *shape[1:]), dtype) for name, (shape, dtype) in shapes.items()}
  state = train_state.abstract_state(functools.partial(objective.init, key, example), tx, mesh,
                                     **train_state.parts(config.train))
  batch = {name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding.batch_sharding(mesh))
           for name, (shape, dtype) in shapes.items()}

  def lower():
    with jax.set_mesh(mesh):
      step = pretrain.make_train_step(state, objective=objective, phase=objective.phases[-1], tx=tx, rng=key,
                                      accumulation_steps=steps, **pretrain.step_options(config))
      return step.lower(state, batch)

  return state, batch, lower


def batch_shapes(config) -> dict[str, tuple[tuple[int, ...], type]]:
  """Name -> (shape, dtype) of the arrays of a global batch."""
  import numpy as np

  from electra_jax.data.pipeline import BATCH_DTYPES

  rows, length, slots = config.train.batch_size, config.data.sequence_length, config.data.masking.max_predictions
  shapes = {name: ((rows, slots if name in ("masked_positions", "masked_ids", "masked_weights") else length), dtype)
            for name, dtype in BATCH_DTYPES.items()}
  if config.data.format in ("SEGMENT-PAIR", "SENTENCE-PAIR"):
    shapes["nsp_label"] = ((rows,), np.int32)
  return shapes


def out_of_memory(message: str) -> str:
  """What the compiler says that a program lacks, in a few words.

  >>> out_of_memory("RESOURCE_EXHAUSTED: the total memory required for HLO temporaries (19.58G) exceeds HBM (15.75G).")
  'temporaries 19.58G of 15.75G'
  """
  temporaries = re.search(r"temporaries \(([\d.]+\w)\) exceeds[^(]*\(([\d.]+\w)\)", message)
  if temporaries:
    return "temporaries {} of {}".format(*temporaries.groups())
  used = re.search(r"Used ([\d.]+\w) of ([\d.]+\w)", message)
  return "{} of {}".format(*used.groups()) if used else message.splitlines()[0]
