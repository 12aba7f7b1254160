"""Collectives of a compiled program: how often they run and how many bytes they move."""

import dataclasses
import math
import re

BETWEEN_SLICES = "send"  # to the host, whose network joins slices; sums within slices are separate collectives
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", BETWEEN_SLICES)

COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{\s*(?:/\*.*\*/)?$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = (.*?) (" + "|".join(KINDS) + r")(-start)?\(")
SHAPE = re.compile(r"\b(pred|[a-z]+\d\w*)\[([\d,]*)\]")
WHILE = re.compile(r" while\(.*?condition=%?([\w.-]+)")
MESH_GROUPS = re.compile(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}")  # mesh['a'=4,'b'=2] {'b'}
MESH_AXIS = re.compile(r"('[^']+')(?::\(\d+\)(\d+))?")  # 'a', or 'a':(2)4 for a part of 4 of it
TRIP_COUNT = re.compile(r'"known_trip_count":\s*\{"n":\s*"(\d+)"')
LESS_THAN = re.compile(r"ROOT .* compare\(.*?, (?:\S+ )?(%?[\w.-]+)\), direction=LT")
CALLED = re.compile(r"(?:calls|to_apply|body|condition|called_computations|branch_computations|(?:true|false|async)"
                    r"_computation)="
                    r"(?:\{([^}]*)\}|(%?[\w.-]+))")


@dataclasses.dataclass(frozen=True)
class Collective:
  """A collective in the program of one device."""

  kind: str  # of KINDS
  size: int  # bytes of its result on this device; of a reduce-scatter, of its operand
  group: int  # devices in a group
  times: int  # runs per step: those of the loop around it

  @property
  def sent(self) -> float:
    """Bytes that this device sends in a step by the ring algorithm, which goes around twice for an all-reduce."""
    rounds = 2 if self.kind == "all-reduce" else 1
    share = 1 if self.kind in ("collective-permute", BETWEEN_SLICES) else (self.group - 1) / self.group
    return rounds * share * self.size * self.times


def parse(hlo: str, num_devices: int) -> tuple[Collective, ...]:
  """The collectives of a compiled program, `compiled.as_text()`.

  A collective that the TPU compiler spreads over several fusions has one channel and counts once; reduce-scatters that
  share a channel count each.
  """
  computations, entry = computations_of(hlo)
  times = run_counts(computations, entry)
  by_channel = {}
  for name, lines in computations.items():
    for number, line in enumerate(lines):
      match = INSTRUCTION.match(line)
      if match and times.get(name):
        channel = re.search(r"channel_id=(\d+)", line)
        collective = _collective(match, line, times[name], num_devices)
        key = (match.group(2), channel.group(1)) if channel else (name, number)
        if name.startswith("all-reduce-scatter"):  # a TPU's reduce-scatter: a fusion of a sum and what is kept of it
          collective, key = dataclasses.replace(collective, kind="reduce-scatter"), (name, number)
        by_channel.setdefault(key, collective)
  return tuple(collective for collective in by_channel.values() if collective.group > 1)


def totals(collectives: tuple[Collective, ...]) -> dict[str, tuple[int, int, float]]:
  """Kind -> (runs per step, bytes of the arrays, bytes that a device sends), in the order of KINDS."""
  result = {}
  for kind in KINDS:
    own = [collective for collective in collectives if collective.kind == kind]
    if own:
      result[kind] = (sum(c.times for c in own), sum(c.size * c.times for c in own), sum(c.sent for c in own))
  return result


def _collective(match: re.Match, line: str, times: int, num_devices: int) -> Collective:
  shapes, kind, started = match.groups()
  sizes = [_bytes(*shape) for shape in SHAPE.findall(shapes)]
  if kind == BETWEEN_SLICES:
    sizes = sizes[:1]  # (operand, a word of context)
  elif started and kind == "collective-permute":
    sizes = sizes[1:2]  # (operand, result, two words of context)
  elif started and kind != "all-reduce":
    sizes = sizes[len(sizes) // 2:]  # (operands, results)
  group = 2 if kind in ("collective-permute", BETWEEN_SLICES) else _group_size(line, num_devices)
  return Collective(kind, sum(sizes) * (group if kind == "reduce-scatter" else 1), group, times)


def _bytes(dtype: str, dimensions: str) -> int:
  bits = 8 if dtype == "pred" else int(re.findall(r"\d+", dtype)[0])
  return math.prod(int(size) for size in dimensions.split(",") if size) * bits // 8


def _group_size(line: str, num_devices: int) -> int:
  """Devices in a group; all of them if the program names none."""
  over_axes = MESH_GROUPS.search(line)
  if over_axes:
    sizes = {name: int(size) for name, size in re.findall(r"('[^']+')=(\d+)", over_axes.group(1))}
    return math.prod(int(part) if part else sizes[name] for name, part in MESH_AXIS.findall(over_axes.group(2)))
  iota = re.search(r"replica_groups=\[(\d+),(\d+)\]<=", line)  # groups, devices of each
  if iota:
    return int(iota.group(2))
  listed = re.search(r"replica_groups=\{\{([\d,]+)\}", line)
  return len(listed.group(1).split(",")) if listed else num_devices


def computations_of(hlo: str) -> tuple[dict[str, list[str]], str]:
  """Name -> lines of every computation, and the name of the entry computation."""
  computations, entry, name = {}, "", ""
  for line in hlo.splitlines():
    head = COMPUTATION.match(line)
    if head:
      name = head.group(2)
      computations[name] = []
      entry = name if head.group(1) else entry
    elif line.startswith("}"):
      name = ""
    elif name:
      computations[name].append(line)
  return computations, entry


def run_counts(computations: dict[str, list[str]], entry: str) -> dict[str, int]:
  """Name -> how often a computation runs in a step at most; a loop of unknown length counts once."""
  times, waiting = {entry: 1}, [entry]
  while waiting:
    name = waiting.pop()
    for line in computations.get(name, ()):
      loop = WHILE.search(line)
      trips = _trips(line, computations.get(loop.group(1), [])) if loop else 1
      for called in (part.strip(" %") for names in CALLED.findall(line) for part in "".join(names).split(",")):
        count = times[name] * trips
        if called in computations and times.get(called, 0) < count:
          times[called] = count
          waiting.append(called)
  return times


def _trips(line: str, condition: list[str]) -> int:
  """Trips of a loop: those that the compiler notes, else the constant of a condition `i < constant`, else 1."""
  noted = TRIP_COUNT.search(line)
  if noted:
    return int(noted.group(1))
  limit = next((match.group(1) for match in map(LESS_THAN.search, condition) if match), None)
  for text in condition if limit else ():
    constant = re.match(rf"\s+{re.escape(limit or '')} = \w+\[\]\S* constant\((\d+)\)", text)
    if constant:
      return max(1, int(constant.group(1)))
  return 1
