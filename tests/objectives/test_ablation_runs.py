"""Does every ablation train? Three updates of each config at tiny size; the two stages through the real loop."""

import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import ablations, common
from electra_jax import config as config_lib
from electra_jax import metrics, objectives, optim, pretrain
from electra_jax.models.bert import make_transformer_config
from electra_jax.training import checkpoints, inputs
from electra_jax.training import step as step_lib
from electra_jax.training.train_state import TrainState
from tests.objectives.ablation_rows import COUNTS
from tests.objectives.test_objectives import FAST_TO_COMPILE, initialise, make_batch
from tests.small_runs import write_corpus

ABLATIONS = sorted(ablations.ROWS)
BATCH = make_batch() | {"nsp_label": jnp.arange(8, dtype=jnp.int32) % 2}


def shrink(given):
  """One layer, four steps, no dropout (test_net has it): compiled in seconds. Equal sizes stay equal."""
  given.model.update(hidden_size=16, embedding_size=16, num_hidden_layers=1, num_attention_heads=2,
                     intermediate_size=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
  given.model.max_position_embeddings = 16 + given.model.position_offset
  given.data.update(sequence_length=16)
  given.data.tokenizer.vocab_size = 100
  given.optimizer.update(name="adamw", warmup_steps=1, learning_rate=1e-3)
  given.train.update(batch_size=8, num_steps=4, compute_dtype="float32")
  return given


@functools.cache
def compiled(branches):
  """(initial state, train step of each phase, objective) of everything that decides the program."""
  given = common.defaults()
  given.update(json.loads(branches))
  config = config_lib.resolve(given)
  transformer = make_transformer_config(config.model, num_tokens=100, dtype="float32")
  objective = objectives.make(transformer, config.generator, config.objective, config.train.num_steps, COUNTS)
  tx = optim.make(config.optimizer, config.train.num_steps)[0]
  params = initialise(objective, make_batch())
  opt_state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(tx.init, params))
  state = TrainState(jnp.int32(0), params, opt_state)
  arguments = dict(objective=objective, tx=tx, rng=jax.random.key(5), accumulation_steps=1)
  # Without donation: the state that is kept here serves several configs.
  steps = [jax.jit(functools.partial(step_lib.update, phase=phase, **arguments), compiler_options=FAST_TO_COMPILE)
           for phase in objective.phases]
  return state, steps, objective


def program_of(name):
  given = shrink(ablations.get_config(f"{name},tiny"))
  chosen = given.to_dict()
  # The format decides what is in a batch, masks and temperatures of the data likewise; neither is in the program.
  kept = {key: chosen[key] for key in ("model", "generator", "objective", "optimizer", "train")}
  if chosen["objective"]["name"] == "mlm_nsp":
    kept["data"] = {"format": chosen["data"]["format"]}
  kept["data"] = kept.get("data", {}) | {"sequence_length": 16, "tokenizer": {"vocab_size": 100}}
  if kept["data"].get("format") == "SENTENCE-PAIR":
    kept["data"]["format"] = "SEGMENT-PAIR"
  return json.dumps(kept, sort_keys=True)


@pytest.mark.parametrize("name", ABLATIONS)
def test_three_updates(name):
  state, steps, objective = compiled(program_of(name))
  before = jax.device_get(state.params)
  for step in range(3):
    phase, first_step = objective.phase_at(step)
    if first_step == step:
      state = state._replace(params=phase.on_enter(state.params))
    state, pairs = steps[objective.phases.index(phase)](state, BATCH)
    values = metrics.summarise(metrics.add_pairs([pairs]))
    assert np.isfinite(values["loss"]) and np.isfinite(values["train/gradient_norm"])
  moved = jax.tree.map(lambda a, b: bool((a != b).any()), before, jax.device_get(state.params))
  assert int(state.step) == 3 and all(
    jax.tree.leaves(moved["discriminator" if "discriminator" in moved else "encoder"]["layer_00"]["feed_forward"]))


# ---- the two stages ----


def test_stages_freeze_what_they_do_not_train():
  """Bit for bit, weight decay included; the discriminator starts as the generator's copy, all but its head."""
  state, steps, objective = compiled(program_of("figure3_two_stage"))
  first, second = objective.phases
  assert (first.num_steps, second.num_steps) == (2, 2)
  start = jax.device_get(state.params)
  for _ in range(2):
    state, _ = steps[0](state, BATCH)
  after_first = jax.device_get(state.params)
  jax.tree.map(np.testing.assert_array_equal, after_first["discriminator"], start["discriminator"])
  assert not np.array_equal(after_first["generator"]["layer_00"]["attention"]["query"]["kernel"],
                            start["generator"]["layer_00"]["attention"]["query"]["kernel"])

  state = state._replace(params=second.on_enter(state.params))
  entered = jax.device_get(state.params)
  encoder = {name: part for name, part in entered["discriminator"].items() if name != "rtd_head"}
  jax.tree.map(np.testing.assert_array_equal, encoder,
               {name: part for name, part in entered["generator"].items() if name != "mlm_head"})
  jax.tree.map(np.testing.assert_array_equal, entered["discriminator"]["rtd_head"], start["discriminator"]["rtd_head"])
  for _ in range(2):
    state, _ = steps[1](state, BATCH)
  jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.params)["generator"], after_first["generator"])


def test_phase_at_every_step():
  objective = compiled(program_of("figure3_two_stage"))[2]
  found = [(objective.phases.index(objective.phase_at(step)[0]), objective.phase_at(step)[1]) for step in range(5)]
  assert found == [(0, 0), (0, 0), (1, 2), (1, 2), (1, 2)]


def test_restart_of_a_two_stage_run_lands_in_the_right_stage(tmp_path, one_device):
  """Restarted at the border, where the copy is still to be made, and behind it, where it must not be made again."""
  given = shrink(ablations.get_config("figure3_two_stage,tiny"))
  given.data.update(path=str(write_corpus(tmp_path / "corpus.txt")), heldout_share=0.0, num_workers=1, reader="threads")
  given.train.log_every_steps = 1
  given.checkpoint.update(every_steps=1, keep_last=10)
  given.log.tensorboard = False
  pretrain.pretrain(given, str(tmp_path / "straight"))
  _, expected = checkpoints.load_params(str(tmp_path / "straight"), step=4)
  for last_step in (2, 3):
    workdir = tmp_path / f"restarted_{last_step}"
    shutil.copytree(tmp_path / "straight", workdir)
    for step in range(last_step + 1, 5):
      shutil.rmtree(workdir / "checkpoints" / str(step))
    pretrain.pretrain(given, str(workdir))
    _, found = checkpoints.load_params(str(workdir), step=4)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
  rows = [row for row in metrics.read_rows(str(tmp_path / "straight")) if row["split"] == "train"]
  assert ["rtd/loss" in row for row in rows] == [False, False, True, True]
  rates = [row["train/learning_rate"] for row in rows]
  assert rates[:2] == rates[2:]  # warm-up and decay begin anew


def test_a_unigram_run_counts_its_training_tokens(tmp_path):
  given = shrink(ablations.get_config("figure3_generator_unigram,tiny"))
  given.data.update(path=str(write_corpus(tmp_path / "corpus.txt")), heldout_share=0.2, num_workers=1)
  data = inputs.open_data(config_lib.resolve(given), str(tmp_path / "run"))
  ids, num_tokens, _ = data.train.read(np.arange(len(data.train)))
  expected = np.bincount(ids[np.arange(16) < num_tokens[:, None]], minlength=data.tokenizer.vocab_size)
  expected[list(data.tokenizer.special_ids)] = 0
  assert np.array_equal(data.token_counts, expected) and expected.sum() > 1000
  given.generator.kind = "learned"
  assert inputs.open_data(config_lib.resolve(given), str(tmp_path / "run")).token_counts is None
