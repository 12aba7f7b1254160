"""Compiled steps on meshes: the partitioner finds a way from every array's split to the next."""

import os
import subprocess
import sys

from tests.conftest import ROOT

COMPILE = """
import sys

import jax

from configs import tiny
from electra_jax import config, sharding
from electra_jax.data import pipeline
from electra_jax.training import setup

for sizes in sys.argv[1:]:
  given = tiny.get_config("tiny")
  given.update_from_flattened_dict({
    "data.path": "unused", "data.sequence_length": 32, "data.tokenizer.vocab_size": 512, "train.batch_size": 16,
    "model.num_hidden_layers": 1,
    **{f"mesh.{axis}": int(size) for axis, size in zip(sharding.MESH_AXES, sizes.split("x"))}})
  given = config.resolve(given)
  mesh = sharding.make_mesh(given.mesh)
  run = setup.make(given, mesh, num_tokens=500)
  place = sharding.batches_sharding(mesh)
  batch = {name: jax.ShapeDtypeStruct((1, *shape), dtype, sharding=place)
           for name, (shape, dtype) in pipeline.batch_shapes(given.data, given.train.batch_size).items()}
  with jax.set_mesh(mesh):
    run.train_step(run.objective.phases[0]).lower(run.abstract_state, batch).compile()
  print("compiled", sizes, file=sys.stderr, flush=True)
"""


def test_no_array_is_computed_whole_by_every_device_for_want_of_a_way():
  """XLA warns of an "involuntary full rematerialization" where it has to replicate an activation."""
  variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0", "JAX_ENABLE_COMPILATION_CACHE": "false"}
  said = subprocess.run([sys.executable, "-c", COMPILE, "2x2x2", "1x4x2"], cwd=ROOT, env=variables, text=True,
                        capture_output=True).stderr
  assert all(f"compiled {sizes}\n" in said for sizes in ("2x2x2", "1x4x2")), said[-3000:]
  assert "rematerialization" not in said, said[-3000:]
