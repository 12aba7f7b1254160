"""What can be asked of a model? One row for each --task: what a line holds, who answers, how the answer is written."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from electra_jax import fine_tuned, inference
from electra_jax.data.sentences import Sentence
from electra_jax.errors import UserError
from electra_jax.fine_tuned import Classes, Pair, Span
from electra_jax.inference import Answer, Judged, Run

Item = dict[str, str]  # the fields of a question


class Task(NamedTuple):
  """A row of TASKS."""

  what: str  # for --help
  fields: tuple[str, ...]  # of a question; the first is also what a sentence on the command line and a .txt line is
  check: Callable[[Run, Item], Any]  # raises the UserError of a question that cannot be answered
  answer: Callable[..., list[Any]]  # (run, questions, **options) -> an answer each; every option has a default
  record: Callable[[Any], dict]  # an answer as JSON
  optional: tuple[str, ...] = ()  # further fields that a .jsonl line may have
  is_drawn: bool = False  # whether predict_screen can draw the answers; the others are shown as JSON lines


def texts_of(items: Sequence[Item]) -> list[str]:
  """The texts of questions that are nothing else."""
  return [item["text"] for item in items]


# ---- sentences: masks and replaced words ----


def check_sentence(run: Run, item: Item) -> Sentence:
  """Raises where there is neither a mask nor a discriminator."""
  return inference.encode_question(run, item["text"])


def answer_sentences(run: Run, items: Sequence[Item], *, top_k: int = 5, with_corruption: bool = False, seed: int = 0,
                     with_combined: bool = False, **unused) -> list[Answer]:
  """Everything that the run says about each sentence."""
  return inference.answer(run, texts_of(items), top_k=top_k, with_corruption=with_corruption, seed=seed,
                          with_combined=with_combined)


def check_mask(run: Run, item: Item) -> Sentence:
  """Raises where there is nothing to fill."""
  sentence = inference.encode(run, item["text"])
  if not sentence.masks:
    raise UserError("There is no mask to fill", got=repr(sentence.text[:60]),
                    allowed="a sentence with [MASK] or <mask>",
                    fix="write [MASK] in place of a word, or ask for something else with --task")
  return sentence


def fill_masks(run: Run, items: Sequence[Item], **options) -> list[Answer]:
  """The masks alone."""
  encoded = [check_mask(run, item) for item in items]
  return [one._replace(words=None) for one in answer_sentences(
    run, [{"text": sentence} for sentence in encoded], **options | {"with_corruption": False})]


def check_judged(run: Run, item: Item) -> Sentence:
  """Raises where nobody can judge the words."""
  inference.check_electra(run, "This model has no discriminator to find replaced words with")
  return inference.encode(run, item["text"])


def detect(run: Run, items: Sequence[Item], **options) -> list[Answer]:
  """The discriminator's verdict alone; masks are filled before."""
  encoded = [check_judged(run, item) for item in items]
  return [one._replace(candidates=[], combined=None) for one in answer_sentences(
    run, [{"text": sentence} for sentence in encoded], **options)]


def record_sentence(one: Answer) -> dict:
  """An answer as JSON: offsets are half-open ranges of characters, probabilities lie in [0, 1]."""
  found = {"text": one.sentence.text}
  if one.candidates:
    found["masks"] = [{"start": start, "end": end, "candidates": _candidates(candidates)}
      for (start, end), candidates in zip((one.sentence.offsets[i] for i in one.sentence.masks), one.candidates)]
    for mask, candidates in zip(found["masks"], one.combined or ()):
      mask["combined"] = _candidates(candidates)
  if one.sentence.masks:
    found["filled"] = one.filled.text
  if one.words is not None:
    found["words"] = _judged(one.filled.text, one.words)
  if one.corruption is not None:
    text = one.corruption.sentence.text
    replaced = [r._asdict() | {"probability": _rounded(r.probability)} for r in one.corruption.replacements]
    found["corrupted"] = {"text": text, "words": _judged(text, one.corruption.words), "replacements": replaced,
                          "num_masked": one.corruption.num_masked}
  return found


def _candidates(candidates: Sequence[inference.Candidate]) -> list[dict]:
  return [{"token": c.text.strip(), "starts_word": c.text.startswith(" "), "id": c.token_id,
           "probability": _rounded(c.probability)} for c in candidates]


def _rounded(probability: float) -> float:
  return round(probability, 6)


def _judged(text: str, words: Sequence[Judged]) -> list[dict]:
  return [{"word": text[start:end], "start": start, "end": end, "replaced": _rounded(p)} for start, end, p in words]


# ---- vectors ----


class Embedding(NamedTuple):
  """A text and its vector."""

  text: str
  vector: np.ndarray  # float32 [hidden]


def embed(run: Run, items: Sequence[Item], *, pooling: str = "mean", **unused) -> list[Embedding]:
  """A vector for each text."""
  return [Embedding(item["text"], vector)
          for item, vector in zip(items, inference.embed(run, texts_of(items), pooling))]


def record_embedding(one: Embedding) -> dict:
  """With the seven digits that a float32 has."""
  return {"text": one.text, "embedding": [float(f"{x:.7g}") for x in one.vector]}


# ---- models that were fine-tuned ----


def check_text_or_pair(run: Run, item: Item) -> Pair:
  """Raises where the model has no classes, or the texts cannot be read."""
  fine_tuned.check_head(run, "classification_head")
  return fine_tuned.encode_pair(run, item["text"], item.get("pair"))


class Classified(NamedTuple):
  """A question and its classes."""

  item: Item
  classes: Classes


def classify(run: Run, items: Sequence[Item], **unused) -> list[Classified]:
  """The classes of each text or pair."""
  pairs = [check_text_or_pair(run, item) for item in items]
  return [Classified(*row) for row in zip(items, fine_tuned.classify(run, pairs))]


def record_classes(one: Classified) -> dict:
  """The likeliest label and all probabilities; of a regression its value."""
  labels, values = one.classes
  if len(values) == 1:
    return {**one.item, "value": _rounded(float(values[0]))}
  return {**one.item, "label": labels[int(values.argmax())],
          "probabilities": {label: _rounded(float(p)) for label, p in zip(labels, values, strict=True)}}


def check_question(run: Run, item: Item) -> list[Pair]:
  """Raises where the model answers no questions, or the texts cannot be read."""
  fine_tuned.check_head(run, "span_head")
  return fine_tuned.encode_windows(run, item["question"], item["context"])


class Answered(NamedTuple):
  """A question and its answer."""

  item: Item
  span: Span


def answer_questions(run: Run, items: Sequence[Item], **unused) -> list[Answered]:
  """The answer to each question."""
  windows = [check_question(run, item) for item in items]
  return [Answered(*row) for row in zip(items, fine_tuned.answer_questions(run, windows))]


def record_answer(one: Answered) -> dict:
  """The answer with its place in the context: SQuAD 2.0's models mean "no answer" where no_answer_score is higher."""
  span = one.span
  return {"question": one.item["question"], "answer": span.text, "start": span.start, "end": span.end,
          "score": _rounded(span.score), "no_answer_score": _rounded(span.no_answer_score)}


TASKS = {
  "auto": Task("masks filled and replaced words marked, whatever the model can", ("text",), check_sentence,
               answer_sentences, record_sentence, is_drawn=True),
  "fill_mask": Task("the likeliest tokens of each mask", ("text",), check_mask, fill_masks, record_sentence,
                    is_drawn=True),
  "detect": Task("the probability of each word that it was replaced", ("text",), check_judged, detect, record_sentence,
                 is_drawn=True),
  "embed": Task("a vector, --pooling=mean or cls", ("text",), lambda run, item: inference.encode(run, item["text"]),
                embed, record_embedding),
  "classify": Task("the class of a text, or of a pair (.jsonl with text and pair)", ("text",), check_text_or_pair,
                   classify, record_classes, optional=("pair",)),
  "question": Task("the answer in a text (.jsonl with question and context)", ("question", "context"), check_question,
                   answer_questions, record_answer),
}
