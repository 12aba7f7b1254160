"""Errors that a user can repair, in four parts: what, got, allowed, fix."""

import difflib
import functools
from collections.abc import Iterable

MOST_CHARACTERS = {"what": 300, "allowed": 350, "fix": 400}  # of a message's parts; `got` gets the rest


class UserError(ValueError):
  """A mistake in input, configuration or environment that the user can repair.

  `main` and the tools print it without a traceback and exit with status 2; any other exception is a fault of ours and
  keeps its traceback. However long the input, the message stays below 2,000 characters.

  >>> print(UserError("data.format is unknown", got="'FULL'", allowed="ELECTRA, FULL-SENTENCES",
  ...                 fix="set --config.data.format=FULL-SENTENCES"))
  data.format is unknown.
    got:     'FULL'
    allowed: ELECTRA, FULL-SENTENCES
    fix:     set --config.data.format=FULL-SENTENCES
  """

  STATUS = 2  # of the process that ends with it

  def __init__(self, what: str, *, got: object, allowed: str, fix: str):
    parts = {"what": what, "allowed": allowed, "fix": fix}
    self.what, self.allowed, self.fix = (shorten(text, MOST_CHARACTERS[name]) for name, text in parts.items())
    self.got = shorten(str(got) or "nothing", 1_900 - len(self.what + self.allowed + self.fix))
    super().__init__(f"{self.what.rstrip('.')}.\n  got:     {self.got}\n  allowed: {self.allowed}\n"
                     f"  fix:     {self.fix}")

  def __reduce__(self):  # for worker processes, which send it to their parent
    return functools.partial(type(self), got=self.got, allowed=self.allowed, fix=self.fix), (self.what,)


class NoAnswerError(UserError):
  """Another process of the run, or the reader of its data, does not answer any more; the same command resumes.

  Its own exit status tells a scheduler that the cause may be the machine, so that a restart may help.
  """

  STATUS = 69  # EX_UNAVAILABLE of sysexits.h


class Interrupted(Exception):
  """A signal asked the run to stop, and its checkpoint is complete; `main` exits with STATUS.

  It is no fault, but the status must not be 0, so that a scheduler can tell "start again" from "finished".
  """

  STATUS = 75  # EX_TEMPFAIL of sysexits.h: the same command will resume


def shorten(text: str, most: int) -> str:
  """The text, or its beginning and the number of characters left out; at most `most` characters in all.

  >>> shorten("short", 5), shorten("x" * 1_000, 50)
  ('short', 'xxxxxxxxxx ... (990 more characters)')
  """
  kept = most - 40  # the rest is for the note
  return text if len(text) <= most else f"{text[:kept]} ... ({len(text) - kept:,} more characters)"


def named(names: Iterable[object], most: int = 12) -> str:
  """Names for the `got` or `allowed` of an error: the first ones, then how many more there are.

  >>> named(["a", "b", "c"], most=2), named([])
  ('a, b and 1 more', 'none')
  """
  names = list(names)
  shown = ", ".join(shorten(str(name), 80) for name in names[:most])
  return shown + f" and {len(names) - most:,} more" if len(names) > most else shown or "none"


def unknown(what: str, got: object, allowed: Iterable[str], fix: str) -> UserError:
  """The error for a name that is not allowed; CLOSEST in the fix becomes the allowed name most like it.

  >>> print(unknown("The task is unknown", "rtee", ["cola", "rte"], "set --config.task.name=CLOSEST").fix)
  set --config.task.name=rte
  """
  allowed = list(allowed)
  closest = (difflib.get_close_matches(str(got), allowed, n=1, cutoff=0.5) or allowed)[0]
  return UserError(what, got=got, allowed=named(allowed, most=20), fix=fix.replace("CLOSEST", closest))


def listed(faults: list[str], most: int = 10) -> str:
  """Faults for the `got` of an error, one per line: the first ones, then how many more there are.

  >>> listed(["a", "b", "c"], most=2)
  '\\n    a\\n    b\\n    and 1 more'
  """
  more = [f"and {len(faults) - most} more"] if len(faults) > most else []
  return "".join(f"\n    {shorten(fault, 300)}" for fault in faults[:most] + more)
