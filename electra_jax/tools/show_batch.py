"""Rows of a training batch as text: before masking, masked, and (in an ELECTRA) corrupted."""

import functools
import os
from collections.abc import Callable

import numpy as np
from absl import flags
from ml_collections import ConfigDict
from rich.console import Console
from rich.text import Text

from electra_jax import config as config_lib
from electra_jax import main as main_lib
from electra_jax.data import pipeline, readers, sentences, shards, tokenizers
from electra_jax.data.examples import IS_NEXT, IS_RANDOM
from electra_jax.data.shards import corpus
from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.errors import UserError
from electra_jax.inference import pretraining_heads
from electra_jax.objectives.table import ROWS
from electra_jax.training import checkpoints

FLAGS = flags.FLAGS
flags.adopt_module_key_flags(main_lib)  # --config and --workdir appear in --help
flags.DEFINE_integer("step", 0, "The step whose batch is shown.", lower_bound=0)
flags.DEFINE_integer("rows", 3, "How many rows of the batch to show.", lower_bound=1)

USAGE = """Prints rows of the batch of a step as text: the original, and what the masking policy makes of it.

  Of a run:      python -m electra_jax.tools.show_batch --workdir=runs/tiny --step=100
  Before a run:  python -m electra_jax.tools.show_batch --config=configs/tiny.py \\
                     --config.data.shards_path=data/tiny/shards

The chosen positions are coloured on a terminal, and in ‹› elsewhere. Padding is left out. For an ELECTRA run with a
checkpoint each row is also shown as the discriminator reads it, with what the newest generator draws for the masks."""

NSP_LABELS = {IS_NEXT: "B follows A", IS_RANDOM: "B is another document's"}
STYLES = {"original": "bold green", "masked": "bold yellow", "corrupted": "bold red"}


def row_lines(batch: readers.Batch, row: int, corrupted_ids: np.ndarray | None = None
              ) -> list[tuple[str, np.ndarray, np.ndarray]]:
  """(name, ids, is_marked) of each line that shows a row, padding left out.

  Args:
    batch: from a source of `pipeline.make_batch_at`.
    row: of the batch.
    corrupted_ids: int [batch, length], the discriminator's input; its line marks the ids that were replaced.
  """
  real = batch["attention_mask"][row]
  original = batch["input_ids"][row]
  chosen = np.zeros(len(real), bool)
  chosen[batch["masked_positions"][row][batch["masked_weights"][row] > 0]] = True
  lines = [("original", original, chosen), ("masked", batch["masked_input_ids"][row], chosen)]
  if corrupted_ids is not None:
    lines.append(("corrupted", corrupted_ids[row], corrupted_ids[row] != original))
  return [(name, ids[real], marks[real]) for name, ids, marks in lines]


def render(tokenizer: Tokenizer, ids: np.ndarray, marked: np.ndarray, style: str, brackets: bool) -> Text:
  """The ids as text with the marked ones in a style, or in ‹› if there are no colours."""
  text, begun = Text(), False  # begun: a marked token holds the first bytes of the next character
  for i, mark, piece in zip(ids.tolist(), marked.tolist(), sentences.piece_texts(tokenizer, ids.tolist()), strict=True):
    word, is_marked = piece.lstrip(" "), bool(mark) or begun
    begun = is_marked and not piece
    text.append(piece[:len(piece) - len(word)])
    if is_marked and brackets and piece:
      word = f"‹{word}›"
    text.append(word, style=style if is_marked else "dim" if i in tokenizer.special_ids else None)
  return text


def show(config: ConfigDict, directory: str, tokenizer: Tokenizer, step: int, rows: int, console: Console,
         corrupt: Callable[[readers.Batch], np.ndarray] | None = None) -> None:
  """Prints the first rows of a step's global batch; with `corrupt`, also the discriminator's input that it makes.

  Raises:
    UserError: the shards do not fit the config or the tokenizer, or are damaged.
  """
  examples = shards.open_shards(directory, "train", config.data, tokenizer)
  how = {"batch_size": config.train.batch_size, "seed": config.seed}
  batch = pipeline.make_batch_at(examples, config.data, tokenizer, **how)(step)
  example_ids, epochs, _ = pipeline.make_order_at(examples, config.data, **how)(step)
  corrupted_ids = corrupt(batch) if corrupt else None
  brackets = not console.is_terminal or console.no_color
  for row in range(min(rows, int((example_ids >= 0).sum()))):
    tokens, targets = int(batch["attention_mask"][row].sum()), int(batch["masked_weights"][row].sum())
    pair = f", {NSP_LABELS[int(batch['nsp_label'][row])]}" if "nsp_label" in batch else ""
    console.print(Text(f"step {step}, row {row}: example {example_ids[row]:,} of {len(examples):,}, "
                       f"epoch {epochs[row]}, {tokens} tokens, {targets} to predict{pair}", style="bold"),
                  soft_wrap=True)
    for name, ids, marked in row_lines(batch, row, corrupted_ids):
      line = Text(f"  {name:10}").append_text(render(tokenizer, ids, marked, STYLES[name], brackets))
      console.print(line, soft_wrap=True)
    console.print()


def make_corrupt(workdir: str | None, config: ConfigDict, seed: int, console: Console
                 ) -> Callable[[readers.Batch], np.ndarray] | None:
  """The `corrupt` of `show` from the workdir's newest generator; None, with the reason printed, if there is none."""
  if "generator" not in ROWS[config.objective.name].networks or config.generator.kind != "learned":
    return None  # a masked LM corrupts nothing, and the counts of unigrams are not in a checkpoint
  if not workdir or not checkpoints.saved_steps(workdir):
    lacking = f"{workdir} has no checkpoint yet" if workdir else "Without --workdir there is no checkpoint"
    console.print(Text(f"{lacking}, so no generator to show the corrupted rows of.", style="dim"), soft_wrap=True)
    return None
  main_lib.start_jax()
  run = pretraining_heads.load(workdir)
  if run.network.rtd_logits is None:
    return None  # no discriminator reads corrupted rows
  console.print(Text(f"corrupted: as drawn by the generator of step {run.step} for seed {seed}; marked where it "
                     "differs from the original\n", style="dim"), soft_wrap=True)
  return functools.partial(pretraining_heads.corrupt, run, seed=seed)


def main(argv: list[str]) -> None:
  """Reads the flags, finds config, tokenizer and shards, and prints."""
  del argv
  if not FLAGS.workdir and not (FLAGS.config and FLAGS.config.data.shards_path):
    raise UserError("Nothing says which data to show", got="neither --workdir nor --config.data.shards_path",
                    allowed="--workdir=DIR, or --config=FILE with --config.data.shards_path=DIR",
                    fix="see `python -m electra_jax.tools.show_batch --help`")
  config = config_lib.resolve(FLAGS.config) if FLAGS.config else config_lib.load(FLAGS.workdir)
  directory = corpus.shards_directory(config.data, FLAGS.workdir)
  shards.read_manifest(directory)  # before the tokenizer: a wrong folder lacks both
  own = os.path.join(FLAGS.workdir or os.path.dirname(os.path.abspath(directory)), corpus.TOKENIZER_FOLDER)
  tokenizer = tokenizers.load_tokenizer(own if os.path.isdir(own) else config.data.tokenizer.path)
  console = Console(highlight=False)
  corrupt = make_corrupt(FLAGS.workdir, config, FLAGS.step, console)
  show(config, directory, tokenizer, FLAGS.step, FLAGS.rows, console, corrupt)


if __name__ == "__main__":
  main_lib.run(main, USAGE)
