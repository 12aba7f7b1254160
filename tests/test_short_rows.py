"""Rows that are cut into shorter ones at first: is every token there once, is a restart exact, do the counts fit?"""

import functools
import importlib
import io
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict
from rich.console import Console

from electra_jax import batch_schedule, checkpoints, flops, metrics, objectives, pretrain, sharding
from electra_jax import config as config_lib
from electra_jax.batch_schedule import BatchSchedule, Stage
from electra_jax.data import order, pipeline, shards, tokenizers
from electra_jax.errors import UserError
from electra_jax.models.attention import attention
from electra_jax.tools import show_batch
from electra_jax.training import step as step_lib
from tests import fake_objective
from tests.data import test_pipeline
from tests.objectives import test_objectives
from tests.small_runs import prepare, with_data_of
from tests.test_configs import ABLATIONS, RECIPES

SWITCH, STEPS = 4, 8
CUT = dict(data__initial_sequence_length=8, data__initial_length_steps=SWITCH, train__num_steps=STEPS)

# ---- rows ----

ROWS = {"ids": [[1, 11, 12, 2, 13, 14, 15, 16, 17, 18, 19, 2], [1, 21, 22, 23, 2, 0, 0, 0, 0, 0, 0, 0]],
        "num_tokens": [12, 5], "start": [4, 5]}
PIECES = [  # input_ids, attention_mask, token_type_ids, how many to predict at 0.3
  ([1, 11, 12, 2], [1, 1, 1, 1], [0, 0, 0, 0], 2),
  ([13, 14, 15, 16], [1, 1, 1, 1], [1, 1, 1, 1], 2),
  ([17, 18, 19, 2], [1, 1, 1, 1], [1, 1, 1, 1], 2),
  ([1, 21, 22, 23], [1, 1, 1, 1], [0, 0, 0, 0], 2),
  ([2, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], 0),  # [SEP] alone: nothing to predict
  ([0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], 0)]


class TwoExamples(test_pipeline.FakeExamples):
  """ROWS; both of them in each epoch."""

  def __init__(self):
    self.ids, self.num_tokens, self.start = (np.array(values, np.int32) for values in ROWS.values())


def two_at(step, seed=3, batch_size=2, examples=None, pieces=3, config=test_pipeline.CONFIG, **processes):
  schedule = BatchSchedule([Stage(0, batch_size, pieces)])
  return pipeline.make_batch_at(examples or TwoExamples(), config, test_pipeline.TOKENIZER, batch_size=batch_size,
                                seed=seed, schedule=schedule, **processes)(step)


def test_pieces_written_out():
  batch = two_at(0)
  first = int(order.example_order(0, 2, 2, seed=3)[0][0])  # which of the two comes first
  expected = PIECES[3 * first:] + PIECES[:3 * first]
  for row, (ids, mask, types, targets) in enumerate(expected):
    assert batch["input_ids"][row].tolist() == ids and batch["attention_mask"][row].tolist() == mask
    assert batch["token_type_ids"][row].tolist() == types and batch["masked_weights"][row].sum() == targets
    chosen = batch["masked_positions"][row][batch["masked_weights"][row] > 0]
    assert (batch["input_ids"][row][chosen] > 4).all() and len(set(chosen)) == targets
    unchosen = np.setdiff1d(np.arange(4), chosen)
    assert np.array_equal(batch["masked_input_ids"][row][unchosen], batch["input_ids"][row][unchosen])
  assert batch["masked_ids"].shape == (6, 2)  # ceil(0.3 * 4), not the 4 of a whole row


def test_masks_are_of_seed_example_epoch_and_piece_alone():
  """The same in any batch; others in the next epoch, unless they are static; of each piece their own."""
  def masks(steps, **changes):
    return test_pipeline.concatenate([two_at(step, **changes) for step in steps])

  number, examples = 32, test_pipeline.FakeExamples(32)
  small_batches, large = masks(range(16), examples=examples), masks(range(2), examples=examples, batch_size=16)
  test_pipeline.assert_equal(small_batches, large)
  static = ConfigDict(test_pipeline.CONFIG.to_dict())
  static.masking.num_static_masks = 1
  for config, repeats in ((test_pipeline.CONFIG, False), (static, True)):
    by_example = []
    for epoch in range(2):
      ids = order.stream_order(np.arange(number) + epoch * number, number, seed=3)[0]
      positions = masks([epoch], examples=examples, batch_size=number, config=config)["masked_positions"]
      by_example.append(positions.reshape(number, -1)[np.argsort(ids)])
    assert np.array_equal(*by_example) == repeats
  alike = TwoExamples()
  alike.ids[:], alike.num_tokens[:], alike.start[:] = 9, 12, 12
  positions = np.concatenate([two_at(step, examples=alike)["masked_positions"] for step in range(20)])
  first, second, third = positions.reshape(-1, 3, 2).swapaxes(0, 1)
  assert not np.array_equal(first, second) and not np.array_equal(second, third)
  whole = np.concatenate([two_at(step, examples=alike, pieces=1)["masked_positions"] for step in range(20)])
  assert not np.array_equal(first, whole[:, :2])


@pytest.mark.parametrize("processes", [2, 8])
def test_processes_and_devices_share_the_pieces_of_the_same_batch(processes):
  examples = test_pipeline.FakeExamples(20)
  options = dict(examples=examples, batch_size=8)
  whole = two_at(1, **options)
  local = [two_at(1, process_index=index, process_count=processes, **options) for index in range(processes)]
  test_pipeline.assert_equal(test_pipeline.concatenate(local), whole)
  assert len(whole["input_ids"]) == 24
  if processes == 8:
    on_devices = sharding.put_batch(whole, sharding.make_mesh({"data": 8, "fsdp": 1, "tensor": 1}))
    assert on_devices["input_ids"].sharding.shard_shape((24, 4)) == (3, 4)
    test_pipeline.assert_equal(jax.device_get(on_devices), whole)


# ---- rows of padding ----


@pytest.mark.parametrize("name", ["mlm", "rtd", "all_tokens_mlm", "electra_15"])
def test_pieces_of_padding_weigh_nothing(name):
  """The loss, the counts and every gradient are finite; of a masked LM those without these rows."""
  objective = test_objectives.make(name)
  batch = test_objectives.make_batch()
  fill = {key: jnp.zeros_like(rows[:4]) for key, rows in batch.items()}
  padded = {key: jnp.concatenate([rows, fill[key]]) for key, rows in batch.items()}
  params = objective.init(jax.random.key(0), batch)
  assert jax.tree.map(float, objective.count_targets(padded)) == jax.tree.map(float, objective.count_targets(batch))
  loss, pairs, gradients = test_objectives.value_and_gradients(objective, padded, params)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((loss, pairs, gradients)))
  if name == "mlm":
    expected = test_objectives.value_and_gradients(objective, batch, params)
    np.testing.assert_allclose(loss, expected[0], rtol=1e-5)
    for path, gradient in gradients.items():
      np.testing.assert_allclose(gradient, expected[2][path], atol=1e-6, err_msg=path)


@pytest.mark.parametrize("kernels", ["xla", "interpret"])
def test_attention_over_padding_alone_has_a_gradient(kernels):
  product = jax.random.normal(jax.random.key(0), (2, 16, 1, 3, 16))
  mask = jnp.arange(16) < jnp.array([[16], [0]])
  seeds, bias = jnp.array([1, 2], jnp.uint32), jnp.ones((1, 3, 16))

  @jax.jit
  def gradients(product, bias):
    return jax.value_and_grad(lambda *x: (attention(*x, mask, seeds, 0.1, kernels)[0] ** 2).sum(), (0, 1))(
      product, bias)

  value, (of_product, of_bias) = gradients(product, bias)
  assert np.isfinite(value) and np.isfinite(of_product).all() and np.isfinite(of_bias).all()
  assert np.abs(of_product[0]).max() > 0 == np.abs(of_product[1]).max()


# ---- a run ----


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
  return prepare(tmp_path_factory.mktemp("short_rows"), train__num_steps=0, data__heldout_share=0.2)


def given_of(place, **changes):
  return with_data_of(place, data__heldout_share=0.2, **changes)


def training_rows(workdir):
  return [(row["step"], row["loss"]) for row in metrics.read_rows(str(workdir)) if row["split"] == "train"]


def test_a_run_changes_its_length_once_and_resumes_exactly(prepared, tmp_path, monkeypatch):
  """Its batches grow as well, in micro-batches, on eight devices; held-out text is always read at full length."""
  programs, evaluated, make_train_step = [], set(), step_lib.make_train_step

  def make(*arguments, **options):
    made = make_train_step(*arguments, **options)

    class Step:
      lower = made.lower

      def __call__(self, state, batch):
        programs.append((options["accumulation_steps"], *batch["input_ids"].shape))
        return made(state, batch)

    return Step()

  def put(batch, mesh, put_batch=sharding.put_batch):
    evaluated.add(batch["input_ids"].shape)
    return put_batch(batch, mesh)

  monkeypatch.setattr(objectives, "make", fake_objective.make)
  monkeypatch.setattr(step_lib, "make_train_step", make)
  monkeypatch.setattr(pretrain.evaluation.sharding, "put_batch", put)
  options = dict(train__batch_size=32, train__initial_batch_size=16, train__batch_size_ramp_steps=2,
                 train__accumulation_steps=2, eval__batch_size=8, optimizer__schedule="constant",
                 checkpoint__every_steps=2, checkpoint__keep_last=9, **CUT)
  pretrain.pretrain(given_of(prepared, **options), str(tmp_path / "straight"))
  assert programs == [(1, 32, 8)] * 2 + [(2, 64, 8)] * 2 + [(2, 32, 16)] * 4  # updates 3 to 8 have equally many tokens
  assert (8, 16) in evaluated and (8, 8) not in evaluated
  expected = training_rows(tmp_path / "straight")
  for last in (2, 4, 6):  # kept: in the short part, at the switch, in the full part
    workdir = tmp_path / f"from_{last}"
    shutil.copytree(tmp_path / "straight", workdir)
    for step in checkpoints.saved_steps(str(workdir)):
      if step > last:
        shutil.rmtree(workdir / "checkpoints" / str(step))
    pretrain.pretrain(given_of(prepared, **options), str(workdir))
    assert training_rows(workdir) == expected
    jax.tree.map(np.testing.assert_array_equal, checkpoints.load_params(str(workdir), step=STEPS)[1],
                 checkpoints.load_params(str(tmp_path / "straight"), step=STEPS)[1])
  with pytest.raises(UserError, match=r"data\.initial_length_steps: 4 in the workdir, 5 asked for"):
    pretrain.pretrain(given_of(prepared, **options | dict(data__initial_length_steps=5)), str(tmp_path / "straight"))


def test_every_token_of_an_epoch_comes_once_whatever_the_length(prepared):
  """Batches from real shards, across the switch: their pieces, joined again, are the rows of a run at full length."""
  examples = shards.open_shards(str(prepared.run / "shards"), "train")
  tokenizer = tokenizers.load_tokenizer(str(prepared.run / "tokenizer"))
  seen = {}
  for name, options in (("cut", CUT), ("whole", {})):
    config = config_lib.resolve(given_of(prepared, **options))
    batch_at = pipeline.make_batch_at(examples, config.data, tokenizer, batch_size=8, seed=0,
                                      schedule=BatchSchedule(batch_schedule.stages(config)))
    batches = list(pipeline.train_batches(batch_at, 0, -(-len(examples) // 8), "threads", 4))
    lengths = [batch["input_ids"].shape for batch in batches]
    assert lengths == ([(16, 8)] * SWITCH if name == "cut" else [(8, 16)] * SWITCH) + [(8, 16)] * (
      len(batches) - SWITCH) and len(batches) > SWITCH
    seen[name] = {field: np.concatenate([batch[field].reshape(-1, 16) for batch in batches])
                  for field in ("input_ids", "attention_mask", "token_type_ids")}
    num_cut = 8 * SWITCH
    assert not np.array_equal(batches[0]["masked_positions"], batches[1]["masked_positions"])
  for field, rows in seen["cut"].items():
    assert np.array_equal(rows, seen["whole"][field]), field
  assert num_cut < len(examples)
  all_rows = examples.read(np.arange(len(examples)))[0]
  assert sorted(map(bytes, seen["cut"]["input_ids"][:len(examples)])) == sorted(map(bytes, all_rows))


def test_show_batch_names_the_piece(prepared):
  screen = io.StringIO()
  config = config_lib.resolve(given_of(prepared, **CUT))
  tokenizer = tokenizers.load_tokenizer(str(prepared.run / "tokenizer"))
  for step in (SWITCH - 1, SWITCH):
    show_batch.show(config, str(prepared.run / "shards"), tokenizer, step, 2, Console(file=screen))
  heads = [line for line in screen.getvalue().splitlines() if line.startswith("step")]
  assert [re.findall(r"piece \d of \d", head) for head in heads] == [["piece 1 of 2"], ["piece 2 of 2"], [], []]
  first, second = (re.search(r"example [\d,]+", head)[0] for head in heads[:2])
  assert first == second


# ---- what is refused ----


@pytest.mark.parametrize("changes, said", [
  ({"data.initial_sequence_length": 100}, "data.initial_sequence_length 100 must be at least 8 tokens and divide"),
  ({"data.initial_sequence_length": 4}, "must be at least 8 tokens"),
  ({"data.initial_sequence_length": 1024}, "divide data.sequence_length 512"),
  ({"data.initial_sequence_length": -128}, "must not be negative"),
  ({"data.initial_length_steps": 766_000}, "data.initial_length_steps is 766000; of the 766000 in train.num_steps"),
  ({"data.initial_sequence_length": 0, "data.initial_length_steps": 5}, "is 5, but data.initial_sequence_length is 0"),
  ({"data.format": "SEGMENT-PAIR"}, "would cut the pairs of data.format SEGMENT-PAIR apart"),
  ({"data.format": "SENTENCE-PAIR", "objective.name": "mlm_nsp"}, "of data.format SENTENCE-PAIR apart"),
  ({"data.format": "DOC-SENTENCES"}, "needs data.batch_unit=rows"),
  ({"data.format": "DOC-SENTENCES", "data.batch_unit": "rows"}, None),
  ({"objective.name": "contrastive"}, "objective.name=contrastive judges a row by its [CLS]"),
  ({"train.max_hours": 1.0}, "train.max_hours may end the run before its rows get longer"),
  ({"mode": "finetune"}, "data.initial_sequence_length is 128, but it is for pre-training"),
  ({"data.sequence_length": 128}, None),
])
def test_what_cannot_be_cut(changes, said):
  given = importlib.import_module("configs.base").get_config()
  given.update_from_flattened_dict({"data.initial_sequence_length": 128} | changes)
  if said is None:
    config_lib.resolve(given)
    return
  with pytest.raises(UserError, match=re.escape(said)):
    config_lib.resolve(given)


# ---- counts ----


def resolved(name, **changes):
  given = importlib.import_module(f"configs.{name}").get_config()
  given.update_from_flattened_dict({key.replace("__", "."): value for key, value in changes.items()})
  return config_lib.resolve(given)


def test_flops_by_hand():
  """BERT-Base at 128 for 90 % of a million updates: attention costs a quarter, 20 of 128 positions are predicted."""
  config = resolved("bert_base", data__initial_sequence_length=128)
  count, h = flops.model_flops(config), 768

  def of_rows(length, predictions):
    return 6 * 12 * 12 * h * h * length + 12 * 12 * h * length**2 + 6 * (h * h + h * 30592) * predictions

  short, full = 1024 * of_rows(128, 20), 256 * of_rows(512, 77)
  assert count.stages == {Stage(0, 256, 4): pytest.approx(short), Stage(900_000, 256): pytest.approx(full)}
  assert count.per_step == pytest.approx(full)
  assert count.of_first(500) == pytest.approx(500 * short)
  assert count.of_first(900_001) == pytest.approx(900_000 * short + full)
  assert count.per_run == pytest.approx(900_000 * short + 100_000 * full)
  paper, all_full = flops.paper_flops(config), flops.paper_flops(resolved("bert_base"))
  assert 0.94 < paper.per_run / all_full.per_run < 0.95 and paper.per_step == all_full.per_step  # scores are a tenth
  steps = flops.steps_within(config, all_full.per_run)
  assert flops.paper_flops(resolved("bert_base", data__initial_sequence_length=128, train__num_steps=steps)
                           ).per_run == pytest.approx(all_full.per_run, rel=1e-5)


def test_ramps_of_both_kinds_cost_what_their_steps_cost():
  config = resolved("bert_base", data__initial_sequence_length=256, data__initial_length_steps=30, train__num_steps=100,
                    optimizer__warmup_steps=10, train__initial_batch_size=64, train__batch_size_ramp_steps=20)
  stages = batch_schedule.stages(config)
  assert [tuple(stage) for stage in stages] == [(0, 64, 2), (10, 128, 2), (20, 256, 2), (30, 256, 1)]
  count = flops.model_flops(config)
  costs = [count.stages[stage] for stage in stages]
  assert costs[2] == pytest.approx(4 * costs[0]) and costs[3] == count.per_step > costs[2]
  assert count.of_first(40) == pytest.approx(10 * costs[0] + 10 * costs[1] + 10 * costs[2] + 10 * costs[3])


@pytest.mark.parametrize("name", RECIPES + ABLATIONS)
def test_fast_recipes_begin_with_short_rows_where_rows_are_long_and_can_be_cut(name):
  given = importlib.import_module(f"configs.{name}").get_config("fast")
  config = config_lib.resolve(given)
  can = (config.data.sequence_length == 512 and config.data.batch_unit == "rows"
         and config.data.format in ("ELECTRA", "FULL-SENTENCES") and config.objective.name != "contrastive")
  assert config.data.initial_sequence_length == (128 if can else 0)
  assert config.data.initial_length_steps == (config.train.num_steps * 9 // 10 if can else 0)


def test_which_recipes_are_cut():
  lengths = functools.partial(map, lambda name: importlib.import_module(f"configs.{name}").get_config(
    "fast").data.initial_sequence_length)
  assert list(lengths(["base", "large", "bert_base", "bert_large", "roberta_base", "roberta_large"])) == [128] * 6
  assert list(lengths(["small", "bert_small", "tiny", "bert_original_base"])) == [0] * 4
