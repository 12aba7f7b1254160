"""What does a NaN do to a run? It stops and names the steps; or the step is skipped, counted and not in the means."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from electra_jax import metrics, objectives, optim, pretrain
from electra_jax.errors import UserError
from electra_jax.objectives.base import Objective, Phase
from electra_jax.training import checkpoints, nonfinite
from electra_jax.training import step as step_lib
from electra_jax.training.train_state import TrainState
from tests import fake_objective
from tests.small_runs import Place, small, write_corpus
from tests.test_pretrain import tiny_config


@pytest.mark.parametrize("fault", ["loss", "gradient"])
@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_a_step_that_is_not_finite_changes_nothing_but_the_step(fault, accumulation_steps):
  def loss(params, batch, rng, train, num_targets):
    x = batch["x"] * params["dense"]["kernel"]
    # sqrt's derivative at 0 is infinite although its value is not.
    value = x.sum() if fault == "loss" else jnp.sqrt(jnp.abs(x)).sum()
    return value, {"mlm/loss": (value, jnp.ones(()))}

  objective = Objective(lambda rng, batch: {}, lambda batch: {}, (Phase(9, loss),))
  tx = optim.make(tiny_config().optimizer, 10)[0]
  params = {"dense": {"kernel": jnp.ones(3)}}
  state = TrainState(jnp.int32(2), params, tx.init(params))
  update = jax.jit(lambda state, batch: step_lib.update(
    state, batch, objective=objective, phase=objective.phases[0], tx=tx, rng=jax.random.key(0),
    accumulation_steps=accumulation_steps))
  good = jnp.ones((2, 3))
  bad = good.at[0, 1].set(jnp.inf if fault == "loss" else 0.0)
  skipped, pairs = update(state, {"x": bad})
  assert int(skipped.step) == 3
  assert int(skipped.skipped_in_a_row) == 1
  jax.tree.map(np.testing.assert_array_equal, skipped._replace(step=0, skipped_in_a_row=0), state._replace(step=0))
  after, good_pairs = update(state, {"x": good})
  assert not np.array_equal(after.params["dense"]["kernel"], params["dense"]["kernel"])
  values = metrics.summarise(metrics.add_pairs([pairs, good_pairs]))
  assert values.pop(nonfinite.SKIPPED) == 0.5
  assert values.items() <= metrics.summarise(metrics.add_pairs([good_pairs])).items()
  watch = nonfinite.Watch(tiny_config(on_nonfinite="skip").train)
  assert watch.check([pairs, good_pairs], values, 4)[nonfinite.SKIPPED] == 1


def test_a_restart_within_skipped_updates_counts_on():
  watch = nonfinite.Watch(tiny_config(on_nonfinite="skip").train, in_a_row=9)
  with pytest.raises(UserError, match="10 skipped steps in a row, 5 to 14"):
    watch.check([pair(1)], {}, 14)


def pair(skipped):
  return {nonfinite.SKIPPED: (np.float32(skipped), np.float32(1))}


def test_too_many_in_a_row_end_the_run(monkeypatch):
  """Counted over the ends of windows; a good step between them starts anew."""
  monkeypatch.setattr(nonfinite, "MAX_SKIPPED_STEPS", 3)
  watch = nonfinite.Watch(tiny_config(on_nonfinite="skip").train)
  watch.check([pair(0), pair(1), pair(1)], {}, 3)
  watch.check([pair(0), pair(1), pair(1)], {}, 6)
  with pytest.raises(UserError, match="3 skipped steps in a row, 5 to 7"):
    watch.check([pair(1), pair(0)], {}, 8)


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_a_run_with_nan_batches(tmp_path, monkeypatch, policy):
  """One batch in the middle is bad: `stop` names its window; `skip` goes on and ends with numbers."""
  place = Place(tmp_path)
  write_corpus(place.corpus, num_documents=20)
  monkeypatch.setattr(objectives, "make", fake_objective.make)
  batch_at_of = pretrain.pipeline.make_batch_at

  def make_batch_at(*arguments, **options):
    batch_at = batch_at_of(*arguments, **options)
    return pretrain.readers.BatchSource(lambda steps: batch_at(steps[0]) | (
      {"masked_weights": np.full_like(batch_at(steps[0])["masked_weights"], np.nan)} if steps[0] == 3 else {}))

  monkeypatch.setattr(pretrain.pipeline, "make_batch_at", make_batch_at)
  given = small(place, train__num_steps=6, train__log_every_steps=2, train__on_nonfinite=policy,
                checkpoint__every_steps=2, data__heldout_share=0.0)
  if policy == "stop":
    with pytest.raises(UserError, match="in step 4") as told:
      pretrain.pretrain(given, str(place.new))
    assert "show_batch --step=3 " in told.value.fix  # batches count from 0
    assert checkpoints.saved_steps(str(place.new)) == [2]
    return
  pretrain.pretrain(given, str(place.new))
  rows = {row["step"]: row for row in metrics.read_rows(str(place.new)) if row["split"] == "train"}
  assert [rows[step][nonfinite.SKIPPED] for step in (2, 4, 6)] == [0, 1, 0]
  assert all(math.isfinite(row["loss"]) for row in rows.values())
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(checkpoints.load_params(str(place.new))[1]))
