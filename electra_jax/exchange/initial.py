"""Initial parameters from imported weights: networks and heads that fit; the others start fresh."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from electra_jax import sharding
from electra_jax.errors import UserError
from electra_jax.exchange import hf_config, mapping
from electra_jax.exchange.mapping import Weights

GENERATOR = "generator"
EMBEDDINGS = "embeddings/"  # begins the paths of the tables and of the layer norm after them
TABLE = "embeddings/token/embedding"
SHARING = ("none", "token_embeddings", "embeddings")  # objective.weight_tying for two networks of any sizes
EMBEDDING_PATHS = tuple(path for path in mapping.ENCODER if path.startswith(EMBEDDINGS))
VOCABULARY = (TABLE, "mlm_head/output_bias")  # arrays with a row for each token, padded here


class Start(NamedTuple):
  """Parameters to start from, and where they came from."""

  params: PyTree  # as given; imported arrays are on the host
  fresh: list[str]  # networks and heads that the weights lack, e.g. "generator", "encoder/nsp_head"
  unused: list[str]  # networks and heads that the run lacks


def merge(weights: Mapping[str, Weights], params: PyTree, num_tokens: int) -> Start:
  """The initial parameters of a run with the imported networks put in their places.

  An encoder is taken as a whole or not at all, a head if both sides have it. The weights' "encoder" or "discriminator"
  goes to the kept encoder, "generator" to the generator, or, if it is all that the weights have, to the encoder of a
  run without a generator. Rows after the vocabulary's `num_tokens` are zero: they are no tokens. Embeddings that the
  run's networks share are the kept encoder's; `sharing` says whether the generator's are equal.

  Args:
    params: {network: ...} as initialised by the objective.
    num_tokens: entries of the tokenizer.

  Raises:
    UserError: names every tensor that is missing or has another shape; or the weights have fewer tokens than the run.
  """
  if GENERATOR not in params:
    weights = _as_one_network(weights)
  flat = sharding.by_path(params)
  sources = _sources(weights, list(params))
  arrays, fresh, unused = {}, [], [name for name in weights if name not in sources.values()]
  for network in params:
    if network not in sources:
      fresh.append(network)
      continue
    source = sources[network]
    shapes = {path.removeprefix(f"{network}/"): tuple(leaf.shape) for path, leaf in flat.items()
              if path.startswith(f"{network}/")}
    heads = {_head_of(path) for path in shapes if _head_of(path).endswith("_head")}
    given = set(hf_config.heads_of(weights[source].config, weights[source].tensors))
    fresh += sorted(f"{network}/{head}" for head in heads - given)
    unused += sorted(f"{source}/{head}" for head in given - heads)
    shapes = {path: shape for path, shape in shapes.items() if _head_of(path) not in heads - given}
    arrays |= {f"{network}/{path}": value for path, value in _take(weights[source], shapes, num_tokens).items()}
  merged = jax.tree_util.tree_map_with_path(
    lambda path, leaf: arrays.get(sharding.path_name(path), leaf), params)
  return Start(merged, fresh, unused)


def _head_of(path: str) -> str:
  return path.split("/")[0]


def _sources(weights: Mapping[str, Weights], networks: list[str]) -> dict[str, str]:
  """The run's network -> the weights' network."""
  source = next((name for name in weights if name != GENERATOR), None if GENERATOR in networks else GENERATOR)
  sources = {} if source is None else {next(name for name in networks if name != GENERATOR): source}
  return sources | ({GENERATOR: GENERATOR} if GENERATOR in networks and GENERATOR in weights else {})


def _take(weights: Weights, shapes: dict[str, tuple[int, ...]], num_tokens: int) -> dict[str, np.ndarray]:
  """The arrays at our paths, in float32; those with a row for each token end in rows of zeros."""
  rows = weights.config["vocab_size"]
  if rows < num_tokens:
    raise UserError("The weights have a smaller vocabulary than the run", got=f"{rows} rows for {num_tokens} tokens",
                    allowed="the vocabulary that the weights were trained with",
                    fix="point --config.data.tokenizer.path at the tokenizer next to the weights")
  theirs = {path: (rows, *shape[1:]) if path in VOCABULARY else shape for path, shape in shapes.items()}
  arrays = mapping.from_hf(weights.tensors, theirs, weights.config["model_type"])
  for path, value in arrays.items():
    arrays[path] = np.asarray(value, np.float32)
    if path in VOCABULARY:
      arrays[path] = np.zeros(shapes[path], np.float32)
      arrays[path][:num_tokens] = value[:num_tokens]
  return arrays


def _as_one_network(weights: Mapping[str, Weights]) -> Mapping[str, Weights]:
  """The kept encoder with the heads of both networks if both have the same encoder (objective.weight_tying=all)."""
  for name, kept in weights.items():
    if name != GENERATOR and GENERATOR in weights:
      both = weights[GENERATOR].tensors | kept.tensors
      if all(np.array_equal(both[tensor], value) for tensor, value in weights[GENERATOR].tensors.items()):
        return {name: Weights(kept.config, both)}
  return weights


def sharing(weights: Mapping[str, Weights]) -> str:
  """Which embeddings a generator and a discriminator share: the last row of SHARING that holds."""
  def is_equal(path: str) -> bool:
    tensors: list[Any] = [network.tensors.get(mapping.their_name(path, network.config["model_type"]))
                          for network in weights.values()]
    return all(np.array_equal(tensors[0], other) for other in tensors[1:])

  return "none" if not is_equal(TABLE) else "embeddings" if all(map(is_equal, EMBEDDING_PATHS)) else "token_embeddings"


def model_keys(weights: Mapping[str, Weights]) -> dict[str, dict]:
  """{"model": ..., "generator": ...}: the branches of our config that describe the networks of the weights.

  `model` has the kept encoder's sizes and `vocab_size` rows; there is a `generator` if the weights have both networks.

  Raises:
    UserError: the networks are not supported.
  """
  models = {name: hf_config.to_model(network.config, name) for name, network in weights.items()}
  encoder = models[next((name for name in models if name != GENERATOR), GENERATOR)]
  if len(models) == 1:
    return {"model": encoder}
  sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
  return {"model": encoder, "generator": {size: models[GENERATOR][size] for size in sizes}}
