"""Are several updates in one program the same updates, wherever a run is stopped?"""

import itertools
import shutil

import jax
import numpy as np
import pytest

from configs import tiny
from electra_jax import checkpoints, dispatches, evaluation, metrics, nonfinite, objectives, pretrain, sharding
from electra_jax import config as config_lib
from electra_jax.errors import UserError
from electra_jax.training import step as step_lib
from tests import fake_objective
from tests.small_runs import prepare, with_data_of


@pytest.mark.parametrize("every", (5, 6, 7, 100))
def test_a_restart_repeats_the_same_programs(every):
  """From wherever a dispatch ends, the rest is what it would have been."""
  def is_bound(step):
    return step % every == 0 or step == 23

  whole = list(dispatches.ranges(0, 23, 3, is_bound))
  assert list(itertools.chain(*whole)) == list(range(1, 24))
  assert {len(steps) for steps in whole} <= {1, 3}
  assert not any(is_bound(step) for steps in whole for step in steps[:-1])
  for index, steps in enumerate(whole):
    assert list(dispatches.ranges(steps[-1], 23, 3, is_bound)) == whole[index + 1:]


def test_what_another_number_has_begun_is_ended_one_by_one():
  def is_bound(step):
    return step % 8 == 0

  assert [len(steps) for steps in dispatches.ranges(2, 16, 4, is_bound)] == [1, 1, 4, 4, 4]


def test_updates_in_one_program_equal_single_ones():
  def update(state, batch):
    state = state + batch["x"].sum() * 0.5
    return state, {"loss": (state, np.float32(1))}

  batches = [{"x": np.float32([i, 1])} for i in range(3)]
  together = {"x": np.stack([batch["x"] for batch in batches])}
  state, stacked = jax.jit(dispatches.one_after_another(update))(np.float32(1), together)
  singles = []
  expected = np.float32(1)
  for batch in batches:
    expected, pairs = update(expected, batch)
    singles.append(float(pairs["loss"][0]))
  assert float(state) == float(expected)
  assert stacked["loss"][0].tolist() == singles


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
  return prepare(tmp_path_factory.mktemp("dispatches"), train__num_steps=0)


def training_rows(workdir):
  return [(row["step"], row["loss"]) for row in metrics.read_rows(str(workdir)) if row["split"] == "train"]


def test_a_run_in_dispatches_equals_one_of_single_updates_and_resumes_exactly(prepared, tmp_path, monkeypatch):
  monkeypatch.setattr(objectives, "make", fake_objective.make)
  options = dict(train__num_steps=8, train__log_every_steps=4, checkpoint__every_steps=3, checkpoint__keep_last=9)
  pretrain.pretrain(with_data_of(prepared, **options), str(tmp_path / "single"))
  options |= dict(train__steps_per_dispatch=2)  # updates 1-2, 3, 4, 5-6, 7-8
  sizes, make_train_step = [], step_lib.make_train_step

  def make(state, num_updates=1, **arguments):
    sizes.append(num_updates)
    return make_train_step(state, num_updates, **arguments)

  monkeypatch.setattr(step_lib, "make_train_step", make)
  pretrain.pretrain(with_data_of(prepared, **options), str(tmp_path / "pairs"))
  assert sizes == [2, 1]  # each compiled once
  expected = training_rows(tmp_path / "pairs")
  assert [step for step, _ in expected] == [4, 8]
  np.testing.assert_allclose([loss for _, loss in expected],
                             [loss for _, loss in training_rows(tmp_path / "single")], rtol=1e-5)
  workdir = tmp_path / "from_3"
  shutil.copytree(tmp_path / "pairs", workdir)
  for step in checkpoints.saved_steps(str(workdir)):
    if step > 3:
      shutil.rmtree(workdir / "checkpoints" / str(step))
  pretrain.pretrain(with_data_of(prepared, **options), str(workdir))
  assert training_rows(workdir)[-1] == expected[-1]
  jax.tree.map(np.testing.assert_array_equal, checkpoints.load_params(str(workdir))[1],
               checkpoints.load_params(str(tmp_path / "pairs"))[1])


def test_batches_of_equally_many_tokens_go_one_by_one(tmp_path, monkeypatch):
  """They differ in their numbers of rows, so that no program holds two of them."""
  monkeypatch.setattr(objectives, "make", fake_objective.make)
  data = prepare(tmp_path, train__num_steps=0, data__format="DOC-SENTENCES")
  sizes, make_train_step = [], step_lib.make_train_step
  monkeypatch.setattr(step_lib, "make_train_step", lambda state, num_updates=1, **arguments: (
    sizes.append(num_updates) or make_train_step(state, num_updates, **arguments)))
  options = dict(data__format="DOC-SENTENCES", train__num_steps=6, train__log_every_steps=3,
                 train__steps_per_dispatch=3, checkpoint__every_steps=6, eval__every_steps=6)
  pretrain.pretrain(with_data_of(data, **options), str(tmp_path / "tokens"))
  assert sizes == [1] and [step for step, _ in training_rows(tmp_path / "tokens")] == [3, 6]


def test_the_next_batch_is_on_its_way_before_the_host_waits_for_a_log_line(prepared, tmp_path, monkeypatch):
  """Else the devices are idle while it is put there: 1 to 2 % of ELECTRA-Small's time on a GPU."""
  monkeypatch.setattr(objectives, "make", fake_objective.make)
  events, put_batch, summarise = [], sharding.put_batch, metrics.summarise
  monkeypatch.setattr(evaluation, "evaluate", lambda *arguments, **options: {})
  monkeypatch.setattr(sharding, "put_batch", lambda *given: events.append("batch") or put_batch(*given))
  monkeypatch.setattr(metrics, "summarise", lambda *given: events.append("log") or summarise(*given))
  pretrain.pretrain(with_data_of(prepared, train__num_steps=4, train__log_every_steps=2), str(tmp_path / "run"))
  assert events == ["batch", "batch", "batch", "log", "batch", "log"]


def test_batches_of_several_updates_lie_as_those_of_single_ones():
  mesh = sharding.make_mesh({"data": 4, "fsdp": 2, "tensor": 1})
  batches = [{"x": np.arange(16).reshape(8, 2) + 100 * i} for i in range(3)]
  together = sharding.put_batches(batches, mesh)["x"]
  assert together.shape == (3, 8, 2)
  for i, batch in enumerate(batches):
    np.testing.assert_array_equal(together[i], batch["x"])
  single = sharding.put_batch(batches[0], mesh)["x"]
  rows = {shard.device: shard.index[0] for shard in single.addressable_shards}
  assert {shard.device: shard.index[1] for shard in together.addressable_shards} == rows


def test_a_bad_update_within_a_program_is_named():
  ones = np.ones(3, np.float32)
  pairs = {"loss": (ones, ones), nonfinite.SKIPPED: (np.float32([0, 1, 0]), ones)}
  window = metrics.of_each_step([pairs, {name: (np.float32(0), np.float32(1)) for name in pairs}])
  assert len(window) == 4
  watch = nonfinite.Watch(config_lib.resolve(tiny.get_config()).train)
  with pytest.raises(UserError, match="in step 2"):
    watch.check(window, {}, 4)
