"""Reading of checkpoints: metadata, arrays, sums of their bits; damage is told apart from a disk that fails."""

import errno
import json
import os
import re
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from absl import logging
from jaxtyping import PyTree

from electra_jax import sharding
from electra_jax.errors import NoAnswerError, UserError, listed

PAUSES = (1.0, 5.0, 20.0)  # seconds before another try to read what is not known to be damaged
# What TensorStore's ValueErrors begin with, or hold, if a file is missing, too short or not what was written.
_DAMAGE = re.compile(r"(DATA_LOSS|NOT_FOUND|OUT_OF_RANGE|FAILED_PRECONDITION): |.*Error decoding ")


class Damaged(Exception):
  """A checkpoint that is known to be damaged."""


def patiently(read: Callable):
  """What `read` returns, tried again a few times if it fails for a reason that may pass.

  Raises:
    Damaged: what was read is known to be damaged.
    NoAnswerError: the disk still fails.
    Exception: any other, out of memory for example, is raised as it is.
  """
  for pause in (*PAUSES, None):
    try:
      return read()
    except (UserError, Damaged):
      raise
    except Exception as error:
      if is_damage(error):
        raise Damaged(_first_line(error)) from error
      if pause is None:
        if isinstance(error, OSError) or "tensorstore" in str(error):
          raise NoAnswerError("A checkpoint cannot be read at the moment", got=_first_line(error),
                              allowed="a disk that answers; this is no sign of damage",
                              fix="start again when the disk answers; no checkpoint was changed") from error
        raise
      logging.warning("A checkpoint cannot be read, trying again in %g s: %s", pause, _first_line(error))
      time.sleep(pause)


def is_damage(error: Exception) -> bool:
  """Whether a read failed because files are missing, truncated or altered, and for no other reason."""
  if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError | UnicodeDecodeError
                | json.JSONDecodeError):
    return True
  if type(error) is not ValueError:
    return False
  os_error = re.search(r"os_error_code='(\d+)'", str(error))
  if os_error:
    return int(os_error[1]) in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
  return _DAMAGE.match(str(error)) is not None


def _reader() -> ocp.Checkpointer:
  # Composite, although there is one item: the step's folder, which holds the metadata, is what Orbax then opens.
  return ocp.Checkpointer(ocp.CompositeCheckpointHandler(default=ocp.PyTreeCheckpointHandler()))


def read_metadata(path: str) -> tuple[dict, dict[str, int]]:
  """(shapes and types, sums of the bits by path) of the arrays in a checkpoint."""
  try:
    with open(os.path.join(path, "_CHECKPOINT_METADATA"), encoding="utf-8") as file:  # Orbax would hide an I/O error
      sums = json.load(file)["custom_metadata"]["sums"]
    with _reader() as reader:
      tree = reader.metadata(path).item_metadata["default"].tree
    if set(sharding.by_path(tree)) != set(sums):
      raise Damaged("its metadata names other arrays than were saved")
  except (AttributeError, AssertionError, LookupError, TypeError) as error:  # Orbax, of JSON that is not what it wrote
    raise Damaged(f"its metadata cannot be read: {_first_line(error)}") from error
  return tree, sums


def read_parts(path: str, tree: dict, sums: dict[str, int], wanted: dict[str, PyTree]) -> dict[str, PyTree]:
  """Parts of a state, where `wanted` wants them; `tree` and `sums` are its metadata."""
  _check_shapes(tree, wanted, path)
  args = ocp.args.PyTreeRestore(wanted, restore_args=ocp.checkpoint_utils.construct_restore_args(wanted),
                                partial_restore=True)
  with _reader() as reader:
    parts = reader.restore(path, args=ocp.args.Composite(default=args))["default"]
  changed = [name for name, value in examine(parts)[0].items() if sums[name] != value]
  if changed:
    raise Damaged(f"{len(changed)} arrays have changed since they were saved, the first is {changed[0]}")
  return parts


@jax.jit
def _sums_and_finiteness(leaves: list) -> tuple[jax.Array, jax.Array]:
  """For each array, the sum of its bits as integers modulo 2**32 (any flipped bit changes it, no sharding does), and
  whether it is finite; as two arrays, because each fetch costs time.
  """
  unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
  bits = [jax.lax.bitcast_convert_type(x, unsigned[x.dtype.itemsize]) for x in leaves]
  return (jnp.stack([jnp.sum(x.astype(jnp.uint32)) for x in bits]), jnp.stack([jnp.isfinite(x).all() for x in leaves]))


def examine(tree: PyTree) -> tuple[dict[str, int], list[str]]:
  """(sums of the bits by path, paths of what is not finite).

  Compressed chunks have no checksum of their own: a flipped bit would be read unnoticed.
  """
  named = sharding.by_path(tree)
  sums, finite = jax.device_get(_sums_and_finiteness([jnp.asarray(leaf) for leaf in named.values()]))
  return dict(zip(named, map(int, sums), strict=True)), [name for name, fine in zip(named, finite) if not fine]


def _check_shapes(saved: PyTree, wanted: PyTree, path: str) -> None:
  """Orbax would silently cut or pad arrays of another shape."""
  shapes = {sharding.path_name(key): tuple(leaf.shape) for key, leaf in jax.tree_util.tree_leaves_with_path(saved)}
  faults = [f"{name}: {shapes.get(name, 'missing')}, asked for {tuple(leaf.shape)}"
            for key, leaf in jax.tree_util.tree_leaves_with_path(wanted)
            if shapes.get(name := sharding.path_name(key)) != tuple(leaf.shape)]
  if faults:
    raise UserError(f"The checkpoint {path} is of another model", got=listed(faults, most=5),
                    allowed="the parameters that this run has: same sizes, same objective",
                    fix="compare the two config.json, and change the model or the checkpoint")


def _first_line(error: Exception) -> str:
  line = (str(error).splitlines() or ["no message"])[0].split(" [tensorstore_spec")[0]
  return f"{type(error).__name__}: {line if len(line) < 300 else f'{line[:120]} ... {line[-170:]}'}"
