"""SQuAD 1.1 and 2.0: windows over a context, answers as exact slices of it, and "there is no answer".

RoBERTa section 5.2: in v2.0 a classifier on [CLS] says whether a question has an answer, trained jointly by summing its
loss and the spans'. In v1.1 that head is idle. Start and end are predicted independently (BERT, RoBERTa), or the end
from the start (ELECTRA): `task.span_head`.
"""

import functools
import json
import os
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from electra_jax.config import MAX_ANSWER_LENGTH, NUM_BEST
from electra_jax.data.sources import tables
from electra_jax.data.sources.lines import read_text
from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.errors import UserError, shorten
from electra_jax.tasks import features, joint_spans, squad_scoring
from electra_jax.tasks.base import Example, Feature, Outputs, Task
from electra_jax.tasks.records import check_exists, find

VERSIONS = {"squad_v1.1": "v1.1", "squad_v2.0": "v2.0"}  # task name -> what the files' names end in
HEADS = {"independent": "span", "joint": "joint_span"}  # task.span_head -> Task.head
METRICS = {  # of `score`; the first is the default
  "v1.1": ("f1", "exact"),
  "v2.0": ("best_f1", "best_exact", "f1", "exact", "has_answer_f1", "has_answer_exact", "no_answer_accuracy")}
SHORTEST_CONTEXT = 16  # tokens that a question must leave for its context
NUM_QUESTIONS = {"squad_v1.1": {"dev": 10570, "test": 9533}, "squad_v2.0": {"dev": 11873, "test": 8862}}
# Dev F1 in percent: RoBERTa Table 6; for v2.0 at the best threshold, as is usual.
PAPER = {"RoBERTa-Large": {"squad_v1.1": 94.6, "squad_v2.0": 89.4},
         "BERT-Large": {"squad_v1.1": 90.9, "squad_v2.0": 81.8}}


class Reference(NamedTuple):
  """The right answers; none for an unanswerable question."""

  texts: tuple[str, ...]
  starts: tuple[int, ...]  # context[start:start + len(text)] == text


class Candidate(NamedTuple):
  """A likely span; `text` is context[start:end]."""

  text: str
  start: int
  end: int
  start_logit: float  # for a joint span head the two are log p(start) and log p(end | start)
  end_logit: float
  probability: float  # among the candidates


class Answer(NamedTuple):
  """The network's answer to a question."""

  candidates: tuple[Candidate, ...]  # the best first, each text once
  null_odds: float  # logit of "no answer", the lowest over the windows; 0 in v1.1


def make(name: str, config_task: ConfigDict) -> Task:
  """`squad_v1.1` or `squad_v2.0`; `config_task` is the `task` branch of the config.

  Raises:
    UserError: test predictions are asked for, and the test file is missing.
  """
  version = VERSIONS[name]
  encode = functools.lru_cache(maxsize=1)(encode_context)  # the questions about a context follow one another
  if config_task.write_test_predictions:
    check_exists(_path(config_task, "test", version))

  def read_split(split: str) -> list[Example]:
    examples = read(_path(config_task, split, version), split)
    unanswerable = [example.where for example in examples if example.label and not example.label.texts]
    if version == "v1.1" and unanswerable:
      raise UserError("SQuAD 1.1 has no questions without an answer", got=f"{len(unanswerable):,} of "
                      f"{len(examples):,}, the first: {unanswerable[0]}", allowed="an answer to each, or SQuAD 2.0",
                      fix="use --config=configs/finetune/squad.py:v2.0, or leave these questions out")
    return examples

  def featurize(example: Example, tokenizer: Tokenizer, max_length: int) -> list[Feature]:
    return windows(example, *encode(tokenizer, example.texts[1]), tokenizer, max_length,
                   stride=config_task.window_stride, max_question=config_task.max_question_length,
                   with_null=version == "v2.0", is_joint=config_task.span_head == "joint")

  return Task(
    name=name, head=HEADS[config_task.span_head], label_names=(), num_labels=2, splits=("train", "dev"),
    test_splits=("test",), metric=config_task.metric or METRICS[version][0], read=read_split, featurize=featurize,
    decode=decode, score=functools.partial(score, version), files=functools.partial(answer_files, version))


# ---- files ----


def _path(config_task: ConfigDict, split: str, version: str) -> str:
  return config_task[f"{split}_path"] or find(os.path.join(config_task.data_dir, f"{split}-{version}.json"))


def read(path: str, split: str) -> list[Example]:
  """The questions of an official JSON file, possibly compressed: texts (question, context), label a `Reference`.

  Raises:
    UserError: the file is missing, is no SQuAD JSON, has a question id twice or (train) a misplaced answer.
  """
  check_exists(path)
  try:
    data = tables.parse_json(read_text(path))["data"]  # the official files are one line of 30 and 42 MB
    rows = [(paragraph["context"], question) for article in data for paragraph in article["paragraphs"]
            for question in paragraph["qas"]]
    examples = [_example(context, question, f"{path}: question {question.get('id', f'number {number}')}", split)
                for number, (context, question) in enumerate(rows, 1)]
  except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
    if isinstance(error, UserError):
      raise
    raise UserError("A file is no SQuAD JSON", got=f"{path}: {type(error).__name__}: {str(error)[:200]}",
                    allowed='{"data": [{"paragraphs": [{"context": "...", "qas": [{"id": "...", "question": "...", '
                    '"answers": [{"text": "...", "answer_start": 0}]}]}]}]}', fix="fetch the file again") from error
  if not examples:
    raise UserError("A data file has no example", got=f"{path}:1: no question", allowed="at least one question",
                    fix="check the file; it may have been cut off")
  seen = set()
  for example in examples:
    if example.example_id in seen:
      raise UserError("A question id occurs twice", got=example.where, allowed="each id once: answers go by it",
                      fix="correct the file")
    seen.add(example.example_id)
  return examples


def _example(context: str, question: Mapping[str, Any], where: str, split: str) -> Example:
  if not isinstance(context, str) or not context.strip():
    raise UserError("The context is empty", got=f"{where}: {context!r}", allowed="the text that holds the answer",
                    fix="correct the file")
  _check_fields({"is_impossible": False, **question}, {
    "id": (str, int), "question": (str,), "is_impossible": (bool,)}, where)
  answers = []
  if split != "test" and not question.get("is_impossible"):
    _check_fields(question, {"answers": (list,)}, where)
    answers = question["answers"]
  for answer in answers:
    _check_fields(answer, {"text": (str,), "answer_start": (int,)}, f"{where}, an answer")
  reference = Reference(tuple(answer["text"] for answer in answers), tuple(a["answer_start"] for a in answers))
  for text, start in zip(*reference):
    if split == "train" and (not text.strip() or context[start:start + len(text)] != text):
      raise UserError("An answer is not where it should be", got=f"{where}: {text!r}, but at {start} there is "
                      f"{context[start:start + len(text)]!r}", allowed="context[answer_start:][:len(text)] == text, in "
                      "characters (code points)", fix="correct the file; was a line break or space changed?")
  if split == "train" and not answers and "is_impossible" not in question:
    raise UserError("A training question has no answer", got=where, allowed="an answer, or (v2.0) is_impossible: true",
                    fix="correct the file")
  return Example(str(question["id"]), (question["question"], context), None if split == "test" else reference, where)


def _check_fields(row: Mapping[str, Any], types: Mapping[str, tuple[type, ...]], where: str) -> None:
  for name, allowed in types.items():
    value = row.get(name)
    if type(value) not in allowed:
      raise UserError(f"The field {name!r} of a question has the wrong type", got=f"{where}: {name} is "
                      f"{shorten(json.dumps(value), 80) if name in row else 'missing'}",
                      allowed=" or ".join(kind.__name__ for kind in allowed), fix="correct the file")


# ---- features ----


def windows(example: Example, ids: Sequence[int], offsets: np.ndarray, tokenizer: Tokenizer, max_length: int, *,
            stride: int, max_question: int, with_null: bool, is_joint: bool = False) -> list[Feature]:
  """[CLS] question [SEP] stretch of the context [SEP]; every token of the context is in a window, most are in several.

  `start` and `end` are the tokens of the first reference answer, both 0 ([CLS]) in a window that does not hold all of
  it; in v2.0 `is_impossible` says so too (as in XLNet's code).

  Differs from the released ELECTRA code, in which `is_impossible` is the question's and not the window's.

  Args:
    ids: of the whole context; `offsets` [tokens, 2] are their characters in the original text.
    stride: tokens between the starts of windows; if the question leaves less room than that, windows touch.
    with_null: whether features carry `is_impossible` (v2.0).
    is_joint: whether the network itself searches for spans, and so must know where they may be.

  Raises:
    UserError: the question leaves no room for the context.
  """
  question = list(tokenizer.encode(example.texts[0]))
  asked = question[:max_question]
  begin = 1 + len(asked) + features.num_separators(tokenizer)  # of the context within a window
  room = max_length - begin - 1
  if room < SHORTEST_CONTEXT:
    raise UserError("A question leaves no room for its context", got=f"{example.where}: {len(asked)} tokens",
                    allowed=f"at most {len(asked) + room - SHORTEST_CONTEXT} of {max_length} tokens",
                    fix="shorten the question, or fine-tune with a larger task.max_length or a smaller "
                    "task.max_question_length")
  first, last = token_span(offsets, example.label)
  starts = [0]
  while starts[-1] + room < len(ids):
    starts.append(starts[-1] + min(stride, room))
  rows = []
  for start, owned in zip(starts, owners(starts, room, len(ids))):
    stretch = ids[start:start + room]
    feature = {**features.joined(tokenizer, [asked, stretch]), "start": 0, "end": 0, "_begin": begin, "_owned": owned,
               "_offsets": offsets[start:start + room], "_was_cut": len(asked) < len(question)}
    is_inside = first is not None and last is not None and start <= first and last < start + len(stretch)
    if is_inside:
      feature.update(start=begin + first - start, end=begin + last - start)
    if with_null:
      feature["is_impossible"] = float(not is_inside)
    if is_joint:
      feature |= joint_spans.places(feature)
    rows.append(feature)
  return rows


def encode_context(tokenizer: Tokenizer, context: str) -> tuple[list[int], np.ndarray]:
  """Ids of a whole context, and their offsets [tokens, 2] as `windows` takes them."""
  ids, offsets = tokenizer.encode_words(context)
  return ids, whole_characters(context, offsets)


def whole_characters(text: str, offsets: Sequence[tuple[int, int]]) -> np.ndarray:
  """Offsets [tokens, 2] that end after the combining marks of their last character.

  A vocabulary that strips accents leaves out a mark at a word's end, but an answer must keep it.

  >>> whole_characters("cafe\u0301 x", [(0, 4), (6, 7)]).tolist()
  [[0, 5], [6, 7]]
  """
  ranges = np.asarray(offsets, np.int32).reshape(-1, 2)
  for row, start in zip(ranges, [*ranges[1:, 0], len(text)]):
    while row[0] < row[1] < start and unicodedata.combining(text[row[1]]):
      row[1] += 1
  return ranges


def token_span(offsets: np.ndarray, reference: Reference | None) -> tuple[int | None, int | None]:
  """First and last token that share a character with the first reference answer; None if there are none.

  >>> token_span(np.array([[0, 2], [4, 6], [6, 7]]), Reference(("d.",), (5,)))
  (1, 2)
  """
  if reference is None or not reference.texts:
    return None, None
  text, start = reference.texts[0], reference.starts[0]
  end = start + len(text.rstrip())
  start += len(text) - len(text.lstrip())
  shared, = np.nonzero((offsets[:, 1] > start) & (offsets[:, 0] < end) & (offsets[:, 1] > offsets[:, 0]))
  return (int(shared[0]), int(shared[-1])) if len(shared) else (None, None)


def owners(starts: Sequence[int], room: int, count: int) -> list[np.ndarray]:
  """For each window, which of its tokens may begin answers there: those that see most context in this window.

  BERT's rule: the smaller of the contexts to the left and right counts; of equals, the earlier window.

  >>> [owned.astype(int).tolist() for owned in owners([0, 2], 4, 6)]
  [[1, 1, 1, 0], [0, 1, 1, 1]]
  """
  best, most = np.zeros(count, int), np.full(count, -1.0)  # of each token: its window, and the context it sees there
  for number, start in enumerate(starts):
    places = np.arange(min(room, count - start))
    context = np.minimum(places, places[::-1]) + 0.01 * len(places)
    is_better = context > most[start:start + room]
    best[start:start + room][is_better] = number
    most[start:start + room][is_better] = context[is_better]
  return [best[start:start + room] == number for number, start in enumerate(starts)]


# ---- answers ----


def decode(outputs: Outputs, features_: Sequence[Feature], examples: Sequence[Example]) -> list[Answer | None]:
  """The likeliest spans of each question over all its windows; None where the outputs are NaN."""
  spans: list[list] = [[] for _ in examples]
  odds = [[] for _ in examples]
  for row, feature in enumerate(features_):
    odds[feature["_example"]].append(float(outputs["answerable_head"][row]) if "is_impossible" in feature else 0.0)
    spans[feature["_example"]] += (
      joint_spans.candidates(outputs["joint_span_head"][row], feature) if "joint_span_head" in outputs else
      best_spans(outputs["span_head"][row], feature))
  return [_answer(candidates, null, example.texts[1])
          for candidates, null, example in zip(spans, odds, examples, strict=True)]


def best_spans(logits: np.ndarray, feature: Feature) -> list[tuple[float, float, int, int]]:
  """(start logit, end logit, first character, last character + 1), the likeliest first; one of NaN for NaN logits.

  Args:
    logits: [length, 2] of a window.
  """
  offsets, begin = feature["_offsets"], feature["_begin"]
  start, end = (logits[begin:begin + len(offsets), i].astype(np.float64) for i in (0, 1))
  if not np.isfinite(logits).all():
    return [(np.nan, np.nan, 0, 0)]
  visible = offsets[:, 1] > offsets[:, 0]
  may_start = visible & feature["_owned"]
  firsts = np.argsort(np.where(may_start, -start, np.inf), kind="stable")[:NUM_BEST]
  lasts = np.argsort(np.where(visible, -end, np.inf), kind="stable")[:NUM_BEST]
  distance = lasts[None, :] - firsts[:, None]
  fits = (distance >= 0) & (distance < MAX_ANSWER_LENGTH) & may_start[firsts][:, None] & visible[lasts][None, :]
  sums = np.where(fits, start[firsts][:, None] + end[lasts][None, :], -np.inf)
  order = np.argsort(-sums, axis=None, kind="stable")[:min(NUM_BEST, int(fits.sum()))]
  pairs = [(firsts[i], lasts[j]) for i, j in zip(*np.unravel_index(order, sums.shape))]
  return [(float(start[i]), float(end[j]), int(offsets[i, 0]), int(offsets[j, 1])) for i, j in pairs]


def _answer(spans: list[tuple[float, float, int, int]], odds: list[float], context: str) -> Answer | None:
  from scipy.special import softmax
  if not all(np.isfinite(span[0]) for span in spans) or not np.isfinite(odds).all():
    return None
  chosen: dict[str, tuple] = {}
  for span in sorted(spans, key=lambda span: -(span[0] + span[1])):
    chosen.setdefault(context[span[2]:span[3]], span)
  best = list(chosen.items())[:NUM_BEST]
  shares = softmax([span[0] + span[1] for _, span in best]) if best else []
  return Answer(tuple(Candidate(text, start, end, start_logit, end_logit, float(share))
                      for (text, (start_logit, end_logit, start, end)), share in zip(best, shares)), min(odds))


def best_text(answer: Answer) -> str:
  """The likeliest span; "" if no span is short enough."""
  return answer.candidates[0].text if answer.candidates else ""


def score(version: str, answers: Sequence[Answer | None], examples: Sequence[Example]) -> dict[str, float]:
  """The official metrics of a version."""
  texts = [answer and best_text(answer) for answer in answers]
  golds = [example.label.texts for example in examples]
  if version == "v1.1":
    return squad_scoring.score_v1(texts, golds)
  return squad_scoring.score_v2(texts, [answer.null_odds if answer else np.nan for answer in answers], golds)


def answer_files(version: str, splits: Mapping[str, tuple[Sequence[Answer | None], Sequence[Example]]]
                 ) -> dict[str, str]:
  """{file name: JSON} of each split: predictions as the official scripts read them, n-best lists and null odds.

  In v2.0 a question is left unanswered ("") above the threshold with the best F1 on dev, which is written as well.
  """
  files, threshold = {}, np.inf
  answered = {split: ([answer for answer in answers if answer is not None], examples)
              for split, (answers, examples) in splits.items()}
  if any(len(answers) < len(examples) for answers, examples in answered.values()):
    return {}  # a failed run
  if version == "v2.0":
    answers, examples = answered["dev"]
    texts, golds = [best_text(answer) for answer in answers], [example.label.texts for example in examples]
    raw = squad_scoring.raw_scores(squad_scoring.f1_v2, texts, golds)
    best = squad_scoring.best_threshold(raw, texts, [answer.null_odds for answer in answers], golds)
    threshold = best.value
    files["threshold.json"] = _json({"null_odds_threshold": best.value, "dev_best_f1": best.score})
  for split, (answers, examples) in answered.items():
    rows = {example.example_id: answer for example, answer in zip(examples, answers, strict=True)}
    files[f"{split}_predictions.json"] = _json({i: best_text(answer) if answer.null_odds <= threshold else ""
                                                for i, answer in rows.items()})
    files[f"{split}_nbest.json"] = _json({i: [c._asdict() for c in answer.candidates] for i, answer in rows.items()})
    if version == "v2.0":
      files[f"{split}_null_odds.json"] = _json({i: answer.null_odds for i, answer in rows.items()})
  return files


def _json(value) -> str:
  return json.dumps(value, ensure_ascii=False, indent=2) + "\n"
