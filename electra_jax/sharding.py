"""Sharding: one mesh data x fsdp x tensor, one table of rules, one function that places batches."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from electra_jax.errors import UserError

MESH_AXES = ("data", "fsdp", "tensor")

# Logical axis -> mesh axis. `None` (and any axis not named here) is replicated.
RULES: dict[str, Any] = {
  "batch": ("data", "fsdp"),
  "embed": "fsdp",
  "hidden": "fsdp",
  "heads": "tensor",
  "mlp": "tensor",
  "vocab": "tensor",
}

# Parameter path (regular expression, whole match) -> logical axes. Each parameter matches exactly one row.
PARAMETER_AXES = (
  (r".*/embeddings/token/embedding", ("vocab", "embed")),
  (r".*/embeddings/(position|token_type)/embedding", (None, "embed")),
  (r".*/embeddings_project/kernel", (None, "hidden")),
  (r".*/attention/(query|key|value)/kernel", ("hidden", "heads")),
  (r".*/attention/(query|key|value)/bias", ("heads",)),
  (r".*/attention/output/kernel", ("heads", "hidden")),
  (r".*/feed_forward/intermediate/kernel", ("hidden", "mlp")),
  (r".*/feed_forward/intermediate/bias", ("mlp",)),
  (r".*/feed_forward/output/kernel", ("mlp", "hidden")),
  (r".*/((mlm_head|rtd_head|sentence_head)/dense|nsp_head/pooler)/kernel", ("hidden", None)),
  (r".*/(rtd_head|sentence_head|nsp_head|copy_head|baseline_head)/output/kernel", ("hidden", None)),
  (r".*/mlm_head/output_bias", ("vocab",)),
  (r".*/(attention|feed_forward)/output/bias", (None,)),
  (r".*/(embeddings_project|(mlm_head|rtd_head|sentence_head)/dense|nsp_head/pooler)/bias", (None,)),
  (r".*/(rtd_head|sentence_head|nsp_head|copy_head|baseline_head)/output/bias", (None,)),
  (r".*/layer_norm/(scale|bias)", (None,)),
  # Heads of fine-tuning
  (r".*/(classification_head|multiple_choice_head|joint_span_head)/dense/kernel", ("hidden", None)),
  (r".*/(classification_head|multiple_choice_head|tagging_head|(joint_)?span_head|answerable_head)/output/kernel",
   ("hidden", None)),
  (r".*/(classification_head|multiple_choice_head|tagging_head|(joint_)?span_head|answerable_head)/(dense|output)/bias",
   (None,)),
  (r".*/joint_span_head/start/kernel", ("hidden", None)),
  (r".*/joint_span_head/start/bias", (None,)),
)


def make_mesh(sizes: dict[str, int], devices: list[jax.Device] | None = None) -> Mesh:
  """The mesh of a config's `mesh` branch; -1 takes the devices that are left.

  Devices of several TPU slices share the data axis, slice after slice: only sums of gradients go between slices.

  Raises:
    UserError: the product of the axes is not the device count, or slices cannot share the data axis.
  """
  devices = jax.devices() if devices is None else devices
  shape = [sizes[axis] for axis in MESH_AXES]
  if -1 in shape:
    shape[shape.index(-1)] = len(devices) // math.prod(size for size in shape if size != -1)
  if math.prod(shape) != len(devices):
    raise UserError("The mesh does not use every device", got=f"{dict(sizes)} on {len(devices)} devices",
                    allowed="data x fsdp x tensor = the device count; one axis may be -1",
                    fix="set --config.mesh.data=-1, and fsdp and tensor to divisors of the device count")
  types = (AxisType.Auto,) * 3
  slices = count_slices(devices)
  if slices == 1:
    return jax.make_mesh(tuple(shape), MESH_AXES, axis_types=types, devices=devices)
  if shape[0] % slices:
    raise UserError("The data axis cannot be divided over the slices", got=f"{shape[0]} over {slices} slices",
                    allowed=f"multiples of {slices}: fsdp and tensor stay within a slice",
                    fix="set --config.mesh.data=-1, and fsdp and tensor to divisors of a slice's device count")
  return Mesh(mesh_utils.create_hybrid_device_mesh((shape[0] // slices, *shape[1:]), (slices, 1, 1), devices),
              MESH_AXES, axis_types=types)


def count_slices(devices: Sequence[jax.Device]) -> int:
  """TPU slices that devices are of, joined by their hosts' network; 1 for devices of other kinds."""
  return len({getattr(device, "slice_index", 0) for device in devices})


def gather(tree: PyTree) -> PyTree:
  """Host arrays of a tree on the devices; every process gets them whole."""
  if jax.process_count() > 1:
    from jax.experimental import multihost_utils
    tree = multihost_utils.process_allgather(tree, tiled=True)
  return jax.device_get(tree)


def partition_spec(*logical_axes: str | None) -> PartitionSpec:
  """Mesh axes of an array whose dimensions carry these logical axes.

  >>> tuple(partition_spec("batch", None, "mlp"))
  (('data', 'fsdp'), None, 'tensor')
  """
  return PartitionSpec(*(RULES.get(axis) for axis in logical_axes))


def constrain(x: Array, *logical_axes: str | None) -> Array:
  """Tells the compiler how an activation is split; without a mesh (unit tests) it does nothing."""
  if jax.sharding.get_abstract_mesh().empty:
    return x
  return jax.lax.with_sharding_constraint(x, partition_spec(*logical_axes))


def on_local_rows(call: Callable, arrays: tuple[Array, ...], others: tuple[Array, ...], *, features: str | None = None,
                  sums: bool = True):
  """Runs a kernel, which the compiler cannot split, on each device's rows of [batch, length, features].

  Args:
    call: (first row, *arrays, *others) -> arrays of the same rows, and, with `sums`, a sum over the rows at the end;
      the first row is this device's place among all batch x length.
    arrays: split over the batch, and over `features` where it is a logical axis of RULES.
    others: the same everywhere, but split over `features`, too.
    features: logical axis of the last dimension of the arrays, of the others and of the sum.
    sums: whether there is such a sum.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.size == 1:
    return call(jnp.zeros((), jnp.uint32), *arrays, *others)
  axes = batch_axes(mesh, arrays[0].shape[0])
  rows = PartitionSpec(axes, None, *partition_spec(features))

  def local(*arguments):
    num_rows = arguments[0].shape[0] * arguments[0].shape[1]
    first_row = jax.lax.axis_index(axes).astype(jnp.uint32) * np.uint32(num_rows) if axes else jnp.zeros((), jnp.uint32)
    out = call(first_row, *arguments)
    return (*out[:-1], jax.lax.psum(out[-1], axes)) if sums else tuple(out)

  num_outputs = len(jax.eval_shape(lambda *arguments: call(jnp.zeros((), jnp.uint32), *arguments), *arrays, *others))
  shared = partition_spec(features) if features else PartitionSpec()
  specs = (rows,) * (num_outputs - sums) + (shared,) * sums
  return jax.shard_map(local, in_specs=(rows,) * len(arrays) + (shared,) * len(others), out_specs=specs,
                       check_vma=False)(*arrays, *others)


def batch_axes(mesh: Any, num_examples: int) -> tuple[str, ...]:
  """The mesh axes that share a batch; none for one that they cannot, like the example of an initialisation: every
  device computes all of it.
  """
  axes = RULES["batch"]
  return axes if num_examples % math.prod(mesh.shape[axis] for axis in axes) == 0 else ()


def axis_size(logical_axis: str) -> int:
  """Devices of the current mesh that share a logical axis of RULES; 1 without a mesh."""
  return jax.sharding.get_abstract_mesh().shape.get(RULES[logical_axis], 1)


def platform() -> str:
  """cpu | gpu | tpu: of the current mesh's devices, which need not be here; without a mesh, of those that are."""
  return _device().platform


def device_kind() -> str:
  """What `platform`'s devices are called: TPU v4, NVIDIA H200, ..."""
  return _device().device_kind


def _device() -> Any:
  return jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]


def keeps_parameters_whole() -> bool:
  """Whether each device of the current mesh holds every parameter, as without a mesh."""
  mesh = jax.sharding.get_abstract_mesh()
  return mesh.empty or mesh.shape["fsdp"] * mesh.shape["tensor"] == 1


def path_name(path: tuple) -> str:
  """`discriminator/layer_07/attention/query/kernel` from a tree path."""
  return "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)


def by_path(tree: PyTree) -> dict:
  """{`path_name`: leaf}, in the tree's order."""
  return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def parameter_shardings(params: PyTree, mesh: Mesh | AbstractMesh, shard_state: bool = False) -> PyTree:
  """A NamedSharding for every parameter (arrays or shapes).

  Args:
    params: tree of the parameters, or of what has their shapes.
    mesh: of `make_mesh`, or the current one.
    shard_state: split what the fsdp axis would split over fsdp and data both, as far as the sizes allow
      (`optimizer.shard_state`); rows first, for parts of whole rows are gathered without being rearranged.

  Raises:
    ValueError: a parameter matches no rule of PARAMETER_AXES, or more than one.
    UserError: a dimension cannot be divided over its mesh axis.
  """

  def place(path, leaf):
    name = path_name(path)
    found = [axes for pattern, axes in PARAMETER_AXES if re.fullmatch(pattern, name)]
    if len(found) != 1:
      raise ValueError(f"{len(found)} rows of sharding.PARAMETER_AXES match the parameter {name}; exactly one must. "
                       "Add or narrow a row.")
    spec = partition_spec(*found[0])
    for size, axis in zip(leaf.shape, spec):
      if axis and size % mesh.shape[axis]:
        raise UserError(f"The parameter {name} cannot be split over the mesh", got=f"a dimension of {size} over mesh "
                        f"axis {axis!r} of {mesh.shape[axis]} devices", allowed="sizes that the axis divides",
                        fix=f"choose --config.mesh.{axis} as a divisor of {size}")
    return NamedSharding(mesh, _over_all(spec, leaf.shape, mesh) if shard_state and "fsdp" in spec else spec)

  return jax.tree_util.tree_map_with_path(place, params)


def _over_all(spec: PartitionSpec, shape: tuple[int, ...], mesh: Mesh | AbstractMesh) -> PartitionSpec:
  """`spec` with the first dimension that fsdp divides split over it, then the first that data divides."""
  axes = [[axis] if axis == "tensor" else [] for axis in spec]
  for axis in ("fsdp", "data"):
    for size, taken in zip(shape, axes):
      if size % math.prod(mesh.shape[other] for other in (*taken, axis)) == 0:
        taken.append(axis)
        break
  return PartitionSpec(*(tuple(taken) or None for taken in axes))


def gather_parameters(params: PyTree, dtype: jnp.dtype | None) -> PyTree:
  """What a step reads of parameters that devices share by `shard_state`: all but what the tensor axis splits.

  Args:
    params: float32.
    dtype: of the products, in which the kernels are sent; None: without `shard_state`, the parameters as they are.
  """
  if dtype is None:
    return params

  def gather(path, leaf, place):
    leaf = leaf.astype(dtype) if path_name(path).endswith("/kernel") else leaf
    for spec in (place.spec, _kept(place, "fsdp"), _kept(place)):  # one side of a torus after the other
      leaf = jax.lax.with_sharding_constraint(leaf, spec)
    return leaf

  return jax.tree_util.tree_map_with_path(gather, params, _current_shardings(params))


def split_gradients(gradients: PyTree, dtype: jnp.dtype | None) -> PyTree:
  """Those of `gather_parameters`, summed over the devices: of each the part that a device keeps, in float32.

  The sum of a table's is cut afterwards: else the parts that lookups and products add to it would be gathered between.
  """
  if dtype is None:
    return gradients

  def split(path, leaf, place):
    whole = [] if path_name(path).endswith("/kernel") else [_kept(place)]
    for spec in (*whole, _kept(place, "fsdp"), place.spec):
      leaf = jax.lax.with_sharding_constraint(leaf, spec)
    return leaf.astype(jnp.float32)

  return jax.tree_util.tree_map_with_path(split, gradients, _current_shardings(gradients))


def kept_parts(params: PyTree, dtype: jnp.dtype | None) -> PyTree:
  """The parts of the parameters that a device keeps. Said again for the optimizer, else the compiler takes the norms of
  tables from the gathered ones.
  """
  return params if dtype is None else jax.lax.with_sharding_constraint(params, _current_shardings(params))


def _current_shardings(params: PyTree) -> PyTree:
  return parameter_shardings(params, jax.sharding.get_abstract_mesh(), shard_state=True)


def _kept(place: NamedSharding, *axes: str) -> PartitionSpec:
  """Of a parameter's sharding, what the tensor axis and these split."""
  parts = ((part,) if isinstance(part, str) else part or () for part in place.spec)
  return PartitionSpec(*(tuple(axis for axis in part if axis in ("tensor", *axes)) or None for part in parts))


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Rows of a batch over the data and fsdp axes."""
  return NamedSharding(mesh, partition_spec("batch"))


def batches_sharding(mesh: Mesh) -> NamedSharding:
  """Those of several updates: behind a leading axis of updates."""
  return NamedSharding(mesh, PartitionSpec(None, *partition_spec("batch")))


def check_batch_size(batch_size: int, mesh: Mesh, key: str) -> None:
  """Every device must get the same number of rows.

  Raises:
    UserError: it does not.
  """
  shards = mesh.shape["data"] * mesh.shape["fsdp"]
  if batch_size % shards:
    raise UserError(f"{key} cannot be divided over the devices", got=f"{batch_size} sequences over {shards} devices "
                    "(mesh.data x mesh.fsdp)", allowed=f"multiples of {shards}",
                    fix=f"use {-(-batch_size // shards) * shards}, or fewer devices on mesh.data and mesh.fsdp")


def put_batch(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, Array]:
  """This process's rows as part of one global array, split over the mesh's data axes: where data meets devices."""
  return _put(batch, batch_sharding(mesh))


def put_batches(batches: Sequence[dict[str, np.ndarray]], mesh: Mesh) -> dict[str, Array]:
  """`put_batch` of the batches of several updates, with a leading axis of updates."""
  stacked = {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}
  return _put(stacked, batches_sharding(mesh))


def _put(batch: dict[str, np.ndarray], placement: NamedSharding) -> dict[str, Array]:
  return {name: jax.make_array_from_process_local_data(placement, rows) for name, rows in batch.items()}
