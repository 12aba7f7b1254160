"""The protocol of a task of fine-tuning: a named tuple of pure functions, like an objective of pre-training."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

# What a batch row is made of: "input_ids" and "token_type_ids" (int lists; where there are choices one for each)
# and the targets of HEADS. Names that begin with "_" stay on the host: offsets, the number of the example, and
# "_weight", what the row counts in the loss (without it 1).
Feature = dict[str, Any]
# Head name -> float32 [features, ...], in the order of the features.
Outputs = Mapping[str, np.ndarray]


class Example(NamedTuple):
  """One line of a data set."""

  example_id: str  # as the file has it; what submission files print
  texts: tuple  # one or two texts; of tagging one tuple of words; of multiple_choice what the task needs
  label: Any  # a label's name, a float, a tuple of tags, spans; None: unlabelled
  where: str  # "file:line", for errors


class Task(NamedTuple):
  """A data set, how its examples are shown to the encoder, and how answers are scored."""

  name: str
  head: str  # a row of HEADS
  label_names: tuple[str, ...]  # in the order of the outputs; () where these are no labels
  num_labels: int  # outputs of the head; 1 for regression and multiple_choice, 2 for spans
  splits: tuple[str, ...]  # first "train", then those that are scored, e.g. ("train", "dev_matched", "dev_mismatched")
  test_splits: tuple[str, ...]
  metric: str  # the key of `score` that decides between runs; higher is better
  read: Callable[[str], list[Example]]  # split -> its examples
  featurize: Callable[[Example, Any, int], list[Feature]]  # (example, tokenizer, max_length) -> one or more
  decode: Callable[[Outputs, Sequence[Feature], Sequence[Example]], list]  # -> a prediction for each example
  score: Callable[[Sequence, Sequence[Example]], dict[str, float]]  # (predictions, examples) -> metrics
  augment: Callable[[list[Example]], list[Example]] = lambda examples: examples  # of the training examples
  # (split, predictions, examples) -> {file name: text} of the official test server
  submission: Callable[[str, Sequence, Sequence[Example]], dict[str, str]] | None = None
  # {split: (predictions, examples)} -> {file name: text} of each run's own answers, test splits included
  files: Callable[[dict[str, tuple[Sequence, Sequence[Example]]]], dict[str, str]] | None = None
  left_out: Mapping[str, str] = {}  # lines that `read` has passed over: "file:line" -> why; to be told


# Task.head -> (heads of models/bert.py, the targets that a training feature carries and their types)
HEADS: dict[str, tuple[tuple[str, ...], dict[str, type]]] = {
  "classification": (("classification_head",), {"label": np.int32}),
  "multi_label": (("classification_head",), {"labels": np.float32}),  # [labels]: 1 for each that is true
  "regression": (("classification_head",), {"label": np.float32}),
  "tagging": (("tagging_head",), {"tags": np.int32}),  # per token; -1: not the first piece of a word
  # Token positions of the answer, 0 ([CLS]) for none; with `answerable` also whether there is none.
  "span": (("span_head", "answerable_head"), {"start": np.int32, "end": np.int32, "is_impossible": np.float32}),
  # The end depends on the start, so the network itself searches for spans, among the tokens that may be their ends.
  "joint_span": (("joint_span_head", "answerable_head"), {
    "start": np.int32, "end": np.int32, "is_impossible": np.float32, "may_start": np.bool_, "may_end": np.bool_}),
  "multiple_choice": (("multiple_choice_head",), {"label": np.int32}),  # number of the right choice
  "ranking": (("multiple_choice_head",), {}),  # of two choices the first must score higher
  "answer_ranking": (("multiple_choice_head",), {}),  # likewise, and the first above zero, the second below
  # A choice's score is the masked LM's: of each phrase positions and ids (-1: none), [choices, winograd.SLOTS].
  "phrase": (("mlm_head",), {"masked_positions": np.int32, "masked_ids": np.int32}),
}
