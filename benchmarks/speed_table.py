"""The README's table of speeds on this card: every point next to PyTorch, one after the other.

  python -m benchmarks.speed_table OUT.json                   an hour on a GPU, most of it compiling
  python -m benchmarks.speed_table OUT.json --only=Base       the points whose name has this in it
  python -m benchmarks.speed_table OUT.json --at_once=5       compiles five points at a time before it times the first

Each point is `benchmarks.step_peer`: the peer, ours, the peer again, in one run. OUT.json is written after each; what
it has is not timed again, so the same command resumes after a kill. Prints the table in the end. Its rows are those of
docs/results/speed.json. Compiled programs are kept by JAX and PyTorch, so a point that has been compiled is timed soon;
--at_once needs the memory of so many points on the card.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from electra_jax.tools.experiments import results

FAITHFUL, WITHOUT = "faithful", "no attention dropout"  # recipes


class Point(NamedTuple):
  """A row of the table."""

  name: str
  recipe: str
  settings: tuple[str, ...]
  recipes: tuple[str, ...] = (FAITHFUL,)


def _point(name: str, recipe: str, length: int, batch: int, recipes: tuple[str, ...] = (FAITHFUL,)) -> Point:
  rows = f"{batch:,}".replace(",", " ")
  return Point(f"{name}, length {length}, batch {rows}", recipe,
               (f"data.sequence_length={length}", f"train.batch_size={batch}"), recipes)


POINTS = (
  _point("ELECTRA-Small", "configs/small.py", 128, 128, (FAITHFUL, WITHOUT)),
  _point("ELECTRA-Small", "configs/small.py", 128, 1024, (FAITHFUL, WITHOUT)),
  _point("ELECTRA-Base", "configs/base.py", 128, 256, (FAITHFUL, WITHOUT)),
  _point("ELECTRA-Base", "configs/base.py", 512, 64, (FAITHFUL, WITHOUT)),
  _point("ELECTRA-Large", "configs/large.py", 512, 32, (FAITHFUL, WITHOUT)),
  _point("BERT-Base", "configs/bert_base.py", 128, 256),
  _point("BERT-Base", "configs/bert_base.py", 512, 64),
  _point("BERT-Large", "configs/bert_large.py", 128, 128),
  _point("BERT-Large", "configs/bert_large.py", 512, 32),
)


def arguments_of(point: Point, recipe: str) -> list[str]:
  """Of step_peer."""
  changes = ("model.attention_probs_dropout_prob=0.0",) * (recipe == WITHOUT)
  return [f"--recipe={point.recipe}", *(f"--set={setting}" for setting in (*point.settings, *changes))]


def time_both(arguments: Sequence[str]) -> dict:
  """What step_peer says, in a process of its own: its card is free again afterwards."""
  command = [sys.executable, "-m", "benchmarks.step_peer", *arguments]
  done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
  if done.returncode:
    raise SystemExit(f"`{' '.join(command[1:])}` ended with status {done.returncode}")
  return json.loads(done.stdout.strip().splitlines()[-2])


def compile_all(work: Sequence[tuple[Point, str]], at_once: int) -> None:
  """Runs each point for a few steps, several at a time, for what JAX and PyTorch then have in their caches.

  One that fails, as the card's memory was too small for all, is compiled when it is timed.
  """
  def run(arguments: Sequence[str]) -> None:
    command = [sys.executable, "-m", "benchmarks.step_peer", *arguments, "--windows=1", "--window_steps=1"]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

  with ThreadPoolExecutor(at_once) as pool:
    list(pool.map(run, (arguments_of(*each) for each in work)))


def row_of(point: Point, recipe: str, said: dict) -> dict:
  """The row of speed.json; the better of the peer's two timings counts."""
  ours, peer = said["ours"], max(said["peer"], said["peer_again"], key=lambda one: one["tokens_per_second"])
  return {"point": point.name, "recipe": recipe, "tokens_per_second": ours["tokens_per_second"],
          "step_ms": ours["step_ms"], "share_of_matmul": ours["share_of_matmul"],
          "peer_tokens_per_second": peer["tokens_per_second"], "peer": peer["kind"],
          "matmul_tflops": ours["matmul_tflops"], "card": ours["device"],
          "versions": {"jax": ours["jax"], "torch": peer["torch"], "transformers": peer["transformers"]},
          "command": " ".join(["python -m benchmarks.step_peer", *arguments_of(point, recipe)]),
          "note": "one card, one run"}


def measure(out: str, only: str, run: Callable[[Sequence[str]], dict] = time_both, at_once: int = 1) -> list[dict]:
  """Times what `out` has not, and returns all its rows."""
  rows = results.load(out)
  work = [(point, recipe) for point in POINTS for recipe in point.recipes
          if only in point.name and (point.name, recipe) not in {(row["point"], row["recipe"]) for row in rows}]
  if at_once > 1:
    compile_all(work, at_once)
  for number, (point, recipe) in enumerate(work, 1):
    print(f"[{number}/{len(work)}] {point.name}, {recipe}", flush=True)
    rows.append(row_of(point, recipe, run(arguments_of(point, recipe))))
    results.save(out, rows)
  return rows


def table(rows: Sequence[dict]) -> str:
  """Markdown: a line for each point and recipe."""
  lines = ["| | card | recipe | ours | PyTorch | ratio | of the matrix product's rate |",
           "|---|---|---|---|---|---|---|"]
  for row in rows:
    rate, peer = row["tokens_per_second"], row["peer_tokens_per_second"]
    lines.append(f"| {row['point']} | {row['card']} | {row['recipe']} | {rate:,} | {peer:,} | {rate / peer:.2f} | "
                 f"{row['share_of_matmul']:.0%} |")
  return "\n".join(lines)


def main() -> None:
  """The command."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("out")
  parser.add_argument("--only", default="", help="part of the names of the points")
  parser.add_argument("--at_once", type=int, default=1, help="points that are compiled at a time")
  options = parser.parse_args()
  print(table(measure(options.out, options.only, at_once=options.at_once)))


if __name__ == "__main__":
  main()
