"""Preparation of a corpus ahead of a run: tokenizer and shards in one command, for one run or for many."""

import contextlib
import os

from absl import flags
from ml_collections import ConfigDict

from electra_jax import config as config_lib
from electra_jax import main as main_lib
from electra_jax.data import shards
from electra_jax.data.shards import corpus
from electra_jax.errors import UserError
from electra_jax.exchange import published
from electra_jax.training import checkpoints
from electra_jax.training import workdir as workdir_lib

FLAGS = flags.FLAGS
flags.adopt_module_key_flags(main_lib)  # --config and --workdir appear in --help
flags.DEFINE_string("out", None, "Folder that gets tokenizer/ and shards/; it may be the workdir of a later run.")

USAGE = """Tokenizes and packs a corpus into shards; trains the tokenizer first where the config names none.

  python -m electra_jax.tools.prepare_data --config=configs/base.py --config.data.path=/path/to/text --out=data/base

A run then uses both with --config.data.shards_path=data/base/shards, or finds them by itself with --workdir=data/base.

--config.data.path is a text file (a blank line starts a new document), a .jsonl file, one of these as .gz or .zst, a
.parquet file, a folder, a quoted glob, one of these in a bucket (gs://, s3://), tfds:NAME[:SPLIT], hf:PATH[:SPLIT],
pydoc: (English that the installed Python carries, to try things out), or several with weights:
'wiki/*2,books.txt*0.5'. Running text is split into sentences with --config.data.sentences=en. Shards that are
there already are replaced when the new ones are complete. --config.data.num_workers sets the number of processes.

After a kill the same command resumes after the last finished shard, and gives the same files."""


def prepare_data(config: ConfigDict, out: str) -> dict:
  """Makes `<out>/tokenizer` (unless it exists) and `<out>/shards` (anew); returns the shards' manifest.

  Raises:
    UserError: the folder is that of a run, or another job works there; or reading, training, packing or writing fails.
  """
  directory = corpus.shards_directory(config.data, out)
  with contextlib.ExitStack() as holding:
    for folder in {os.path.realpath(out), os.path.realpath(os.path.dirname(os.path.abspath(directory)))}:
      holding.enter_context(workdir_lib.hold(folder))
      if steps := checkpoints.saved_steps(folder):
        raise UserError("The folder holds a run that was trained on its shards", got=f"{folder}, steps {steps}",
                        allowed="a new folder, or one without checkpoints", fix="choose another --out (and "
                        "--config.data.shards_path); a run makes shards that are missing by itself")
    tokenizer = corpus.make_tokenizer(config.data, out, config.seed)
    return shards.prepare(config.data, tokenizer, directory, config.seed)


def statistics_table(manifest: dict) -> str:
  """The manifest's statistics as a table. Tokens + borrowed tokens = packed tokens + dropped tokens.

  >>> numbers = dict(documents=2, documents_without_token=0, paragraphs=3, sentences=4, text_bytes=90, tokens=20,
  ...                packed_tokens=20, dropped_tokens=0, unknown_tokens=1, examples=1, padding_share=0.25,
  ...                random_pairs=0, borrowed_tokens=0)
  >>> print(statistics_table({"statistics": {"seconds": 2.0, "train": numbers, "heldout": numbers,
  ...                                        "skipped_records": {"A record is no object": 3}}}))
                         train      heldout
  documents                  2            2
  paragraphs                 3            3
  sentences                  4            4
  text bytes                90           90
  tokens                    20           20
  packed tokens             20           20
  dropped tokens             0            0
  unknown tokens        5.000%       5.000%
  examples                   1            1
  padding               25.00%       25.00%
  skipped records: 3 (A record is no object)
  2.0 seconds, 20 tokens/s
  """
  statistics = manifest["statistics"]
  splits = [statistics[split] for split in shards.SPLITS]

  def counts(*names):
    return [(name.replace("_", " "), [f"{split[name]:,}" for split in splits]) for name in names]

  unknown = [f"{split['unknown_tokens'] / max(1, split['tokens']):.3%}" for split in splits]
  rows = [("", shards.SPLITS),
          *counts("documents", "paragraphs", "sentences", "text_bytes", "tokens", "packed_tokens", "dropped_tokens"),
          ("unknown tokens", unknown), *counts("examples"),
          ("padding", [f"{split['padding_share']:.2%}" for split in splits])]
  if any(split["random_pairs"] for split in splits):  # NSP: copies, which are counted apart from the tokens above
    rows += counts("random_pairs", "borrowed_tokens")
  lines = [f"{name:15}" + "".join(f"{value:>13}" for value in values) for name, values in rows]
  empty = sum(split["documents_without_token"] for split in splits)
  lines += [f"documents without a token: {empty:,}"] if empty else []
  lines += [f"skipped records: {count:,} ({why})" for why, count in sorted(statistics["skipped_records"].items())]
  seconds = statistics["seconds"]
  speed = sum(split["tokens"] for split in splits) / max(seconds, 1e-9)
  return "\n".join([*lines, f"{seconds:,.1f} seconds, {speed:,.0f} tokens/s"])


def main(argv: list[str]) -> None:
  """Reads the flags, prepares, prints the statistics."""
  del argv
  out = FLAGS.out or FLAGS.workdir
  if FLAGS.config is None or not out:
    raise UserError("--config and --out are needed", got=f"--out={out or ''}", allowed="a recipe and a folder",
                    fix="python -m electra_jax.tools.prepare_data --config=configs/tiny.py --out=data/tiny")
  config = config_lib.resolve(published.fit(FLAGS.config, out))  # for published weights with their vocabulary
  print(statistics_table(prepare_data(config, out)))
  flag = f"--config.data.shards_path={corpus.shards_directory(config.data, out)}"
  if config.data.shards_path:
    print(f"Runs find them with {flag} --config.data.tokenizer.path={os.path.join(out, corpus.TOKENIZER_FOLDER)}")
  else:
    print(f"Runs with --workdir={out} find them; others with {flag}")


if __name__ == "__main__":
  main_lib.run(main, USAGE)
