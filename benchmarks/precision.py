"""Does training in bfloat16 with the kernels learn what float32 with the compiler's own code learns?

  python -m benchmarks.precision OUT                                             minutes on a GPU; slow without one
  python -m benchmarks.precision OUT --compare bfloat16 fp8
  python -m benchmarks.precision OUT --recipe=configs/small.py --set=data.path=/path/to/text

Trains a recipe with several seeds both ways; the same seed means the same data, masks, initial weights and dropout.
Prints, window by window, both losses, how far the two precisions are apart (mean of the seeds and its standard error)
and how far two seeds are (standard deviation), and draws all curves. By default the demo's ELECTRA, with sizes
and dropout that the kernels take. The same command resumes.
"""

import argparse
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from electra_jax import metrics, plotting

# Without --recipe: sizes that all kernels take. Off both plateaus within 2,000 updates: float32 gets from 5.66 to 4.95
# nats with the generator, from 0.542 to 0.486 with the discriminator.
DEMO = ("model.hidden_size=256", "model.embedding_size=256", "model.intermediate_size=1024",
        "model.num_attention_heads=4", "model.initializer_range=0.0625", "model.hidden_dropout_prob=0.1",
        "model.attention_probs_dropout_prob=0.1", "model.max_position_embeddings=128", "data.sequence_length=128",
        "train.batch_size=32", "optimizer.learning_rate=1e-3")
WAYS = {"float32": ("train.compute_dtype=float32", "train.kernels=xla"), "bfloat16": ("train.compute_dtype=bfloat16",),
        "fp8": ("train.compute_dtype=bfloat16", "train.matmul_precision=fp8")}
LOSSES = {"mlm/loss": "generator, nats per masked token", "rtd/loss": "discriminator, nats per token"}


def train(workdir: str, recipe: str, settings: list[str]) -> None:
  """One run to its end, in a process of its own; its output goes to WORKDIR.log."""
  command = [sys.executable, "-m", "electra_jax.main", f"--config={recipe}", f"--workdir={workdir}",
             *(f"--config.{setting}" for setting in settings)]
  environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # several share a device
  with open(f"{workdir}.log", "a", encoding="utf-8") as log:
    status = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False).returncode
  if status:
    raise SystemExit(f"{workdir} ended with status {status}: see {workdir}.log")


def curves(out: str, ways: list[str], seeds: range, loss: str) -> dict[str, list[dict[int, float]]]:
  """Way -> for each seed {step: training loss, a mean over the steps since the last log line}."""
  return {way: [{row["step"]: row[loss] for row in metrics.read_rows(os.path.join(out, f"{way}-{seed}"))
                 if row["split"] == "train"} for seed in seeds] for way in ways}


def table(found: dict[str, list[dict[int, float]]], windows: int) -> str:
  """A line for each window of the run: means of the two ways, difference of a seed's two runs, spread of the seeds."""
  def deviation(values):
    return statistics.stdev(values) if len(values) > 1 else float("nan")

  steps = sorted(set.intersection(*(set(run) for runs in found.values() for run in runs)))
  lines = ["  updates         {:>8} {:>9}          difference  between seeds".format(*found)]
  for number in range(windows):
    part = steps[number * len(steps) // windows:(number + 1) * len(steps) // windows]
    reference, half = ([statistics.fmean(run[step] for step in part) for run in runs] for runs in found.values())
    differences = [b - a for a, b in zip(reference, half, strict=True)]
    error = deviation(differences) / len(differences) ** 0.5
    lines.append(f"  {part[0]:>6,} to {part[-1]:>6,} {statistics.fmean(reference):>8.4f} "
                 f"{statistics.fmean(half):>9.4f} {statistics.fmean(differences):>+9.4f} +- {error:.4f} "
                 f"{deviation(reference):>14.4f}")
  return "\n".join(lines)


def draw(found: dict[str, dict[str, list[dict[int, float]]]], out: str) -> None:
  """A panel for each loss, a colour for each way, a line for each seed."""
  figure = plotting.new(6.5 * len(found), 4.2)
  for number, (loss, ways) in enumerate(found.items(), 1):
    axes = figure.add_subplot(1, len(found), number)
    for colour, (way, runs) in zip(plotting.COLOURS, ways.items(), strict=False):
      for seed, run in enumerate(runs):
        axes.plot(list(run), list(run.values()), linewidth=1.0, color=colour, label=way if not seed else None)
    axes.set(title=f"training loss: {LOSSES[loss]}", xlabel="step (optimizer updates)")
    plotting.finish(axes)
  plotting.save(figure, out)


def main() -> None:
  """Trains what is missing, prints both tables and draws OUT/curves.png."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("out")
  parser.add_argument("--recipe", default="", help="an ELECTRA; default: the demo's, wider and with dropout")
  parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the recipe; repeatable")
  parser.add_argument("--compare", nargs=2, choices=WAYS, default=("float32", "bfloat16"), help="with the first one")
  parser.add_argument("--steps", type=int, default=2000)
  parser.add_argument("--seeds", type=int, default=3)
  parser.add_argument("--jobs", type=int, default=3, help="runs at a time on the device")
  parser.add_argument("--windows", type=int, default=8, help="lines of each table")
  options = parser.parse_args()
  os.makedirs(options.out, exist_ok=True)
  settings = [*(() if options.recipe else DEMO), f"train.num_steps={options.steps}", *options.set]
  seeds = range(options.seeds)
  work = [(os.path.join(options.out, f"{way}-{seed}"), options.recipe or "configs/tiny.py",
           [*settings, *WAYS[way], f"seed={seed}"]) for seed in seeds for way in options.compare]
  with ThreadPoolExecutor(options.jobs) as pool:
    list(pool.map(lambda one: train(*one), work))
  found = {loss: curves(options.out, options.compare, seeds, loss) for loss in LOSSES}
  for loss, ways in found.items():
    print(f"{loss}: {LOSSES[loss]}; mean of {options.seeds} seeds\n{table(ways, options.windows)}")
  picture = os.path.join(options.out, "curves.png")
  draw(found, picture)
  print(picture)


if __name__ == "__main__":
  main()
