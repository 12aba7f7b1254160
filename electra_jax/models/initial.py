"""Initial parameters: the values of Flax's `init`, drawn by one program for all arrays of a shape.

`init` draws each array by itself, which takes half a minute to compile for ELECTRA-Small on an H200.
"""

import functools
import hashlib
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from electra_jax.models.embeddings import POSITION_INITS

CONSTANTS = {"scale": jnp.ones, "bias": jnp.zeros, "output_bias": jnp.zeros}  # by a parameter's name; others are drawn


def draw(model: nn.Module, rng: Array, *arguments, **options) -> PyTree:
  """`model.init(rng, *arguments, **options)["params"]` for a model that has a `config`."""
  shapes = jax.eval_shape(lambda: model.init(rng, *arguments, **options))["params"]
  leaves, structure = jax.tree_util.tree_flatten_with_path(shapes)
  values, alike, config = [None] * len(leaves), {}, model.config
  initializer = nn.initializers.truncated_normal(config.initializer_range)
  for index, (path, leaf) in enumerate(leaves):
    *modules, name = (key.key for key in path)
    start = POSITION_INITS[config.position_init] if modules[-1] == "position" else None
    if name in CONSTANTS:
      values[index] = CONSTANTS[name](leaf.shape, leaf.dtype)
    elif start is not None:
      values[index] = start(leaf.shape, config.initializer_range)
    else:
      alike.setdefault(leaf.shape, {})[index] = _number_of(modules)
  for shape, numbers in alike.items():
    drawn = jax.lax.map(lambda number, shape=shape: initializer(jax.random.fold_in(rng, number), shape),
                        np.array(list(numbers.values()), np.uint32))
    for index, value in zip(numbers, drawn, strict=True):
      values[index] = value
  return structure.unflatten(values)


def init_of(model: nn.Module) -> Callable[[Array, dict], PyTree]:
  """(rng, batch) -> parameters: the `init` of an objective."""
  return functools.partial(draw, model)


def _number_of(modules: list[str]) -> int:
  """What Flax folds into the key for the first parameter of the module at this path: a hash of its names and 1."""
  return int.from_bytes(hashlib.sha1("".join(modules).encode() + b"\x01").digest()[:4])
