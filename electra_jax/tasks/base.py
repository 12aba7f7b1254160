"""The protocol of a fine-tuning task: a named tuple of pure functions, like a pre-training objective."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

# A row of a batch: "input_ids" and "token_type_ids" (int lists; with choices, one list for each) and the targets of
# HEADS. Names that begin with "_" stay on the host: offsets, the number of the example, and "_weight", the row's weight
# in the loss (1 by default).
Feature = dict[str, Any]
# Head name -> float32 [features, ...], in the order of the features.
Outputs = Mapping[str, np.ndarray]


class Example(NamedTuple):
  """One line of a data set."""

  example_id: str  # as in the file; submission files print it
  texts: tuple  # one or two texts; for tagging, one tuple of words; for multiple_choice, what the task needs
  label: Any  # a label's name, a float, a tuple of tags, spans; None: unlabelled
  where: str  # "file:line", for errors


class Task(NamedTuple):
  """A data set, how its examples are shown to the encoder, and how answers are scored."""

  name: str
  head: str  # a row of HEADS
  label_names: tuple[str, ...]  # in the order of the outputs; () for heads without labels
  num_labels: int  # outputs of the head; 1 for regression and multiple_choice, 2 for spans
  splits: tuple[str, ...]  # "train", then the ones to score, e.g. ("train", "dev_matched", "dev_mismatched")
  test_splits: tuple[str, ...]
  metric: str  # the key of `score` by which runs are compared; higher is better
  read: Callable[[str], list[Example]]  # split -> its examples
  featurize: Callable[[Example, Any, int], list[Feature]]  # (example, tokenizer, max_length) -> one or more
  decode: Callable[[Outputs, Sequence[Feature], Sequence[Example]], list]  # -> a prediction for each example
  score: Callable[[Sequence, Sequence[Example]], dict[str, float]]  # (predictions, examples) -> metrics
  augment: Callable[[list[Example]], list[Example]] = lambda examples: examples  # for the training examples
  # (split, predictions, examples) -> {file name: text} of the official test server
  submission: Callable[[str, Sequence, Sequence[Example]], dict[str, str]] | None = None
  # {split: (predictions, examples)} -> {file name: text} of each run's own answers, test splits included
  files: Callable[[Mapping[str, tuple[Sequence, Sequence[Example]]]], dict[str, str]] | None = None
  left_out: Mapping[str, str] = {}  # lines that `read` has skipped, to be reported: "file:line" -> why


# Task.head -> (heads of models/bert.py, the targets that a training feature carries and their types)
HEADS: dict[str, tuple[tuple[str, ...], dict[str, type]]] = {
  "classification": (("classification_head",), {"label": np.int32}),
  "multi_label": (("classification_head",), {"labels": np.float32}),  # [labels]: 1 for each that is true
  "regression": (("classification_head",), {"label": np.float32}),
  "tagging": (("tagging_head",), {"tags": np.int32}),  # per token; -1: not the first piece of a word
  # Token positions of the answer, 0 ([CLS]) for none; `is_impossible` says whether there is none.
  "span": (("span_head", "answerable_head"), {"start": np.int32, "end": np.int32, "is_impossible": np.float32}),
  # The end depends on the start, so the network itself searches for spans, among the tokens that may bound one.
  "joint_span": (("joint_span_head", "answerable_head"), {
    "start": np.int32, "end": np.int32, "is_impossible": np.float32, "may_start": np.bool_, "may_end": np.bool_}),
  "multiple_choice": (("multiple_choice_head",), {"label": np.int32}),  # index of the right choice
  "ranking": (("multiple_choice_head",), {}),  # of two choices the first must score higher
  "answer_ranking": (("multiple_choice_head",), {}),  # likewise, and the first above zero, the second below
  # The masked LM scores each choice: positions and ids (-1: none) of its phrase, [choices, winograd.SLOTS].
  "phrase": (("mlm_head",), {"masked_positions": np.int32, "masked_ids": np.int32}),
}
