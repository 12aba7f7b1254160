"""Rematerialisation: policies for which activations of a layer are kept for the backward pass (`train.remat`)."""

from collections.abc import Callable

import flax.linen as nn
import jax

# What is kept of a layer besides its input. A linear map is a product without batch dimensions (`Dense` flattens its
# rows), but attention's two products have them, so `dots` keeps nothing of size length x length.
POLICIES: dict[str, Callable | None] = {
  "full": jax.checkpoint_policies.nothing_saveable,
  "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  "all_dots": jax.checkpoint_policies.dots_saveable,
}


def wrap(layer: type[nn.Module], policy: str, static_argnums: tuple[int, ...]) -> type[nn.Module]:
  """The layer class under a row of POLICIES; unchanged for "none".

  Args:
    static_argnums: arguments of its call (0 is the module itself) that are not arrays.
  """
  return layer if policy == "none" else nn.remat(layer, policy=POLICIES[policy], static_argnums=static_argnums)
