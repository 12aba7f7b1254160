"""A reader that never returns is noticed in time; everything else is as without the deadline."""

import threading
import time

import numpy as np
import pytest

from electra_jax.data import readers
from electra_jax.errors import NoAnswerError


def test_batches_pass_unchanged_and_a_slow_one_is_no_fault():
  def slow():
    for number in range(4):
      time.sleep(0.05)
      yield number

  assert list(readers._in_time(slow(), "batches")) == [0, 1, 2, 3]
  assert list(readers._in_time((batch for batch in ()), "batches")) == []


def test_closing_ends_the_thread_and_what_it_runs():
  ended = []

  def endless():
    try:
      while True:
        yield 1
    finally:
      ended.append(True)

  before = set(threading.enumerate())
  batches = readers._in_time(endless(), "batches")
  assert next(batches) == 1
  assert set(threading.enumerate()) > before
  batches.close()
  assert ended and set(threading.enumerate()) <= before


@pytest.mark.parametrize("reader", ["tf", "threads"])
def test_a_hung_worker_is_noticed_in_time(reader, monkeypatch):
  """One of several worker threads waits for a disk that does not answer; the batches before it are used."""
  if reader == "tf":
    readers._import_tensorflow()  # seconds, which are not timed here
  monkeypatch.setattr(readers, "LONGEST_SECONDS", 2)
  answers = []

  def batch_at(step):
    if step == 3:
      wait_for_the_disk(answers)
    return {"step": np.full(1, step)}

  source = readers.BatchSource(lambda steps: batch_at(steps[0]))
  batches = readers.read_batches(source, 0, 10, reader)
  try:
    assert [int(next(batches)["step"][0]) for _ in range(3)] == [0, 1, 2]
    started = time.monotonic()
    with pytest.raises(NoAnswerError, match=r"training batches does not answer\.\n.*nothing for 2 s, after 3 batches"):
      next(batches)
    assert 2 <= time.monotonic() - started < 8
  finally:
    answers.append("at last")


def wait_for_the_disk(answers):
  while not answers:
    time.sleep(0.01)
