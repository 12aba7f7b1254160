"""Are norms that share kernels the norms of each tensor, and do optax's rules come out with them?"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from electra_jax import optim, sharding
from electra_jax.optim import lamb, norms


def parameters(seed: int) -> dict:
  rng = np.random.default_rng(seed)
  shapes = [(), (1,), (3,), (3, 5), (5, 3), (2, 3, 4), (1, 3), *[(6,)] * 70, *[(6, 2)] * 70]
  return {f"{index:03d}": jnp.asarray(rng.normal(size=shape), jnp.float32) for index, shape in enumerate(shapes)}


@pytest.fixture(params=("each", "in_common", "rows_first"))
def tree(request, monkeypatch) -> dict:
  if request.param == "rows_first":
    monkeypatch.setattr(norms, "LARGE", 6)
  if request.param != "each":
    monkeypatch.setattr(norms, "squares", lambda arrays: norms.in_common([x * x for x in arrays]))
  return parameters(0)


def test_squares_are_in_the_order_of_the_arrays(tree):
  leaves = jax.tree.leaves(tree)
  np.testing.assert_allclose(norms.squares(leaves), [np.square(leaf).sum() for leaf in leaves], rtol=1e-6)


@pytest.mark.parametrize("max_norm", (0.5, 1e3))
def test_clipping_equals_optax(tree, max_norm):
  ours, theirs = (rule.update(tree, rule.init(tree))[0]
                  for rule in (optim.clip_by_global_norm(max_norm), optax.clip_by_global_norm(max_norm)))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, theirs)


def test_trust_ratios_equal_optax_also_with_zeros_and_left_out_leaves(tree):
  params = parameters(1) | {"003": jnp.zeros((3, 5))}
  updates = tree | {"004": jnp.zeros((5, 3))}
  mask = {name: name != "002" for name in tree}
  rules = lamb.scale_by_trust_ratio(), optax.scale_by_trust_ratio()
  ours, theirs = (masked.update(updates, masked.init(params), params)[0]
                  for masked in (optax.masked(rule, mask) for rule in rules))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, theirs)
  np.testing.assert_array_equal(ours["002"], updates["002"])
  np.testing.assert_array_equal(ours["003"], updates["003"])


@pytest.mark.parametrize("sizes,whole", [((8, 1, 1), True), ((4, 2, 1), False), ((4, 1, 2), False)])
def test_only_a_mesh_that_splits_parameters_leaves_each_norm_alone(sizes, whole):
  with jax.set_mesh(sharding.make_mesh(dict(zip(sharding.MESH_AXES, sizes, strict=True)))):
    assert jax.jit(lambda: sharding.keeps_parameters_whole())() == whole
  assert sharding.keeps_parameters_whole()
