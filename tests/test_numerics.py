"""Do the norms of a run's parameter groups add up to the whole, on several devices?"""

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict, FrozenConfigDict

from electra_jax import metrics, sharding
from electra_jax.training import setup
from tests.objectives.test_objectives import make_batch
from tests.test_pretrain import tiny_config


def test_groups_add_up_to_the_whole():
  config = ConfigDict(tiny_config("mlm").to_dict())
  config.log.norms_per_group = True
  mesh = sharding.make_mesh({"data": 1, "fsdp": 2, "tensor": 2}, jax.devices()[:4])
  run = setup.make(FrozenConfigDict(config), mesh)
  state = run.init_state()
  with jax.set_mesh(mesh):
    _, pairs = run.train_step(run.objective.phases[0])(
      state, sharding.put_batches([jax.tree.map(np.asarray, make_batch())], mesh))
  row = metrics.summarise(metrics.add_pairs(metrics.of_each_step([pairs])))
  groups = {"encoder_embeddings", "encoder_layers", "encoder_heads"}
  for name in ("gradient_norm", "update_norm"):
    found = {key.split("/")[1]: value for key, value in row.items() if key.startswith(f"{name}/")}
    assert found.keys() == groups and all(value > 0 for value in found.values())
  total = sum(value**2 for key, value in row.items() if key.startswith("gradient_norm/")) ** 0.5
  assert total == pytest.approx(row["train/gradient_norm"], rel=1e-5)
