"""BERT's two runs: does the second start from the first, with its vocabulary?"""

import jax
import numpy as np
import pytest

from configs import base, small, variants
from electra_jax import config as config_lib
from electra_jax import objectives, pretrain
from electra_jax.training import checkpoints
from tests import fake_objective
from tests.small_runs import Place, contents, write_corpus
from tests.test_configs import ABLATIONS, RECIPES, recipe


def shrunk(argument, place, **changes):
  """base:short or base:long with rows of 16 and 32 tokens and ten updates in all."""
  given = base.get_config()
  given.data.sequence_length, given.train.num_steps, given.optimizer.warmup_steps = 32, 10, 1
  given = variants.apply(given, argument)
  given.model.update(hidden_size=32, embedding_size=32, num_hidden_layers=1, num_attention_heads=2,
                     intermediate_size=64, max_position_embeddings=32)
  given.data.update(path=str(place.corpus), heldout_share=0.1, num_workers=1, reader="threads")
  given.data.tokenizer.vocab_size = fake_objective.VOCABULARY
  given.train.update(batch_size=8, compute_dtype="float32", log_every_steps=1)
  given.log.tensorboard = False
  given.update_from_flattened_dict({key.replace("__", "."): value for key, value in changes.items()})
  return given


def test_the_second_run_goes_on_from_the_first(tmp_path, monkeypatch):
  monkeypatch.setattr(objectives, "make", fake_objective.make)
  monkeypatch.setattr(variants, "SHORT_LENGTH", 16)
  place = Place(tmp_path)
  write_corpus(place.corpus, num_documents=20)
  first, second = str(tmp_path / "short"), str(tmp_path / "long")
  pretrain.pretrain(shrunk("short", place), first)
  options = {"checkpoint__init_from": first, "checkpoint__every_steps": 1}
  pretrain.pretrain(shrunk("long", place, train__num_steps=0, **options), second)
  jax.tree.map(np.testing.assert_array_equal, checkpoints.load_params(second, step=0)[1],
               checkpoints.load_params(first, step=9)[1])
  pretrain.pretrain(shrunk("long", place, **options), second)
  assert checkpoints.saved_steps(second)[-1] == 1  # nine and one of ten updates
  assert contents(tmp_path / "short/tokenizer") == contents(tmp_path / "long/tokenizer")
  lengths = [config_lib.load(workdir).data.sequence_length for workdir in (first, second)]
  assert lengths == [16, 32]


def test_recipes_of_short_rows_are_not_halved():
  with pytest.raises(ValueError, match="this one has 128"):
    small.get_config("short")


@pytest.mark.parametrize("name", [name for name in RECIPES + ABLATIONS if recipe(name).data.sequence_length > 128])
def test_both_runs_have_all_updates(name):
  whole, short, long = (config_lib.resolve(recipe(name, argument)) for argument in (None, "short", "long"))
  assert short.train.num_steps + long.train.num_steps == whole.train.num_steps
  assert (short.data.sequence_length, long.data.sequence_length) == (128, whole.data.sequence_length)
  assert long.optimizer.warmup_steps <= long.train.num_steps / 10
