"""Contents of checkpoints, differences between two, and the mean of the last ones."""

import math
import os
import re
import shlex
import shutil
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from absl import flags

from electra_jax import config as config_lib
from electra_jax import files, sharding
from electra_jax import main as main_lib
from electra_jax.errors import UserError
from electra_jax.training import checkpoints

FLAGS = flags.FLAGS

USAGE = """Looks into checkpoints, compares two, or averages the last ones of a run.

  What is in the newest:   python -m electra_jax.tools.checkpoints show runs/base
  ... in another:          python -m electra_jax.tools.checkpoints show runs/base/checkpoints/5000
  How do two differ?       python -m electra_jax.tools.checkpoints compare runs/base runs/other
  ... of one run:          python -m electra_jax.tools.checkpoints compare runs/base/checkpoints/{5000,10000}
  Average the last five:   python -m electra_jax.tools.checkpoints average runs/base --last=5 --out=runs/base_average

A run's folder stands for its newest checkpoint. The average is a workdir of its own, without an optimizer's state: read
it with tools/predict and tools/export, or start from it with --config.checkpoint.init_from."""


class Saved(NamedTuple):
  """The parameters of one checkpoint, on the host."""

  name: str  # for the output
  config: dict  # of the run
  params: dict[str, np.ndarray]  # path -> array


def locate(path: str) -> tuple[str, int | None]:
  """(workdir, step) of a run's folder or one of its checkpoints; step None is the newest.

  >>> locate("runs/base/checkpoints/5000/"), locate("runs/base")
  (('runs/base', 5000), ('runs/base', None))
  """
  match = re.fullmatch(r"(.*?)/?checkpoints/(\d+)/*", path)
  return (match.group(1) or ".", int(match.group(2))) if match else (path, None)


def load(path: str) -> Saved:
  """Reads the parameters of a run's checkpoint.

  Raises:
    UserError: there are none, or they are damaged.
  """
  workdir, step = locate(path)
  config = config_lib.load(workdir)
  step, params = checkpoints.load_params(workdir, step=step)
  return Saved(f"{workdir}, step {step}", config.to_dict(),
               {sharding.path_name(key): np.asarray(leaf)
                for key, leaf in jax.tree_util.tree_leaves_with_path(params)})


# ---- show ----


def show(paths: list[str]) -> str:
  """A line for each parameter: shape, type, norm and root mean square; then totals. Raises as `load`."""
  parts = []
  for path in paths:
    saved, squares = load(path), 0.0
    rows: list[tuple[str, ...]] = [("parameter", "shape", "type", "norm", "rms")]
    for name, value in saved.params.items():
      norm = float(np.linalg.norm(value.astype(np.float64)))
      squares += norm**2
      num_bad = int((~np.isfinite(value)).sum())
      rows.append((name, "x".join(map(str, value.shape)) or "-", str(value.dtype), f"{norm:.6g}",
                   f"{num_bad} NOT FINITE" if num_bad else f"{norm / max(1, value.size) ** 0.5:.4g}"))
    total = sum(value.size for value in saved.params.values())
    parts.append(f"{saved.name}\n{columns(rows, '<>><<')}\n"
                 f"{len(saved.params)} arrays, {total:,} parameters, norm {squares**0.5:.6g}")
  return "\n\n".join(parts)


def columns(rows: list[tuple[str, ...]], aligned: str) -> str:
  """Rows as text in columns; `aligned` has < or > for each column."""
  widths = [max(len(row[i]) for row in rows) for i in range(len(aligned))]
  return "\n".join("  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, aligned, widths)).rstrip()
                   for row in rows)


# ---- compare ----


def compare(paths: list[str]) -> str:
  """Which config keys and parameters differ, by how much, largest first; the last line sums up.

  Raises:
    UserError: as `load`, or there are not two checkpoints.
  """
  if len(paths) != 2:
    raise UserError("Comparing needs two checkpoints", got=f"{len(paths)}: {' '.join(paths)}",
                    allowed="two folders of runs or of checkpoints", fix="see --help for an example")
  first, second = map(load, paths)
  a, b = first.params, second.params
  lines = [f"a: {first.name}", f"b: {second.name}"]
  changes = config_lib.diff(first.config, second.config)
  lines += [f"config {key}: {was!r} in a, {now!r} in b" for key, (was, now) in changes.items()]
  rows = []  # (largest difference, cells)
  for name in a | b:
    if name not in a or name not in b:
      rows.append((math.inf, (name, "only in a" if name in a else "only in b", "")))
    elif a[name].shape != b[name].shape:
      rows.append((math.inf, (name, f"shapes {a[name].shape} and {b[name].shape}", "")))
    elif not np.array_equal(a[name], b[name], equal_nan=True):
      change = b[name].astype(np.float64) - a[name]
      scale = max(float(np.linalg.norm(a[name].astype(np.float64))), 1e-30)
      most = float(np.abs(change).max())
      rows.append((most, (name, f"{most:.6g}", f"{float(np.linalg.norm(change)) / scale:.4g}")))
  rows.sort(reverse=True)
  if rows:
    lines.append(columns([("parameter that differs", "largest difference", "norm of the difference / of a"),
                          *(cells for _, cells in rows)], "<>>"))
  lines.append(f"{len(rows)} of {len(a | b)} arrays differ." if rows else "The parameters are equal, bit for bit.")
  return "\n".join(lines)


# ---- average ----


def average(paths: list[str]) -> str:
  """Writes the mean of a run's last --last checkpoints to a new workdir, as the step of the last one.

  The mean is taken in float64. Tokenizer and config are copied; config.json names the averaged steps.

  Raises:
    UserError: there are fewer checkpoints, one is damaged, the run is a fine-tuning, or --out cannot be written.
  """
  if len(paths) != 1 or locate(paths[0])[1] is not None or not FLAGS.out:
    raise UserError("Averaging needs one run and a place for the result", got=f"{' '.join(paths)} --out={FLAGS.out}",
                    allowed="the folder of a run, and --out=NEW_FOLDER", fix="see --help for an example")
  (workdir,) = paths
  config = config_lib.load(workdir)
  if config.task.name:
    raise UserError("The checkpoints of a fine-tuning are of different seeds", got=f"{workdir}: {config.task.name}",
                    allowed="a pre-training", fix="average the pre-training and fine-tune from the result")
  steps = checkpoints.saved_steps(workdir)
  if len(steps) < FLAGS.last:
    raise UserError("The run has too few checkpoints to average", got=f"--last={FLAGS.last}, steps {steps}",
                    allowed=f"2 to {len(steps)}" if len(steps) > 1 else "a run with at least two checkpoints",
                    fix=f"use --last={len(steps)}" if len(steps) > 1 else
                    "train with a larger --config.checkpoint.keep_last")
  steps = steps[-FLAGS.last:]
  with files.new_folder(FLAGS.out) as partial:
    total = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), checkpoints.load_params(workdir, step=steps[0])[1])
    for step in steps[1:]:
      total = jax.tree.map(np.add, total, checkpoints.load_params(workdir, step=step)[1])
    mean = jax.tree.map(lambda leaf: (leaf / len(steps)).astype(np.float32), total)
    shutil.copytree(os.path.join(workdir, "tokenizer"), os.path.join(partial, "tokenizer"))
    files.write_json(os.path.join(partial, "config.json"), config_lib.read_record(workdir) | {
      "average_of": {"workdir": workdir, "steps": steps}})
    checkpoints.save_params(partial, config.checkpoint, steps[-1], mean)
  return (f"Wrote {FLAGS.out}: the mean of the steps {', '.join(map(str, steps))} of {workdir}.\n"
          f'Try it: python -m electra_jax.tools.predict --workdir={shlex.quote(FLAGS.out)} "A sentence."')


COMMANDS: dict[str, Callable[[list[str]], str]] = {"show": show, "compare": compare, "average": average}


def main(argv: list[str]) -> None:
  """Runs the command and prints what it returns."""
  if len(argv) < 3 or argv[1] not in COMMANDS:
    raise UserError("What to do is not clear", got=" ".join(argv[1:]) or "nothing",
                    allowed=f"{', '.join(COMMANDS)}, then folders of runs or checkpoints",
                    fix="python -m electra_jax.tools.checkpoints show runs/tiny")
  main_lib.start_jax()
  print(COMMANDS[argv[1]](argv[2:]))


if __name__ == "__main__":  # flags, too: other tools have some of the same names
  flags.DEFINE_integer("last", 2, "average: how many of the newest checkpoints.", lower_bound=2)
  flags.DEFINE_string("out", None, "average: the new workdir.")
  main_lib.run(main, USAGE, takes_arguments=True)
