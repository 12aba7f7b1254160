"""Batches of fine-tuning: their rows, order and length, and when the dev splits are scored."""

import functools
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from ml_collections import ConfigDict

from electra_jax.tasks.base import HEADS, Feature

PER_TOKEN = {"tags": -1, "may_start": False, "may_end": False}  # targets that each token has -> of padding


def steps_per_epoch(num_features: int, batch_size: int) -> int:
  """Updates that show every training feature once; the last one may be smaller."""
  return -(-num_features // batch_size)


def evaluation_steps(config: ConfigDict, num_features: int) -> set[int]:
  """`task.evals_per_epoch` times an epoch, evenly, and after the last update."""
  every = steps_per_epoch(num_features, config.train.batch_size) / config.task.evals_per_epoch
  count = int(config.train.num_steps / every + 1e-9)
  return {max(1, round(every * i)) for i in range(1, count + 1)} | {config.train.num_steps}


@functools.lru_cache(maxsize=32)
def epoch_order(seed: int, epoch: int, count: int) -> np.ndarray:
  """The order of an epoch's examples."""
  return np.random.default_rng((seed, epoch)).permutation(count)


def bucket(length: int, max_length: int) -> int:
  """Lengths of batches: 16 and multiples of 32, so that few programs compile; on a CPU, whose programs compile in
  seconds and whose every padded token costs time, all multiples of 16."""
  multiple = 16 if length <= 16 or jax.default_backend() == "cpu" else 32
  return min(max_length, -(-length // multiple) * multiple)


def length_of(features: Sequence[Feature], config_task: ConfigDict) -> int:
  """Tokens of a batch's rows: `bucket` of the longest feature, or with `task.pad_to_max_length` always all."""
  if config_task.pad_to_max_length:
    return config_task.max_length
  return bucket(max(map(num_tokens, features)), config_task.max_length)


def some(examples: list, number: int) -> list:
  """At most `number` of the examples in their order, always the same ones, chosen at random; 0 = all.

  >>> some(["a", "b", "c", "d"], 2), some(["a", "b"], 0), some(["a", "b"], 9)
  (['a', 'c'], ['a', 'b'], ['a', 'b'])
  """
  if not number or number >= len(examples):
    return examples
  return [examples[i] for i in np.sort(np.random.default_rng(0).permutation(len(examples))[:number])]


def collate(features: Sequence[Feature], rows: int, length: int, pad_id: int, head: str) -> dict[str, np.ndarray]:
  """A batch of `rows` rows; those behind the features are empty, with `row_weight` 0.

  Where a row has choices the ids are [rows, choices, length]. What PER_TOKEN lists is padded as it says.
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
    lists = feature["input_ids"] if nested else [feature["input_ids"]]
    kinds = feature["token_type_ids"] if nested else [feature["token_type_ids"]]
    for choice, (one, kind) in enumerate(zip(lists, kinds, strict=True)):
      place = (row, choice, slice(len(one))) if nested else (row, slice(len(one)))
      ids[place], segments[place], mask[place] = one, kind, True
    for name in targets:
      if name in PER_TOKEN:
        batch[name][row, :len(feature[name])] = feature[name]
      else:
        batch[name][row] = feature[name]
  return {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask, "row_weight": weight, **batch}


def num_tokens(feature: Feature) -> int:
  """Length of the feature's longest sequence."""
  lists = feature["input_ids"]
  return max(map(len, lists)) if isinstance(lists[0], list) else len(lists)


def by_length(features: Sequence[Feature], size: int) -> list[list[int]]:
  """Places of the features, at most `size` in a batch, similar lengths together; the last one of each is longest.

  >>> by_length([{"input_ids": [1] * length} for length in (5, 2, 9)], 2)
  [[1, 0], [2]]
  """
  order = sorted(range(len(features)), key=lambda i: num_tokens(features[i]))
  return [order[first:first + size] for first in range(0, len(order), size)]


def one_ahead(items: Iterator) -> Iterator:
  """The same items, each asked for while the one before is still used: the devices continue while the host reads."""
  following = next(items, None)
  while following is not None:
    current, following = following, next(items, None)
    yield current
