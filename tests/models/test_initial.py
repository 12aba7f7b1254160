"""Initial parameters next to Flax's own `init`, bit by bit, and how many random number generators they take."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from electra_jax.models import initial
from electra_jax.models.bert import Bert
from electra_jax.models.electra import Electra
from electra_jax.models.transformer import TransformerConfig
from electra_jax.sharding import by_path

SMALL = TransformerConfig(
  vocab_size=128, num_tokens=100, embedding_size=16, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
  num_attention_heads=2, max_position_embeddings=16, position_offset=0, type_vocab_size=2, hidden_act="gelu",
  hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, layer_norm_eps=1e-12, initializer_range=0.02,
  dtype=jnp.dtype("float32"))
GENERATOR = dataclasses.replace(SMALL, hidden_size=16, intermediate_size=32, num_attention_heads=1)
SHALLOW = dataclasses.replace(SMALL, num_hidden_layers=1)
SINUSOIDAL = dataclasses.replace(SHALLOW, position_init="sinusoidal", embedding_size=15)
IDS = jnp.zeros((1, 8), jnp.int32)
BATCH = {"input_ids": IDS, "masked_input_ids": IDS, "token_type_ids": IDS, "masked_positions": IDS[:, :2],
         "attention_mask": jnp.ones((1, 8), bool)}
MODELS = {
  "two networks": (Electra(SMALL, GENERATOR, "token_embeddings"), (BATCH,), {}),
  "two networks, sinusoids": (Electra(SINUSOIDAL, dataclasses.replace(SINUSOIDAL, hidden_size=16),
                                      "token_embeddings"), (BATCH,), {}),
  "one network in two roles": (Electra(SHALLOW, SHALLOW, "all"), (BATCH,), {}),
  "masked LM and next sentence": (Bert(SHALLOW, head_names=("mlm_head", "nsp_head")), (BATCH, IDS, False),
                                  {"method": "mlm_and_nsp_logits"}),
}


@pytest.mark.parametrize("name", MODELS)
def test_values_of_flax(name):
  model, arguments, options = MODELS[name]
  key = jax.random.key(3, impl="threefry2x32")
  flax = by_path(jax.jit(lambda: model.init(key, *arguments, **options)["params"])())
  ours = by_path(jax.jit(lambda: initial.draw(model, key, *arguments, **options))())
  assert list(ours) == list(flax)
  for path, value in flax.items():
    np.testing.assert_array_equal(ours[path], value, err_msg=path)
    assert ours[path].dtype == value.dtype


def test_sinusoidal_positions():
  """By the formula, as wide as the other tables; nothing else of the start differs, and no name."""
  key, config = jax.random.key(0, impl="threefry2x32"), dataclasses.replace(SMALL, position_init="sinusoidal")
  normal, other = (by_path(initial.draw(Bert(one, ("mlm_head",)), key, BATCH, IDS, False, method="mlm_logits"))
                   for one in (SMALL, config))
  path = "embeddings/position/embedding"
  assert list(normal) == list(other)
  assert [name for name in normal if not np.array_equal(normal[name], other[name])] == [path]
  table = np.asarray(other[path])  # [16, 16]
  for row, column in ((0, 0), (3, 0), (5, 2), (15, 7)):
    angle = row / 100 ** (2 * column / 16)
    np.testing.assert_allclose(table[row, [column, column + 8]], 0.02 * np.sqrt(2) * np.array([np.sin(angle),
                                                                                          np.cos(angle)]), atol=1e-6)
  np.testing.assert_allclose((table**2).mean() ** 0.5, SMALL.initializer_range, rtol=1e-5)


def test_one_draw_for_a_shape():
  model, arguments, options = MODELS["two networks"]

  def draws(layers):
    deep = dataclasses.replace(model, encoder_config=dataclasses.replace(SMALL, num_hidden_layers=layers))
    program = jax.make_jaxpr(lambda: initial.draw(deep, jax.random.key(3), *arguments, **options))()
    return str(program).count("name=_truncated_normal")

  assert draws(4) == draws(2) > 0
