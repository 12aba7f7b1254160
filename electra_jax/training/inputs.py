"""Data of a pre-training: its tokenizer and shards, and the batches of its steps."""

import os
from typing import NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from electra_jax import distributed, objectives
from electra_jax.data import pipeline, readers, shards, tokenizers
from electra_jax.data.shards import corpus
from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.errors import UserError
from electra_jax.training import evaluation
from electra_jax.training import workdir as workdir_lib


class Data(NamedTuple):
  """The input side of a run."""

  tokenizer: tokenizers.Tokenizer
  train: shards.ShardedExamples
  heldout: shards.ShardedExamples
  batch_at: readers.BatchSource  # this process's rows of the global batch of each step
  unigram_entropy: float  # of the held-out tokens, nats: what an MLM loss must beat
  text: dict  # path and checksum of what the shards were made from
  token_counts: np.ndarray | None  # int [tokens] of the training split, for generators that are made of it


def open_data(config: ConfigDict, workdir: str) -> Data:
  """Tokenizer and shards of the run; what does not exist yet is made first, by process 0."""
  if jax.process_index() == 0:
    corpus.make_missing(config.data, workdir, config.seed, config.checkpoint.init_from,
                        workdir_lib.trained_on(workdir))
  distributed.barrier("data")
  tokenizer = tokenizers.load_tokenizer(os.path.join(workdir, corpus.TOKENIZER_FOLDER), config.data.tokenizer)
  check_tokenizer(tokenizer, config)
  train, heldout = (
    shards.open_shards(corpus.shards_directory(config.data, workdir), split, config.data, tokenizer)
    for split in ("train", "heldout"))
  batch_at = pipeline.make_batch_at(train, config.data, tokenizer, batch_size=config.train.batch_size,
                                    seed=config.seed, process_index=jax.process_index(),
                                    process_count=jax.process_count())
  readers.start_import(config.data.reader)
  batch_at(0)  # a damaged shard is refused before anything is written
  entropy = evaluation.unigram_entropy(heldout, config.eval.max_examples, tokenizer)
  counts = train.token_counts(tokenizer.vocab_size) if objectives.counts_tokens(config.generator) else None
  source = shards.read_manifest(corpus.shards_directory(config.data, workdir))["source"]
  text = {key: source[key] for key in ("path", "checksum")}
  return Data(tokenizer, train, heldout, batch_at, entropy, text, counts)


def check_tokenizer(tokenizer: Tokenizer, config: ConfigDict) -> None:
  """RoBERTa's positions start behind its padding id.

  Raises:
    UserError: they do not.
  """
  offset = config.model.position_offset
  if offset and offset != tokenizer.pad_id + 1:
    raise UserError("model.position_offset does not fit the vocabulary",
                    got=f"{offset} with a padding id of {tokenizer.pad_id}",
                    allowed="0 (BERT), or padding id + 1 (RoBERTa)",
                    fix=f"set --config.model.position_offset={tokenizer.pad_id + 1}")
