"""Do float16, averages, moments in bfloat16, norms and the z-loss do what they say? On a table, and on a masked LM."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict, FrozenConfigDict

from electra_jax import (
  checkpoints,
  loss_scaling,
  metrics,
  nonfinite,
  objectives,
  optim,
  pretrain,
  sharding,
  train_state,
)
from electra_jax.errors import UserError
from electra_jax.models.bert import make_transformer_config
from electra_jax.objectives import generators, z_loss
from electra_jax.objectives.contract import Objective, Phase
from electra_jax.tools import checkpoints as checkpoints_tool
from electra_jax.training import step as step_lib
from tests.objectives.test_objectives import make_batch
from tests.small_runs import Place, small
from tests.test_pretrain import tiny_config, write_corpus


def half_loss(params, batch, rng, train, num_targets):
  """A sum whose gradient passes through float16, where 65 536 is infinite."""
  del rng, train, num_targets
  value = (batch["x"] * params["dense"]["kernel"]).astype(jnp.float16).astype(jnp.float32).sum()
  return value, {"mlm/loss": (value, jnp.ones(()))}


OBJECTIVE = Objective(lambda rng, batch: {"dense": {"kernel": jnp.ones(3)}}, lambda batch: {},
                      (Phase(99, half_loss),), "dense")


def one_device():
  return sharding.make_mesh({"data": 1, "fsdp": 1, "tensor": 1}, jax.devices()[:1])


def start(monkeypatch, config, **options):
  """(state, step) of OBJECTIVE."""
  monkeypatch.setattr(sharding, "PARAMETER_AXES", ((".*", (None,)),))
  tx = optim.make(config.optimizer, 20)[0]
  parts = train_state.parts(config.train)
  state = train_state.init_state(functools.partial(OBJECTIVE.init, None, None), tx, one_device(), **parts)
  return state, jax.jit(functools.partial(
    step_lib.update, objective=OBJECTIVE, phase=OBJECTIVE.phases[0], tx=tx, rng=jax.random.key(0),
    accumulation_steps=1, **step_lib.step_options(config)))


def test_the_loss_scale_follows_overflows_and_a_restart(tmp_path, monkeypatch):
  """From 2**17 two steps overflow; two good ones double the scale, which overflows again. The rest is float32's run."""
  config = tiny_config(compute_dtype="float16", initial_loss_scale=2.0**17, loss_scale_growth_steps=2)
  state, step = start(monkeypatch, config)
  plain, plain_step = start(monkeypatch, tiny_config())
  batch, seen = {"x": jnp.ones((2, 3))}, []
  for number in range(9):
    state, pairs = step(state, batch)
    was_skipped = float(pairs[nonfinite.SKIPPED][0])
    seen.append((float(pairs["train/loss_scale"][0]), was_skipped))
    if not was_skipped:
      plain, plain_pairs = plain_step(plain, batch)
      assert float(pairs["loss"][0]) == float(plain_pairs["loss"][0])
    np.testing.assert_array_equal(state.params["dense"]["kernel"], plain.params["dense"]["kernel"])
    if number == 3:  # a restart goes on with the scale and its counter
      saved = checkpoints.Checkpoints(str(tmp_path), config.checkpoint)
      saved.save(state, number)
      saved.close()
      abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
      saved = checkpoints.Checkpoints(str(tmp_path), config.checkpoint)
      state = saved.restore_newest(abstract)
      saved.close()
      assert isinstance(state.loss_scale, loss_scaling.LossScale)
  two = 2.0**15
  assert seen == [(4 * two, 1), (2 * two, 1), (two, 0), (two, 0), (2 * two, 1), (two, 0), (two, 0), (2 * two, 1),
                  (two, 0)]
  assert int(state.step) == 9 and int(plain.step) == 5
  watch = nonfinite.Watch(config.train)  # float16 skips under every policy
  assert watch.check([{nonfinite.SKIPPED: (np.float32(1), np.float32(1))}], {}, 1)[nonfinite.SKIPPED] == 1


def test_the_average_is_what_numpy_says_and_nothing_where_it_is_off(monkeypatch):
  state, step = start(monkeypatch, tiny_config(ema_decay=0.6))
  expected = np.ones(3)
  for number in range(12):
    state, _ = step(state, {"x": jnp.ones((2, 3))})
    decay = min(0.6, (1 + number) / (10 + number))
    expected = decay * expected + (1 - decay) * np.asarray(state.params["dense"]["kernel"], np.float64)
  np.testing.assert_allclose(state.ema_params["dense"]["kernel"], expected, rtol=1e-6)
  off, _ = start(monkeypatch, tiny_config())
  assert off.ema_params is None and off.loss_scale is None
  assert len(jax.tree.leaves(off)) == len(jax.tree.leaves(state)) - 1


def test_a_run_evaluates_checkpoints_and_exports_its_average(tmp_path, monkeypatch):
  """Stopped after 4 of 8 steps and continued: the average too is that of the undisturbed run, bit for bit."""
  from tests import fake_objective

  place = Place(tmp_path)
  write_corpus(place.corpus, num_documents=20)
  monkeypatch.setattr(objectives, "make", fake_objective.make)
  options = dict(train__ema_decay=0.9, eval__ema_params=True, checkpoint__every_steps=4)
  result = pretrain.pretrain(small(place, train__num_steps=8, **options), str(place.run))
  options["optimizer__schedule"] = "constant"
  averages = []
  for workdir, lengths in ((place.root / "straight", [8]), (place.new, [4, 8])):
    for num_steps in lengths:
      pretrain.pretrain(small(place, train__num_steps=num_steps, **options), str(workdir))
    averages.append(checkpoints.load_params(str(workdir), part="ema_params")[1])
  jax.tree.map(np.testing.assert_array_equal, *averages)

  last, average = (checkpoints.load_params(str(place.run), part=part)[1] for part in ("params", "ema_params"))
  distance = [float(np.square(2 - np.asarray(tree["encoder"]["embeddings"]["token"]["embedding"])).mean())
              for tree in (last, average)]
  assert distance[0] < distance[1]  # of all tokens; the loss is that of the masked ones
  monkeypatch.setattr(train_state, "evaluated_params", lambda state, ema: state.params)
  assert pretrain.pretrain(small(place, train__num_steps=8, **options | {"optimizer__schedule": "linear"}),
                           str(place.run))["mlm/loss"] < result["mlm/loss"]

  monkeypatch.setattr(checkpoints_tool, "FLAGS", ConfigDict({"out": str(tmp_path / "average")}))
  assert "the moving average at step 8" in checkpoints_tool.ema([str(place.run)])
  jax.tree.map(np.testing.assert_array_equal, checkpoints.load_params(str(tmp_path / "average"))[1], average)
  started = small(place, train__num_steps=1, checkpoint__init_from=str(tmp_path / "average"), **options)
  pretrain.pretrain(started, str(tmp_path / "started"))  # the average begins with the parameters, in its own memory
  with pytest.raises(UserError, match="has no ema_params"):
    checkpoints.load_params(str(tmp_path / "average"), part="ema_params")


@pytest.fixture(scope="module")
def in_half():
  """Three steps of a masked LM on four devices: float16, moments in bfloat16, average, norms and z-loss at once."""
  config = ConfigDict(tiny_config("mlm", compute_dtype="float16", ema_decay=0.99).to_dict())
  config.optimizer.update(first_moment_dtype="bfloat16", second_moment_dtype="bfloat16")
  config.objective.z_loss_weight = 1e-3
  config.log.norms_per_group = True
  config = FrozenConfigDict(config)
  mesh = sharding.make_mesh({"data": 1, "fsdp": 2, "tensor": 2}, jax.devices()[:4])
  transformer = make_transformer_config(config.model, num_tokens=100, dtype=config.train.compute_dtype)
  objective = objectives.make(transformer, config.generator, config.objective, config.train.num_steps)
  tx = optim.make(config.optimizer, config.train.num_steps)[0]
  rows = jax.tree.map(lambda x: jnp.zeros((1, *x.shape[1:]), x.dtype), make_batch())
  state = train_state.init_state(functools.partial(objective.init, jax.random.key(0), rows), tx, mesh,
                                 **train_state.parts(config.train))
  with jax.set_mesh(mesh):
    step = step_lib.make_train_step(state, objective=objective, phase=objective.phases[0], tx=tx,
                                    rng=jax.random.key(5), accumulation_steps=1, **step_lib.step_options(config))
    window = []
    for _ in range(3):
      state, pairs = step(state, sharding.put_batch(jax.tree.map(np.asarray, make_batch()), mesh))
      window.append(pairs)
  return state, [metrics.summarise(metrics.add_pairs([pairs])) for pairs in window]


def test_a_masked_lm_learns_in_float16(in_half):
  _, values = in_half
  assert [row[nonfinite.SKIPPED] for row in values] == [0, 0, 0]
  assert values[2]["loss"] < values[0]["loss"] and all(np.isfinite(row["loss"]) for row in values)


def test_groups_add_up_to_the_whole(in_half):
  row = in_half[1][1]
  groups = {"encoder_embeddings", "encoder_layers", "encoder_heads"}
  for name in ("gradient_norm", "update_norm"):
    found = {key.split("/")[1]: value for key, value in row.items() if key.startswith(f"{name}/")}
    assert found.keys() == groups and all(value > 0 for value in found.values())
  total = sum(value**2 for key, value in row.items() if key.startswith("gradient_norm/")) ** 0.5
  assert total == pytest.approx(row["train/gradient_norm"], rel=1e-5)


def test_moments_and_average_lie_where_their_parameters_do(in_half):
  state, _ = in_half
  kernel = state.params["encoder"]["layer_00"]["feed_forward"]["intermediate"]["kernel"]
  moments = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.shape == kernel.shape]
  assert {(leaf.dtype.name, leaf.sharding.spec) for leaf in moments} == {("bfloat16", kernel.sharding.spec)}
  average = state.ema_params["encoder"]["layer_00"]["feed_forward"]["intermediate"]["kernel"]
  assert average.sharding == kernel.sharding and average.dtype == jnp.float32


def test_z_loss_is_added_and_shown_and_leaves_perplexity_alone(monkeypatch):
  """Through the generator's part of every objective that has one, and as (log Z)^2 by hand."""
  batch, config = make_batch(), ConfigDict(tiny_config().to_dict())
  logits = jax.random.normal(jax.random.key(1), (*batch["masked_ids"].shape, 7)) + 3
  batch["masked_ids"] = batch["masked_ids"] % 7
  monkeypatch.setitem(generators.GENERATORS, "learned", lambda model, counts: lambda *arguments: logits)
  transformer = make_transformer_config(FrozenConfigDict(config.model), num_tokens=100, dtype="float32")
  config_generator = FrozenConfigDict(config.generator)
  model, found = generators.make_model(transformer, config_generator, config.objective), {}
  for weight in (0.0, 0.1):
    config.objective.z_loss_weight = weight
    generate = generators.make(model, config.generator, config.objective, None)
    found[weight] = generate({}, batch, jax.random.key(2), jax.random.key(3), True)
  (plain, plain_metrics, _), (loss, shown, _) = found[0.0], found[0.1]
  log_z = np.log(np.exp(np.asarray(logits, np.float64)).sum(-1))
  expected = (np.asarray(batch["masked_weights"]) * log_z**2).sum()
  assert float(loss - plain) == pytest.approx(0.1 * expected, rel=1e-4)
  assert float(shown["mlm/z_loss"][0]) == pytest.approx(expected, rel=1e-5) and "mlm/z_loss" not in plain_metrics
  assert float(shown["mlm/loss"][0]) == float(plain_metrics["mlm/loss"][0])
  assert float(jax.grad(lambda x: z_loss.squared_log_z(x, batch["masked_weights"]))(logits).sum()) > 0


@pytest.mark.parametrize("name,logits_of,weights_of", [
  ("replace_mlm", lambda logits: logits, lambda batch: batch["masked_weights"]),
  ("all_tokens_mlm", lambda logits: (jnp.zeros(logits.shape[:2]), logits), lambda batch: batch["attention_mask"]),
])
def test_z_loss_holds_the_kept_encoder_too(monkeypatch, name, logits_of, weights_of):
  """Where it is a masked LM of its own, beside the generator: at every position that its loss counts."""
  batch, config = make_batch(), ConfigDict(tiny_config(name).to_dict())
  transformer = make_transformer_config(FrozenConfigDict(config.model), num_tokens=100, dtype="float32")
  module, weights = getattr(objectives, name), weights_of(batch)
  logits = jax.random.normal(jax.random.key(1), (*weights.shape, 100)) + 3
  nothing = (0.0, {}, generators.Corruption(batch["input_ids"], weights > 1, batch["masked_ids"]))
  monkeypatch.setattr(generators, "make", lambda *arguments: lambda *arguments: nothing)
  model = SimpleNamespace(apply=lambda *arguments, **options: logits_of(logits))
  monkeypatch.setattr(module, "make_model", lambda *arguments: model)
  config.objective.encoder_mlm_weight = 2.0
  found = {}
  for z_loss_weight in (0.0, 0.1):
    config.objective.z_loss_weight = z_loss_weight
    objective = module.make(transformer, config.generator, config.objective, 9)
    targets = objective.count_targets(batch)
    found[z_loss_weight] = objective.phases[0].loss({}, batch, jax.random.key(2), True, targets)
  (plain, plain_metrics), (loss, shown) = found[0.0], found[0.1]
  log_z = np.log(np.exp(np.asarray(logits, np.float64)).sum(-1))
  expected = (np.asarray(weights) * log_z**2).sum()
  assert float(shown[f"{name}/z_loss"][0]) == pytest.approx(expected, rel=1e-5)
  assert float(loss - plain) == pytest.approx(2 * 0.1 * expected / float(weights.sum()), rel=1e-4)
  assert {key: float(value[0]) for key, value in plain_metrics.items()}.items() <= {
    key: float(value[0]) for key, value in shown.items()}.items()
