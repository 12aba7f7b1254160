"""Questions to a model, a row for each --task: its fields, who answers, how the answer is written."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from electra_jax.errors import UserError
from electra_jax.inference import pretraining_heads, task_heads
from electra_jax.inference.pretraining_heads import SentenceAnswer, TrainedModel
from electra_jax.inference.task_heads import Prediction

Item = dict[str, Any]  # the fields of a question: texts, or lists of them
NUM_SPANS = 5  # candidates that are written with an answer


class QuestionKind(NamedTuple):
  """A row of TASKS."""

  what: str  # for --help
  fields: tuple[str, ...]  # of a question; a sentence on the command line or a line of .txt is the first
  encode: Callable[[TrainedModel, Item], Any]  # a question as `answer` takes it; raises UserError if it cannot be asked
  answer: Callable[..., list[Any]]  # (run, encoded questions, **options) -> an answer each
  record: Callable[[Item, Any], dict]  # a question and its answer as JSON
  options: tuple[str, ...] = ()  # of `answer`, which has a default for each
  optional: tuple[str, ...] = ()  # further fields that a record may have
  lists: tuple[str, ...] = ()  # fields that may be lists of texts
  is_drawn: bool = False  # whether predict_screen can draw the answers; others are shown as JSON lines

  def ask(self, run: TrainedModel, encoded: Sequence[Any], **options) -> list[Any]:
    """The answers to encoded questions, with those of the options that the kind has."""
    return self.answer(run, encoded, **{name: options[name] for name in self.options if name in options})


# ---- sentences: masks and replaced words ----


def record_sentence(item: Item, answer: SentenceAnswer) -> dict:
  """An answer as JSON: offsets are half-open ranges of characters, probabilities lie in [0, 1]."""
  del item
  sentence = answer.sentence
  record: dict[str, Any] = {"text": sentence.text}
  if answer.candidates:
    record["masks"] = [{"start": start, "end": end, "candidates": _candidates(candidates)}
      for (start, end), candidates in zip((sentence.offsets[i] for i in sentence.masks), answer.candidates)]
    for mask, candidates in zip(record["masks"], answer.combined or ()):
      mask["combined"] = _candidates(candidates)
  if sentence.masks:
    record["filled"] = answer.filled.text
  if answer.words is not None:
    record["words"] = [{"word": answer.filled.text[start:end], "start": start, "end": end, "replaced": _rounded(p)}
                       for start, end, p in answer.words]
  return record


def _candidates(candidates: Sequence[pretraining_heads.TokenCandidate]) -> list[dict]:
  return [{"token": c.text.strip(), "starts_word": c.text.startswith(" "), "id": c.token_id,
           "probability": _rounded(c.probability)} for c in candidates]


def _rounded(probability: float) -> float:
  return round(probability, 6)


# ---- vectors ----


def encode_text(run: TrainedModel, item: Item) -> str:
  """The text itself, checked: `embed` may have to lowercase it first."""
  pretraining_heads.encode(run, item["text"])
  return item["text"]


def record_embedding(item: Item, vector: np.ndarray) -> dict:
  """The vector as JSON, with the seven digits that a float32 has."""
  return {"text": item["text"], "embedding": [float(f"{x:.7g}") for x in vector]}


# ---- models that were fine-tuned ----


def _record(item: Item, prediction: Prediction, **more) -> dict:
  return item | more | ({"was_cut": True} if prediction.was_cut else {})


def record_classes(item: Item, prediction: Prediction) -> dict:
  """The likeliest label and all probabilities; where several labels may be true, also those of at least one half; for
  a regression its value or values.
  """
  labels, values, scores = prediction.value
  if not labels:
    return _record(item, prediction, value=_rounded(float(values[0])))
  by_label = {label: _rounded(float(p)) for label, p in zip(labels, values, strict=True)}
  if scores == "none":
    return _record(item, prediction, values=by_label)
  together = {"labels": [label for label, p in zip(labels, values) if p >= 0.5]} if scores == "sigmoid" else {}
  return _record(item, prediction, label=labels[int(values.argmax())], **together, probabilities=by_label)


def record_tags(item: Item, prediction: Prediction) -> dict:
  """The words with the tag of each, and its probability; null for words that were cut off."""
  words = item["words"].split() if isinstance(item["words"], str) else item["words"]
  probabilities = [_rounded(float(p)) for p in prediction.value.probabilities]
  return _record(item, prediction, words=words, tags=list(prediction.value.names),
                 probabilities=probabilities + [None] * (len(words) - len(probabilities)))


def record_choice(item: Item, prediction: Prediction) -> dict:
  """The likeliest choice, its index from 0, and all probabilities."""
  best = int(prediction.value.argmax())
  return _record(item, prediction, choice=item["choices"][best], number=best,
                 probabilities=[_rounded(float(p)) for p in prediction.value])


def record_answer(item: Item, prediction: Prediction) -> dict:
  """The answer ("" for none), and the candidates with their places in the context.

  `null_odds`: see `task_heads.answer_questions`.
  """
  text, candidates, odds = prediction.value
  shown = [{"text": c.text, "start": c.start, "end": c.end, "score": _rounded(c.start_logit + c.end_logit),
            "probability": _rounded(c.probability)} for c in candidates[:NUM_SPANS]]
  record = _record(item, prediction, answer=text, null_odds=_rounded(odds), candidates=shown)
  del record["context"]  # it may be long, and the line number identifies it
  return record


# ---- questions of a command line ----


def items_of(task: QuestionKind, arguments: Sequence[str], pair: str = "") -> list[Item]:
  """The questions in the arguments of a command line; none where --input has them.

  Raises:
    UserError: a field is left over or missing.
  """
  if pair and (len(arguments) != 1 or "pair" not in task.optional):
    raise UserError("--pair belongs to one text", got=f"{len(arguments)} texts", allowed="--task=classify with one",
                    fix="give many pairs as .jsonl with --input")
  if len(task.fields) == 1:
    return [{task.fields[0]: text} | ({"pair": pair} if pair else {}) for text in arguments]
  if not arguments:
    return []
  has_list, size = task.fields[-1] in task.lists, len(task.fields)
  if len(arguments) <= size if has_list else len(arguments) % size:
    raise UserError("The arguments are not those of the task", got=f"{len(arguments)} of them",
                    allowed=f"{', '.join(task.fields)}" + (", two or more of them" if has_list else ", also repeated"),
                    fix="put each into quotes")
  if has_list:
    return [dict(zip(task.fields, arguments[:size - 1])) | {task.fields[-1]: list(arguments[size - 1:])}]
  return [dict(zip(task.fields, arguments[i:i + size])) for i in range(0, len(arguments), size)]


TASKS = {
  "auto": QuestionKind("masks filled and replaced words marked, as far as the model can", ("text",),
               lambda run, item: pretraining_heads.encode_question(run, item["text"]), pretraining_heads.answer,
               record_sentence, options=("top_k", "with_combined"), is_drawn=True),
  "embed": QuestionKind("a vector, --pooling=mean or cls or as the folder says", ("text",), encode_text,
                pretraining_heads.embed, record_embedding, options=("pooling",)),
  "classify": QuestionKind("the class of a text, or of a pair (--pair; in .jsonl text and pair)", ("text",),
                   lambda run, item: task_heads.encode_texts(run, item["text"], item.get("pair")),
                   task_heads.classify, record_classes, optional=("pair",)),
  "tag": QuestionKind("a tag for each word (in .jsonl words: a list, or with blanks between)", ("words",),
              lambda run, item: task_heads.encode_words(run, item["words"]), task_heads.tag, record_tags,
              lists=("words",)),
  "choose": QuestionKind("the best choice for a text (in .jsonl text, choices, maybe question)", ("text", "choices"),
                 lambda run, item: task_heads.encode_choices(run, item["text"], item["choices"], item.get("question")),
                 task_heads.choose, record_choice, optional=("question",), lists=("choices",)),
  "question": QuestionKind("the answer in a text (question and context)", ("question", "context"),
                   lambda run, item: task_heads.encode_question(run, item["question"], item["context"]),
                   task_heads.answer_questions, record_answer),
}
