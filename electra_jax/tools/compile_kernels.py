"""Times of the kernels of a compiled program, by the TPU compiler's own estimate.

The compiler writes beside each kernel the cycles that it expects, and chooses kernels by them. They know the memory
that a kernel really reads, its layout and the vector units, which no data sheet does. Nobody has timed them here.
"""

import re

from electra_jax.tools import compile_collectives

CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


def estimated_cycles(hlo: str) -> int:
  """Cycles of all kernels of a step, one after the other; 0 for a program of a CPU, which carries no estimates.

  Not in it: collectives, copies that run beside the kernels, and the few kernels without an estimate.

  Args:
    hlo: `compiled.as_text()`.
  """
  computations, entry = compile_collectives.computations_of(hlo)
  runs = compile_collectives.run_counts(computations, entry)
  return sum(runs.get(name, 0) * int(cycles) for name, lines in computations.items() for line in lines
             for cycles in CYCLES.findall(line))
