"""Memory of a program before its machine code is made, where most of a TPU compiler's time goes.

The compiler is asked to note its stages in files, in a process of its own that ends once the memory is assigned.
"""

import glob
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from ml_collections import ConfigDict

from electra_jax import config as config_lib
from electra_jax.tools import compile_collectives, compile_program

PROGRAM, MEMORY = "*jit_update*after_optimizations_after_buffer_assignment.txt", "*jit_update*memory-usage-report.txt"
CHILD = "import sys; from electra_jax.tools import compile_memory; compile_memory.compile_noting(*sys.argv[1:])"

ASSIGNED = re.compile(r"Memory Space: default \(color=0\)\s+Total bytes: (\d+)")
DEFINED = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = \w+\[([\d,]*)\]")
PRODUCT = re.compile(r" convolution\(%?[\w.-]+, %?([\w.-]+)\).*dim_labels=\w+?_(\w+)->")  # of every dot, on TPUs


class Assigned(NamedTuple):
  """A program that is compiled until its memory is assigned."""

  fault: str  # why it cannot be; "" where it can
  total: int = 0  # bytes of the chip's memory, state and batch included; machine code is not
  hlo: str = ""  # optimized and scheduled


def until_assigned(config: ConfigDict, topology: str) -> Assigned:
  """Compiles in a process of its own and ends it once the memory is known.

  Args:
    config: a resolved config that fits the topology.
    topology: a TPU slice of `compile_program.make_devices`.

  Raises:
    RuntimeError: the compiler fails.
  """
  with tempfile.TemporaryDirectory() as folder:
    config_lib.save(os.path.join(folder, "config.json"), config, config)
    with open(os.path.join(folder, "said"), "w+", encoding="utf-8", errors="replace") as said:
      process = subprocess.Popen([sys.executable, "-c", CHILD, folder, topology], stdout=said, stderr=said)
      try:
        found = _wait(process, folder)
      finally:
        process.kill()
        process.wait()
      if found is not None:
        return found
      said.seek(0)
      text = said.read()
    if "RESOURCE_EXHAUSTED" not in text:
      raise RuntimeError(f"the compiler ended with status {process.returncode}: {text[-2000:]}")
    return Assigned(compile_program.out_of_memory(text[text.rindex("RESOURCE_EXHAUSTED"):]))


def _wait(process, folder: str) -> Assigned | None:
  """None if the process ends without an assignment."""
  before = None
  while True:
    ended = process.poll() is not None
    texts = [_read(path) for pattern in (PROGRAM, MEMORY) for path in glob.glob(os.path.join(folder, pattern))]
    total = ASSIGNED.search(texts[-1]) if len(texts) == 2 else None
    if total and (texts == before or ended):  # both are complete
      return Assigned("", int(total.group(1)), texts[0])
    if ended:
      return None
    before = texts
    time.sleep(1)


def _read(path: str) -> str:
  with open(path, encoding="utf-8") as file:
    return file.read()


def compile_noting(folder: str, topology: str) -> None:
  """Compiles the config of a folder, and writes the compiler's stages into it."""
  import jax

  jax.config.update("jax_platforms", "cpu")
  devices = compile_program.make_devices(topology)
  _, _, lower = compile_program.lower_step(config_lib.load(folder), devices)
  lower().compile(compiler_options={"xla_dump_to": folder, "xla_dump_hlo_as_text": "True"})


def product_flops(hlo: str) -> float:
  """Operations of all matrix products of one step, what is computed twice included; nothing elementwise is in it.

  Args:
    hlo: the program of one device.
  """
  computations, entry = compile_collectives.computations_of(hlo)
  runs = compile_collectives.run_counts(computations, entry)
  return sum(runs[name] * _products(lines) for name, lines in computations.items() if name in runs)


def _products(lines: list[str]) -> float:
  """Of one computation."""
  shapes, total = {}, 0.0
  for line in lines:
    defined = DEFINED.match(line)
    if not defined:
      continue
    shapes[defined.group(1)] = shape = [int(size) for size in defined.group(2).split(",") if size]
    product = PRODUCT.search(line)
    if product:
      kernel, labels = shapes[product.group(1)], product.group(2)
      contracted = math.prod(size for size, label in zip(kernel, labels, strict=True) if label == "i")
      total += 2 * math.prod(shape) * contracted * _window(line)
  return total


def _window(line: str) -> int:
  """Values that each window of a convolution adds up beside the contracted axis; 1 where its axes are batches."""
  window = re.search(r"window=\{size=([\dx]+)([^}]*)\}", line)
  is_batch = window is None or any(word in window.group(2) for word in ("pad", "dilate"))
  return 1 if is_batch else math.prod(int(size) for size in window.group(1).split("x"))
