"""Does a run keep to its hours, let its batches grow, go back when it must? And is a restart exact in all of them?"""

import functools
import json
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from electra_jax import (
  batch_schedule,
  checkpoints,
  metrics,
  nonfinite,
  objectives,
  pretrain,
  rollbacks,
  wall_clock,
)
from electra_jax.batch_schedule import BatchSchedule, Detour, Stage
from electra_jax.data import pipeline
from electra_jax.errors import UserError
from electra_jax.optim import schedules, timed
from electra_jax.training import step as step_lib
from tests import fake_objective
from tests.optim.test_schedules import SHAPES, branch
from tests.small_runs import prepare, small, with_data_of


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
  """A corpus with its tokenizer and shards, in the workdir of a run without steps."""
  return prepare(tmp_path_factory.mktemp("budgets"), train__num_steps=0, data__heldout_share=0.0)


@pytest.fixture
def run(prepared, tmp_path, monkeypatch):
  """(name of a workdir, keys) -> the rows of its training log, all its runs together."""
  monkeypatch.setattr(objectives, "make", fake_objective.make)

  def start(name, **changes):
    pretrain.pretrain(with_data_of(prepared, data__heldout_share=0.0, **changes), str(tmp_path / name))
    return [row for row in metrics.read_rows(str(tmp_path / name)) if row["split"] == "train"]

  return start


def params_of(workdir, step):
  return checkpoints.load_params(str(workdir), step=step)[1]


# ---- hours ----


@pytest.mark.parametrize("name", schedules.SCHEDULES)
def test_rates_by_time_have_the_shapes_of_rates_by_steps(name):
  """A warm-up of 2 updates and then time that passes as the steps of six would; far more steps are allowed."""
  by_time = schedules.SCHEDULES[name](branch(), 10**6)
  spent = [schedules.Spent(step / 6, 1 / 6) for step in range(7)]
  rates = [float(by_time(step, spent[step])) for step in range(7)]
  np.testing.assert_allclose(rates, 0.5 * np.array(SHAPES[name][:7]), atol=1e-5)
  by_steps = schedules.SCHEDULES[name](branch(), 6)  # the steps end first
  early = schedules.Spent(jnp.float32(0.01), jnp.float32(0.0))
  np.testing.assert_allclose([float(by_steps(step, early)) for step in range(7)], 0.5 * np.array(SHAPES[name][:7]),
                             atol=1e-2)


def test_time_that_goes_back_stands_still():
  tx = timed.scale_by_timed_rate(schedules.linear(branch(warmup_steps=1), 100), 1, budget_seconds=10.0)
  state, seen = tx.init({}), []
  for seconds in ([0.0, 0.0], [4.0, 3.0], [2.0, 1.0], None, [9.0, 9.5]):
    state = tx.update({}, state, seconds=None if seconds is None else jnp.array(seconds))[1]
    seen.append((float(state.seconds), round(float(state.learning_rate), 3)))
  assert [second for second, _ in seen] == [0, 4, 4, 4, 9.5]
  assert [rate for _, rate in seen] == [0.5, 0.3, 0.3, 0.3, 0.025]


def ticking(monkeypatch, start=0.0):
  """A second passes with every look at the clock."""
  seconds = iter(range(10**6))
  clock = functools.partial(wall_clock.Budget, clock=lambda: start + float(next(seconds)))
  monkeypatch.setattr(pretrain.wall_clock, "Budget", clock)


def test_a_run_ends_when_its_hours_are_spent(run, tmp_path, monkeypatch, capfd):
  """It ends well, with a checkpoint and a rate near zero; again it does nothing; with more hours it goes on."""
  options = dict(train__num_steps=100, train__log_every_steps=1, checkpoint__every_steps=50, optimizer__warmup_steps=1)
  ticking(monkeypatch, start=5e5)  # of a machine that has been on for days
  rows = run("run", train__max_hours=8 / 3600, **options)
  (last,) = checkpoints.saved_steps(str(tmp_path / "run"))
  assert last == rows[-1]["step"] and 7 <= last <= 10
  rates, hours = [row["train/learning_rate"] for row in rows], [row["train/hours"] for row in rows]
  assert rates == sorted(rates, reverse=True) and rates[0] > 4 * rates[-2]
  assert rates[-1] == pytest.approx(0, abs=1e-9) and hours == sorted(hours)
  assert f"{last} of 100 steps are done within train.max_hours" in capfd.readouterr().err

  before = params_of(tmp_path / "run", last)
  ticking(monkeypatch)
  assert run("run", train__max_hours=8 / 3600, **options)[-1]["step"] == last
  jax.tree.map(np.testing.assert_array_equal, params_of(tmp_path / "run", last), before)
  rows = run("run", train__max_hours=16 / 3600, **options)
  more = rows[-1]["step"] - last
  assert 6 <= more <= 9 and rows[last]["train/hours"] >= hours[-1]  # it counts on
  with pytest.raises(UserError, match=r"train\.max_hours"):  # there is no time in a state without a budget
    run("run", train__max_hours=0.0, **options)


# ---- batches that grow ----


def test_every_example_comes_in_order_whatever_the_sizes():
  sizes = batch_schedule.sizes(types.SimpleNamespace(batch_size=32, initial_batch_size=4, batch_size_ramp_steps=7))
  assert sizes == (Stage(0, 4), Stage(2, 8), Stage(4, 16), Stage(7, 32))
  schedule = BatchSchedule(sizes)
  place = 0
  for step in range(20):
    assert schedule.start(step) == place
    place += schedule.size(step)
  config = types.SimpleNamespace(batch_size=32, initial_batch_size=4, batch_size_ramp_steps=7)
  assert batch_schedule.full_batches(config, 20) == place / 32


def test_a_run_with_growing_batches_compiles_each_size_once_and_resumes_exactly(run, tmp_path, monkeypatch):
  made, make_train_step = [], step_lib.make_train_step

  def make(*arguments, **options):
    made.append(options["accumulation_steps"])
    return make_train_step(*arguments, **options)

  monkeypatch.setattr(step_lib, "make_train_step", make)
  options = dict(train__batch_size=32, train__initial_batch_size=8, train__batch_size_ramp_steps=4,
                 train__accumulation_steps=2, eval__batch_size=8, optimizer__schedule="constant",
                 checkpoint__every_steps=3)
  straight = run("straight", train__num_steps=8, **options)
  assert made == [1, 1, 2]  # of 8, 16 and 2 x 16 rows
  run("parts", train__num_steps=3, **options)
  parts = run("parts", train__num_steps=8, **options)
  assert [row["loss"] for row in parts] == [row["loss"] for row in straight]
  jax.tree.map(np.testing.assert_array_equal, params_of(tmp_path / "parts", 8), params_of(tmp_path / "straight", 8))


@pytest.mark.parametrize("changes, said", [
  (dict(train__initial_batch_size=3), "is not train.initial_batch_size 3 doubled"),
  (dict(train__initial_batch_size=8), "is not train.initial_batch_size 8 doubled"),
  (dict(train__initial_batch_size=2, train__batch_size_ramp_steps=1), "2 doublings need at least as many"),
  (dict(train__initial_batch_size=0), "is 0: no ramp"),
  (dict(train__initial_batch_size=4, data__batch_unit="tokens"), "needs data.batch_unit=rows"),
  (dict(train__initial_batch_size=12, train__batch_size=24, train__accumulation_steps=3), None),
  (dict(train__initial_batch_size=5, train__batch_size=40, train__accumulation_steps=5),
   "batches of 20 on the way from train.initial_batch_size cannot be divided"),
])
def test_ramps_that_cannot_be(prepared, changes, said):
  from electra_jax import config

  given = small(prepared, **dict(train__batch_size_ramp_steps=4, eval__batch_size=8) | changes)
  if said is None:
    config.resolve(given)
    return
  with pytest.raises(UserError, match=said):
    config.resolve(given)


# ---- rollbacks ----


def test_places_after_rollbacks():
  """The second goes back further than the first: what the first had led to still holds before it."""
  schedule = BatchSchedule([Stage(0, 10)], [Detour(4, 8), Detour(2, 6)])
  assert [schedule.start(step) for step in range(6)] == [0, 10, 100, 110, 120, 130]  # step 6 would have begun at 100
  tokens = BatchSchedule([Stage(0, 10)], [Detour(4, 8)], unit="tokens")
  assert [tokens.start(step) for step in range(6)] == [0, 1, 2, 3, 8, 9]


def bad_data(monkeypatch, is_bad):
  """Batches whose place in the order `is_bad` have no loss."""
  batch_at_of = pipeline.make_batch_at

  def make_batch_at(*arguments, schedule, **options):
    batch_at = batch_at_of(*arguments, schedule=schedule, **options)

    def spoilt(step):
      batch = batch_at(step)
      nothing = np.full_like(batch["masked_weights"], np.nan)
      return batch | ({"masked_weights": nothing} if is_bad(schedule.start(step)) else {})

    return spoilt

  monkeypatch.setattr(pipeline, "make_batch_at", make_batch_at)


ROLLBACK = dict(train__on_nonfinite="rollback", train__max_skipped_steps=3, train__log_every_steps=2,
                checkpoint__every_steps=2, checkpoint__keep_last=9, optimizer__schedule="constant")


def test_a_run_goes_back_and_passes_the_bad_data_by(run, tmp_path, monkeypatch):
  """Updates 6 to 9 are bad: back from 8 to 4, and on with the data of update 9, which is skipped; then it is over."""
  bad_data(monkeypatch, lambda place: 5 * 8 <= place < 9 * 8)
  rows = run("run", train__num_steps=12, **ROLLBACK)
  assert json.loads((tmp_path / "run/rollbacks.json").read_text()) == [{"step": 4, "resume_at": 8}]
  assert [row["step"] for row in rows] == [2, 4, 6, 8, 10, 12]
  assert [row["train/rollbacks"] for row in rows] == [0, 0, 1, 1, 1, 1]
  assert [row[nonfinite.SKIPPED] for row in rows] == [0, 0, 1, 0, 0, 0]
  assert all(math.isfinite(row["loss"]) for row in rows)
  run("parts", train__num_steps=10, **ROLLBACK)
  restarted = run("parts", train__num_steps=12, **ROLLBACK)  # knows of it
  assert restarted[-1]["loss"] == rows[-1]["loss"]
  jax.tree.map(np.testing.assert_array_equal, params_of(tmp_path / "parts", 12), params_of(tmp_path / "run", 12))


def test_it_gives_up_and_goes_further_back_each_time(run, tmp_path, monkeypatch):
  bad_data(monkeypatch, lambda place: place >= 5 * 8)
  with pytest.raises(UserError, match="after 2 rollbacks"):
    run("run", train__num_steps=12, train__max_rollbacks=2, **ROLLBACK)
  assert rollbacks.read(str(tmp_path / "run")) == [Detour(4, 8), Detour(2, 8)]
  assert max(checkpoints.saved_steps(str(tmp_path / "run"))) <= 6
  (tmp_path / "run/rollbacks.json").write_text("[{}]")
  with pytest.raises(UserError, match="cannot be read"):
    rollbacks.read(str(tmp_path / "run"))


def test_a_restart_within_skipped_steps_counts_on(run, tmp_path, monkeypatch, capfd):
  """Updates 6 to 9 are bad, a start ends after 7: the next knows of two, and 8 is the third. So a run that may change
  its policy on the way: `stop` reads a checkpoint with a count, `rollback` one without."""
  bad_data(monkeypatch, lambda place: 5 * 8 <= place < 9 * 8)
  whole = run("run", train__num_steps=12, **ROLLBACK)
  policies = ("stop", "rollback", "rollback", "rollback")
  for num_steps, policy in zip((2, 4, 7, 12), policies):
    rows = run("parts", train__num_steps=num_steps, **{**ROLLBACK, "train__on_nonfinite": policy})
  assert rollbacks.read(str(tmp_path / "parts")) == [Detour(4, 8)] == rollbacks.read(str(tmp_path / "run"))
  assert rows[-1]["loss"] == whole[-1]["loss"] and rows[-1]["train/rollbacks"] == 1
  jax.tree.map(np.testing.assert_array_equal, params_of(tmp_path / "parts", 12), params_of(tmp_path / "run", 12))
  capfd.readouterr()
  run("parts", train__num_steps=14, **{**ROLLBACK, "train__on_nonfinite": "stop"})
  said = capfd.readouterr()  # each start says what a device needs
  assert (said.out + said.err).count("memory of each device: ") == 1
