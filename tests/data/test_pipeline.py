"""Batches: the same bytes from either reader, any number of processes, and any starting step."""

import itertools
import sys
import threading
import time
import types

import numpy as np
import pytest
from ml_collections import ConfigDict

from electra_jax.data import order, pipeline, readers
from electra_jax.errors import UserError
from tests.data.fakes import FakeTokenizer
from tests.data.test_masking import branch

TOKENIZER = FakeTokenizer()
LENGTH = 12
CONFIG = ConfigDict(dict(format="FULL-SENTENCES", reader="threads", masking=branch(0.3, 0.8, 0.1)))


class FakeExamples:
  """Examples in memory: number i has 4 + i mod 9 tokens, and every second one has two segments."""

  sequence_length, pad_id, has_nsp_labels = LENGTH, 0, False

  def __init__(self, number):
    self.num_tokens = (4 + np.arange(number) % 9).astype(np.int32)
    self.ids = (10 + np.arange(number)[:, None] * LENGTH + np.arange(LENGTH)).astype(np.int32) % 1000 + 5
    self.start = np.where(np.arange(number) % 2, self.num_tokens, 3).astype(np.int32)
    for row, n, start in zip(self.ids, self.num_tokens, self.start):
      row[n:] = 0
      row[0] = 1
      row[[n - 1, start - 1]] = 2

  def __len__(self):
    return len(self.ids)

  def read(self, example_ids):
    return self.ids[example_ids], self.num_tokens[example_ids], self.start[example_ids]


def make(number=50, batch_size=8, seed=3, **processes):
  return pipeline.make_batch_at(FakeExamples(number), CONFIG, TOKENIZER, batch_size=batch_size, seed=seed, **processes)


def single(batch_at):
  """A source of one batch at a time."""
  return readers.BatchSource(lambda steps: batch_at(steps[0]))


def assert_equal(a, b):
  assert a.keys() == pipeline.BATCH_DTYPES.keys()
  assert_equal_fields(a, b)


def assert_equal_fields(a, b):
  """Both are batches, of any format."""
  assert a.keys() == b.keys()
  for name, array in a.items():
    assert array.dtype == b[name].dtype == pipeline.BATCH_DTYPES.get(name, np.int32), name
    assert np.array_equal(array, b[name]), name


def concatenate(batches):
  return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def test_fields_of_a_batch():
  examples = FakeExamples(50)
  batch = make()(5)
  ids, epochs = order.example_order(5, 8, 50, 3)
  assert np.array_equal(batch["input_ids"], examples.ids[ids]) and not epochs.any()
  for row, example in enumerate(ids):
    n, start = examples.num_tokens[example], examples.start[example]
    assert batch["attention_mask"][row].tolist() == [True] * n + [False] * (LENGTH - n)
    assert batch["token_type_ids"][row].tolist() == [int(start <= i < n) for i in range(LENGTH)]
  assert {name: array.shape for name, array in batch.items()} == {
    name: (8, 4 if name in ("masked_positions", "masked_ids", "masked_weights") else LENGTH) for name in batch}


@pytest.mark.parametrize("processes", [1, 2, 8])
def test_every_example_once_per_epoch_over_processes(processes):
  """The rows of all processes are the global batch of one process, across the ends of epochs."""
  number, size = 50, 8
  whole = make(number, size)
  local = [make(number, size, process_index=p, process_count=processes) for p in range(processes)]
  seen = []
  for step in range(2 * number // size + 1):
    rows = [batch_at(step) for batch_at in local]
    assert all(len(batch["input_ids"]) == size // processes for batch in rows)
    assert_equal(concatenate(rows), whole(step))
    seen += [row.tobytes() for batch in rows for row in batch["input_ids"]]
  rows = {row.tobytes() for row in FakeExamples(number).ids}
  assert len(rows) == number
  assert set(seen[:number]) == set(seen[number:2 * number]) == rows


@pytest.mark.parametrize("reader", ["tf", "threads", "auto"])
def test_readers_give_the_same_bytes_from_any_step(reader):
  batch_at = make()
  for start, stop in ((0, 17), (9, 17), (16, 17), (17, 17), (20, 17)):
    batches = list(readers.read_batches(batch_at, start, stop, reader))
    assert len(batches) == max(0, stop - start)
    for step, batch in zip(range(start, stop), batches):
      assert_equal(batch, batch_at(step))


@pytest.mark.parametrize("reader", ["tf", "threads"])
def test_exceptions_arrive_unchanged_and_in_order(reader):
  good = make()

  def batch_at(step):
    if step >= 5:
      raise UserError(f"Shard of step {step}", got="x", allowed="y", fix="z")
    return good(step)

  batches = readers.read_batches(single(batch_at), 2, 100, reader)
  assert [len(next(batches)["input_ids"]) for _ in range(3)] == [8] * 3
  with pytest.raises(UserError) as error:
    next(batches)
  assert str(error.value).startswith("Shard of step 5.\n  got:     x")


@pytest.mark.parametrize("reader", ["tf", "threads"])
def test_a_fault_in_a_group_of_steps_comes_after_the_good_batches(reader):
  examples, faulty = FakeExamples(1000), 5
  batch_at = pipeline.make_batch_at(examples, CONFIG, TOKENIZER, batch_size=8, seed=3)
  assert batch_at.group_steps == pipeline.MAX_GROUP_STEPS > faulty
  expected = [batch_at(step) for step in range(8)]
  read, bad_id = examples.read, order.example_order(faulty, 8, 1000, 3)[0][0]

  def read_or_fail(example_ids):
    if bad_id in example_ids:
      raise UserError("A shard is damaged", got="x", allowed="y", fix="z")
    return read(example_ids)

  examples.read = read_or_fail
  batches = readers.read_batches(batch_at, 0, 100, reader)
  for step in range(faulty):
    assert_equal(next(batches), expected[step])
  with pytest.raises(UserError, match="damaged"):
    next(batches)


@pytest.mark.parametrize("reader", ["tf", "threads"])
def test_consumer_may_stop_early(reader):
  made = []
  good = make()

  def batch_at(step):
    made.append(step)
    return good(step)

  before = set(threading.enumerate())
  batches = readers.read_batches(single(batch_at), 0, 10**9, reader)
  for _ in itertools.islice(batches, 3):
    pass
  batches.close()
  time.sleep(0.05)
  count = len(made)
  assert max(made) < 60  # look-ahead is bounded
  time.sleep(0.1)
  assert len(made) == count
  assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("batch")]


def test_threads_look_ahead_is_bounded():
  made = []
  good = make()

  def batch_at(step):
    made.append(step)
    return good(step)

  batches = readers.read_batches(single(batch_at), 0, 100, "threads")
  next(batches)
  time.sleep(0.1)
  assert sorted(made) == [0, 1, 2, 3, 4, 5]
  batches.close()


@pytest.mark.parametrize("is_broken", [False, True])
def test_without_tensorflow(monkeypatch, tmp_path, is_broken):
  if is_broken:  # as with another protobuf than it was built for
    (tmp_path / "tensorflow.py").write_text("raise TypeError('Descriptors cannot be created directly')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
  else:
    monkeypatch.setitem(sys.modules, "tensorflow", None)  # makes the import fail
  batch_at = make()
  for step, batch in enumerate(readers.read_batches(batch_at, 0, 3, "auto")):
    assert_equal(batch, batch_at(step))
  with pytest.raises(UserError) as error:
    next(readers.read_batches(batch_at, 0, 3, "tf"))
  assert "pip install tensorflow-cpu" in str(error.value) and "threads" in str(error.value)


def test_tensorflow_is_imported_only_by_its_reader():
  import subprocess
  program = ("import sys; from electra_jax.data import pipeline, readers, shards; "
             "list(readers.read_batches(readers.BatchSource(lambda steps: {}), 0, 3, 'threads')); "
             "sys.exit('tensorflow' in sys.modules or 'jax' in sys.modules)")
  assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("call", ["train", "eval"])
def test_batch_must_divide_between_processes(call):
  with pytest.raises(UserError) as error:
    if call == "train":
      make(batch_size=10, process_index=0, process_count=4)
    else:
      pipeline.eval_batches(FakeExamples(5), CONFIG, TOKENIZER, batch_size=10, seed=0, process_count=4)
  assert "batch size 10, 4 processes" in str(error.value) and "set the batch size to 12" in str(error.value)


def test_nothing_to_evaluate():
  assert list(pipeline.eval_batches(FakeExamples(0), CONFIG, TOKENIZER, batch_size=4, seed=0)) == []


@pytest.mark.parametrize(("number", "batch_size", "max_examples", "batches", "examples"), [
  (10, 4, 0, 3, 10), (3, 32, 0, 1, 3), (8, 4, 0, 2, 8), (10, 4, 7, 2, 7), (10, 4, 99, 3, 10)])
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_evaluation_sees_every_example_once(number, batch_size, max_examples, batches, examples, processes):
  """Bug 25: nothing is dropped from the last batch, and what fills it up counts nothing."""
  local = [list(pipeline.eval_batches(FakeExamples(number), CONFIG, TOKENIZER, batch_size=batch_size, seed=1,
                                      max_examples=max_examples, process_index=p, process_count=processes))
           for p in range(processes)]
  assert {len(rows) for rows in local} == {batches}
  assert {len(batch["input_ids"]) for rows in local for batch in rows} == {batch_size // processes}
  whole = concatenate([concatenate(rows) for rows in zip(*local)])
  assert np.array_equal(whole["input_ids"][:examples], FakeExamples(number).ids[:examples])
  assert whole["masked_weights"][:examples].any(1).all()
  fill = {name: array[examples:] for name, array in whole.items()}
  assert not any(array.any() for array in fill.values())  # padding id 0, attention False, weights 0
  by_tf = ConfigDict({**CONFIG, "reader": "tf"})
  again = list(pipeline.eval_batches(FakeExamples(number), by_tf, TOKENIZER, batch_size=batch_size, seed=1,
                                     max_examples=max_examples))
  assert_equal(concatenate(again), whole)


def test_tensorflow_is_imported_meanwhile(monkeypatch):
  began, may_end = threading.Event(), threading.Event()

  real_import = readers._import_tensorflow

  def slow_import():
    began.set()
    assert may_end.wait(60)
    return real_import()

  monkeypatch.setattr(readers, "_import_tensorflow", slow_import)
  readers.start_import("threads")
  assert not began.is_set()
  readers.start_import("auto")
  assert began.wait(10)  # and the caller has gone on
  batch_at = make()
  batches = readers.read_batches(batch_at, 0, 30, "auto")
  first = [next(batches) for _ in range(3)]  # nobody waits for the import
  may_end.set()
  for step, batch in enumerate([*first, *batches]):
    assert_equal(batch, batch_at(step))
  assert step == 29


def fine_tuning(reader):
  """What fine-tuning reads of 21 features of 3 to 43 tokens: (four updates of two seeds, dev outputs, shapes seen)."""
  import jax

  from electra_jax import finetune, sharding
  from electra_jax.finetuning import predictions
  features = [{"input_ids": list(range(5, 8 + 2 * i)), "token_type_ids": [0] * (3 + 2 * i), "label": i % 3}
              for i in range(21)]
  config = ConfigDict(dict(train=dict(batch_size=2), eval=dict(batch_size=4), data=dict(reader=reader),
                           task=dict(max_length=40, pad_to_max_length=False)))
  for feature in features:
    feature["input_ids"], feature["token_type_ids"] = feature["input_ids"][:40], feature["token_type_ids"][:40]
  run = types.SimpleNamespace(config=config, task=types.SimpleNamespace(head="classification"),
                              start=types.SimpleNamespace(tokenizer=TOKENIZER),
                              mesh=sharding.make_mesh(dict(data=-1, fsdp=1, tensor=1), jax.devices()[:1]))
  seen = []

  def outputs_of(params, batch):
    seen.append(batch["input_ids"].shape)
    return {"head": np.asarray(batch["input_ids"]).sum(1)[None, :, None]}

  source = readers.BatchSource(lambda steps: finetune.train_batch(run, features, (0, 1), steps[0]))
  updates = list(readers.read_batches(source, 1, 5, reader))
  (found,) = predictions.predict(run, predictions.Split([], features), outputs_of, None)
  assert found["head"][:, 0].tolist() == [sum(feature["input_ids"]) for feature in features]
  return updates, seen


def test_fine_tuning_reads_the_same_bytes_whoever_reads():
  """Lengths differ from batch to batch; both what is trained and what is scored."""
  (ours, seen), (theirs, again) = fine_tuning("threads"), fine_tuning("tf")
  assert seen == again and len(set(seen)) > 1 and len({batch["input_ids"].shape for batch in ours}) > 1
  assert len(ours) == len(theirs) == 4
  for one, other in zip(ours, theirs):
    assert one.keys() == other.keys()
    assert all(one[name].dtype == other[name].dtype and np.array_equal(one[name], other[name]) for name in one)
