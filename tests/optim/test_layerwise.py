"""What is each depth's learning rate?"""

import jax.numpy as jnp
import pytest

from electra_jax.optim import layerwise

PATHS = ("embeddings/token/embedding", "embeddings_project/kernel", "layer_00/attention/query/kernel",
         "layer_01/feed_forward/output/bias", "layer_02/attention/layer_norm/scale",
         "classification_head/output/kernel")


def test_rates_per_depth():
  found = [layerwise.factor(f"encoder/{path}", 3, 0.8) for path in PATHS]
  assert found == pytest.approx([0.8**exponent for exponent in (4, 4, 3, 2, 1, 0)])


def test_the_update_is_scaled_and_a_stranger_is_refused():
  tx = layerwise.scale_by_layer(1, 0.5)
  updates = {"encoder": {"layer_00": {"kernel": jnp.ones(2)}, "span_head": {"kernel": jnp.ones(2)}}}
  scaled, _ = tx.update(updates, tx.init(updates), updates)
  assert scaled["encoder"]["layer_00"]["kernel"].tolist() == [0.5, 0.5]
  assert scaled["encoder"]["span_head"]["kernel"].tolist() == [1.0, 1.0]
  with pytest.raises(ValueError, match="encoder/other/kernel"):
    layerwise.factor("encoder/other/kernel", 1, 0.5)
