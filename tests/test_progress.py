"""Does the timer leave out what is not training, and does the console read well on and off a terminal?"""

import io

import pytest

from electra_jax import progress
from electra_jax.flops import HARDWARE_PEAKS


class Clock:
  def __init__(self):
    self.now = 100.0

  def __call__(self):
    return self.now


@pytest.fixture(autouse=True)
def not_the_first_run(monkeypatch):
  monkeypatch.setattr(progress.StepTimer, "_process_counts", False)


def timer(clock, peak=None):
  steps = progress.StepTimer(clock)
  steps.measure(tokens_per_step=1000, flops_per_step=2e12, peak=peak)
  return steps


def run_window(clock, steps):
  """50 s of compilation; then per step 0.1 s of waiting and 0.3 s of work; one evaluation of 20 s."""
  clock.now += 50
  steps.step()
  for _ in range(5):
    with steps.waiting():
      clock.now += 0.1
    clock.now += 0.3
    steps.step()
  with steps.paused("evaluation"):
    clock.now += 20


def test_compilation_and_evaluation_do_not_count():
  clock = Clock()
  steps = timer(clock)
  run_window(clock, steps)
  assert steps.read() == pytest.approx({"train/tokens_per_second": 2500.0, "train/step_ms": 400.0,
                                        "train/data_wait_share": 0.25, "train/flops_per_second": 5e12})
  clock.now += 1.0
  steps.step()
  assert steps.read()["train/step_ms"] == pytest.approx(1000.0)  # a window of its own


def test_a_wait_that_the_devices_do_not_feel_is_none():
  clock = Clock()
  steps = timer(clock)
  steps.step()
  for hidden in (True, False):
    with steps.waiting(lambda: hidden):  # noqa: B023 - called at once
      clock.now += 1 + hidden
    clock.now += 3
    steps.step()
  assert steps.goodput()["time/data_wait_seconds"] == 1
  assert steps.read()["train/data_wait_share"] == pytest.approx(1 / 9)


def test_where_the_time_went():
  """The first step's wait is a part of the start; what is left after everything else are the steps."""
  clock = Clock()
  steps = timer(clock)
  with steps.waiting():
    clock.now += 8
  assert steps.goodput()["time/start_seconds"] == 8
  run_window(clock, steps)
  with steps.paused("checkpoint"):
    clock.now += 0.5
  assert steps.goodput() == pytest.approx({
    "time/start_seconds": 58, "time/data_wait_seconds": 0.5, "time/evaluation_seconds": 20,
    "time/checkpoint_seconds": 0.5, "time/steps_seconds": 1.5, "time/goodput": 1.5 / 80.5})


def test_the_parts_of_a_start(monkeypatch):
  """Only the first run of a process began with it; later ones pay no imports."""
  clock = Clock()
  monkeypatch.setattr(progress.StepTimer, "_process_counts", True)
  first, second = timer(clock), timer(clock)
  for steps in (first, second):
    clock.now += 2
    steps.done("data")
  clock.now += 0.5
  assert second.after_first_step(()) == "first step done 4.5 s after the start (seconds: data 4.0, compilation 0.5)"
  for steps, start, parts in ((first, 104.5, {"imports": 100, "data": 2}),
                              (second, 4.5, {"data": 4, "compilation": 0.5})):
    steps.step()
    values = steps.goodput()
    assert values["time/start_seconds"] == start
    assert {name: value for name, value in values.items() if name.startswith("start/")} == {
      f"start/{part}_seconds": seconds for part, seconds in parts.items()}
  assert progress.describe_goodput(values).startswith("start 100.0 % (4 s), ")


def test_this_process_has_run_for_a_while():
  before = progress.process_seconds()
  assert 0 < before <= progress.process_seconds() < 24 * 3600


def test_mfu_is_of_all_devices():
  clock = Clock()
  steps = timer(clock, 2 * HARDWARE_PEAKS["NVIDIA H100 80GB HBM3"])
  run_window(clock, steps)
  values = steps.read()
  assert values["train/mfu"] == pytest.approx(5e12 / (2 * 989e12)) and "train/flops_per_second" not in values


def test_nothing_to_report_after_the_first_step():
  clock = Clock()
  steps = timer(clock)
  assert steps.read() == {}
  clock.now += 50
  steps.step()
  assert steps.read() == {}


def test_pause_ends_when_the_inside_fails():
  clock = Clock()
  steps = timer(clock)
  steps.step()
  with pytest.raises(RuntimeError), steps.paused("checkpoint"):
    clock.now += 7
    raise RuntimeError
  clock.now += 1
  steps.step()
  assert steps.read()["train/step_ms"] == pytest.approx(1000.0)


VALUES = {"train/learning_rate": 0.003, "loss": 25.4321, "mlm/loss": 5.4321, "mlm/accuracy": 0.1, "rtd/loss": 0.4,
          "train/tokens_per_second": 31_200.0, "train/step_ms": 12.0, "train/flops_per_second": 2.5e11}


def test_plain_lines_off_a_terminal():
  clock, stream = Clock(), io.StringIO()
  bar = progress.Progress(100, start_step=20, stream=stream, clock=clock)
  for step in (30, 40, 100):
    for done in range(step - 9, step + 1):
      bar.advance(done)
    clock.now += 90
    bar.show(step, VALUES)
  bar.message("saved")
  bar.finish("my runs/a")
  bar.close()
  speed = "mlm 5.432, rtd 0.400, lr 0.003, 31.2k tok/s"
  lines = stream.getvalue().splitlines()
  assert lines[:5] == [f"step 30/100  01:30, ETA ?  {speed}", f"step 40/100  03:00, ETA 09:00  {speed}",
                       f"step 100/100  04:30, ETA 0:00  {speed}", "saved",
                       "Finished after 04:30: my runs/a. Next:"]
  assert any("electra_jax summary 'my runs/a'" in line for line in lines[5:])


class Terminal(io.StringIO):
  def isatty(self):
    return True


def test_one_bar_on_a_terminal():
  stream = Terminal()
  bar = progress.Progress(4000, start_step=20, stream=stream)
  bar.advance(50)
  bar.show(2060, VALUES)
  bar.message("a line above")
  bar.close()
  text = stream.getvalue()
  assert "2060/4000" in text and "mlm 5.432, rtd 0.400" in text and "a line above\n" in text and "\r" in text
  assert max(map(len, text.replace("\r", "\n").split("\n"))) < 80


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()], ids=["terminal", "file"])
def test_nothing_is_cut_at_80_columns(stream):
  """Not of a run of weeks either: whole parts are left out of the bar, and messages have several lines."""
  bar = progress.Progress(1_000_000, start_step=123_455, stream=stream)
  bar.show(123_456, VALUES | {"train/learning_rate": 1.234e-4, "train/mfu": 0.412, "a_third/loss": 1.0})
  bar.message("memory of each device: 45.5 MiB (parameters 0.8 MiB, optimizer 1.5 MiB, activations 43.1 MiB)")
  bar.finish("runs/mine")
  bar.close()
  lines = stream.getvalue().replace("\r", "\n").split("\n")
  assert max(map(len, (line for line in lines if not line.startswith("step ")))) <= 80
  assert any("rtd 0.400" in line for line in lines) and not any(line.endswith(("M", "tok/", "lr")) for line in lines)
  assert "  activations 43.1 MiB)" in lines


def test_the_header_says_what_is_trained():
  from configs import tiny
  from electra_jax import config as config_lib

  text = progress.header(config_lib.resolve(tiny.get_config()), text="books.txt", num_parameters=126017,
                         num_train=1900, num_heldout=11, passes=128 / 1900, devices="1 cpu device(s)")
  for words in ("rtd, 126,017 parameters", "books.txt, 1,900 training and 11 held-out", "134.7 passes over it",
                "0.003 after 50 steps", "1 cpu device(s)"):
    assert words in text


def test_other_processes_are_silent():
  stream = io.StringIO()
  bar = progress.Progress(10, enabled=False, stream=stream)
  bar.show(5, VALUES)
  bar.message("x")
  bar.close()
  assert stream.getvalue() == ""


def test_a_run_of_zero_steps():
  stream = io.StringIO()
  progress.Progress(0, stream=stream).show(0, {})
  assert stream.getvalue().startswith("step 0/0  00:00, ETA 0:00")
