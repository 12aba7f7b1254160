"""Lower bounds of the time of a compiled training step on a chip: arithmetic, memory, interconnect."""

from dataclasses import dataclass
from types import MappingProxyType

from electra_jax import flops
from electra_jax.tools.compile_collectives import BETWEEN_SLICES, Collective
from electra_jax.training import memory


@dataclass(frozen=True)
class Chip:
  """One chip, from the vendor's data sheet (Cloud TPU's "System architecture" pages)."""

  device_kind: str  # of flops.HARDWARE_PEAKS
  hbm: int  # bytes
  hbm_rate: float  # bytes/s
  link_rate: float  # bytes/s that one link of the interconnect sends
  dimensions: int  # of the torus, with two links each
  largest: int  # chips of the largest slice
  clock: float  # cycles/s: the peak divided by the operations of the matrix units in a cycle

  @property
  def peak(self) -> float:
    """Dense bfloat16 FLOP/s."""
    return flops.HARDWARE_PEAKS[self.device_kind]


CHIPS = MappingProxyType({
  "v4": Chip("TPU v4", 32 * memory.GIB, 1228e9, 50e9, 3, 4096, 1.05e9),  # 2400 Gbit/s over six links
  "v5e": Chip("TPU v5e", 16 * memory.GIB, 819e9, 50e9, 2, 256, 1.5e9),  # 1600 Gbit/s over four links
  "v5p": Chip("TPU v5p", 95 * memory.GIB, 2765e9, 100e9, 3, 6144, 1.75e9),  # 4800 Gbit/s over six links
  "v6e": Chip("TPU v6e", 32 * memory.GIB, 1640e9, 100e9, 2, 256, 1.75e9),  # 3200 Gbit/s over four links
})


@dataclass(frozen=True)
class Roofline:
  """Lower bounds of a step's time in seconds, each if everything else overlaps."""

  compute: float
  hbm: float
  interconnect: float
  needed: float  # of the products that the step needs, at the peak
  kernels: float = 0.0  # by the compiler's own estimate, see compile_kernels; 0 if there is none

  @property
  def seconds(self) -> float:
    """The least time of a step."""
    return max(self.compute, self.hbm, self.interconnect)

  @property
  def expected_seconds(self) -> float:
    """Its time by the compiler's estimate for the kernels, if everything else overlaps with them."""
    return max(self.seconds, self.kernels)

  @property
  def limit(self) -> str:
    """The name of the bound that is `seconds`."""
    return max(("compute", "hbm", "interconnect"), key=lambda name: getattr(self, name))


def estimate(chip: Chip, *, num_devices: int, model_flops: float, program_flops: float, least_bytes: float,
             collectives: tuple[Collective, ...], kernel_cycles: float = 0, slices: int = 1) -> Roofline:
  """The bounds of one step.

  A group of devices that is smaller than the slice sends over one dimension of the torus, two links; all devices
  together send over every dimension. Traffic between slices is left out, since no data sheet has its rate.

  Args:
    chip: a row of CHIPS.
    num_devices: of all slices.
    model_flops: `flops.model_flops(config).per_step`, of all devices.
    program_flops: of one device, by the compiler: with recomputation and elementwise operations.
    least_bytes: of one device: state and temporaries, each written once and read once.
    collectives: of one device.
    kernel_cycles: of one device, all of `compile_kernels.by_part`.
    slices: into which the devices are divided.
  """
  sending = sum(ring.sent / (chip.link_rate * 2 * (chip.dimensions if ring.group == num_devices // slices else 1))
                for ring in collectives if ring.kind != BETWEEN_SLICES)
  needed = model_flops / num_devices / chip.peak
  return Roofline(max(needed, program_flops / chip.peak), least_bytes / chip.hbm_rate, sending, needed,
                  kernel_cycles / chip.clock)
