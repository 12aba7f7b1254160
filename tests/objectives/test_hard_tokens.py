"""Is BERT masked where the second network expects it to fail (ELECTRA Appendix F), and at random in evaluation?"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import ablations
from electra_jax import config as config_lib
from electra_jax import flops
from electra_jax.objectives import hard_tokens
from tests.objectives.ablation_rows import init
from tests.objectives.test_objectives import FAST_TO_COMPILE, make, make_batch


def test_the_expected_failures_are_masked_and_the_other_positions_stay():
  batch = make_batch()  # three slots a row, of which two or three are offered
  guesses = jnp.tile(jnp.array([-50.0, 50.0, 0.0]), (8, 1))  # far beyond the noise
  chosen, slots = hard_tokens.choose(jax.random.key(0), guesses, batch)
  offered = np.asarray(batch["masked_weights"].sum(axis=1))
  assert chosen["masked_weights"].sum(axis=1).tolist() == np.ceil(offered / 2).tolist()
  assert (np.asarray(slots)[:, 0] == 1).all()
  assert np.asarray(slots)[:, 1].tolist() == [2 if count == 3 else 0 for count in offered]
  for row in range(8):
    masked = [int(p) for p, w in zip(chosen["masked_positions"][row], chosen["masked_weights"][row]) if w]
    changed = np.flatnonzero(np.asarray(chosen["masked_input_ids"][row] != batch["input_ids"][row]))
    assert sorted(masked) == changed.tolist()
    assert batch["input_ids"][row, chosen["masked_positions"][row]].tolist() == chosen["masked_ids"][row].tolist()


def test_odds_are_those_of_the_guess():
  """Two offered positions, one of them ln 3 nats harder: it is chosen in three of four draws."""
  batch = {name: value[:1] for name, value in make_batch().items()}
  batch["masked_weights"] = jnp.array([[1.0, 1.0, 0.0]])
  guesses = jnp.array([[jnp.log(3.0), 0.0, 9.0]])
  draw = jax.jit(jax.vmap(lambda key: hard_tokens.choose(key, guesses, batch)[1][0, 0]))
  drawn = np.asarray(draw(jax.random.split(jax.random.key(1), 4000)))
  assert (drawn < 2).all() and np.mean(drawn == 0) == pytest.approx(0.75, abs=0.03)


@functools.partial(jax.jit, static_argnames="train", compiler_options=FAST_TO_COMPILE)
def pairs_of(params, batch, train):
  objective = make("hard_tokens", weight_tying="none")
  return objective.phases[0].loss(params, batch, jax.random.key(2), train, objective.count_targets(batch))[1]


def test_evaluation_masks_at_random_and_training_by_the_guesser():
  batch, params = make_batch(), dict(init("hard_tokens"))
  kernel = params["generator"]["baseline_head"]["output"]["kernel"]
  far = params | {"generator": params["generator"] | {"baseline_head": {"output": {
    "kernel": 1e3 * jnp.ones_like(kernel), "bias": jnp.zeros(1)}}}}
  plain, moved = (pairs_of(one, batch, False)["mlm/loss"] for one in (params, far))
  assert plain == moved  # another guesser, the same masks
  assert float(plain[1]) == float(make("hard_tokens", weight_tying="none").count_targets(batch)["mlm"])


def test_the_row_masks_as_many_tokens_as_bert_and_costs_a_generator_more():
  bert, hard = (config_lib.resolve(ablations.get_config(name)) for name in ("table3_bert", "appendix_f_hard_tokens"))
  slots = [config_lib.num_predictions(c.data.masking.rate, c.data.sequence_length) for c in (hard, bert)]
  assert slots[0] * hard_tokens.SHARE == slots[1] == 77
  ours, theirs = flops.model_flops(hard).terms, flops.model_flops(bert).terms
  assert ours["encoder/mlm_softmax"] == theirs["encoder/mlm_softmax"] and any(k.startswith("generator/") for k in ours)
