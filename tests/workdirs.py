"""Small workdirs with a tokenizer, a config and two checkpoints of random parameters: what a run leaves behind."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from electra_jax import config as config_lib
from electra_jax import objectives
from electra_jax.data import sentences, tokenizers
from electra_jax.models.bert import make_transformer_config
from electra_jax.tools import import_weights, predict
from electra_jax.tools.predict_tasks import TASKS
from electra_jax.training import checkpoints
from electra_jax.training.train_state import TrainState
from tests.objectives.test_objectives import initialise

TEXT = ["the cat sat on the mat, and looked at the rain.", "rain fell on the roof all day (and all night).",
        "a dog came in, wet and glad.", "nobody had seen the dog before?", "the cat left the mat to the dog."]
STEPS = (20, 40)


def records(run, task: str, items, **options):
  """What `predict --task` says of the items, as JSON."""
  answered = predict.answer(run, enumerate(items), TASKS[task], **options)
  return [TASKS[task].record(item, answer) for _, item, answer in answered]


def save_random_params(workdir: str, config, tokenizer, step: int) -> None:
  """A checkpoint of the config's networks with normal parameters of deviation 0.2: no zeros, no ones."""
  shapes, rng = jax.eval_shape(import_weights.initial_params(config, tokenizer)), np.random.default_rng(3)
  params = jax.tree.map(lambda one: 0.2 * rng.standard_normal(one.shape).astype(np.float32), shapes)
  saved = checkpoints.Checkpoints(workdir, config.checkpoint)
  saved.save(TrainState(jnp.int32(step), params, {}), step)
  saved.close()


def make_workdir(root: pathlib.Path, recipe, kind: str, num_layers: int = 1) -> str:
  """The workdir of a recipe module shrunk by `:tiny`, with a vocabulary of `kind` learnt from TEXT; made once."""
  workdir = root / f"{recipe.__name__}_{kind}_{num_layers}"
  if workdir.exists():
    return str(workdir)
  workdir.mkdir()
  given = recipe.get_config("tiny")
  given.data.tokenizer.update(kind=kind, vocab_size=400)
  given.model.num_hidden_layers = num_layers
  config = config_lib.resolve(given)
  config_lib.save(str(workdir / "config.json"), given, config)
  tokenizer = tokenizers.train_tokenizer(config.data.tokenizer, iter(TEXT * 20), str(workdir / "tokenizer"), seed=0)
  transformer = make_transformer_config(config.model, num_tokens=tokenizer.vocab_size, dtype="float32")
  objective = objectives.make(transformer, config.generator, config.objective, num_steps=1)
  batch = sentences.make_batch([sentences.encode(tokenizer, "a [MASK]", 16)], tokenizer.pad_id, 16)
  saved = checkpoints.Checkpoints(str(workdir), config.checkpoint)
  for step in STEPS:
    # Ten times the usual weights: far from uniform answers, as of a trained run.
    params = jax.tree.map(lambda x: x * 10 if x.ndim == 2 else x, initialise(objective, batch, seed=step))
    saved.save(TrainState(jnp.int32(step), params, {"moment": np.zeros(3, np.float32)}), step)
  saved.close()
  return str(workdir)
