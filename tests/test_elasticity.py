"""Does a run go on as if nothing had happened on other devices? Another count, another mesh, other micro-batches."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from electra_jax import distributed, metrics, objectives, optim, pretrain, sharding
from electra_jax.errors import Interrupted, UserError
from electra_jax.models.bert import make_transformer_config
from electra_jax.training import checkpoint_reading, checkpoints
from electra_jax.training.train_state import abstract_state, init_state
from tests import fake_objective
from tests.objectives.test_objectives import make_batch
from tests.small_runs import Place, small, write_corpus
from tests.test_pretrain import tiny_config

MESHES = ((2, 2, 2), (1, 4, 1), (4, 1, 1), (1, 1, 1), (1, 2, 4))  # 8 -> 4 -> 4 -> 1 -> 8 devices


def mesh_of(data, fsdp, tensor):
  sizes = dict(zip(sharding.MESH_AXES, (data, fsdp, tensor)))
  return sharding.make_mesh(sizes, jax.devices()[: data * fsdp * tensor])


@dataclasses.dataclass(frozen=True)
class Chip:
  """What a mesh asks of a device."""

  id: int
  slice_index: int
  platform: str = "other"
  device_kind: str = "other"


def test_slices_share_the_data_axis():
  chips = [Chip(number, number % 2) for number in range(8)]
  mesh = sharding.make_mesh({"data": -1, "fsdp": 2, "tensor": 1}, chips)
  assert [[chip.slice_index for chip in row.flat] for row in mesh.devices] == [[0, 0], [0, 0], [1, 1], [1, 1]]
  with pytest.raises(UserError, match="cannot be divided over the slices"):
    sharding.make_mesh({"data": 1, "fsdp": -1, "tensor": 1}, chips)


def test_a_state_keeps_its_bits_from_mesh_to_mesh(tmp_path):
  """Parameters and moments (split over data, too, or not) and counters of ELECTRA, from each mesh onto the next."""
  config = tiny_config()
  transformer = make_transformer_config(config.model, num_tokens=100, dtype="float32")
  objective = objectives.make(transformer, config.generator, config.objective, config.train.num_steps)
  tx = optim.make(config.optimizer, config.train.num_steps)[0]
  rows = jax.tree.map(lambda x: jnp.zeros((1, *x.shape[1:]), x.dtype), make_batch())
  shapes = jax.eval_shape(objective.init, jax.random.key(0), rows)
  init_params = functools.partial(jax.tree.map, lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
  rng = np.random.default_rng(0)
  first = abstract_state(init_params, tx, mesh_of(*MESHES[0]), shard_state=True)
  written = jax.tree.map(lambda leaf: np.asarray(9 * rng.standard_normal(leaf.shape), leaf.dtype), first)
  state = jax.tree.map(lambda values, leaf: jax.device_put(values, leaf.sharding), written, first)
  for step, shape in enumerate(MESHES[1:]):
    saved = checkpoints.Checkpoints(str(tmp_path), config.checkpoint)
    saved.save(state, step)
    saved.close()
    wanted = abstract_state(init_params, tx, mesh_of(*shape), shard_state=step == 1)
    saved = checkpoints.Checkpoints(str(tmp_path), config.checkpoint)
    state = saved.restore_newest(wanted)
    saved.close()
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), written)
    assert all(jax.tree.leaves(jax.tree.map(lambda x, leaf: x.sharding == leaf.sharding, state, wanted))), shape


def test_an_array_that_all_devices_hold_is_written_whole(tmp_path, capfd):
  """Not a piece from each of eight devices, which takes far longer; no warning of Orbax reaches the user."""
  config, init_params = tiny_config(), lambda: {"encoder": {"layer_norm": {"scale": jnp.ones(16)}}}
  mesh, tx = mesh_of(8, 1, 1), optim.make(config.optimizer, config.train.num_steps)[0]
  saved = checkpoints.Checkpoints(str(tmp_path), config.checkpoint)
  saved.save(init_state(init_params, tx, mesh), 0)
  saved.close()
  tree, _ = checkpoint_reading.read_metadata(str(tmp_path / "checkpoints/0"))
  assert tree["params"]["encoder"]["layer_norm"]["scale"].storage.chunk_shape == (16,)
  assert "overriding" not in capfd.readouterr().err


def test_a_run_goes_on_with_other_devices_and_micro_batches(tmp_path, monkeypatch):
  """8 -> 4 -> 1 -> 8 devices, two steps each: every global batch and every loss is that of the undisturbed run."""
  place = Place(tmp_path)
  write_corpus(place.corpus, num_documents=20)
  monkeypatch.setattr(objectives, "make", fake_objective.make)
  put_batches, reached, seen = sharding.put_batches, distributed.StopRequest.reached, []

  def put(batches, mesh):
    seen.extend({name: rows.copy() for name, rows in batch.items()} for batch in batches)
    return put_batches(batches, mesh)

  def run(workdir, stop_after, shape, accumulation_steps):
    mesh = mesh_of(*shape)
    with monkeypatch.context() as patch:
      patch.setattr(sharding, "make_mesh", lambda sizes, devices: mesh)
      patch.setattr(sharding, "put_batches", put)
      patch.setattr(distributed.StopRequest, "reached", lambda self, step: reached(self, step) or step == stop_after)
      seen.clear()
      try:
        pretrain.pretrain(small(place, data__heldout_share=0.0, train__num_steps=8, checkpoint__every_steps=5,
                                train__accumulation_steps=accumulation_steps), str(workdir))
      except Interrupted:
        assert stop_after < 8
    return seen[:2] if stop_after < 8 else list(seen)  # one more is made ahead

  straight = run(place.run, 8, (1, 1, 1), 1)
  moved = []
  for stop_after, shape, accumulation_steps in ((2, (2, 2, 2), 1), (4, (1, 2, 2), 2), (6, (1, 1, 1), 8),
                                                (8, (4, 1, 2), 2)):
    moved += run(place.new, stop_after, shape, accumulation_steps)
  assert len(straight) == len(moved) == 8
  for step in range(8):
    jax.tree.map(np.testing.assert_array_equal, straight[step], moved[step])
  losses = [[row["loss"] for row in metrics.read_rows(str(workdir)) if row["split"] == "train"]
            for workdir in (place.run, place.new)]
  np.testing.assert_allclose(*losses, rtol=1e-5)  # sums in another order are not the same bits
  parameters = [checkpoints.load_params(str(workdir), step=8)[1] for workdir in (place.run, place.new)]
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), *parameters)
