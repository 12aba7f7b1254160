"""Does the loop keep its promises? Same numbers on every mesh, after every kill, for every way to cut the batch."""

import functools
import json
import pathlib
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from electra_jax import config as config_lib
from electra_jax import distributed, finetune, metrics, objectives, optim, pretrain, sharding
from electra_jax.errors import Interrupted, UserError
from electra_jax.finetuning import pretrained
from electra_jax.models.bert import make_transformer_config
from electra_jax.objectives.base import Objective, Phase
from electra_jax.training import checkpoints
from electra_jax.training import step as step_lib
from electra_jax.training import workdir as workdir_lib
from electra_jax.training.train_state import abstract_state, init_state
from tests.conftest import ONE_DEVICE, ROOT
from tests.objectives.test_objectives import initialise, make_batch, value_and_gradients
from tests.small_runs import STEPS, contents, environment, small, write_corpus


def tiny_config(name="rtd", **train):
  from configs import tiny

  given = tiny.get_config()
  given.model.update(hidden_size=32, embedding_size=16, num_hidden_layers=1, num_attention_heads=2,
                     intermediate_size=64, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
  given.data.update(sequence_length=16)
  given.data.tokenizer.vocab_size = 100
  given.objective.name = name
  given.optimizer.update(name="lamb", warmup_steps=2)
  given.train.update(**{"batch_size": 8, "num_steps": 10, **train})
  return config_lib.resolve(given)


def setup(config, mesh):
  """(objective, tx, state) on a mesh."""
  transformer = make_transformer_config(config.model, num_tokens=100, dtype="float32", remat=config.train.remat)
  objective = objectives.make(transformer, config.generator, config.objective, config.train.num_steps)
  tx = optim.make(config.optimizer, config.train.num_steps)[0]
  rows = jax.tree.map(lambda x: jnp.zeros((1, *x.shape[1:]), x.dtype), make_batch())
  return objective, tx, init_state(functools.partial(objective.init, jax.random.key(0), rows), tx, mesh)


def run_steps(config, mesh, batches, num_steps=1):
  objective, tx, state = setup(config, mesh)
  with jax.set_mesh(mesh):
    step = step_lib.make_train_step(state, objective=objective, phase=objective.phases[0], tx=tx,
                                    rng=jax.random.key(5), accumulation_steps=config.train.accumulation_steps)
    for index in range(num_steps):
      state, pairs = step(state, sharding.put_batches([jax.tree.map(np.asarray, batches[index])], mesh))
  return jax.device_get(state.params), metrics.summarise(metrics.add_pairs(metrics.of_each_step([pairs])))


def one_device():
  return sharding.make_mesh({"data": 1, "fsdp": 1, "tensor": 1}, jax.devices()[:1])


def assert_close(a, b, tolerance=1e-5):
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=tolerance, rtol=tolerance), a, b)


def test_the_new_parameters_are_traced_once():
  """A large model takes a second each time; the loop asks for their shapes first, to look for a checkpoint."""
  objective, tx, _ = setup(tiny_config(), one_device())
  rows, calls = make_batch(), []

  def init_params():
    calls.append(1)
    return objective.init(jax.random.key(0), rows)

  shapes = abstract_state(init_params, tx, one_device())
  state = init_state(init_params, tx, one_device())
  assert len(calls) == 1
  assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(lambda x: (x.shape, x.dtype), shapes)


@pytest.fixture(scope="module")
def on_one_device():
  return run_steps(tiny_config(), one_device(), [make_batch()])


@pytest.mark.parametrize("shape", [(8, 1, 1), (1, 8, 1), (2, 2, 2)])
def test_one_step_is_the_same_on_every_mesh(shape, on_one_device):
  """Dropout and the generator's draws included: random numbers do not depend on the placement."""
  mesh = sharding.make_mesh(dict(zip(sharding.MESH_AXES, shape)))
  params, values = run_steps(tiny_config(), mesh, [make_batch()])
  assert_close(params, on_one_device[0])
  assert values["loss"] == pytest.approx(on_one_device[1]["loss"], rel=1e-5)


def test_state_is_created_sharded():
  mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2})
  state = setup(tiny_config(), mesh)[2]
  kernel = state.params["discriminator"]["layer_00"]["feed_forward"]["intermediate"]["kernel"]
  assert kernel.sharding.spec == jax.sharding.PartitionSpec("fsdp", "tensor")
  assert kernel.addressable_shards[0].data.size * 4 == kernel.size
  moments = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.shape == kernel.shape]
  assert moments and all(leaf.sharding.spec == kernel.sharding.spec for leaf in moments)


def test_accumulation_divides_by_the_global_target_count():
  """bug-reports 18: micro-batches with unequal numbers of targets give the gradient of the undivided batch."""
  no_dropout = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
  config = tiny_config("mlm")
  config = config_lib.resolve(_with(config, model=no_dropout))
  batch = make_batch()
  batch["masked_weights"] = batch["masked_weights"].at[::2].set(0.0)  # half of the micro-batches have no target at all
  whole, values = run_steps(config, one_device(), [batch])
  parts, values_of_parts = run_steps(_with(config, train={"accumulation_steps": 4}), one_device(), [batch])
  assert_close(whole, parts)
  for name in ("loss", "mlm/loss", "train/gradient_norm"):
    assert values_of_parts[name] == pytest.approx(values[name], rel=1e-5)


@functools.cache
def gradients(remat):
  """Of a masked LM with dropout."""
  config, batch = tiny_config("mlm", remat=remat), make_batch()
  transformer = make_transformer_config(config.model, num_tokens=100, dtype="float32", remat=config.train.remat)
  objective = objectives.make(transformer, config.generator, config.objective, config.train.num_steps)
  return value_and_gradients(objective, batch, initialise(objective, batch), train=True)[::2]


@pytest.mark.parametrize("policy", ["full", "dots", "all_dots"])
def test_remat_changes_nothing(policy):
  assert_close(gradients(policy), gradients("none"))


def _with(config, **branches):
  from ml_collections import ConfigDict, FrozenConfigDict

  changed = ConfigDict(config.to_dict())
  for branch, values in branches.items():
    changed[branch].update(values)
  return FrozenConfigDict(changed)


def test_phases_follow_the_step_and_freeze_what_they_say():
  def loss(params, batch, rng, train, num_targets):
    return (params["a"]["kernel"] * params["b"]["kernel"]).sum(), {}

  phases = (Phase(2, loss), Phase(3, loss, trainable="b/.*"))
  objective = Objective(lambda rng, batch: {}, lambda batch: {}, phases)
  assert [objective.phase_at(step) for step in range(6)] == [(phases[0], 0)] * 2 + [(phases[1], 2)] * 4
  params = {name: {"kernel": jnp.ones(3)} for name in "ab"}
  tx = optim.make(tiny_config().optimizer, 10)[0]
  state = pretrain.TrainState(jnp.int32(2), params, tx.init(params))
  after, _ = step_lib.update(state, {"x": jnp.ones((2, 1))}, objective=objective, phase=phases[1], tx=tx,
                             rng=jax.random.key(0), accumulation_steps=1)
  assert np.array_equal(after.params["a"]["kernel"], params["a"]["kernel"])  # no decay either
  assert not np.array_equal(after.params["b"]["kernel"], params["b"]["kernel"])


def test_a_batch_that_the_devices_do_not_divide_is_refused():
  mesh = sharding.make_mesh({"data": 4, "fsdp": 2, "tensor": 1})
  with pytest.raises(UserError, match="use 16"):
    sharding.check_batch_size(12, mesh, "train.batch_size")
  with pytest.raises(UserError, match="mesh does not use every device"):
    sharding.make_mesh({"data": 3, "fsdp": 1, "tensor": 1})


# ---- the command, killed and started again ----

def command(workdir, corpus):
  return [sys.executable, "-m", "electra_jax.main", f"--config={ROOT}/configs/tiny.py:tiny", f"--workdir={workdir}",
          f"--config.data.path={corpus}", "--config.data.tokenizer.kind=wordpiece", "--config.data.sequence_length=32",
          "--config.data.heldout_share=0.0", "--config.model.hidden_dropout_prob=0.1",
          "--config.model.attention_probs_dropout_prob=0.0", "--config.model.num_hidden_layers=1",
          "--config.model.intermediate_size=256", "--config.train.batch_size=32",
          "--config.train.num_steps=20", "--config.train.log_every_steps=1", "--config.data.reader=threads",
          "--config.checkpoint.every_steps=4", "--config.data.num_workers=1", "--config.log.tensorboard=False"]


def run(workdir, corpus, flags):
  return subprocess.run(command(workdir, corpus), env=environment(flags), cwd=ROOT, capture_output=True, text=True)


def training_rows(workdir):
  """step -> loss of each logged step; timings differ between runs, numbers must not."""
  rows = [row for row in metrics.read_rows(str(workdir)) if row["split"] == "train"]
  assert len({row["step"] for row in rows}) == len(rows), "a step is logged twice"
  timings = ("time", "train/tokens", "train/step_ms", "train/data", "train/flops")  # train/tokens_per_second, ...
  return {row["step"]: {k: v for k, v in row.items() if not k.startswith(timings)} for row in rows}


@pytest.fixture(scope="module", params=[ONE_DEVICE, pytest.param("", marks=pytest.mark.slow)],
                ids=["quick to compile", "optimised"])
def uninterrupted(tmp_path_factory, request):
  """(workdir, corpus, XLA_FLAGS) of a finished run."""
  folder = tmp_path_factory.mktemp("uninterrupted")
  corpus = write_corpus(folder / "corpus.txt")
  done = run(folder / "run", corpus, request.param)
  assert done.returncode == 0, done.stderr[-3000:]
  examples = json.loads((folder / "run/shards/manifest.json").read_text())["splits"]["train"]["examples"]
  assert 12 * 32 // examples >= 1, "the kill must fall into another epoch than the start"
  return folder / "run", corpus, request.param


def wait_for_step(workdir, step, process):
  """Returns as soon as the log shows the step."""
  path, deadline = workdir / metrics.FILE_NAME, time.monotonic() + 180
  while time.monotonic() < deadline and process.poll() is None:
    if path.exists() and f'"step": {step},' in path.read_text():
      return
    time.sleep(0.002)
  raise AssertionError(f"step {step} was never logged")


def final_parameters(workdir):
  return jax.device_get(checkpoints.load_params(str(workdir), step=20)[1])


def test_killed_and_restarted_equals_uninterrupted_bit_for_bit(tmp_path, uninterrupted):
  """bug-reports 19: kill -9 after step 12, start again: every later loss and the final parameters are the same bits."""
  straight, corpus, flags = uninterrupted
  workdir = tmp_path / "run"
  process = subprocess.Popen(command(workdir, corpus), env=environment(flags), cwd=ROOT, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
  wait_for_step(workdir, 13, process)
  process.send_signal(signal.SIGKILL)
  process.wait()
  assert max(training_rows(workdir)) < 20, "the kill came too late to test anything"
  again = run(workdir, corpus, flags)
  assert again.returncode == 0, again.stderr[-3000:]
  assert "Resuming from this workdir's checkpoint of step" in again.stdout
  assert training_rows(workdir) == training_rows(straight)
  jax.tree.map(np.testing.assert_array_equal, final_parameters(workdir), final_parameters(straight))
  first, second = workdir_lib.read_starts(str(workdir))
  assert first["step"] == 0 < second["step"] and second["device_kind"] == "cpu" and second["mesh"]["data"] >= 1


def test_finished_run_says_so(place, quick_model, capfd):
  before = contents(place.run / "checkpoints")
  pretrain.pretrain(small(place), str(place.run))
  assert f"This run is finished: {STEPS} of {STEPS} steps are done." in capfd.readouterr().err
  assert contents(place.run / "checkpoints") == before


def test_an_evaluation_that_a_stop_prevented_is_made_up_for(place, quick_model, monkeypatch):
  given = small(place, eval__every_steps=2)
  with monkeypatch.context() as patch:
    patch.setattr(distributed.StopRequest, "reached", lambda self, step: step == 2)
    with pytest.raises(Interrupted):
      pretrain.pretrain(given, str(place.new))
  pretrain.pretrain(given, str(place.new))
  rows = metrics.read_rows(str(place.new))
  assert [row["step"] for row in rows if row["split"] == "eval"] == list(range(2, STEPS + 1, 2))


def test_a_fine_tuning_on_the_way_that_was_interrupted_is_made_up_for(place, quick_model, monkeypatch):
  """The run resumes from a checkpoint of this very step, to which its loop does not come again."""
  started = []

  def finetune_run(given, workdir, step, start):
    started.append(step)
    if len(started) == 1:
      raise Interrupted("while it fine-tunes")
    folder = pathlib.Path(workdir, "finetune", str(step), "rte")
    folder.mkdir(parents=True)
    (folder / "results.json").write_text("{}")
    return {"rte/accuracy": 0.5}

  monkeypatch.setattr(finetune, "finetune_run", finetune_run)
  monkeypatch.setattr(pretrained, "of_run", lambda config, tokenizer, params: None)  # the quick model has no encoder
  given = small(place, eval__finetune_tasks="rte", task__data_dir="glue")
  with pytest.raises(Interrupted):
    pretrain.pretrain(given, str(place.run))
  for _ in range(2):
    pretrain.pretrain(given, str(place.run))
  assert started == [STEPS] * 2
  assert [row["rte/accuracy"] for row in metrics.read_rows(str(place.run)) if row["split"] == "finetune"] == [0.5]


def test_damaged_newest_checkpoint_is_passed_over(place, quick_model, capfd, caplog):
  """The run resumes from the one before and ends with the same bits."""
  _, expected = checkpoints.load_params(str(place.run), step=STEPS)
  files = [path for path in (place.run / f"checkpoints/{STEPS}/default/d").iterdir() if path.stat().st_size > 200]
  for path in files:
    path.write_bytes(path.read_bytes()[:100])
  pretrain.pretrain(small(place), str(place.run))
  assert files and f"The checkpoint of step {STEPS} is damaged" in caplog.text
  assert f"Resuming from this workdir's checkpoint of step {STEPS - 2}." in capfd.readouterr().out
  jax.tree.map(np.testing.assert_array_equal, checkpoints.load_params(str(place.run), step=STEPS)[1], expected)


def test_two_processes_compute_what_one_computes(tmp_path, uninterrupted):
  """Two processes over loopback, half of each global batch in each: the losses of the single-process run."""
  import socket

  straight, corpus, flags = uninterrupted
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{free.getsockname()[1]}"
  workers = [subprocess.Popen(
    command(tmp_path / "run", corpus), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    env={**environment(flags), "COORDINATOR_ADDRESS": address, "NUM_PROCESSES": "2", "PROCESS_ID": str(index)})
    for index in range(2)]
  outputs = [worker.communicate(timeout=300)[0] for worker in workers]
  assert [worker.returncode for worker in workers] == [0, 0], outputs[0][-3000:] + outputs[1][-3000:]
  alone, together = training_rows(straight), training_rows(tmp_path / "run")
  assert alone.keys() == together.keys()
  for step, row in alone.items():
    assert together[step]["loss"] == pytest.approx(row["loss"], rel=1e-4), step


def test_incomplete_process_group_is_refused(monkeypatch):
  monkeypatch.setenv("NUM_PROCESSES", "2")
  with pytest.raises(UserError, match="export all three"):
    distributed.start()
