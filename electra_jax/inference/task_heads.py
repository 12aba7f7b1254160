"""Answers of a fine-tuned model: classes of a text or pair, tags of words, the best choice, an answer in a text.

Texts are encoded by the functions that fine-tuning uses (`tasks`), so texts that are too long are cut in the same way;
`Prediction.was_cut` says so.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree
from scipy.special import expit, softmax

from electra_jax.errors import UserError
from electra_jax.inference import pretraining_heads
from electra_jax.inference.pretraining_heads import TrainedModel
from electra_jax.objectives.predictors import Predictor
from electra_jax.tasks import HEADS, batches, features, race, sequences, squad
from electra_jax.tasks.base import Example, Feature

SCORES = {"softmax": softmax, "sigmoid": expit, "none": lambda logits: logits}  # names as in `hf_config.scores_of`
ROWS = (1, 4, 16, pretraining_heads.BATCH_SIZE)  # sizes of batches, so that few programs compile


class Prediction(NamedTuple):
  """An answer."""

  value: Any  # Classes, Tags, probabilities of the choices, or SpanAnswer
  was_cut: bool  # whether a part of the texts was too long to be read


class Classes(NamedTuple):
  """The answer of a classification head."""

  labels: tuple[str, ...]  # () for a regression to one value
  values: Float[np.ndarray, "labels"]  # probabilities; for a regression the values themselves
  scores: str  # how they follow from the logits: softmax | sigmoid (each label may be true by itself) | none


class Tags(NamedTuple):
  """The tag of each word."""

  names: tuple[str, ...]  # "O", or the first label, for words that were cut off
  probabilities: Float[np.ndarray, "words"]  # of the words that were read


class SpanAnswer(NamedTuple):
  """The best span of a context."""

  text: str  # "": according to the model, the context does not answer the question
  candidates: tuple[squad.Candidate, ...]  # the best first
  null_odds: float  # logit of "no answer"; for other code bases' models see `answer_questions`


# ---- encoding ----


def encode_texts(run: TrainedModel, first: str, second: str | None = None) -> list[Feature]:
  """A text, or a pair.

  Raises:
    UserError: the model has no classification head, or a text is empty.
  """
  _check_head(run, "classification", "regression")
  texts = [first] if second is None else [first, second]
  for name, text in zip(("text", "pair"), texts):
    _check_text(name, text)
  return [features.sequence(run.tokenizer, texts, run.config.data.sequence_length)]


def encode_words(run: TrainedModel, words: str | Sequence[str]) -> list[Feature]:
  """A sentence of words, as a list or with blanks between them.

  Raises:
    UserError: the model has no tagging head, or there is no word.
  """
  _check_head(run, "tagging")
  words = words.split() if isinstance(words, str) else list(words)
  _check_text("words", " ".join(words))
  example = Example("", (tuple(words),), None, "")
  return [features.words(run.tokenizer, example, run.config.data.sequence_length, {}) | {"_example": example}]


def encode_choices(run: TrainedModel, text: str, choices: Sequence[str], question: str | None = None) -> list[Feature]:
  """A row for each choice, after the question if there is one (RACE).

  Raises:
    UserError: the model has no multiple-choice head, a text is empty, or there is nothing to choose between.
  """
  _check_head(run, "multiple_choice")
  _check_text("text", text)
  if isinstance(choices, str) or len(choices) < 2 or not all(choice.strip() for choice in choices):
    raise UserError("There is nothing to choose between", got=repr(choices), allowed="a list of two texts or more",
                    fix='write "choices": ["one", "another"]')
  options = [choice if question is None else race.question_and_answer(question, choice) for choice in choices]
  return race.choices(run.tokenizer, text, options, run.config.data.sequence_length,
                      run.config.fine_tuned.max_question_length)


def encode_question(run: TrainedModel, question: str, context: str) -> list[Feature]:
  """The question with overlapping windows of the context.

  Raises:
    UserError: the model has no span head, a text is empty, or the question leaves no room.
  """
  _check_head(run, *squad.HEADS.values())
  _check_text("question", question)
  _check_text("context", context)
  head, example = run.config.fine_tuned, Example("", (question, context), None, repr(question[:60]))
  rows = squad.windows(example, *squad.encode_context(run.tokenizer, context), run.tokenizer,
                       run.config.data.sequence_length, stride=head.window_stride,
                       max_question=head.max_question_length, with_null=head.is_answerable_known,
                       is_joint=head.head == "joint_span")
  return [row | {"_example": example} for row in rows]


def _check_head(run: TrainedModel, *heads: str) -> None:
  """Raises a UserError unless the model was fine-tuned for one of these rows of `tasks.HEADS`."""
  own = run.config.fine_tuned.head if "fine_tuned" in run.config else ""
  if own not in heads:
    raise UserError(f"This model was not fine-tuned for {' or '.join(head.replace('_', ' ') for head in heads)}",
                    got=own.replace("_", " ") or "no head of fine-tuning",
                    allowed="a fine-tuned run, its export, or such a Hugging Face folder",
                    fix="fine-tune it first, or ask for something else with --task")


def _check_text(field: str, text: str) -> None:
  if not text.strip():
    raise UserError(f"The {field} is empty", got=repr(text), allowed="text with at least one visible character",
                    fix=f"fill the field `{field}`")


# ---- answers ----


def classify(run: TrainedModel, asked: Sequence[list[Feature]]) -> list[Prediction]:
  """`Classes` of each text or pair."""
  scores, labels = run.config.fine_tuned.scores, tuple(run.config.fine_tuned.labels)
  if scores == "none" and len(labels) <= 1:
    labels = ()
  outputs = _outputs(run, asked)["classification_head"]
  return _predictions(asked, [Classes(labels, SCORES[scores](rows[0]), scores) for rows in outputs])


def tag(run: TrainedModel, asked: Sequence[list[Feature]]) -> list[Prediction]:
  """`Tags` of each sentence."""
  outputs, labels = _outputs(run, asked)["tagging_head"], tuple(run.config.fine_tuned.labels)
  tags = []
  for rows, features_of in zip(outputs, asked):
    (names,) = sequences.decode_tags({"tagging_head": rows}, features_of, [features_of[0]["_example"]], labels)
    tags.append(Tags(names or (), softmax(rows[0][features_of[0]["_first"]], axis=-1).max(axis=-1)))
  return _predictions(asked, tags)


def choose(run: TrainedModel, asked: Sequence[list[Feature]]) -> list[Prediction]:
  """The probability of each choice."""
  return _predictions(asked, [softmax(np.concatenate(rows)) for rows in _outputs(run, asked)["multiple_choice_head"]])


def answer_questions(run: TrainedModel, asked: Sequence[list[Feature]]) -> list[Prediction]:
  """A `SpanAnswer` to each question.

  A model that was fine-tuned here on SQuAD 2.0 has a head that says whether there is an answer, and a threshold chosen
  on its dev set. Any other model always answers, because its files do not say whether it has learnt not to; its
  `null_odds` are the score of [CLS] as an answer minus that of the best span.
  """
  settings, outputs, answers = run.config.fine_tuned, _outputs(run, asked), []
  head = HEADS[settings.head][0][0]
  for number, rows in enumerate(asked):
    spans = outputs[head][number]
    null = outputs["answerable_head"][number] if settings.is_answerable_known else np.zeros(len(rows))
    outputs_of: dict[str, Any] = {head: spans, "answerable_head": null}
    (answer,) = squad.decode(outputs_of, [row | {"_example": 0} for row in rows], [rows[0]["_example"]])
    answer = answer or squad.Answer((), np.nan)  # of a network whose outputs are not finite
    text, odds = squad.best_text(answer), answer.null_odds
    if settings.is_answerable_known:
      text = text if odds <= settings.null_odds_threshold else ""
    elif answer.candidates:
      best = answer.candidates[0]
      odds = min(float(span[0, :2].sum()) for span in spans) - best.start_logit - best.end_logit
    answers.append(SpanAnswer(text, answer.candidates, odds))
  return _predictions(asked, answers)


def _predictions(asked: Sequence[list[Feature]], values: list) -> list[Prediction]:
  return [Prediction(value, any(row["_was_cut"] for row in rows)) for value, rows in zip(values, asked, strict=True)]


def _outputs(run: TrainedModel, asked: Sequence[list[Feature]]) -> dict[str, list]:
  """{head: its outputs for each row of each question}; rows of similar length share a batch."""
  rows = [row for features_of in asked for row in features_of]
  values_of: dict[str, list] = {name: [None] * len(rows) for name in HEADS[run.config.fine_tuned.head][0]}
  chunks = batches.by_length(rows, ROWS[-1])

  def compute(chosen: list[int]) -> dict[str, Array]:
    size = next(size for size in ROWS if size >= len(chosen))
    length = batches.bucket(batches.num_tokens(rows[chosen[-1]]), run.config.data.sequence_length)
    batch = batches.collate([rows[i] for i in chosen], size, length, run.tokenizer.pad_id, run.config.fine_tuned.head)
    return _task_outputs(run.params, batch, run.network)

  for chosen, outputs in zip(chunks, batches.one_ahead(map(compute, chunks)), strict=True):
    for name, values in jax.device_get(outputs).items():
      for value, i in zip(values, chosen):
        values_of[name][i] = value
  bounds = np.cumsum([0, *map(len, asked)])
  return {name: [values[a:b] for a, b in itertools.pairwise(bounds)] for name, values in values_of.items()}


@functools.partial(jax.jit, static_argnames="network")
def _task_outputs(params: PyTree, batch, network: Predictor) -> dict[str, Array]:
  return network.task_outputs(params, batch)
