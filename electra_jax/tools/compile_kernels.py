"""Times of the kernels of a compiled program, by the TPU compiler's own estimate.

The compiler writes next to each kernel the cycles that it expects, and chooses kernels by them. They account for the
memory that a kernel really reads, its layout and the vector units, as no data sheet can. For attention's kernels in
Pallas it writes nothing; for these there is our estimate. None of the kernels was timed.
"""

import re
from collections.abc import Iterator, Mapping

from rich.table import Table

from electra_jax.tools import compile_collectives

CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
ATTENTION = re.compile(r"%attention_(forward|backward)[\w.]* = \(\w+\[(\d+),(\d+),(\d+)\]")  # [batch, length, columns]
# Instruction words, one a cycle, of a program of `kernels.tpu_attention`, counted in the compiler's finished schedule
# for v5e, 512 tokens and dropout: outside its loop, and for each of four blocks in it. We assume that memory keeps
# pace. By the same count 128 tokens take 33 (forward) and 40 % more than in proportion, 384 take 19 % more backward.
ATTENTION_SCHEDULES = {"forward": (663, 1154, 128), "backward": (1076, 1500, 384)}  # and the columns of a program
OP_NAME = re.compile(r'\bop_name="([^"]*)"')

# Part of a model -> regex for op_names. A kernel belongs to the first part that matches; a fusion has a single name,
# mostly that of a product.
PARTS = {
  "attention, weights": r"/attention/(.*/)?(weights|attention_(forward|backward))/",
  "norms, dropout": r"/(norm|layer_norm|layernorm|dropout|output_dropout)[./]",
  "attention, linear maps": r"/attention/",
  "feed-forward": r"/feed_forward/",
  "embeddings": r"/embeddings(_project)?[./]",
  "heads, loss, sampling": r"jvp\(",
  "optimizer, metrics": r"./",
  "copies between layouts": "",
}


def by_part(hlo: str) -> dict[str, tuple[int, int]]:
  """Part of the model -> (kernels that a step runs, their cycles), in the order of PARTS.

  Left out: collectives, copies that run next to the kernels, and the few kernels without an estimate (on a CPU all).
  For attention in Pallas the estimate is ours for v5e, whatever the chip.

  Args:
    hlo: `compiled.as_text()`.
  """
  counts = dict.fromkeys(PARTS, (0, 0))
  for name, times, cycles in _kernels(hlo):
    part = next(part for part, pattern in PARTS.items() if re.search(pattern, name))
    counts[part] = (counts[part][0] + times, counts[part][1] + cycles)
  return {part: count for part, count in counts.items() if count[0]}


def table(parts: Mapping[str, tuple[int, int]], clock: float) -> Table:
  """A table of the times of the parts from `by_part`; `clock` is the chip's, in cycles/s."""
  shown = Table(title="Kernels of a step, as the compiler expects them", title_justify="left")
  for heading in ("part", "kernels", "cycles", "ms", "%"):
    shown.add_column(heading, justify="left" if heading == "part" else "right")
  total = sum(cycles for _, cycles in parts.values())
  for part, (kernels, cycles) in parts.items():
    shown.add_row(part, str(kernels), f"{cycles:,}", f"{1000 * cycles / clock:.2f}", f"{100 * cycles / total:.1f}")
  shown.add_section()
  shown.add_row("all", str(sum(kernels for kernels, _ in parts.values())), f"{total:,}",
                f"{1000 * total / clock:.2f}", "100.0")
  return shown


def _kernels(hlo: str) -> Iterator[tuple[str, int, int]]:
  """(op_name, runs in a step, cycles of all of them) of each kernel."""
  computations, entry = compile_collectives.computations_of(hlo)
  runs = compile_collectives.run_counts(computations, entry)
  for computation, lines in computations.items():
    for line in lines if computation in runs else ():
      noted, attention, name = CYCLES.search(line), ATTENTION.search(line), OP_NAME.search(line)
      cycles = int(noted.group(1)) if noted else _attention_cycles(*attention.groups()) if attention else 0
      if cycles:
        yield name.group(1) if name else "", runs[computation], runs[computation] * cycles


def _attention_cycles(direction: str, batch: str, length: str, columns: str) -> int:
  """Our estimate for one call of a kernel of `kernels.tpu_attention`."""
  outside, inside, width = ATTENTION_SCHEDULES[direction]
  blocks = int(length) // 128
  return int(batch) * int(columns) // width * (outside + blocks * inside) * blocks // 4
