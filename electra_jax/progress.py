"""Speed and progress of a run: step timer (tokens/s, MFU) and console."""

import contextlib
import math
import os
import shlex
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any

from ml_collections import ConfigDict
from tqdm import tqdm

COLUMNS = 80  # width of a console that shows all without cutting


def process_seconds() -> float:
  """How long this process has been running; if the system does not say, since this file was imported."""
  return time.monotonic() - _BEGAN


def _age() -> float:
  try:
    with open("/proc/self/stat", encoding="ascii") as file:
      ticks = int(file.read().rpartition(")")[2].split()[19])  # from the machine's start to the process's
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
  except (OSError, ValueError, IndexError, AttributeError):
    return 0.0


_BEGAN = time.monotonic() - _age()


class StepTimer:
  """Where a run's time goes, and the speed of its steps without start, compilation, evaluation and checkpoints.

  JAX returns before a step has run, so the loop must wait for the results (fetch the window's metrics) before `read`
  and before `paused`. The first step compiles and is not counted.

  Args:
    clock: seconds since the process began, which only its first run counts from the beginning.
  """

  _process_counts = True

  def __init__(self, clock: Callable[[], float] = process_seconds):
    self._clock, self._parts = clock, {}  # of the start
    self._made = self._last = clock()
    if StepTimer._process_counts:
      self._parts["imports"], self._made, StepTimer._process_counts = self._last, 0.0, False
    self._compiled = False
    self._spent = dict.fromkeys(("start", "data_wait", "evaluation", "checkpoint"), 0.0)
    self._restart()

  def done(self, part: str) -> None:
    """Counts the time since the last call, or since the timer was made, as a part of the start."""
    now = self._clock()
    self._parts[part] = self._parts.get(part, 0.0) + now - self._last
    self._last = now

  def measure(self, *, tokens_per_step: int, flops_per_step: float, peak: float | None) -> None:
    """Says what a step does, for `read`.

    Args:
      tokens_per_step: positions of the global batch, padding included: sequences times length.
      flops_per_step: `flops.model_flops(config).per_step`.
      peak: FLOP/s of all the run's devices; if it is None, unknown, `read` gives FLOP/s in place of MFU.
    """
    self._tokens, self._flops, self._peak = tokens_per_step, flops_per_step, peak

  def after_first_step(self, step_metrics: Any) -> str:
    """Waits for the first step, which ends the start, and describes the start."""
    import jax  # here, as tools that only read logs start without it
    jax.block_until_ready(step_metrics)
    self.done("compilation")
    parts = ", ".join(f"{part.replace('_', ' ')} {seconds:.1f}" for part, seconds in self._parts.items())
    return f"first step done {sum(self._parts.values()):.1f} s after the start (seconds: {parts})"

  def _restart(self) -> None:
    self._start, self._excluded, self._waited = self._clock(), 0.0, 0.0
    self._num_steps = 0

  def step(self, number: int = 1) -> None:
    """Counts finished (or dispatched) steps; the first call only starts the clock."""
    if self._compiled:
      self._num_steps += number
    else:
      self._compiled = True
      self._spent = dict.fromkeys(self._spent, 0.0) | {"start": self._clock() - self._made}
      self._restart()

  @contextlib.contextmanager
  def waiting(self, is_hidden: Callable[[], bool] = lambda: False) -> Generator[None, None, None]:
    """Time inside is spent waiting for data; it counts, and is reported as a share.

    It does not if `is_hidden` holds afterwards: then the devices are still busy with earlier steps and did not wait.
    """
    start = self._clock()
    try:
      yield
    finally:
      seconds = 0.0 if is_hidden() else self._clock() - start
      self._waited += seconds
      self._spent["data_wait"] += seconds

  @contextlib.contextmanager
  def paused(self, purpose: str, after: Any = ()) -> Generator[None, None, None]:
    """Time inside does not count for steps; `purpose` is evaluation, checkpoint or start (of another program).

    The time until the arrays of `after` are there still counts.
    """
    import jax  # as above
    jax.block_until_ready(after)
    start = self._clock()
    try:
      yield
    finally:
      self._excluded += self._clock() - start
      self._spent[purpose] += self._clock() - start

  def goodput(self) -> dict[str, float]:
    """Where the seconds since the start of the run went: time/NAME_seconds, and time/goodput, the share of the steps.

    The names: start (until the first step is done; start/PART_seconds are its parts), data_wait, evaluation, checkpoint
    (only while the loop waits: writing continues in the background) and steps, all the rest.
    """
    total = self._clock() - self._made
    spent = self._spent if self._compiled else self._spent | {"start": total}
    spent = spent | {"steps": max(0.0, total - sum(spent.values()))}
    return {f"time/{name}_seconds": seconds for name, seconds in spent.items()} | {
      "time/goodput": spent["steps"] / total if total > 0 else 0.0} | {
      f"start/{part}_seconds": seconds for part, seconds in self._parts.items()}

  def read(self) -> dict[str, float]:
    """train/tokens_per_second, /step_ms, /data_wait_share (0 to 1), and /mfu or /flops_per_second; then restarts.

    Empty as long as no step after the first has been counted. MFU is relative to the dense bfloat16 peak.
    """
    seconds, waited = self._clock() - self._start - self._excluded, self._waited
    num_steps = self._num_steps
    self._restart()
    if num_steps == 0 or seconds <= 0:
      return {}
    flops_per_second = num_steps * self._flops / seconds
    speed = ({"train/flops_per_second": flops_per_second} if self._peak is None else
             {"train/mfu": flops_per_second / self._peak})
    return {"train/tokens_per_second": num_steps * self._tokens / seconds,
            "train/step_ms": 1000 * seconds / num_steps, "train/data_wait_share": waited / seconds, **speed}


def is_due(step: int, every_steps: int) -> bool:
  """Whether what is done every so many steps is due after this one; 0 = never.

  >>> [is_due(step, 2) for step in (1, 2, 3, 4)], is_due(4, 0)
  ([False, True, False, True], False)
  """
  return every_steps > 0 and step % every_steps == 0


class Progress:
  """One bar for the run on a terminal; elsewhere (a file, a job log) one plain line per log window.

  Args:
    num_steps: steps of the whole run.
    start_step: steps already done.
    enabled: True on process 0 only.
    stream: where to write; None: the process's error stream.
    clock: seconds.
  """

  def __init__(self, num_steps: int, start_step: int = 0, *, enabled: bool = True,
               stream=None, clock: Callable[[], float] = time.monotonic):
    self._num_steps, self._step, self._enabled, self._clock = num_steps, start_step, enabled, clock
    self._stream = sys.stderr if stream is None else stream
    self._begun = clock()
    self._first: tuple[int, float] | None = None  # step and time of the first line: compilation lies before it
    self._bar = None
    if enabled and self._stream.isatty():
      self._bar = tqdm(total=num_steps, initial=start_step, file=self._stream, dynamic_ncols=True,
                       bar_format="{percentage:.0f} % {n_fmt}/{total_fmt} [{elapsed}<{remaining}]{postfix}")

  def advance(self, step: int) -> None:
    """`step` updates are done."""
    if self._bar is not None:
      self._bar.update(step - self._step)
    self._step = step

  def show(self, step: int, values: Mapping[str, float]) -> None:
    """Shows the last window's losses and speed (the names of `StepTimer.read`)."""
    self.advance(step)
    if self._bar is not None:
      self._bar.set_postfix_str("", refresh=False)
      room = (self._bar.format_dict["ncols"] or COLUMNS) - len(str(self._bar)) - 4  # the times may grow
      parts = describe(values)
      while parts and len(", ".join(parts)) > room:  # tqdm would cut one in the middle
        parts.pop()
      self._bar.set_postfix_str(", ".join(parts))
    elif self._enabled:
      self._line(f"step {step:,}/{self._num_steps:,}  {self._elapsed()}, ETA {self._eta()}  "
                 + ", ".join(describe(values)))

  def message(self, text: str) -> None:
    """Prints lines above the bar, such as the result of an evaluation."""
    text = wrapped(text)
    if self._bar is not None:
      self._bar.write(text, file=self._stream)
    elif self._enabled:
      self._line(text)

  def finish(self, workdir: str) -> None:
    """Prints how long the run took since this start, and what to do next."""
    quoted = shlex.quote(workdir)
    self.message(f"""Finished after {self._elapsed()}: {workdir}. Next:
  results    python -m electra_jax summary {quoted}
  a page     python -m electra_jax report {quoted}
  ask it     python -m electra_jax predict --workdir={quoted} "The [MASK]."
  fine-tune  --config.task.init_from={quoted} (docs/own_labels.md)""")

  def close(self) -> None:
    """Ends the bar."""
    if self._bar is not None:
      self._bar.close()

  def _line(self, text: str) -> None:
    print(text, file=self._stream, flush=True)

  def _elapsed(self) -> str:
    return tqdm.format_interval(self._clock() - self._begun)

  def _eta(self) -> str:
    now = self._clock()
    if self._first is None:
      self._first = (self._step, now)
    if self._step >= self._num_steps:
      return "0:00"
    done, seconds = self._step - self._first[0], now - self._first[1]
    return tqdm.format_interval((self._num_steps - self._step) * seconds / done) if done > 0 else "?"


def describe_goodput(values: Mapping[str, float]) -> str:
  """The values of `StepTimer.goodput` in one line, the largest share first.

  >>> describe_goodput({"time/start_seconds": 30.0, "time/steps_seconds": 170.0, "time/goodput": 0.85})
  'steps 85.0 % (170 s), start 15.0 % (30 s)'
  """
  seconds = {name.removeprefix("time/").removesuffix("_seconds").replace("_", " "): value
             for name, value in values.items() if name.startswith("time/") and name.endswith("_seconds")}
  total = sum(seconds.values()) or 1.0
  return ", ".join(f"{name} {100 * value / total:.1f} % ({value:.0f} s)"
                   for name, value in sorted(seconds.items(), key=lambda row: -row[1]))


def wrapped(text: str) -> str:
  """The text with lines of at most COLUMNS; indented ones (commands) and rows of a table stay whole.

  >>> print(wrapped("word " * 20 + "\\n  a " + "long " * 18 + "command"))
  word word word word word word word word word word word word word word word word
    word word word word
    a long long long long long long long long long long long long long long long long long long command
  """
  return "\n".join(line if line.startswith((" ", "|")) else _fill(line, "  ") for line in text.splitlines())


def _fill(line: str, indent: str) -> str:
  return textwrap.fill(line, COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def header(config: ConfigDict, *, text: str, num_parameters: int, num_train: int, num_heldout: int, passes: float,
           devices: str) -> str:
  """The facts of a pre-training, one per line; `main` has printed recipe and workdir.

  Args:
    passes: over the training examples, made by one step.
  """
  train, optimizer, length = config.train, config.optimizer, config.data.sequence_length
  facts = {
    "objective": f"{config.objective.name}, {num_parameters:,} parameters",
    "text": f"{text}, {num_train:,} training and {num_heldout:,} held-out examples of {length} tokens",
    "steps": f"{train.num_steps:,} of {train.batch_size:,} examples: {passes * train.num_steps:,.1f} passes over it",
    "learning rate": f"{optimizer.learning_rate:g} after {optimizer.warmup_steps:,} steps of warm-up, {optimizer.name}",
    "devices": devices}
  return "\n".join(_fill(f"{name:<14} {fact}", 15 * " ") for name, fact in facts.items())


def describe(values: Mapping[str, float]) -> list[str]:
  """The parts of the loss, learning rate and speed; other values are left out.

  >>> describe({"train/learning_rate": 3e-3, "loss": 27.3, "mlm/loss": 6.1234, "rtd/loss": 0.3,
  ...           "train/tokens_per_second": 81234.0, "train/mfu": 0.412})
  ['mlm 6.123', 'rtd 0.300', 'lr 0.003', '81.2k tok/s', 'MFU 41.2 %']
  >>> describe({"loss": 27.3})
  ['loss 27.300']
  """
  losses = {name.removesuffix("/loss"): value for name, value in values.items() if name.endswith("/loss")}
  losses = losses or {name: value for name, value in values.items() if name == "loss"}
  return [f"{name} {_number(value)}" for name, value in losses.items()] + [
    form(values[name]) for name, form in FORMS.items() if name in values]


FORMS: dict[str, Callable[[float], str]] = {
  "train/learning_rate": "lr {:.3g}".format,
  "train/tokens_per_second": lambda speed: f"{tqdm.format_sizeof(speed)} tok/s",
  "train/mfu": lambda share: f"MFU {100 * share:.1f} %"}


def describe_evaluation(values: Mapping[str, float]) -> str:
  """Held-out values in one line, by network, without the perplexity, which says the same as the loss, the sum of the
  losses, and the accuracy of detection, which is high if nothing is marked.

  >>> line = describe_evaluation({
  ...   "loss": 21.1, "mlm/loss": 5.23, "mlm/perplexity": 187.0, "mlm/accuracy": 0.124, "eval/unigram_entropy": 6.07,
  ...   "rtd/loss": 0.3, "rtd/constant_loss": 0.41, "rtd/accuracy": 0.9, "rtd/precision": 0.0, "rtd/recall": 0.0,
  ...   "rtd/auc": 0.584})
  >>> print(line.replace("; ", ";\\n"))
  MLM loss 5.230 (unigram entropy 6.070), accuracy 12.4 %;
  RTD loss 0.300 (constant answer 0.410), AUC 0.584, nothing replaced was marked
  """
  networks: dict[str, list[str]] = {}
  for name, value in sorted(values.items(), key=lambda item: not item[0].endswith("/loss")):  # losses first
    network, _, metric = name.partition("/")
    if not metric or network == "eval" or name in ("mlm/perplexity", "rtd/accuracy", "rtd/constant_loss", *MARKS):
      continue
    shown = f"{100 * value:.1f} %" if metric == "accuracy" and math.isfinite(value) else _number(value)
    networks.setdefault(network, []).append(f"{'AUC' if metric == 'auc' else metric.replace('_', ' ')} {shown}")
  for network, (what, baseline) in BASELINES.items():
    if network in networks and baseline in values:
      networks[network][0] += f" ({what} {values[baseline]:.3f})"
  if "rtd/recall" in values:
    networks.setdefault("rtd", []).append(describe_marks(values))
  return "; ".join(f"{NETWORKS.get(network, network.replace('_', ' '))} {', '.join(parts)}"
                   for network, parts in networks.items())


BASELINES = {"mlm": ("unigram entropy", "eval/unigram_entropy"), "rtd": ("constant answer", "rtd/constant_loss")}
NETWORKS = {"mlm": "MLM", "rtd": "RTD", "nsp": "NSP"}
MARKS = ("rtd/precision", "rtd/recall")


def describe_marks(values: Mapping[str, float]) -> str:
  """Precision and recall of a discriminator's marks for replaced tokens.

  >>> describe_marks({"rtd/precision": 0.61, "rtd/recall": 0.083})
  'precision 61.0 %, recall 8.3 %'
  """
  if not values["rtd/recall"] > 0:
    return "nothing replaced was marked"
  return f"precision {100 * values['rtd/precision']:.1f} %, recall {100 * values['rtd/recall']:.1f} %"


def _number(value: float) -> str:
  return f"{value:.3f}" if math.isfinite(value) else "not finite"
