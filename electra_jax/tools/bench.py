"""Speed of a recipe's train step, and of its data, on this machine.

`step` compiles the real train step, runs it on synthetic rows and prints JSON; `data` is in `bench_data`.
"""

import contextlib
import functools
import json
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from ml_collections import ConfigDict

from electra_jax import config as config_lib
from electra_jax import flops, recipes, sharding
from electra_jax import main as main_lib
from electra_jax.data import pipeline
from electra_jax.errors import UserError
from electra_jax.tools import bench_data
from electra_jax.training import setup

FLAGS = flags.FLAGS
flags.adopt_module_key_flags(main_lib)  # --config appears in --help
flags.DEFINE_integer("windows", 3, "Timed windows, of which the median counts.", lower_bound=1)
flags.DEFINE_integer("window_steps", 20, "Steps in a window.", lower_bound=1)
flags.DEFINE_float("text_megabytes", 8.0, "Size of the part of the corpus that `data` prepares.", lower_bound=0.01)
flags.DEFINE_float("seconds", 4.0, "Time for which `data` reads with each reader and length.", lower_bound=0.01)
flags.DEFINE_string("profile", "", "Folder for a profiler trace of one window; empty = none.")
flags.DEFINE_bool("breakdown", False, "Also time the step without each of its parts; compiles it six times more.")
flags.DEFINE_string("compare", "", "JSON file of an earlier `step`; also prints the changes since.")

USAGE = """Times the train step of a recipe on synthetic rows: the arithmetic alone, without reading data.

  python -m electra_jax.tools.bench step --config=configs/base.py --config.train.batch_size=64
  python -m electra_jax.tools.bench step --config=configs/small.py --config.data.sequence_length=128

Prints one line of JSON: tokens_per_second, step_ms (the median of the windows), mfu against the device's dense bfloat16
peak and against a large matrix product measured in the same process, compile_seconds, peak_gib, loss.

  python -m electra_jax.tools.bench step --config=configs/small.py --breakdown     what each part of the step costs
  python -m electra_jax.tools.bench step --config=configs/small.py > before.json   and, after a change:
  python -m electra_jax.tools.bench step --config=configs/small.py --compare=before.json

Or times the data, without the train step:

  python -m electra_jax.tools.bench data
  python -m electra_jax.tools.bench data --config=configs/base.py --config.data.path=/path/to/text \\
    --config.data.tokenizer.path=/path/to/vocab.txt --config.data.tokenizer.kind=wordpiece --text_megabytes=32

Prints how fast text becomes shards, next to the bare tokenizer library, each in one process, and how fast masked
batches of length 128 and 512 are read. "Of a core" divides by processor time instead of wall time, for machines that
are busy with other work, too. `python -m benchmarks.data_peer` adds Hugging Face's way."""


def synthetic_batch(config: ConfigDict) -> dict[str, np.ndarray]:
  """Full rows of random ordinary ids, with the recipe's shapes and number of masked positions."""
  rng = np.random.default_rng(0)
  rows, length = config.train.batch_size, config.data.sequence_length
  slots = config_lib.num_predictions(config.data.masking.rate, length)
  vocab_size = config.data.tokenizer.vocab_size
  ids = rng.integers(min(1000, vocab_size // 2), vocab_size, (rows, length), dtype=np.int32)
  positions = np.sort(np.argsort(rng.random((rows, length)), axis=1)[:, :slots], axis=1).astype(np.int32)
  masked = ids.copy()
  np.put_along_axis(masked, positions, 103, axis=1)
  batch = {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "attention_mask": np.ones(ids.shape, bool),
           "masked_input_ids": masked, "masked_positions": positions,
           "masked_ids": np.take_along_axis(ids, positions, axis=1),
           "masked_weights": np.ones(positions.shape, np.float32)}
  if "nsp_label" in pipeline.batch_shapes(config.data, rows):
    batch["nsp_label"] = np.arange(rows, dtype=np.int32) % 2
  return batch


# Part -> the keys of a step without it. Parts overlap (a generator has attention, too), so they do not add up to the
# step.
PARTS = {
  "attention dropout": {"model.attention_probs_dropout_prob": 0.0},
  "all dropout": {"model.attention_probs_dropout_prob": 0.0, "model.hidden_dropout_prob": 0.0},
  "half of the layers": {},  # filled in by `breakdown`
  "generator and masked LM": {"generator.kind": "unigram"},
  "LAMB's ratios": {"optimizer.name": "adamw"},
  "kernels": {"train.kernels": "xla"},  # the compiler's own code instead: negative if that is slower
}


def breakdown(given: ConfigDict, whole_ms: float, **how) -> dict[str, float]:
  """Part of `PARTS` -> how many milliseconds less the step takes without it."""
  parts = dict(PARTS)
  parts["half of the layers"] = {"model.num_hidden_layers": max(1, given.model.num_hidden_layers // 2)}
  if given.objective.name not in ("rtd", "electra_15", "replace_mlm", "all_tokens_mlm"):
    del parts["generator and masked LM"]
  if given.optimizer.name != "lamb":
    del parts["LAMB's ratios"]
  milliseconds = {}
  for name, changes in parts.items():
    without = given.copy_and_resolve_references()
    without.update_from_flattened_dict(changes)
    milliseconds[name] = round(whole_ms - time_step(config_lib.resolve(without), **how)["step_ms"], 3)
  return milliseconds


def compared(now: dict, path: str) -> str:
  """A table of the earlier and the new figures, with the change in percent.

  Raises:
    UserError: the file with the earlier figures cannot be read.
  """
  try:
    with open(path, encoding="utf-8") as file:
      before = json.loads(file.read().strip().splitlines()[-1])
  except (OSError, ValueError, IndexError) as error:
    raise UserError("The figures to compare with cannot be read", got=f"{path}: {error}",
                    allowed="a file with the line of JSON that `bench step` printed",
                    fix="python -m electra_jax.tools.bench step --config=... > before.json") from error
  lines = []
  for name in ("tokens_per_second", "step_ms", "mfu", "share_of_matmul", "compile_seconds", "peak_gib"):
    if before.get(name) and now.get(name) is not None:
      lines.append(f"{name:20s} {before[name]:>14,} -> {now[name]:>14,}  {100 * (now[name] / before[name] - 1):+.1f} %")
  changed = [name for name in ("device", "devices", "jax", "objective", "hidden_size", "sequence_length", "batch_size")
             if before.get(name) != now.get(name)]
  return "\n".join([*lines, *(f"not the same {name}: {before.get(name)} -> {now.get(name)}" for name in changed)])


def time_step(config: ConfigDict, *, windows: int, window_steps: int, profile: str = "") -> dict:
  """The figures of one recipe; see USAGE."""
  mesh = setup.make_mesh(config)
  run, rows, updates = setup.make(config, mesh), synthetic_batch(config), config.train.steps_per_dispatch
  state = run.stack(run.init_state())
  with jax.set_mesh(mesh):
    batch = sharding.put_batches([rows] * updates, mesh)
    step = run.train_step(run.objective.phases[0])
    started = time.perf_counter()
    step = step.lower(state, batch).compile()
    compile_seconds = time.perf_counter() - started
    for _ in range(3):
      state, pairs = step(state, batch)
    jax.block_until_ready(state)
    seconds, calls = [], -(-window_steps // updates)
    for window in range(windows):
      is_traced = profile and window == windows - 1
      with jax.profiler.trace(profile) if is_traced else contextlib.nullcontext():
        started = time.perf_counter()
        for _ in range(calls):
          state, pairs = step(state, batch)
        jax.block_until_ready(state)
        seconds.append((time.perf_counter() - started) / (calls * updates))
  matmul = matmul_flops_per_second()
  device, best = jax.devices()[0], statistics.median(seconds)
  flops_per_second = flops.model_flops(config).per_step / best / jax.device_count()
  peak = flops.HARDWARE_PEAKS.get(device.device_kind)
  memory: Any = step.memory_analysis()
  loss = float(np.ravel(pairs["loss"][0])[-1])
  return {
    "device": device.device_kind, "devices": jax.device_count(), "jax": jax.__version__,
    "objective": config.objective.name, "hidden_size": config.model.hidden_size,
    "sequence_length": config.data.sequence_length, "batch_size": config.train.batch_size,
    "steps_per_dispatch": updates, "tokens_per_second": round(rows["input_ids"].size / best),
    "step_ms": round(1000 * best, 3),
    "mfu": None if peak is None else round(flops_per_second / peak, 4),
    "share_of_matmul": round(flops_per_second / matmul, 4),
    "matmul_tflops": round(matmul / 1e12, 1),
    "compile_seconds": round(compile_seconds, 1),
    "peak_gib": round((memory.temp_size_in_bytes + memory.argument_size_in_bytes) / 2**30, 2), "loss": round(loss, 3),
  }


@functools.cache
def matmul_flops_per_second() -> float:
  """FLOP/s of a large bfloat16 matrix product (float32 on CPU) on the first device."""
  size, dtype = (1024, jnp.float32) if jax.default_backend() == "cpu" else (8192, jnp.bfloat16)
  a, b = (jax.random.normal(jax.random.key(i), (size, size), dtype) for i in range(2))
  product = jax.jit(jnp.matmul)
  product(a, b).block_until_ready()
  started = time.perf_counter()
  for _ in range(20):
    out = product(a, b)
  out.block_until_ready()
  return 20 * 2 * size**3 / (time.perf_counter() - started)


def data_recipe() -> ConfigDict:
  """What `data` reads without --config: the demo's text, with a WordPiece vocabulary."""
  _, given = recipes.load("tiny")
  given.data.tokenizer.update(kind="wordpiece", vocab_size=8192)
  return given


def main(argv: list[str]) -> None:
  """Entry point."""
  if argv[1:] == ["data"]:
    given = data_recipe() if FLAGS.config is None else FLAGS.config
    print(bench_data.table(bench_data.time_data(given, text_megabytes=FLAGS.text_megabytes, seconds=FLAGS.seconds)))
    return
  if argv[1:] != ["step"] or FLAGS.config is None:
    raise UserError("What to time is not clear", got=" ".join(argv[1:]) or "nothing",
                    allowed="step, with a --config; or data",
                    fix="python -m electra_jax.tools.bench step --config=configs/small.py")
  main_lib.start_jax()
  config = config_lib.resolve(FLAGS.config)
  how = {"windows": FLAGS.windows, "window_steps": FLAGS.window_steps}
  figures = time_step(config, **how, profile=FLAGS.profile)
  if FLAGS.breakdown:
    figures["without_ms"] = breakdown(FLAGS.config, figures["step_ms"], **how)
  print(json.dumps(figures))
  if FLAGS.compare:
    print(compared(figures, FLAGS.compare))


if __name__ == "__main__":
  main_lib.run(main, USAGE, takes_arguments=True)
