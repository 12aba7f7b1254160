"""Published models as parts of a run: their weights, sizes and vocabulary."""

import dataclasses
import os

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from ml_collections import ConfigDict, FrozenConfigDict

from electra_jax import config as config_lib
from electra_jax import sharding
from electra_jax.data import tokenizers
from electra_jax.data.tokenizers import fairseq_vocabulary
from electra_jax.errors import UserError, named
from electra_jax.exchange import formats, hf_config, hub, initial, mapping
from electra_jax.exchange.mapping import Weights
from electra_jax.models.bert import Bert, make_transformer_config
from electra_jax.objectives import predictors, table
from electra_jax.training import checkpoints

HEADS = ("mlm_head", "rtd_head")  # that `predictors.separate` can run

HIDDEN_LAYER = {"bert": "tanh", "roberta": "tanh", "electra": "gelu"}  # activation in transformers' heads over [CLS]

# Keys on which the parameters' shapes and meaning depend; dropout and the like are the recipe's.
ARCHITECTURE = ("hidden_size", "embedding_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                "max_position_embeddings", "position_offset", "type_vocab_size", "hidden_act", "layer_norm_eps")
# Keys of a recipe that `fit` sets.
FITTED = (*(f"model.{key}" for key in ARCHITECTURE), "model.vocab_size", "generator.hidden_size",
          "generator.intermediate_size", "generator.num_attention_heads", "generator.num_hidden_layers",
          "data.tokenizer.kind", "data.tokenizer.lowercase", "data.tokenizer.vocab_size", "data.tokenizer.path",
          "data.sequence_length", "objective.weight_tying")


def make_encoder(name: str, weights: Weights, num_tokens: int, path: str) -> predictors.Encoder:
  """The encoder that a config.json describes, with its fine-tuning head, or else its pre-training heads.

  Raises:
    UserError: a size is missing, it has parts that are not supported, or the vocabulary is too large for it.
  """
  model = hf_config.to_model(weights.config, path)
  if num_tokens > model["vocab_size"]:
    raise UserError("The vocabulary has more entries than the model's token table has rows",
                    got=f"{num_tokens} entries for {model['vocab_size']} rows in {path}", allowed="at most as many",
                    fix="put the model's own vocabulary next to its weights")
  # On CPUs bfloat16 is not fast enough to be worth the lost digits.
  dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"
  transformer = make_transformer_config(FrozenConfigDict(model), num_tokens=num_tokens, dtype=dtype)
  heads = hf_config.heads_of(weights.config, weights.tensors)
  head = next((head for head in heads if head in hf_config.FINE_TUNING), None)
  if head is None:
    return predictors.Encoder(name, transformer, tuple(head for head in HEADS if head in heads))
  family = weights.config["model_type"]
  rows = mapping.FAMILIES[family][1]
  pooler = HIDDEN_LAYER[family] if f"{head}/dense/kernel" in rows else "none"
  num_labels = len(weights.tensors[rows[f"{head}/output/bias"]])
  return predictors.Encoder(name, dataclasses.replace(transformer, num_labels=num_labels, pooler=pooler), (head,))


def make_params(encoder: predictors.Encoder, weights: Weights) -> PyTree:
  """One encoder's parameters, float32, from Hugging Face's tensors.

  Raises:
    UserError: names every tensor that is missing or has another shape.
  """
  model = Bert(encoder.transformer, head_names=encoder.head_names)
  ids = jnp.zeros((1, 8), jnp.int32)
  batch = {"input_ids": ids, "token_type_ids": ids, "attention_mask": jnp.ones((1, 8), bool)}
  shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), batch, method=lambda module, batch: module.touch(
    batch, module.token_table())))["params"]
  paths = {path: leaf.shape for path, leaf in sharding.by_path(shapes).items()}
  arrays = mapping.from_hf(weights.tensors, paths, weights.config["model_type"])
  return jax.tree_util.tree_map_with_path(lambda path, _: np.asarray(arrays[sharding.path_name(path)], np.float32),
                                          shapes)


def load_tokenizer(path: str) -> tokenizers.Tokenizer:
  """The vocabulary next to the weights; a UserError if there is none, or it cannot be read."""
  return tokenizers.load_tokenizer(vocabulary_folder(path))


def vocabulary_folder(path: str) -> str:
  """The folder of the vocabulary: that of the weights, or one in it; a UserError if there is none."""
  folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
  if os.path.exists(os.path.join(folder, fairseq_vocabulary.FILES[0])):
    return folder
  places = [folder, *(os.path.join(folder, name) for name in ("tokenizer", "discriminator", "encoder"))]
  names = ("tokenizer_facts.json", "vocab.txt", "vocab.json", "tokenizer.json")
  for place in places:
    if os.path.isdir(place) and any(name in names or name.endswith(".model") for name in os.listdir(place)):
      return place
  raise UserError("The published model has no vocabulary next to it", got=folder,
                  allowed=f"{', '.join(names[1:])}, *.model, or dict.txt with encoder.json and vocab.bpe",
                  fix="copy the model's vocabulary into the folder; a pre-training may name it instead: "
                  "--config.data.tokenizer.path=...")


def fit(given: ConfigDict, workdir: str) -> ConfigDict:
  """The recipe with sizes and vocabulary of the published weights in `checkpoint.init_from`; without any, unchanged.

  A workdir with checkpoints has them on record, so that a run resumes even if the weights are gone.

  Raises:
    UserError: there is nothing to start from, or the weights or their vocabulary cannot be read.
  """
  source = given.checkpoint.init_from
  if not source or "://" in source or (os.path.exists(source) and not formats.is_published(source)):  # none, or a run
    return given
  if checkpoints.saved_steps(workdir):
    before = config_lib.flatten(config_lib.read_record(workdir)["given"])
    if before.get("checkpoint.init_from") == source:
      resumed = ConfigDict(given.to_dict())
      resumed.update_from_flattened_dict({key: before[key] for key in FITTED})
      return resumed
  config_lib.check_exists(folder := hub.fetch(source))
  weights, place = formats.read(folder), given.data.tokenizer.path or vocabulary_folder(folder)
  tokenizer = tokenizers.load_tokenizer(place)
  config = adapt(given, weights, tokenizer)
  config.data.tokenizer.path = place
  model, case = config.model, "uncased" if tokenizer.lowercase else "cased"
  print(f"Sizes and vocabulary are those of {source}: {model.num_hidden_layers} layers of {model.hidden_size}, "
        f"{tokenizer.vocab_size:,} entries ({tokenizer.kind}, {case}), rows of {config.data.sequence_length} tokens.",
        flush=True)
  if note := mismatch(weights, config.objective.name):
    print(f"Note: {note}", flush=True)
  return config


def adapt(given: ConfigDict, weights: dict[str, Weights], tokenizer: tokenizers.Tokenizer) -> ConfigDict:
  """The recipe with the weights' sizes and vocabulary, no longer sequences than they have positions for, and no more
  sharing between two networks than theirs.

  Raises:
    UserError: the networks are not supported.
  """
  config, sizes = ConfigDict(given.to_dict()), initial.model_keys(weights)
  config.model.update({key: sizes["model"][key] for key in ARCHITECTURE})
  config.generator.update(sizes.get("generator", {}))
  rows = max(tokenizer.vocab_size, *(network.config["vocab_size"] for network in weights.values()))
  config.model.vocab_size = config_lib.table_rows(rows)
  config.data.tokenizer.update(kind=tokenizer.kind, lowercase=tokenizer.lowercase, vocab_size=tokenizer.vocab_size)
  config.data.sequence_length = min(config.data.sequence_length,
                                    config.model.max_position_embeddings - config.model.position_offset)
  shared = initial.SHARING
  if len(weights) > 1 and config.objective.weight_tying in shared:
    config.objective.weight_tying = min(config.objective.weight_tying, initial.sharing(weights), key=shared.index)
  return config


def mismatch(weights: dict[str, Weights], objective: str) -> str:
  """A note for weights that were trained for another task than the objective's kept encoder; else ""."""
  encoder = weights[next((name for name in weights if name != initial.GENERATOR), initial.GENERATOR)]
  heads = hf_config.heads_of(encoder.config, encoder.tensors)
  *_, wanted = table.ROWS[objective].networks.values()  # the kept encoder's heads
  if "rtd" in wanted and "rtd_head" not in heads and "mlm_head" in heads:
    return (f"these weights are a masked LM's, but objective.name={objective} trains a discriminator, whose head "
            "starts fresh. Recipes that fit: --config=bert_base:continued, --config=roberta_base:continued.")
  if "rtd" not in wanted and "rtd_head" in heads:
    return (f"these weights are a discriminator's (ELECTRA), but objective.name={objective} trains a masked LM, whose "
            "head starts fresh. Recipes that fit: --config=small:continued, --config=base:continued.")
  return ""


def start_params(path: str, params: PyTree, tokenizer: tokenizers.Tokenizer) -> tuple[PyTree, str]:
  """(a run's initial parameters with the published ones in their places, a line that says what was done).

  Args:
    params: {network: ...} as initialised by the objective, with their shardings, which are kept.
    tokenizer: the run's; it must have the same entries as the one next to the weights, if there is one.

  Raises:
    UserError: names every tensor that does not fit, or the first token that differs.
  """
  weights = formats.read(path)
  try:
    theirs = load_tokenizer(path)
  except UserError as error:  # `fit` has read the vocabulary that the recipe names instead
    note = f" Its vocabulary could not be compared: {error.what}."
  else:
    note = ""
    _check_same_entries(tokenizer, theirs, path)
  start = initial.merge(weights, params, tokenizer.vocab_size)
  placed = jax.tree.map(lambda new, old: new if new is old else jax.device_put(new, old.sharding), start.params, params)
  fresh = f" Not in it, so these start fresh: {named(start.fresh)}." if start.fresh else ""
  unused = f" Not used: {named(start.unused)}." if start.unused else ""
  return placed, f"Starting from the published weights in {path}.{fresh}{unused}{note}"


def _check_same_entries(ours: tokenizers.Tokenizer, theirs: tokenizers.Tokenizer, path: str) -> None:
  a, b = (tokenizer.tokens(range(tokenizer.vocab_size)) for tokenizer in (ours, theirs))
  if ours.lowercase == theirs.lowercase and a == b:
    return
  differing = next((f"token {i} is {x!r} in the run, {y!r} next to the weights" for i, (x, y) in enumerate(zip(a, b))
                    if x != y), f"{len(a)} entries and {len(b)}, lowercase {ours.lowercase} and {theirs.lowercase}")
  raise UserError("The run has another vocabulary than the published weights", got=f"{differing} ({path})",
                  allowed="the vocabulary that the weights were trained with", fix="in a new workdir, set "
                  f"--config.data.tokenizer.path={path}; tools/import_weights prints every key that must fit")
