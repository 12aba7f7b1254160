"""Do training, the benchmark and the compile check run the very same step?"""

import jax
import pytest

from configs import tiny
from electra_jax import config as config_lib
from electra_jax import objectives, pretrain
from electra_jax.tools import bench, compile_program
from electra_jax.training import step
from tests import fake_objective
from tests.small_runs import Place, small
from tests.test_pretrain import write_corpus


class Made(Exception):
  """The step would be compiled now."""


@pytest.fixture
def made(monkeypatch):
  """(state's shapes, options that are plain values) of the step that is made next."""
  steps = []

  def make(state, **arguments):
    plain = {name: value for name, value in arguments.items() if isinstance(value, int | float | str)}
    steps.append((jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state), plain))
    raise Made

  monkeypatch.setattr(step, "make_train_step", make)
  return steps


def test_one_step_for_all(made, tmp_path, monkeypatch):
  monkeypatch.setattr(objectives, "make", fake_objective.make)
  place = Place(tmp_path)
  write_corpus(place.corpus, num_documents=20)
  given = small(place, train__on_nonfinite="skip", log__norms_per_group=True, data__heldout_share=0.0)
  config = config_lib.resolve(given)
  for call in (lambda: pretrain.pretrain(given, str(place.run)),
               lambda: bench.time_step(config, windows=1, window_steps=1),
               lambda: compile_program.lower_step(config, jax.devices())[2]()):
    with pytest.raises(Made):
      call()
  assert len(made) == 3 and made[0] == made[1] == made[2]
  assert made[0][1]["norms_per_group"]


def test_kernels_reach_the_compiled_step(monkeypatch):
  seen = []

  def make(transformer, *arguments):
    seen.append(transformer.kernels)
    return fake_objective.make()

  monkeypatch.setattr(objectives, "make", make)
  given = tiny.get_config("tiny")
  given.train.kernels = "triton"
  compile_program.lower_step(config_lib.resolve(given), jax.devices())
  assert seen == ["triton"]
