"""Memory and speed of a recipe on a TPU slice that is not here: its real train step, compiled."""

import math
import re
import sys
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax
from absl import flags
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from electra_jax import config as config_lib
from electra_jax import flops, sharding
from electra_jax import main as main_lib
from electra_jax.errors import UserError
from electra_jax.tools import compile_collectives, compile_kernels, compile_program, compile_roofline
from electra_jax.tools.compile_roofline import CHIPS, Chip, Roofline
from electra_jax.training import memory
from electra_jax.training.memory import StepMemory

FLAGS = flags.FLAGS
flags.adopt_module_key_flags(main_lib)  # --config appears in --help
flags.DEFINE_string("topology", None, "The slice: v4:4x4x4, v5e:16x16, v5p:4x4x8, v6e:8x8; or cpu:8, fake CPU devices.")
flags.DEFINE_integer("slices", 1, "So many of these slices, joined by their hosts' network; they share the data axis.",
                     lower_bound=1)
flags.DEFINE_multi_string("mesh", [], "Axes that differ from data=-1,fsdp=1,tensor=1, as in --mesh=fsdp=16,tensor=2; "
                          "several are compared. Without it, the recipe's mesh.")
flags.DEFINE_bool("kernels", False, "Also print the cycles that a TPU's compiler expects of each part of the model.")

USAGE = """Compiles the train step of a recipe for devices that are not here; no array is made, no hardware is needed.

  python -m electra_jax.tools.compile_check configs/base.py --topology=v5e:4x4
  python -m electra_jax.tools.compile_check configs/large.py --topology=v5e:16x16 --mesh=fsdp=1 --mesh=fsdp=16
  python -m electra_jax.tools.compile_check configs/roberta_large.py --topology=v5e:16x16 --config.train.remat=full
  python -m electra_jax.tools.compile_check configs/base.py --topology=v5e:2x2 --kernels
  python -m electra_jax.tools.compile_check configs/large.py --topology=v5e:8x8 --slices=4
  python -m electra_jax.tools.compile_check configs/tiny.py --topology=cpu:8 --mesh=fsdp=4,tensor=2

For each mesh: the memory of a chip against what it has, operations and bytes by the compiler's count, the collectives
of the program, and the time of a step with its MFU, twice. At best: by data sheet, with each byte of state and
temporaries read and written once; no faster. Expected: the sum of what the compiler expects of its own kernels.
Compiling takes minutes of one core, 4 for ELECTRA-Base, more for large recipes, whatever the slice's size.
TPU slices need the compiler: pip install libtpu==0.0.42.1 (Linux)."""

TRIES_OF_REMAT = {"none": "dots", "all_dots": "dots", "dots": "full"}


class Report(NamedTuple):
  """What one mesh gives; `memory` and what follows is None where the program does not fit."""

  mesh: dict[str, int]
  fault: str  # why it cannot be compiled; "" where it can
  memory: StepMemory | None = None
  program_flops: float = 0.0  # of one device and step
  program_bytes: float = 0.0  # likewise; what stays in the chip's fast memory counts too
  collectives: tuple[compile_collectives.Collective, ...] = ()
  roofline: Roofline | None = None  # None on CPU
  seconds: float = 0.0  # that tracing and compiling took
  parts: Mapping[str, tuple[int, int]] = MappingProxyType({})  # compile_kernels.by_part


def parse_mesh(text: str) -> dict[str, int]:
  """`fsdp=4,tensor=2` as the config's mesh branch; the data axis takes the devices that are left.

  Raises:
    UserError: it names no axis of the mesh, or no whole number.
  """
  mesh = {"data": -1, "fsdp": 1, "tensor": 1}
  for part in text.split(","):
    axis, _, size = part.partition("=")
    if axis not in mesh or not re.fullmatch(r"-1|[1-9]\d*", size):
      raise UserError("--mesh cannot be understood", got=repr(text), allowed="AXIS=SIZE with an axis of "
                      f"{', '.join(mesh)}, joined by commas", fix="for example --mesh=fsdp=4,tensor=2")
    mesh[axis] = int(size)
  if mesh["data"] != -1 or -1 not in (mesh["fsdp"], mesh["tensor"]):
    return mesh
  return mesh | {"data": 1}  # one axis takes the rest


def check(config: ConfigDict, devices: list, chip: Chip | None = None) -> Report:
  """Compiles one mesh and measures the program.

  Args:
    config: a resolved config.
    devices: of `compile_program.make_devices`.
    chip: a row of CHIPS; None for CPU devices.
  """
  start = time.monotonic()
  mesh = dict(sharding.make_mesh(config.mesh, devices).shape)
  state, batch, lowered = compile_program.lower_step(config, devices)
  try:
    compiled = lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    return Report(mesh, compile_program.out_of_memory(str(error)), seconds=time.monotonic() - start)
  seconds = time.monotonic() - start
  step_memory = memory.of_step(state, batch, compiled)
  state_bytes, steps = step_memory.parameters + step_memory.optimizer, config.train.accumulation_steps
  cost = compiled.cost_analysis()  # counts the body of a loop once
  program_flops, program_bytes = steps * cost["flops"], steps * cost["bytes accessed"]
  hlo = compiled.as_text()
  collectives, parts = compile_collectives.parse(hlo, len(devices)), compile_kernels.by_part(hlo)
  roofline = None if chip is None else compile_roofline.estimate(
    chip, num_devices=len(devices), model_flops=flops.model_flops(config).per_step, program_flops=program_flops,
    least_bytes=2 * (state_bytes + steps * step_memory.temporaries), collectives=collectives,
    kernel_cycles=sum(cycles for _, cycles in parts.values()), slices=sharding.count_slices(devices))
  return Report(mesh, "", step_memory, program_flops, program_bytes, collectives, roofline, seconds, parts)


def verdict(report: Report, config: ConfigDict, hbm: float) -> str:
  """`fits`, or what to change, the cheapest first."""
  if report.memory and report.memory.total <= hbm:
    return "fits"
  rows = config.train.batch_size // config.train.accumulation_steps // (report.mesh["data"] * report.mesh["fsdp"])
  tries = []
  if report.memory is None or report.memory.parameters + report.memory.optimizer > hbm / 2:
    tries.append(f"--mesh=fsdp={2 * report.mesh['fsdp']}")
  if rows > 1:
    tries.append(f"--config.train.accumulation_steps={2 * config.train.accumulation_steps}")
  if config.train.remat in TRIES_OF_REMAT:
    tries.append(f"--config.train.remat={TRIES_OF_REMAT[config.train.remat]}")
  return "does not fit: try " + (", ".join(tries) or f"--mesh=tensor={2 * report.mesh['tensor']}, or a larger slice")


def show(reports: list[Report], config: ConfigDict, devices: list, chip: Chip | None, console: Console) -> None:
  """Prints one table of all meshes, and the collectives of each."""
  hbm = chip.hbm if chip else math.inf
  of = f" of {memory.format_bytes(hbm)}" if chip else ""
  table = Table(title=f"{config.objective.name}, batch {config.train.batch_size} x {config.data.sequence_length} "
                f"tokens, {len(devices)} x {devices[0].device_kind}; each device" + of, title_justify="left")
  for heading in ("mesh", "state", "temporaries", "total", "TFLOP", "GB moved", "GB sent", "at best", "by its",
                  "expected", "compiled in", "verdict"):
    table.add_column(heading, overflow="fold")
  for report in reports:
    ending = (f"{report.seconds:.0f} s", verdict(report, config, hbm))
    if report.memory is None:
      table.add_row(_mesh_name(report.mesh), "", "", report.fault, *("",) * 6, *ending)
      continue
    needs, roofline, times = report.memory, report.roofline, ("", "", "")
    if roofline:
      times = (_time(roofline.seconds, roofline.needed), roofline.limit,
               _time(roofline.expected_seconds, roofline.needed))
    sizes = (memory.format_bytes(size) for size in (needs.parameters + needs.optimizer, needs.temporaries, needs.total))
    counts = (report.program_flops / 1e12, report.program_bytes / 1e9, sum(c.sent for c in report.collectives) / 1e9)
    table.add_row(_mesh_name(report.mesh), *sizes, *(f"{count:.3g}" for count in counts), *times, *ending)
  console.print(table)
  needed = flops.model_flops(config).per_step / len(devices) / 1e12
  console.print(f"TFLOP by the compiler, of one device and step; matrix products that the step needs: {needed:.3g}. "
                "Percentages are MFU.")
  for report in reports:
    for kind, (times, size, sent) in compile_collectives.totals(report.collectives).items():
      console.print(f"  {_mesh_name(report.mesh)}: {times} x {kind}, {memory.format_bytes(size)}, "
                    f"{memory.format_bytes(sent)} sent by each device"
                    + " to other slices" * (kind == compile_collectives.BETWEEN_SLICES))


def _time(seconds: float, needed: float) -> str:
  return f"{1000 * seconds:.1f} ms, {100 * needed / seconds:.0f} %"


def _mesh_name(mesh: dict[str, int]) -> str:
  return " ".join(f"{axis}={size}" for axis, size in mesh.items())


def main(argv: list[str]) -> None:
  """Entry point."""
  del argv
  if FLAGS.config is None or FLAGS.topology is None:
    raise UserError("What to compile is not clear", got="no --config" if FLAGS.config is None else "no --topology",
                    allowed="a recipe and a slice",
                    fix="python -m electra_jax.tools.compile_check configs/base.py --topology=v5e:4x4")
  jax.config.update("jax_platforms", "cpu")  # whatever this machine has: nothing is computed
  meshes = [parse_mesh(text) for text in FLAGS.mesh] or [FLAGS.config.mesh.to_dict()]
  devices = compile_program.make_devices(FLAGS.topology, FLAGS.slices)
  chip = CHIPS.get(FLAGS.topology.split(":")[0])
  console = Console(highlight=False, width=max(170, Console().width))
  reports = []
  for mesh in meshes:
    FLAGS.config.mesh.update(mesh)
    config = config_lib.resolve(FLAGS.config)
    console.print(f"compiling {len(reports) + 1} of {len(meshes)} meshes: {_mesh_name(mesh)}")
    reports.append(check(config, devices, chip))
  show(reports, config, devices, chip, console)
  for report in reports if FLAGS.kernels else ():
    if report.parts and chip:
      console.print(compile_kernels.table(report.parts, chip.clock, _mesh_name(report.mesh)))


def with_config_flag(argv: list[str]) -> list[str]:
  """`tool configs/base.py --x` as `tool --config=configs/base.py --x`: overrides must come behind the recipe."""
  return [argv[0], f"--config={argv[1]}", *argv[2:]] if argv[1:] and not argv[1].startswith("-") else argv


if __name__ == "__main__":
  sys.argv = with_config_flag(sys.argv)
  main_lib.run(main, USAGE)
