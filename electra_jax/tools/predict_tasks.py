"""Questions to a model, a row for each --task: what a line holds, who answers, how the answer is written."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from electra_jax.data.sentences import Sentence
from electra_jax.errors import UserError
from electra_jax.inference import pretraining_heads, task_heads
from electra_jax.inference.pretraining_heads import Answer, Judged, Run
from electra_jax.inference.task_heads import Said
from electra_jax.tasks import Feature, squad

Item = dict[str, Any]  # the fields of a question: texts, or lists of them
NUM_SPANS = 5  # candidates of an answer that are written


class Task(NamedTuple):
  """A row of TASKS."""

  what: str  # for --help
  fields: tuple[str, ...]  # of a question; the first is also what a sentence on the command line and a .txt line is
  check: Callable[[Run, Item], Any]  # raises the UserError of a question that cannot be answered
  answer: Callable[..., list[Any]]  # (run, questions, **options) -> an answer each; every option has a default
  record: Callable[[Any], dict]  # an answer as JSON
  optional: tuple[str, ...] = ()  # further fields that a .jsonl line may have
  lists: tuple[str, ...] = ()  # fields that may be lists of texts
  is_drawn: bool = False  # whether predict_screen can draw the answers; the others are shown as JSON lines


def texts_of(items: Sequence[Item]) -> list[str]:
  """The texts of questions that are nothing else."""
  return [item["text"] for item in items]


# ---- sentences: masks and replaced words ----


def check_sentence(run: Run, item: Item) -> Sentence:
  """Raises where there is neither a mask nor a discriminator."""
  return pretraining_heads.encode_question(run, item["text"])


def answer_sentences(run: Run, items: Sequence[Item], *, top_k: int = 5, with_corruption: bool = False, seed: int = 0,
                     with_combined: bool = False, **unused) -> list[Answer]:
  """Everything that the run says about each sentence."""
  return pretraining_heads.answer(run, texts_of(items), top_k=top_k, with_corruption=with_corruption, seed=seed,
                          with_combined=with_combined)


def check_mask(run: Run, item: Item) -> Sentence:
  """Raises where there is nothing to fill."""
  sentence = pretraining_heads.encode(run, item["text"])
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
  pretraining_heads.check_electra(run, "This model has no discriminator to find replaced words with")
  return pretraining_heads.encode(run, item["text"])


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


def _candidates(candidates: Sequence[pretraining_heads.Candidate]) -> list[dict]:
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


def embed(run: Run, items: Sequence[Item], *, pooling: str | None = None, **unused) -> list[Embedding]:
  """A vector for each text."""
  return [Embedding(item["text"], vector)
          for item, vector in zip(items, pretraining_heads.embed(run, texts_of(items), pooling))]


def record_embedding(one: Embedding) -> dict:
  """With the seven digits that a float32 has."""
  return {"text": one.text, "embedding": [float(f"{x:.7g}") for x in one.vector]}


# ---- models that were fine-tuned ----


class FineTuned(NamedTuple):
  """A question and what a fine-tuned model said."""

  item: Item
  said: Said


def _ask(encode: Callable[[Run, Item], list[Feature]], answer: Callable[[Run, Sequence[list[Feature]]], list[Said]]
         ) -> Callable[..., list[FineTuned]]:
  """`Task.answer` of a row whose questions are encoded one by one and answered together."""
  def answers(run: Run, items: Sequence[Item], **unused) -> list[FineTuned]:
    return [FineTuned(*row) for row in zip(items, answer(run, [encode(run, item) for item in items]))]

  return answers


def _record(one: FineTuned, **found) -> dict:
  return one.item | found | ({"was_cut": True} if one.said.was_cut else {})


def check_texts(run: Run, item: Item) -> list[Feature]:
  """Raises where the model has no classes, or the texts cannot be read."""
  task_heads.check_head(run, "classification", "regression")
  return task_heads.encode_texts(run, item["text"], item.get("pair"))


def record_classes(one: FineTuned) -> dict:
  """The likeliest label and all probabilities; of labels that may be true together also those of at least one half; of
  a regression its value or values.
  """
  labels, values, scores = one.said.found
  if not labels:
    return _record(one, value=_rounded(float(values[0])))
  by_label = {label: _rounded(float(p)) for label, p in zip(labels, values, strict=True)}
  if scores == "none":
    return _record(one, values=by_label)
  together = {"labels": [label for label, p in zip(labels, values) if p >= 0.5]} if scores == "sigmoid" else {}
  return _record(one, label=labels[int(values.argmax())], **together, probabilities=by_label)


def check_words(run: Run, item: Item) -> list[Feature]:
  """Raises where the model has no tags, or there is no word."""
  task_heads.check_head(run, "tagging")
  return task_heads.encode_words(run, item["words"])


def record_tags(one: FineTuned) -> dict:
  """The words with the tag of each, and its probability; null for words that were cut off."""
  words = one.item["words"].split() if isinstance(one.item["words"], str) else one.item["words"]
  known = [_rounded(float(p)) for p in one.said.found.probabilities]
  return _record(one, words=words, tags=list(one.said.found.names),
                 probabilities=known + [None] * (len(words) - len(known)))


def check_choices(run: Run, item: Item) -> list[Feature]:
  """Raises where the model makes no choices, or there are none."""
  task_heads.check_head(run, "multiple_choice")
  return task_heads.encode_choices(run, item["text"], item["choices"], item.get("question"))


def record_choice(one: FineTuned) -> dict:
  """The likeliest choice with its number from 0, and all probabilities."""
  best = int(one.said.found.argmax())
  return _record(one, choice=one.item["choices"][best], number=best,
                 probabilities=[_rounded(float(p)) for p in one.said.found])


def check_question(run: Run, item: Item) -> list[Feature]:
  """Raises where the model answers no questions, or the texts cannot be read."""
  task_heads.check_head(run, *squad.HEADS.values())
  return task_heads.encode_question(run, item["question"], item["context"])


def record_answer(one: FineTuned) -> dict:
  """The answer ("": there is none), and the candidates with their places in the context.

  `null_odds`: how much likelier no answer is than one, see `task_heads.answer_questions`.
  """
  text, candidates, odds = one.said.found
  shown = [{"text": c.text, "start": c.start, "end": c.end, "score": _rounded(c.start_logit + c.end_logit),
            "probability": _rounded(c.probability)} for c in candidates[:NUM_SPANS]]
  record = _record(one, answer=text, null_odds=_rounded(odds), candidates=shown)
  del record["context"]  # it may be long, and the line number tells which it is
  return record


def items_of(task: Task, arguments: Sequence[str], pair: str = "") -> list[Item]:
  """The questions that the words of a command line are.

  Raises:
    UserError: a field is left over or missing.
  """
  if len(task.fields) == 1:
    second = {"pair": pair} if pair else {}
    if pair and (len(arguments) > 1 or "pair" not in task.optional):
      raise UserError("--pair belongs to one text", got=f"{len(arguments)} texts", allowed="--task=classify with one",
                      fix="give many pairs as .jsonl with --input")
    return [{task.fields[0]: text} | second for text in arguments]
  has_list = task.fields[-1] in task.lists
  size = len(task.fields)
  if len(arguments) <= size if has_list else len(arguments) % size:
    raise UserError("The arguments are not those of the task", got=f"{len(arguments)} of them",
                    allowed=f"{', '.join(task.fields)}" + (", two or more of them" if has_list else ", also repeated"),
                    fix="put each into quotes")
  if has_list:
    return [dict(zip(task.fields, arguments[:size - 1])) | {task.fields[-1]: list(arguments[size - 1:])}]
  return [dict(zip(task.fields, arguments[i:i + size])) for i in range(0, len(arguments), size)]


def ask(task: Task, read: Callable[[str], str] = input) -> Iterator[Item]:
  """Questions as somebody types them, field by field, until an empty line or the end of the input."""
  while True:
    item: Item = {}
    for field in task.fields:
      typed = []
      while not typed or (typed[-1] and field == "choices"):
        try:
          typed.append(read(f"{field} {len(typed) + 1}: " if field == "choices" else f"{field}: ").strip())
        except EOFError:
          typed.append("")
      item[field] = [text for text in typed if text] if field == "choices" else typed[0]
      if not item[field]:
        return
    yield item


TASKS = {
  "auto": Task("masks filled and replaced words marked, whatever the model can", ("text",), check_sentence,
               answer_sentences, record_sentence, is_drawn=True),
  "fill_mask": Task("the likeliest tokens of each mask", ("text",), check_mask, fill_masks, record_sentence,
                    is_drawn=True),
  "detect": Task("the probability of each word that it was replaced", ("text",), check_judged, detect, record_sentence,
                 is_drawn=True),
  "embed": Task("a vector, --pooling=mean or cls or as the folder says", ("text",),
                lambda run, item: pretraining_heads.encode(run, item["text"]), embed, record_embedding),
  "classify": Task("the class of a text, or of a pair (--pair; in .jsonl text and pair)", ("text",), check_texts,
                   _ask(check_texts, task_heads.classify), record_classes, optional=("pair",)),
  "tag": Task("a tag for each word (in .jsonl words: a list, or with blanks between)", ("words",), check_words,
              _ask(check_words, task_heads.tag), record_tags, lists=("words",)),
  "choose": Task("the best choice for a text (in .jsonl text, choices, maybe question)", ("text", "choices"),
                 check_choices, _ask(check_choices, task_heads.choose), record_choice, optional=("question",),
                 lists=("choices",)),
  "question": Task("the answer in a text (question and context)", ("question", "context"), check_question,
                   _ask(check_question, task_heads.answer_questions), record_answer),
}
