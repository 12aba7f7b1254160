"""What if a reader never returns? A network disk hangs, a worker waits for ever: the run notices, names it and ends."""

import queue
import sys
import threading
import traceback
from collections.abc import Iterator

from electra_jax.errors import NoAnswerError

LONGEST_SECONDS = 300  # for a batch; the slowest that we know, the first of a cold object store, take seconds
READING = ("_make_group", "_make_batch")  # of data/pipeline.py: threads that are inside are making batches


def in_time(batches: Iterator, what: str, seconds: float | None = None) -> Iterator:
  """The same batches, made in a thread of their own, one ahead, so that waiting for one can end.

  Args:
    batches: each `next` of it may block.
    what: they are, for the error.
    seconds: how long one may take at most; LONGEST_SECONDS by default.

  Raises:
    NoAnswerError: one takes longer; it says where the threads that make batches stand. They cannot be ended: the
      process must be (`main.leave` does not wait for them). What `batches` raises arrives unchanged.
  """
  seconds = LONGEST_SECONDS if seconds is None else seconds
  asked, made = queue.SimpleQueue(), queue.SimpleQueue()
  thread = threading.Thread(target=_make, args=(batches, asked, made), name="reader", daemon=True)
  thread.start()
  number, waiting = 0, True
  asked.put(True)
  try:
    while True:
      waiting = True
      batch, error = made.get(timeout=seconds)
      waiting = False
      if error is not None:
        raise error
      if batch is None:
        return
      asked.put(True)  # the next one, so that it is there when it is asked for
      yield batch
      number += 1
  except queue.Empty:
    raise NoAnswerError(f"The reader of {what} does not answer",
                        got=f"nothing for {seconds:g} s, after {number} batches{_standing()}",
                        allowed="a batch within this time (LONGEST_SECONDS in electra_jax/data/deadline.py)",
                        fix="look whether the disk of the shards answers; the same command goes on from the last "
                        "checkpoint") from None
  finally:
    asked.put(False)
    if not waiting and not sys.is_finalizing():  # by then Python has stopped the thread
      thread.join(seconds)


def _make(batches: Iterator, asked: queue.SimpleQueue, made: queue.SimpleQueue) -> None:
  while asked.get():
    try:
      made.put((next(batches, None), None))
    except BaseException as error:
      made.put((None, error))
  if hasattr(batches, "close"):
    batches.close()


def _standing() -> str:
  """Where each thread that makes a batch stands, a line each; of data workers only, as others wait by right."""
  names = {thread.ident: thread.name for thread in threading.enumerate()}
  lines = []
  for ident, frame in sys._current_frames().items():
    stack = traceback.extract_stack(frame)
    if any(entry.name in READING for entry in stack):
      last = stack[-1]
      lines.append(f"\n    thread {names.get(ident, ident)!r} stands in {last.filename}:{last.lineno}, {last.name}: "
                   f"{last.line}")
  return ";" + "".join(lines) if lines else ""
