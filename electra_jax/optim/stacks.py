"""Parameters of one shape in one array, so that an update is a smaller program: fewer arrays, the same numbers."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from electra_jax import optim

STACKS = "stacks"  # the only key of a tree whose arrays have a leading axis of parameters


class Layout(NamedTuple):
  """Two functions of a tree, the parameters' or one that has trees of their form in it, such as a TrainState."""

  stack: Callable[[PyTree], PyTree]
  unstack: Callable[[PyTree], PyTree]


PLAIN = Layout(lambda tree: tree, lambda tree: tree)


def make(params: PyTree) -> Layout:
  """{STACKS: {shape and rule: array [parameters, *shape]}} in place of the parameters.

  The optimizer's rules are the same for all entries of a stack; LAMB alone tells its parameters apart. ELECTRA-Small's
  404 arrays become 16.
  """
  leaves, structure = jax.tree.flatten(params)
  members: dict[str, list[int]] = {}
  for index, (leaf, decays) in enumerate(zip(leaves, jax.tree.leaves(optim.decay_mask(params)), strict=True)):
    shape = "x".join(map(str, leaf.shape))
    members.setdefault(f"{shape}/{'kernel' if decays else 'bias'}", []).append(index)

  def has_form_of_params(node):
    return jax.tree.structure(node) == structure

  def stack(node):
    if not has_form_of_params(node):
      return node
    leaves = jax.tree.leaves(node)
    return {STACKS: {name: jnp.stack([leaves[index] for index in some]) for name, some in members.items()}}

  def unstack(node):
    if not is_stacked(node):
      return node
    leaves = {index: jax.lax.index_in_dim(node[STACKS][name], row, keepdims=False)
              for name, some in members.items() for row, index in enumerate(some)}
    return structure.unflatten([leaves[index] for index in range(len(leaves))])

  return Layout(lambda tree: jax.tree.map(stack, tree, is_leaf=has_form_of_params),
                lambda tree: jax.tree.map(unstack, tree, is_leaf=is_stacked))


def is_stacked(tree: PyTree) -> bool:
  """Whether the arrays of this tree are stacks."""
  return isinstance(tree, dict) and STACKS in tree
