"""Every example once per epoch, on any number of processes, from any step on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_jax.data import counter_hash, order


@pytest.mark.parametrize("size", [*range(1, 40), 97, 100, 128, 1000, 1023, 1025])
def test_permutation_is_a_bijection(size):
  index = np.arange(size)
  for epoch in (0, 1, 5):
    assert sorted(order.permute(index, size, 0, np.full(size, epoch))) == index.tolist()


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 5000), seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 2**40))
def test_permutation_is_a_bijection_for_any_key(size, seed, epoch):
  image = order.permute(np.arange(size), size, seed, np.full(size, epoch))
  assert np.array_equal(np.sort(image), np.arange(size))


def test_permutation_of_a_huge_corpus_takes_little_memory():
  ids, epochs = order.example_order(10**9, 256, num_examples=10**10, seed=3)
  assert len(set(ids.tolist())) == 256 and set(epochs.tolist()) == {25}
  assert ids.min() >= 0 and ids.max() < 10**10


def test_epochs_and_seeds_have_different_orders():
  size = 1000
  orders = [order.permute(np.arange(size), size, seed, np.full(size, epoch)) for seed in (0, 1) for epoch in (0, 1)]
  for i in range(4):
    for other in orders[:i]:
      assert (orders[i] == other).sum() < 10  # about one position agrees by chance


def test_permutation_looks_random():
  """Over many epochs each example is first, and follows each other one, about equally often."""
  size, epochs = 7, 20_000
  index = np.tile(np.arange(size), epochs)
  image = order.permute(index, size, 0, np.repeat(np.arange(epochs), size)).reshape(epochs, size)
  expected = epochs / size
  for position in range(size):
    counts = np.bincount(image[:, position], minlength=size)
    assert np.abs(counts - expected).max() < 6 * np.sqrt(expected)
  pairs = np.zeros((size, size))
  np.add.at(pairs, (image[:, :-1].ravel(), image[:, 1:].ravel()), 1)
  followers = epochs * (size - 1) / (size * (size - 1))
  off_diagonal = pairs[~np.eye(size, dtype=bool)]
  assert np.abs(off_diagonal / followers - 1).max() < 0.1


@pytest.mark.parametrize(("num_examples", "batch_size"), [(10, 4), (4, 10), (1, 3), (64, 64), (100, 7)])
def test_every_example_once_per_epoch(num_examples, batch_size):
  steps = 3 * num_examples  # whole epochs, since 3 * num_examples * batch_size is a multiple
  ids, epochs = (np.concatenate(x) for x in zip(*(order.example_order(s, batch_size, num_examples, 5)
                                                  for s in range(steps))))
  assert (np.diff(epochs) >= 0).all()
  for epoch in range(3 * batch_size):
    assert sorted(ids[epochs == epoch]) == list(range(num_examples))


def test_mix_is_splitmix64():
  """The reference outputs for seed 1234567 (Vigna's C program): the state grows by the increment before each mix."""
  states = np.uint64(1234567) + np.arange(1, 6, dtype=np.uint64) * counter_hash.GOLDEN
  assert counter_hash.mix(states).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423,
                                               4593380528125082431, 16408922859458223821]


def test_draws_are_independent_of_their_neighbours():
  keys = counter_hash.fold(3, np.arange(10))
  assert np.array_equal(counter_hash.draws(keys, 4)[7], counter_hash.draws(keys[7:8], 6)[0, :4])
