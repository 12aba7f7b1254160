"""How does the project tell a user what went wrong? In four parts: what, got, allowed, fix."""

import functools


class UserError(ValueError):
  """A mistake in input, configuration or environment that the user can repair.

  `main` and the tools print it without a traceback and exit with status 2; everything else that is raised is
  a fault of ours and keeps its traceback.

  >>> print(UserError("data.format is unknown", got="'FULL'", allowed="ELECTRA, FULL-SENTENCES",
  ...                 fix="set --config.data.format=FULL-SENTENCES"))
  data.format is unknown.
    got:     'FULL'
    allowed: ELECTRA, FULL-SENTENCES
    fix:     set --config.data.format=FULL-SENTENCES
  """

  STATUS = 2  # of the process that ends with it

  def __init__(self, what: str, *, got: object, allowed: str, fix: str):
    self.what, self.got, self.allowed, self.fix = what, str(got), allowed, fix
    super().__init__(f"{what.rstrip('.')}.\n  got:     {got}\n  allowed: {allowed}\n  fix:     {fix}")

  def __reduce__(self):  # worker processes send it to their parent
    return functools.partial(type(self), got=self.got, allowed=self.allowed, fix=self.fix), (self.what,)


class NoAnswerError(UserError):
  """Another process of the run, or what reads its data, does not answer any more; the same command goes on.

  A status of its own tells a scheduler that the cause may lie in the machine, and that a new start may help.
  """

  STATUS = 69  # EX_UNAVAILABLE of sysexits.h


class Interrupted(Exception):
  """A signal has asked the run to stop, and its checkpoint is complete; `main` ends with STATUS.

  It is no fault, but the status must not be 0 either, so that a scheduler can tell "start me again" from "finished".
  """

  STATUS = 75  # EX_TEMPFAIL of sysexits.h: the same command will go on


def listed(faults: list[str], most: int = 10) -> str:
  """Faults for the `got` of an error, one a line; behind the first ones how many more there are.

  >>> listed(["a", "b", "c"], most=2)
  '\\n    a\\n    b\\n    and 1 more'
  """
  more = [f"and {len(faults) - most} more"] if len(faults) > most else []
  return "".join(f"\n    {fault}" for fault in faults[:most] + more)
