"""Batches of fine-tuning: their rows, order and length, and the steps at which the dev splits are scored."""

import functools
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from ml_collections import ConfigDict

from electra_jax.tasks.base import HEADS, Feature

PER_TOKEN = {"tags": -1, "may_start": False, "may_end": False}  # targets with one value a token -> that of padding


def steps_per_epoch(num_features: int, batch_size: int) -> int:
  """Updates that show every training feature once; the last one may be smaller."""
  return -(-num_features // batch_size)


def evaluation_steps(config: ConfigDict, num_features: int) -> set[int]:
  """Steps of the evaluations: `task.evals_per_epoch` in each epoch, evenly spaced, and the last update."""
  every = steps_per_epoch(num_features, config.train.batch_size) / config.task.evals_per_epoch
  count = int(config.train.num_steps / every + 1e-9)
  return {max(1, round(every * i)) for i in range(1, count + 1)} | {config.train.num_steps}


@functools.lru_cache(maxsize=32)
def epoch_order(seed: int, epoch: int, count: int) -> np.ndarray:
  """The order of an epoch's examples."""
  return np.random.default_rng((seed, epoch)).permutation(count)


def bucket(length: int, max_length: int) -> int:
  """A batch's length: 16 or a multiple of 32, so that few programs compile; on a CPU, which compiles in seconds and
  pays for every padded token, any multiple of 16."""
  multiple = 16 if length <= 16 or jax.default_backend() == "cpu" else 32
  return min(max_length, -(-length // multiple) * multiple)


def length_of(features: Sequence[Feature], config_task: ConfigDict) -> int:
  """Tokens of a batch's rows: `bucket` of the longest feature, or with `task.pad_to_max_length` the maximum."""
  if config_task.pad_to_max_length:
    return config_task.max_length
  return bucket(max(map(num_tokens, features)), config_task.max_length)


def some(examples: list, number: int) -> list:
  """At most `number` of the examples, in order, drawn at random with a fixed seed; 0 = all.

  >>> some(["a", "b", "c", "d"], 2), some(["a", "b"], 0), some(["a", "b"], 9)
  (['a', 'c'], ['a', 'b'], ['a', 'b'])
  """
  if not number or number >= len(examples):
    return examples
  return [examples[i] for i in np.sort(np.random.default_rng(0).permutation(len(examples))[:number])]


def collate(features: Sequence[Feature], rows: int, length: int, pad_id: int, head: str) -> dict[str, np.ndarray]:
  """A batch of `rows` rows; those beyond the features are empty, with `row_weight` 0.

  If a row has choices, the ids are [rows, choices, length]. The targets in PER_TOKEN are padded with its values.
  """
  nested = isinstance(features[0]["input_ids"][0], list)
  shape = (rows, len(features[0]["input_ids"]), length) if nested else (rows, length)
  ids, segments = np.full(shape, pad_id, np.int32), np.zeros(shape, np.int32)
  mask, weight = np.zeros(shape, bool), np.zeros(rows, np.float32)
  weight[:len(features)] = [feature.get("_weight", 1.0) for feature in features]
  targets = {name: kind for name, kind in HEADS[head][1].items() if name in features[0]}
  batch = {name: np.full((rows, length), PER_TOKEN[name], kind) if name in PER_TOKEN
           else np.zeros((rows, *np.shape(features[0][name])), kind) for name, kind in targets.items()}
  for row, feature in enumerate(features):
    sequences = (feature["input_ids"], feature["token_type_ids"])
    for choice, (one, kinds) in enumerate(zip(*sequences, strict=True) if nested else [sequences]):
      place = (row, choice, slice(len(one))) if nested else (row, slice(len(one)))
      ids[place], segments[place], mask[place] = one, kinds, True
    for name in targets:
      place = (row, slice(len(feature[name]))) if name in PER_TOKEN else row
      batch[name][place] = feature[name]
  return {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask, "row_weight": weight, **batch}


def num_tokens(feature: Feature) -> int:
  """Length of the feature's longest sequence."""
  lists = feature["input_ids"]
  return max(map(len, lists)) if isinstance(lists[0], list) else len(lists)


def by_length(features: Sequence[Feature], size: int) -> list[list[int]]:
  """Indices of the features, at most `size` in a batch, similar lengths together; the last of each batch is longest.

  >>> by_length([{"input_ids": [1] * length} for length in (5, 2, 9)], 2)
  [[1, 0], [2]]
  """
  order = sorted(range(len(features)), key=lambda i: num_tokens(features[i]))
  return [order[first:first + size] for first in range(0, len(order), size)]


def one_ahead(items: Iterator) -> Iterator:
  """The same items, each requested before the one before is used: the devices work on while the host reads."""
  following = next(items, None)
  while following is not None:
    current, following = following, next(items, None)
    yield current
