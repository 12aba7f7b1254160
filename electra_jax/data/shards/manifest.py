"""Manifest of a set of shards, `manifest.json`: layout, packing, tokenizer, source, files, statistics.

Version 2 is that of rows with an nsp_label, version 1 of those without; both are read.
"""

import json
import os
from collections import Counter

import numpy as np
from ml_collections import ConfigDict

from electra_jax.data.packing import FORMATS, NSP_FORMATS
from electra_jax.data.shards.writing import MANIFEST
from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.errors import UserError

SPLITS = ("train", "heldout")
_ALWAYS = ("format", "sequence_length", "heldout_share", "sentences")
# The keys of config.data that decide what the rows hold, by format.
PACKING_KEYS = dict.fromkeys(FORMATS, _ALWAYS) | dict.fromkeys(
  ("ELECTRA", "SEGMENT-PAIR"), (*_ALWAYS, "short_sequence_share"))
NUM_UNKNOWN_WORDS = 10  # recorded
MAX_UNKNOWN_SHARE = 0.01  # of the tokens; above it the vocabulary is hardly one for this text
REBUILD = "rebuild them with `python -m electra_jax.tools.prepare_data`"
FIELDS = {"packing": dict, "tokenizer": dict, "source": dict, "splits": dict, "shard_examples": int}  # those read
COUNTS = ("documents", "documents_without_token", "paragraphs", "sentences", "text_bytes", "tokens", "unknown_tokens",
          "dropped_tokens", "packed_tokens", "examples", "random_pairs", "borrowed_tokens")


def row_dtype(vocab_size: int, sequence_length: int) -> np.dtype:
  """uint16 if every id and length fits, else int32."""
  return np.dtype(np.uint16 if max(vocab_size - 1, sequence_length) < 1 << 16 else np.int32)


def make(config_data: ConfigDict, tokenizer: Tokenizer, seed: int, splits: dict[str, dict], counts: dict[str, Counter],
         skipped: Counter, seconds: float, unknown_words: Counter, source: dict) -> dict:
  """Everything that a reader checks, and the statistics of each split.

  Args:
    splits: split -> what `SplitWriter.finish` returned.
    counts: split -> the sum of `Packed.counts`.
    skipped: why records were skipped -> how many.
    seconds: taken by the preparation.
    unknown_words: the words behind the unknown tokens; the most frequent ones are recorded.
    source: of `provenance.describe`, with the checksum of the text.
  """
  statistics = {"seconds": round(seconds, 3), "unknown_words": dict(unknown_words.most_common(NUM_UNKNOWN_WORDS))}
  for split in SPLITS:
    numbers: dict[str, object] = {name: counts[split][name] for name in COUNTS}
    numbers["examples_of_length"] = splits[split].pop("examples_of_length")
    positions = counts[split]["examples"] * config_data.sequence_length
    numbers["padding_share"] = round(1 - counts[split]["filled_positions"] / positions, 6) if positions else 0.0
    statistics[split] = numbers
  return {
    "version": 2 if config_data.format in NSP_FORMATS else 1,
    "packing": {key: config_data[key] for key in PACKING_KEYS[config_data.format]}, "seed": seed,
    "source": source, "shard_examples": config_data.shard_examples,
    "tokenizer": {"kind": tokenizer.kind, "fingerprint": tokenizer.fingerprint, "vocab_size": tokenizer.vocab_size,
                  "pad_id": tokenizer.pad_id, "special_ids": sorted(tokenizer.special_ids)},
    "splits": splits, "statistics": statistics | {"skipped_records": dict(skipped)},
  }


def unknown_warning(manifest: dict) -> str | None:
  """What to say if too many tokens are unknown; names the most frequent words among them."""
  statistics = manifest["statistics"]
  unknown, tokens = (sum(statistics[split][name] for split in SPLITS) for name in ("unknown_tokens", "tokens"))
  if unknown <= MAX_UNKNOWN_SHARE * tokens:
    return None
  words = ", ".join(repr(word[:30]) for word in statistics["unknown_words"])
  return (f"Warning: {unknown / tokens:.1%} of the tokens are unknown to the vocabulary; most often {words}. Is it for "
          "this language and case? See --config.data.tokenizer.path, kind, lowercase and vocab_size.")


def exist(directory: str) -> bool:
  """Whether a complete set of shards is there (a set appears complete or not at all)."""
  return os.path.isfile(os.path.join(directory, MANIFEST))


def read_manifest(directory: str) -> dict:
  """The manifest of a directory of shards.

  Raises:
    UserError: it is missing, broken, or of another version.
  """
  path = os.path.join(directory, MANIFEST)

  def fault(what: str, got: str) -> UserError:
    return UserError(what, got=got, allowed=f"a folder of shards with a {MANIFEST} of version 1 or 2",
                     fix=f"check --config.data.shards_path, or {REBUILD}")

  try:
    with open(path, encoding="utf-8") as file:
      manifest = json.load(file)
  except OSError as error:
    raise fault("There are no shards", f"{path}: {error.strerror or error}") from error
  except ValueError as error:
    raise fault("The shards' manifest is damaged", f"{path}: {error}") from error
  version = manifest.get("version") if isinstance(manifest, dict) else None
  if version not in (1, 2):
    raise fault("The shards' manifest has another version", f"{path}: version {version!r}")
  if broken := [name for name, kind in FIELDS.items() if not isinstance(manifest.get(name), kind)]:
    raise fault("The shards' manifest is damaged", f"{path}: no sound {', '.join(broken)}")
  return manifest


def check_packing(packed: dict, config_data: ConfigDict, directory: str) -> None:
  """Compares the packing keys of a manifest with a config.

  Raises:
    UserError: they differ; names each key.
  """
  differing = [key for key in PACKING_KEYS[config_data.format] if packed.get(key) != config_data[key]]
  if not differing:
    return
  lines = "; ".join(f"data.{key} is {config_data[key]!r} but the shards in {directory} were packed with "
                    f"{packed.get(key)!r}" for key in differing)
  flags = " ".join(f"--config.data.{key}={packed[key]}" for key in differing if key in packed)
  raise UserError("The shards were packed for another configuration", got=f"{lines} ({MANIFEST})",
                  allowed="the values that the shards were packed with",
                  fix=REBUILD + (f", or set {flags}" if flags else ""))
