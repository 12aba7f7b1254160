"""Tiny encoders with random parameters, and the logits that their weights must give again after an import."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from electra_jax import sharding
from electra_jax.exchange import formats, initial, mapping, published
from electra_jax.finetuning import pretrained
from electra_jax.models.bert import Bert
from electra_jax.models.transformer import TransformerConfig

# Heads 64 wide, as every published model has them: released checkpoints do not record their number.
BERT = TransformerConfig(
  vocab_size=50, num_tokens=50, embedding_size=128, hidden_size=128, intermediate_size=32, num_hidden_layers=2,
  num_attention_heads=2, max_position_embeddings=20, position_offset=0, type_vocab_size=2, hidden_act="gelu",
  hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, layer_norm_eps=1e-12, initializer_range=0.02,
  dtype=jnp.dtype("float32"))
ELECTRA = dataclasses.replace(BERT, embedding_size=24)
GENERATOR = dataclasses.replace(ELECTRA, hidden_size=64, intermediate_size=16, num_attention_heads=1)
ROBERTA = dataclasses.replace(BERT, position_offset=2, max_position_embeddings=22, type_vocab_size=1,
                              layer_norm_eps=1e-5)

METHODS = {("mlm_head",): "mlm_logits", ("rtd_head",): "rtd_logits", ("mlm_head", "nsp_head"): "mlm_and_nsp_logits"}


def batch_of(config):
  """Two rows of 16 tokens, of which the second has 9."""
  rng = np.random.default_rng(3)
  mask = np.arange(16) < np.array([[16], [9]])
  ids = jnp.asarray(np.where(mask, rng.integers(5, config.vocab_size, (2, 16)), max(config.position_offset - 1, 0)))
  types = jnp.asarray((np.arange(16) >= 8) & mask & (config.type_vocab_size > 1), jnp.int32)
  return {"input_ids": ids, "masked_input_ids": ids, "token_type_ids": types, "attention_mask": jnp.asarray(mask),
          "masked_positions": jnp.broadcast_to(jnp.arange(16), ids.shape)}


def shapes_of(config, heads) -> dict[str, tuple[int, ...]]:
  """{path: shape} of the parameters."""
  model, batch = Bert(config, heads), batch_of(config)
  params = jax.eval_shape(lambda: model.init(jax.random.key(0), batch, batch["input_ids"], False,
                                             method=METHODS[heads]))["params"]
  return {sharding.path_name(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def random_params(config, heads, seed=0) -> dict[str, np.ndarray]:
  """Every parameter random, biases and scales too."""
  rng = np.random.default_rng(seed)
  return {path: 0.2 * rng.standard_normal(shape).astype(np.float32) for path, shape in shapes_of(config, heads).items()}


def logits(config, heads, flat):
  """What the network says about `batch_of`."""
  params = {}
  for path, value in flat.items():
    *parents, last = path.split("/")
    branch = params
    for parent in parents:
      branch = branch.setdefault(parent, {})
    branch[last] = value
  batch = batch_of(config)
  return jax.tree.leaves(jax.jit(lambda p: Bert(config, heads).apply(
    {"params": p}, batch, batch["input_ids"], False, method=METHODS[heads]))(params))


def imported_logits(weights, heads):
  """The logits of a reader's `Weights`, with the sizes that its config names."""
  c = weights.config
  is_roberta = c["model_type"] == "roberta"
  keys = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
          "max_position_embeddings", "type_vocab_size", "hidden_act", "hidden_dropout_prob",
          "attention_probs_dropout_prob", "layer_norm_eps", "initializer_range")
  config = TransformerConfig(**{key: c[key] for key in keys}, embedding_size=c.get("embedding_size", c["hidden_size"]),
                             num_tokens=c["vocab_size"], position_offset=2 * is_roberta, dtype=jnp.dtype("float32"))
  return logits(config, heads, mapping.from_hf(weights.tensors, shapes_of(config, heads), c["model_type"]))


def check_start(path, wanted) -> None:
  """`checkpoint.init_from` and `task.init_from` take the path and give `wanted` ({network: flat parameters}) again."""
  def flat(tree):
    return {sharding.path_name(key): np.asarray(leaf) for key, leaf in jax.tree_util.tree_leaves_with_path(tree)}

  path = str(path)
  zeros = {network: traverse_util.unflatten_dict({name: jnp.zeros(value.shape) for name, value in params.items()},
                                                 sep="/") for network, params in wanted.items()}
  assert formats.is_published(path)
  found, said = published.start_params(path, zeros, published.load_tokenizer(path))
  assert said == f"Starting from the published weights in {path}."
  for network, params in wanted.items():
    rows = flat(found[network])
    for name, value in params.items():
      rows_of = slice(published.load_tokenizer(path).vocab_size) if name in initial.VOCABULARY else ...
      np.testing.assert_array_equal(rows[name][rows_of], value[rows_of], err_msg=name)
  encoder = flat(pretrained.load(path).encoder)
  for name, value in wanted[next(iter(wanted))].items():
    if not name.split("/")[0].endswith("_head"):
      np.testing.assert_array_equal(encoder[name], value, err_msg=name)
