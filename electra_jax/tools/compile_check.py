"""Memory and speed of a recipe on a TPU slice that is not here, from its compiled train step."""

import math
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
flags.DEFINE_integer("slices", 1, "Number of such slices, joined by their hosts' network; they share the data axis.",
                     lower_bound=1)
flags.DEFINE_bool("kernels", False, "Also print the cycles that the TPU compiler expects for each part of the model.")

USAGE = """Compiles the train step of a recipe for devices that are not here; no array is made, no hardware is needed.

  python -m electra_jax.tools.compile_check configs/base.py --topology=v5e:4x4
  python -m electra_jax.tools.compile_check configs/large.py --topology=v5e:16x16 --config.mesh.fsdp=16
  python -m electra_jax.tools.compile_check configs/roberta_large.py --topology=v5e:16x16 --config.train.remat=full
  python -m electra_jax.tools.compile_check configs/base.py --topology=v5e:2x2 --kernels
  python -m electra_jax.tools.compile_check configs/large.py --topology=v5e:8x8 --slices=4
  python -m electra_jax.tools.compile_check configs/tiny.py --topology=cpu:8 --config.mesh.fsdp=4

Prints the memory that a chip needs and has, operations and bytes by the compiler's count, the collectives of the
program, and two estimates of a step's time and MFU. At best: a lower bound from the data sheet, with each byte of state
and temporaries read and written once. Expected: the sum of what the compiler expects of its own kernels.
Compiling takes minutes on one core, 4 for ELECTRA-Base, more for large recipes, whatever the slice's size.
TPU slices need the compiler: pip install libtpu==0.0.42.1 (Linux)."""

TRIES_OF_REMAT = {"none": "dots", "all_dots": "dots", "dots": "full"}


class Report(NamedTuple):
  """The program on a mesh; `memory` is None if it does not fit."""

  mesh: dict[str, int]
  fault: str  # why it cannot be compiled; "" if it can
  memory: StepMemory | None = None
  program_flops: float = 0.0  # of one device and step
  program_bytes: float = 0.0  # likewise, including what stays in the chip's fast memory
  collectives: tuple[compile_collectives.Collective, ...] = ()
  roofline: Roofline | None = None  # None on CPU
  seconds: float = 0.0  # that tracing and compiling took
  parts: Mapping[str, tuple[int, int]] = MappingProxyType({})  # compile_kernels.by_part


def check(config: ConfigDict, devices: list, chip: Chip | None = None) -> Report:
  """Compiles the train step and measures the program.

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
  tries, can_split = [], report.mesh["data"] % 2 == 0
  if can_split and (report.memory is None or report.memory.parameters + report.memory.optimizer > hbm / 2):
    tries.append(f"--config.mesh.fsdp={2 * report.mesh['fsdp']}")
  if rows > 1:
    tries.append(f"--config.train.accumulation_steps={2 * config.train.accumulation_steps}")
  if config.train.remat in TRIES_OF_REMAT:
    tries.append(f"--config.train.remat={TRIES_OF_REMAT[config.train.remat]}")
  last = [f"--config.mesh.tensor={2 * report.mesh['tensor']}"] * can_split + ["a larger slice"]
  return "does not fit: try " + (", ".join(tries) or ", or ".join(last))


def show(report: Report, config: ConfigDict, devices: list, chip: Chip | None, console: Console) -> None:
  """Prints a table and the collectives."""
  hbm = chip.hbm if chip else math.inf
  cells = {"mesh": " ".join(f"{axis}={size}" for axis, size in report.mesh.items())}
  if report.memory:
    cells |= {"state": memory.format_bytes(report.memory.parameters + report.memory.optimizer),
              "temporaries": memory.format_bytes(report.memory.temporaries),
              "total": memory.format_bytes(report.memory.total) + (f" of {memory.format_bytes(hbm)}" if chip else ""),
              "TFLOP": f"{report.program_flops / 1e12:.3g}", "GB moved": f"{report.program_bytes / 1e9:.3g}",
              "GB sent": f"{sum(collective.sent for collective in report.collectives) / 1e9:.3g}"}
  else:
    cells["refused"] = report.fault
  if roofline := report.roofline:
    cells |= {"at best": _time(roofline.seconds, roofline.needed), "by its": roofline.limit,
              "expected": _time(roofline.expected_seconds, roofline.needed)}
  cells |= {"compiled in": f"{report.seconds:.0f} s", "verdict": verdict(report, config, hbm)}
  table = Table(*cells, title=f"{config.objective.name}, batch {config.train.batch_size} x "
                f"{config.data.sequence_length} tokens, {len(devices)} x {devices[0].device_kind}; each device",
                title_justify="left")
  table.add_row(*cells.values())
  console.print(table)
  needed = flops.model_flops(config).per_step / len(devices) / 1e12
  console.print(f"TFLOP by the compiler, of one device and step; matrix products that the step needs: {needed:.3g}."
                + " Percentages are MFU." * bool(roofline))
  for kind, (times, size, sent) in compile_collectives.totals(report.collectives).items():
    console.print(f"  {times} x {kind}, {memory.format_bytes(size)}, {memory.format_bytes(sent)} sent by each device"
                  + " to other slices" * (kind == compile_collectives.BETWEEN_SLICES))


def _time(seconds: float, needed: float) -> str:
  return f"{1000 * seconds:.1f} ms, {100 * needed / seconds:.0f} %"


def main(argv: list[str]) -> None:
  """Entry point."""
  del argv
  if FLAGS.config is None or FLAGS.topology is None:
    raise UserError("What to compile is not clear", got="no --config" if FLAGS.config is None else "no --topology",
                    allowed="a recipe and a slice",
                    fix="python -m electra_jax.tools.compile_check configs/base.py --topology=v5e:4x4")
  jax.config.update("jax_platforms", "cpu")  # whatever this machine has: nothing is computed
  devices = compile_program.make_devices(FLAGS.topology, FLAGS.slices)
  chip, config = CHIPS.get(FLAGS.topology.split(":")[0]), config_lib.resolve(FLAGS.config)
  console = Console(highlight=False, width=max(170, Console().width))
  console.print("compiling")
  report = check(config, devices, chip)
  show(report, config, devices, chip, console)
  if FLAGS.kernels and report.parts and chip:
    console.print(compile_kernels.table(report.parts, chip.clock))


def with_config_flag(argv: list[str]) -> list[str]:
  """`tool configs/base.py --x` as `tool --config=configs/base.py --x`: overrides must come after the recipe."""
  return [argv[0], f"--config={argv[1]}", *argv[2:]] if argv[1:] and not argv[1].startswith("-") else argv


if __name__ == "__main__":
  sys.argv = with_config_flag(sys.argv)
  main_lib.run(main, USAGE)
