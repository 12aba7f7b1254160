"""Do training, the benchmark and the compile check run the very same step?"""

import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from configs import tiny
from electra_jax import config as config_lib
from electra_jax import objectives, pretrain, sharding
from electra_jax.data import pipeline
from electra_jax.objectives.base import Objective, Phase
from electra_jax.tools import bench, compile_program
from electra_jax.training import memory, setup, step
from tests import fake_objective
from tests.small_runs import Place, small, write_corpus


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
  given = small(place, train__on_nonfinite="skip", data__heldout_share=0.0)
  config = config_lib.resolve(given)
  for call in (lambda: pretrain.pretrain(given, str(place.run)),
               lambda: bench.time_step(config, windows=1, window_steps=1),
               lambda: compile_program.lower_step(config, jax.devices())[2]()):
    with pytest.raises(Made):
      call()
  assert len(made) == 3 and made[0] == made[1] == made[2]


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


@pytest.mark.parametrize("platform, newest, threads", [("gpu", 0, 1), ("cpu", 0, 0), ("gpu", 10**9, 0)])
def test_the_step_is_compiled_while_the_state_is_made(monkeypatch, tmp_path, platform, newest, threads):
  monkeypatch.setattr(objectives, "make", fake_objective.make)
  monkeypatch.setattr(sharding, "platform", lambda: platform)
  config = config_lib.resolve(small(Place(tmp_path)))
  run, compiled_in = setup.make(config, sharding.make_mesh(config.mesh)), []
  compile_ = jax.stages.Lowered.compile
  monkeypatch.setattr(jax.stages.Lowered, "compile",
                      lambda lowered: compiled_in.append(threading.current_thread()) or compile_(lowered))
  train_step = run.start_compiling(newest)(run.objective.phases[0])
  assert len(compiled_in) == threads and threading.main_thread() not in compiled_in
  state, batch = run.init_state(), bench.synthetic_batch(config)
  with jax.set_mesh(run.mesh):
    state, _ = train_step(state, sharding.put_batches([batch], run.mesh))
  assert int(state.step) == 1


@pytest.mark.parametrize("capability, options", [("9.0", {"xla_gpu_enable_triton_gemm": False}), ("8.0", None)])
def test_products_are_cublas_on_hopper_alone(capability, options):
  devices = np.array([types.SimpleNamespace(compute_capability=capability)])
  assert setup.compiler_options(types.SimpleNamespace(devices=devices)) == options  # ty: ignore[invalid-argument-type]


def table_and_layer(*_) -> Objective:
  """Like `fake_objective`, with matrices that the tensor axis splits, and a bias that no device shares."""
  table = fake_objective.make()

  def loss(params, batch, rng, train, num_targets):
    total, pairs = table.phases[0].loss(params, batch, rng, train, num_targets)
    layer = params["encoder"]["layer_00"]["feed_forward"]
    hidden = jnp.tanh(batch["input_ids"] @ layer["intermediate"]["kernel"] / 100) @ layer["output"]["kernel"]
    return total + jnp.square(hidden + layer["output"]["bias"]).mean(), pairs

  def init(rng, batch):
    rows, length = jax.random.normal(rng, (16, 32)), batch["input_ids"].shape[1]
    layer = {"intermediate": {"kernel": rows[:length]},
             "output": {"kernel": rows[:, :8].repeat(2, 0), "bias": jnp.ones(8)}}
    return {"encoder": {**table.init(rng, batch)["encoder"], "layer_00": {"feed_forward": layer}}}

  return table._replace(init=init, phases=(Phase(10**9, loss),))


def test_a_shared_state_changes_nothing(monkeypatch, tmp_path):
  """Of LAMB with clipping: the same parameters and norms, of which each device keeps a part."""
  monkeypatch.setattr(objectives, "make", table_and_layer)
  found = []
  for shard_state, fsdp in ((False, 1), (True, 1), (True, 2)):
    given = small(Place(tmp_path), optimizer__shard_state=shard_state, mesh__tensor=2, mesh__fsdp=fsdp,
                  train__accumulation_steps=2)
    config = config_lib.resolve(given)
    mesh = sharding.make_mesh(config.mesh)
    run = setup.make(config, mesh)
    rng = np.random.default_rng(0)
    batches = [{name: rng.integers(0, 9, shape).astype(dtype) for name, (shape, dtype) in
                pipeline.batch_shapes(config.data, config.train.batch_size).items()} for _ in range(2)]
    with jax.set_mesh(mesh):
      state = run.init_state()
      state, pairs = run.train_step(run.objective.phases[0])(state, sharding.put_batches(batches, mesh))
    assert jax.tree.map(lambda x: x.sharding, state) == jax.tree.map(lambda x: x.sharding, run.abstract_state)
    found.append((memory.bytes_per_device(state), jax.device_get((state, pairs))))
  (whole, expected), *shared = found
  for size, ours in shared:
    assert size < whole / 4 + 3 * 4 * 8 + 16  # all but the bias and the counters
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-7), ours, expected)


def test_what_devices_share_is_gathered_in_the_type_of_the_products():
  mesh = sharding.make_mesh({"data": 8, "fsdp": 1, "tensor": 1})
  params = {"encoder": {"layer_00": {"feed_forward": {"intermediate": {"kernel": jnp.ones((16, 3)),
                                                                       "bias": jnp.ones(3)}}}}}
  with jax.set_mesh(mesh):
    def steps(params):
      whole = sharding.gather_parameters(params, jnp.bfloat16)
      return whole, sharding.split_gradients(whole, jnp.bfloat16)

    whole, parts = (jax.tree.leaves(tree) for tree in jax.jit(steps)(params))
  assert [leaf.dtype.name for leaf in whole] == ["float32", "bfloat16"] and {x.dtype.name for x in parts} == {"float32"}
  assert whole[1].is_fully_replicated and parts[1].addressable_shards[0].data.shape == (2, 3)


def test_a_shared_state_is_split_by_rows_as_far_as_they_go():
  mesh = sharding.make_mesh({"data": 4, "fsdp": 2, "tensor": 1})
  params = {"encoder": {"embeddings": {"token": {"embedding": jnp.ones((6, 8))}},
                        "layer_00": {"attention": {"output": {"kernel": jnp.ones((16, 4)), "bias": jnp.ones(4)}}}}}
  places = sharding.by_path(sharding.parameter_shardings(params, mesh, shard_state=True))
  assert {path.split("/")[-1]: place.spec for path, place in places.items()} == {
    "embedding": PartitionSpec(("tensor", "fsdp"), "data"), "kernel": PartitionSpec(("tensor", "fsdp", "data"), None),
    "bias": PartitionSpec(None)}
