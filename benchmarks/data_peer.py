"""How fast is preparation next to Hugging Face's run_mlm example? The same text and tokenizer, one core each.

  python -m benchmarks.data_peer                                                           the demo's text
  python -m benchmarks.data_peer --recipe=configs/base.py --set=data.path=/path/to/text --megabytes=32

The table of `electra_jax.tools.bench data`, and a row for datasets.map with group_texts (pip install -r
tests/requirements.txt): lines are read, tokenized by a first `map`, joined and cut to rows of 128 by a second one.
"""

import argparse
import itertools
import os
from collections.abc import Callable
from typing import Any

import datasets
import transformers

from electra_jax import recipes
from electra_jax.tools import bench, bench_data

LENGTH = bench_data.LENGTHS[0]


def prepare(tokenizer: Any, path: str, folder: str) -> None:
  """Makes Arrow files of a text."""
  datasets.disable_progress_bars()
  rows = datasets.Dataset.from_text(path, cache_dir=os.path.join(folder, "datasets"))
  rows = rows.map(tokenize_rows(tokenizer), batched=True, remove_columns=["text"], new_fingerprint="tokenized")
  rows.map(group_texts, batched=True, new_fingerprint="grouped")


def tokenize_rows(tokenizer: Any) -> Callable[[dict], dict]:
  if tokenizer.kind.startswith("sentencepiece"):
    return lambda batch: {"input_ids": tokenizer.encode_batch(list(batch["text"]))}
  fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer._library)
  return lambda batch: fast(list(batch["text"]), return_special_tokens_mask=True)


def group_texts(batch: dict) -> dict:
  joined = {name: list(itertools.chain.from_iterable(column)) for name, column in batch.items()}
  total = len(joined["input_ids"]) // LENGTH * LENGTH
  return {name: [column[i:i + LENGTH] for i in range(0, total, LENGTH)] for name, column in joined.items()}


PEERS = {f"datasets.map + group_texts, length {LENGTH}": prepare}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--recipe", default="", help="default: the demo's text with a WordPiece vocabulary")
  parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the recipe; repeatable")
  parser.add_argument("--megabytes", type=float, default=8.0, help="of the corpus")
  parser.add_argument("--seconds", type=float, default=4.0, help="of each reading row")
  options = parser.parse_args()
  given = recipes.load(options.recipe)[1] if options.recipe else bench.data_recipe()
  recipes.override(given, options.set)
  print(bench_data.table(bench_data.time_data(given, text_megabytes=options.megabytes, seconds=options.seconds,
                                              peers=PEERS)))


if __name__ == "__main__":
  main()
