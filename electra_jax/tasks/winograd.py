"""Winograd schemas (SuperGLUE's WSC, WNLI's source): the masked LM says which phrase is likeliest for the pronoun.

RoBERTa section 5.1: "the reformatted WNLI data from SuperGLUE, which indicates the span of the query pronoun and
referent", with the margin ranking loss of Kocijan et al. (2019), `losses.phrase`.
"""

import bisect
import functools
import json
import os
import re
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.errors import UserError
from electra_jax.tasks import features, pronouns, scoring, sequences
from electra_jax.tasks.base import Example, Feature, Task
from electra_jax.tasks.records import Record, find, read_records, read_tfds

LABELS = ("false", "true")
FILES = {"train": "train", "dev": "val", "test": "test"}  # split -> SuperGLUE's file
SLOTS = 32  # tokens of a phrase that are predicted at most; WNLI's have fewer


def make(name: str, config_task: ConfigDict) -> Task:
  """SuperGLUE's WSC, for encoders with a masked LM: DATA_DIR/WSC/{train,val,test}.jsonl, or tfds:super_glue.

  A phrase's score is the mean log-probability of its tokens in the pronoun's place, all of them masked. Only positive
  training examples are used, each with every other noun phrase of its sentence. On dev and test a phrase is what the
  pronoun means if no other noun phrase scores as high. spaCy finds the noun phrases.

  Differs from fairseq, where a phrase without others is always right: here it is wrong, as most phrases are.

  Reading the training examples and featurising raise a UserError if spaCy is not installed.
  """
  def read(split: str) -> list[Example]:
    examples = read_wsc(split, config_task.data_dir)
    return [example._replace(texts=(*example.texts, other)) for example in examples if example.label == LABELS[1]
            for other in others(example)] if split == "train" else examples

  def featurize(example: Example, tokenizer: Tokenizer, max_length: int) -> list[Feature]:
    before, _, after, *phrases = example.texts
    number = len(phrases)  # 2 to train on, or 1 to judge, with its rivals as further features
    phrases += others(example) if number == 1 else []
    return features.as_choices([masked(tokenizer, before, phrase, after, max_length) for phrase in phrases], number)

  return Task(
    name=name, head="phrase", label_names=LABELS, num_labels=1, splits=("train", "dev"), test_splits=("test",),
    metric="accuracy", read=read, featurize=featurize, decode=functools.partial(pronouns.decode, labels=LABELS),
    score=lambda predictions, examples: scoring.score(("accuracy",), predictions, [e.label for e in examples]),
    submission=lambda split, predictions, examples: submission(predictions, examples))


def others(example: Example) -> list[str]:
  """The sentence's noun phrases that compete with an example's."""
  before, pronoun, after, phrase = example.texts
  return pronouns.rivals(f"{before}{pronoun}{after}", phrase)


def read_wsc(split: str, data_dir: str) -> list[Example]:
  """The examples of a split, with texts (before the pronoun, pronoun, after it, phrase).

  Raises:
    UserError: a file, field or label is missing or wrong, or the pronoun is not in the text; file and line are named.
  """
  if data_dir.startswith("tfds:"):  # "fixed": in the first files a few spans are not in the text
    records = read_tfds(f"{data_dir[5:]}/wsc.fixed", {"dev": "validation"}.get(split, split))
  else:
    records = read_records(find(os.path.join(data_dir, "WSC", f"{FILES[split]}.jsonl")))
  return [_example(record, split != "test") for record in records]


def _example(record: Record, labelled: bool) -> Example:
  target = record.values.get("target")
  spans = Record(target if isinstance(target, Mapping) else record.values, record.where)  # in TFDS they are columns
  text, pronoun = sequences.text_of(record, "text"), sequences.text_of(spans, "span2_text")
  start, end = find_pronoun(text, pronoun, spans.get("span2_index"), record.where)
  label = sequences.parse_label(str(record.get("label")).lower(), LABELS, record.where) if labelled else None
  texts = text[:start], text[start:end], text[end:], sequences.text_of(spans, "span1_text")
  return Example(str(record.get("idx")), texts, label, record.where)


def find_pronoun(text: str, pronoun: str, number: int, where: str) -> tuple[int, int]:
  """(start, end) of the pronoun nearest to the word of that number; words are split at blanks and counted from 0.

  Raises:
    UserError: the pronoun is not in the text.

  >>> find_pronoun("It is late, so it rains (it does).", "it", 4, "")
  (15, 17)
  """
  words = [match.start() for match in re.finditer(r"\S+", text)]
  spans = [match.span() for match in re.finditer(rf"\b{re.escape(pronoun.strip(' .,;'))}\b", text, re.IGNORECASE)]
  if not spans:
    raise UserError("A pronoun is not in its text", got=f"{where}: {pronoun!r}", allowed="a word of the text",
                    fix="correct span2_text")
  return min(spans, key=lambda span: abs(bisect.bisect(words, span[0]) - 1 - number))


def masked(tokenizer: Tokenizer, before: str, phrase: str, after: str, max_length: int) -> Feature:
  """A sentence with [MASK] for each token of the phrase; if it is too long, it loses its end, then its beginning.

  `masked_positions` and `masked_ids` are padded to SLOTS, with 0 and -1; a longer phrase is cut.
  """
  left, right = list(tokenizer.encode(before.rstrip())), list(tokenizer.encode(after))
  ids = list(tokenizer.encode(" " + phrase if left else phrase))  # as in features.words: a blank is byte-level BPE's
  total = 2 + len(left) + len(ids) + len(right)
  ids = ids[:min(SLOTS, max_length - 2)]
  right = right[:max(0, max_length - 2 - len(ids) - len(left))]
  left = left[max(0, 2 + len(left) + len(ids) + len(right) - max_length):]
  row = [tokenizer.cls_id, *left, *[tokenizer.mask_id] * len(ids), *right, tokenizer.sep_id]
  first, empty = 1 + len(left), SLOTS - len(ids)
  return {"input_ids": row, "token_type_ids": [0] * len(row), "_was_cut": total > len(row),
          "masked_positions": [*range(first, first + len(ids)), *[0] * empty], "masked_ids": ids + [-1] * empty}


def submission(predictions: Sequence[str], examples: Sequence[Example]) -> dict[str, str]:
  """{file name: text} of SuperGLUE's leaderboard: a JSON object a line, labels True and False."""
  return {"WSC.jsonl": "".join(json.dumps({"idx": int(example.example_id), "label": value.capitalize()}) + "\n"
                               for example, value in zip(examples, predictions, strict=True))}
