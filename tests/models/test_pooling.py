"""Does a sentence's head read the mean of exactly the real tokens, and do gradients reach exactly these?"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from configs import bert_small
from electra_jax import config as config_lib
from electra_jax.finetuning import pretrained
from electra_jax.models import heads
from electra_jax.models.bert import Bert, make_transformer_config

X = np.arange(24, dtype=np.float32).reshape(3, 4, 2) ** 2
MASK = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]], bool)


def test_the_mean_written_out():
  mean = jax.jit(heads.mean_state)
  wanted = [X[0].mean(axis=0), (X[1, 0] + X[1, 1]) / 2, [0, 0]]
  np.testing.assert_allclose(mean(X, MASK), wanted, rtol=1e-6)
  assert mean(X.astype(jnp.bfloat16), MASK).dtype == jnp.bfloat16
  gradient = jax.jit(jax.grad(lambda x: mean(x, MASK).sum()))(X)
  np.testing.assert_allclose(gradient, MASK[..., None] / np.array([4, 2, 1])[:, None, None] * np.ones(2), rtol=1e-6)
  np.testing.assert_array_equal(heads.POOLINGS["cls"](X, MASK), X[:, 0])


def test_only_sentence_heads_read_it_and_padding_changes_nothing():
  """[CLS] alone or the mean of three tokens, with and without padding; tags stay a tag for each token."""
  config = config_lib.resolve(bert_small.get_config("tiny"))
  transformer = dataclasses.replace(make_transformer_config(config.model, num_tokens=400, dtype="float32"),
                                    num_labels=2, pooling="mean")
  model = Bert(transformer, ("classification_head", "multiple_choice_head", "tagging_head"))

  def batch(padding):
    ids = np.array([[1, 7, 2] + [9] * padding])
    return {"input_ids": jnp.asarray(ids), "token_type_ids": jnp.zeros_like(ids),
            "attention_mask": jnp.arange(3 + padding)[None] < 3}

  @jax.jit
  def run(params, batch):
    said = model.apply({"params": params}, batch, False, method="task_outputs")
    return said, model.apply({"params": params}, batch, batch["input_ids"], False, method="encode")

  params = pretrained.init_params(jax.random.key(0), transformer, model.head_names, None)["encoder"]
  (short, states), (long, _) = run(params, batch(0)), run(params, batch(5))
  assert short["tagging_head"].shape == (1, 3, 2) and long["tagging_head"].shape == (1, 8, 2)
  for name in ("classification_head", "multiple_choice_head"):
    output = params[name]["output"]
    np.testing.assert_allclose(short[name], states.mean(axis=1) @ output["kernel"] + output["bias"], atol=1e-6)
    np.testing.assert_allclose(short[name], long[name], atol=1e-6)
