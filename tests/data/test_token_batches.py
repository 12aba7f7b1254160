"""Batches that grow where the examples are short: every example once an epoch, equal places, few shapes, any start."""

import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_collections import ConfigDict

from electra_jax.data import order, pipeline, readers, shards
from electra_jax.data.order import TokenBatches
from tests.data.corpora import make_config, make_corpus
from tests.data.fakes import FakeTokenizer
from tests.data.test_masking import branch
from tests.data.test_pipeline import assert_equal_fields

TOKENIZER = FakeTokenizer()


@settings(max_examples=150, deadline=None)
@given(lengths=st.lists(st.integers(3, 64), min_size=1, max_size=200), batch_size=st.integers(1, 5),
       seed=st.integers(0, 100))
def test_every_example_once_an_epoch(lengths, batch_size, seed):
  lengths = np.array(lengths, np.int32)
  batches = TokenBatches(lengths, 64, batch_size, seed)
  for epoch in range(2):
    seen = []
    for step in range(epoch * batches.steps_per_epoch, (epoch + 1) * batches.steps_per_epoch):
      ids, epochs, length = batches.at(step)
      present = ids[ids >= 0]
      assert len(ids) * length == 64 * batch_size and (epochs == epoch).all()
      assert present.size and (ids[:present.size] >= 0).all()  # empty rows are at the end
      assert (lengths[present] <= length).all() and (length == 16 or (lengths[present] > length // 2).all())
      seen += present.tolist()
    assert sorted(seen) == list(range(len(lengths)))
  assert {(length, rows) for length, rows in batches.classes} <= {(64 >> k, batch_size << k) for k in range(3)}


def test_order_depends_on_seed_and_epoch():
  lengths = np.random.default_rng(0).integers(3, 513, 5000)
  a, b = TokenBatches(lengths, 512, 4, seed=0), TokenBatches(lengths, 512, 4, seed=1)
  assert a.classes == [(64, 32), (128, 16), (256, 8), (512, 4)]
  batches = [a.at(step)[0].tolist() for step in range(2 * a.steps_per_epoch)]
  assert len({tuple(batch) for batch in batches}) == len(batches)
  assert [b.at(step)[0].tolist() for step in range(5)] != batches[:5]
  order_of_lengths = [a.at(step)[2] for step in range(a.steps_per_epoch)]
  changes = np.mean(np.diff(order_of_lengths) != 0)
  assert 0.4 < changes < 0.8  # the classes are mixed


def test_lengths_that_do_not_divide():
  assert TokenBatches(np.array([3, 10, 25, 50]), 50, 2, 0).classes == [(25, 4), (50, 2)]
  assert TokenBatches(np.array([3, 10]), 16, 2, 0).classes == [(16, 2)]


def test_ids_of_many_blocks_come_in_order():
  lengths = np.random.default_rng(0).integers(3, 513, 3 * order.BLOCK_EXAMPLES + 5).astype(np.uint16)
  limits = [64, 128, 256, 512]
  by_length = order.ExamplesByLength(lengths, limits)
  for number, (above, limit) in enumerate(zip([0, *limits], limits)):
    expected = np.flatnonzero((lengths > above) & (lengths <= limit))
    assert by_length.sizes[number] == expected.size
    index = np.random.default_rng(1).permutation(expected.size)
    assert np.array_equal(by_length.ids(number, index), expected[index])


def test_an_index_of_100_million_examples_starts_at_any_step_in_a_second():
  lengths = np.tile(np.random.default_rng(0).integers(3, 513, 10**6).astype(np.uint16), 100)  # else a memory map
  tracemalloc.start()
  seconds = []
  for _ in range(3):  # the best of three: other processes take a core's caches away
    started = time.process_time()
    batches = TokenBatches(lengths, 512, 256, seed=0)
    ids, _, length = batches.at(1_234_567)
    seconds.append(time.process_time() - started)
    bytes_an_example = tracemalloc.get_traced_memory()[1] / len(lengths)
    del batches
  tracemalloc.stop()
  assert min(seconds) < 1.0 and bytes_an_example <= 8
  assert len(ids) * length == 512 * 256 and (lengths[ids] <= length).all()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
  folder = tmp_path_factory.mktemp("doc_sentences")
  config = make_config(make_corpus(folder, 200), format="DOC-SENTENCES", sequence_length=64)
  shards.prepare(config, TOKENIZER, str(folder / "s"), seed=0)
  config.masking = branch(mask_share=0.8, random_share=0.1)
  return config, shards.open_shards(str(folder / "s"), "train", config, TOKENIZER)


def test_batches_of_doc_sentences(prepared):
  """An epoch has every token once; places and slots stay equal; what is in a row does not depend on its batch."""
  config, examples = prepared
  batch_at = pipeline.make_batch_at(examples, config, TOKENIZER, batch_size=4, seed=3)
  batches = TokenBatches(examples.lengths(), 64, 4, 3)
  in_rows = pipeline.make_batch_at(examples, ConfigDict(config.to_dict() | {"format": "FULL-SENTENCES"}), TOKENIZER,
                                   batch_size=len(examples), seed=3)(0)
  whole = {row[row != 0].tobytes(): masked[row != 0].tobytes()
           for row, masked in zip(in_rows["input_ids"], in_rows["masked_input_ids"])}
  found, shapes, filled = {}, set(), []
  for step in range(batches.steps_per_epoch):
    batch = batch_at(step)
    shapes.add(batch["input_ids"].shape)
    assert batch["input_ids"].size == 256 and batch["masked_positions"].size <= 48
    filled.append(batch["attention_mask"].mean())
    for row, masked in zip(batch["input_ids"], batch["masked_input_ids"]):
      if row.any():
        found[row[row != 0].tobytes()] = masked[row != 0].tobytes()
  assert found == whole
  assert shapes == {(4, 64), (8, 32), (16, 16)}
  assert np.mean(filled) > 0.6 > 0.5 > in_rows["attention_mask"].mean()


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_share_the_same_global_batches(prepared, processes):
  config, examples = prepared
  whole = pipeline.make_batch_at(examples, config, TOKENIZER, batch_size=4, seed=3)
  local = [pipeline.make_batch_at(examples, config, TOKENIZER, batch_size=4, seed=3, process_index=p,
                                  process_count=processes) for p in range(processes)]
  steps = TokenBatches(examples.lengths(), 64, 4, 3).steps_per_epoch
  for step in range(steps):
    parts = [batch_at(step) for batch_at in local]
    assert_equal_fields({name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, whole(step))


@pytest.mark.parametrize("reader", ["tf", "threads"])
def test_readers_take_changing_shapes_and_any_start(prepared, reader):
  config, examples = prepared
  batch_at = pipeline.make_batch_at(examples, config, TOKENIZER, batch_size=4, seed=3)
  for start in (0, 37):
    for step, batch in enumerate(readers.read_batches(batch_at, start, start + 12, reader), start):
      assert_equal_fields(batch, batch_at(step))


@pytest.mark.parametrize("reader", ["tf", "threads"])
def test_labels_reach_the_batches(tmp_path, reader):
  config = make_config(make_corpus(tmp_path, 60), format="SEGMENT-PAIR", reader=reader)
  shards.prepare(config, TOKENIZER, str(tmp_path / "s"), seed=0)
  config.masking = branch(num_static_masks=10)
  examples = shards.open_shards(str(tmp_path / "s"), "train", config, TOKENIZER)
  batch_at = pipeline.make_batch_at(examples, config, TOKENIZER, batch_size=8, seed=0)
  for step, batch in enumerate(readers.read_batches(batch_at, 0, 5, reader)):
    ids, _ = order.example_order(step, 8, len(examples), 0)
    assert batch["nsp_label"].dtype == np.int32 and batch["nsp_label"].tolist() == examples.nsp_labels(ids).tolist()
  last = list(pipeline.eval_batches(examples, config, TOKENIZER, batch_size=8, max_examples=11, seed=0))[-1]
  assert last["nsp_label"][3:].tolist() == [-1] * 5 and set(last["nsp_label"][:3]) <= {0, 1}
