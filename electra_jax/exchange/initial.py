"""Initial parameters from imported weights: what fits is taken, the rest starts fresh."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from electra_jax import sharding
from electra_jax.errors import UserError
from electra_jax.exchange import hf_config, mapping
from electra_jax.exchange.weights import Weights

GENERATOR = "generator"
EMBEDDINGS = "embeddings/"  # paths of the tables and of the layer norm behind them
TABLE = "embeddings/token/embedding"
SHARING = ("none", "token_embeddings", "embeddings")  # objective.weight_tying, of two networks of any sizes
VOCABULARY = (TABLE, "mlm_head/output_bias")  # arrays with a row for each token, padded here


class Start(NamedTuple):
  """Parameters to begin with, and what there is to say about them."""

  params: PyTree  # as the given ones, host arrays where imported
  fresh: list[str]  # networks and heads that the weights lack, e.g. "generator", "encoder/nsp_head"
  unused: list[str]  # networks and heads that the run lacks


def merge(weights: Mapping[str, Weights], params: PyTree, num_tokens: int) -> Start:
  """The initial parameters of a run with the imported networks put in their places.

  An encoder is taken whole or not at all; its heads where both sides have them. "encoder" or "discriminator" of the
  weights goes to the kept encoder, "generator" to the generator, or to the only encoder that there is. Rows behind
  the vocabulary's `num_tokens` are zero: they are no tokens. Where the run shares the token table, both networks must
  have the same one.

  Args:
    params: {network: ...} as the objective initialises them.
    num_tokens: entries of the tokenizer.

  Raises:
    UserError: names every tensor that is missing or has another shape; or nothing fits.
  """
  flat = sharding.by_path(params)
  places = _places(weights, list(params))
  found, unused, fresh = {}, [name for name in weights if name not in places.values()], []
  for network in params:
    if network not in places:
      fresh.append(network)
      continue
    one = weights[places[network]]
    wanted = {path.removeprefix(f"{network}/"): tuple(leaf.shape) for path, leaf in flat.items()
              if path.startswith(f"{network}/")}
    heads = {path.split("/")[0] for path in wanted if path.split("/")[0].endswith("_head")}
    given = set(hf_config.heads_of(one.config, one.tensors))
    borrowed = {}
    if network != GENERATOR and GENERATOR in weights and places.get(GENERATOR) is None:
      borrowed = _shared_encoder(weights, places[network], heads - given)  # objective.weight_tying=all
      unused = [name for name in unused if not (borrowed and name == GENERATOR)]
    lacking = heads - given - {path.split("/")[0] for path in borrowed}
    fresh += sorted(f"{network}/{head}" for head in lacking)
    unused += sorted(f"{places[network]}/{head}" for head in given - heads)
    wanted = {path: shape for path, shape in wanted.items() if path.split("/")[0] not in lacking}
    found |= {f"{network}/{path}": value for path, value in
              (_take(one, {p: s for p, s in wanted.items() if p not in borrowed}, num_tokens)
               | {p: _padded(p, v, wanted[p], num_tokens) for p, v in borrowed.items()}).items()}
  _check_shared(weights, places, flat)
  merged = jax.tree_util.tree_map_with_path(
    lambda path, leaf: found.get(sharding.path_name(path), leaf), params)
  return Start(merged, fresh, unused)


def _places(weights: Mapping[str, Weights], networks: list[str]) -> dict[str, str]:
  """The run's network -> that of the weights."""
  kept = next(name for name in networks if name != GENERATOR)
  places = {}
  source = next((name for name in weights if name != GENERATOR), None)
  if source is None and GENERATOR not in networks:
    source = GENERATOR
  if source is not None:
    places[kept] = source
  if GENERATOR in networks and GENERATOR in weights:
    places[GENERATOR] = GENERATOR
  return places


def _take(one: Weights, wanted: dict[str, tuple[int, ...]], num_tokens: int) -> dict[str, np.ndarray]:
  """The arrays at our paths, vocabulary rows padded."""
  family = one.config["model_type"]
  rows = one.config["vocab_size"]
  if rows < num_tokens:
    raise UserError("The weights have a smaller vocabulary than the run", got=f"{rows} rows for {num_tokens} tokens",
                    allowed="the vocabulary that the weights were trained with",
                    fix="point --config.data.tokenizer.path at the tokenizer beside the weights")
  theirs = {path: (rows, *shape[1:]) if path in VOCABULARY else shape for path, shape in wanted.items()}
  found = mapping.from_hf(one.tensors, theirs, family)
  return {path: _padded(path, value, wanted[path], num_tokens) for path, value in found.items()}


def _padded(path: str, value: np.ndarray, shape: tuple[int, ...], num_tokens: int) -> np.ndarray:
  """Float32; of the vocabulary's arrays the rows of tokens, then zeros."""
  value = np.asarray(value, np.float32)
  if path not in VOCABULARY:
    return value
  padded = np.zeros(shape, np.float32)
  padded[:num_tokens] = value[:num_tokens]
  return padded


def _shared_encoder(weights: Mapping[str, Weights], kept: str, heads: set[str]) -> dict[str, np.ndarray]:
  """Heads of a generator that is the kept encoder itself; {} where the two differ."""
  one, other = weights[kept], weights[GENERATOR]
  prefix = f"{mapping.FAMILIES[other.config['model_type']][0]}."
  same = all(name in one.tensors and np.array_equal(value, one.tensors[name])
             for name, value in other.tensors.items() if name.startswith(prefix))
  if not same:
    return {}
  family = other.config["model_type"]
  return {path: other.tensors[name].T if path.endswith("/kernel") else other.tensors[name]
          for path, name in mapping.FAMILIES[family][1].items()
          if path.split("/")[0] in heads and name in other.tensors}


def _check_shared(weights: Mapping[str, Weights], places: dict[str, str], flat: Mapping[str, object]) -> None:
  """A generator without embeddings of its own reads the discriminator's; without a token table, that one."""
  if GENERATOR not in places or len(places) < 2:
    return
  for path in (path for path in mapping.ENCODER if path.startswith(EMBEDDINGS)):
    if f"{GENERATOR}/{path}" in flat:
      continue
    first, second = (one.tensors[mapping.their_name(path, one.config["model_type"])]
                     for one in (weights[name] for name in places.values()))
    if not np.array_equal(first, second):
      raise UserError("The two networks of the weights do not share their embeddings, but those of the run do",
                      got=f"different {path} in discriminator and generator", allowed="equal ones",
                      fix="set --config.objective.weight_tying=token_embeddings where only the other tables differ, or "
                      "none, with equal sizes of the embeddings")


def sharing(weights: Mapping[str, Weights]) -> str:
  """Which embeddings a generator and a discriminator have in common: of SHARING the most."""
  def is_equal(path):
    tensors: list[Any] = [one.tensors.get(mapping.their_name(path, one.config["model_type"]))
                          for one in weights.values()]
    return all(np.array_equal(tensors[0], other) for other in tensors[1:])

  if not is_equal(TABLE):
    return "none"
  return "embeddings" if all(map(is_equal, filter(lambda path: path.startswith(EMBEDDINGS), mapping.ENCODER))) else (
    "token_embeddings")


def model_keys(weights: Mapping[str, Weights]) -> dict[str, dict]:
  """{"model": ..., "generator": ...}: the branches of our config that describe the networks of the weights.

  `model` has the kept encoder's sizes and `vocab_size` rows; `generator` is there where the weights have both.

  Raises:
    UserError: the networks are not built here, or their embeddings have different widths.
  """
  models = {name: hf_config.to_model(one.config, name) for name, one in weights.items()}
  kept = next((name for name in models if name != GENERATOR), GENERATOR)
  found = {"model": models[kept]}
  if kept != GENERATOR and GENERATOR in models:
    generator = models[GENERATOR]
    if generator["embedding_size"] != models[kept]["embedding_size"]:
      raise UserError("Generator and discriminator have embeddings of different widths",
                      got=f"{generator['embedding_size']} and {models[kept]['embedding_size']}", allowed="equal ones",
                      fix="import only one of the two folders")
    found["generator"] = {size: generator[size] for size in
                          ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")}
  return found
