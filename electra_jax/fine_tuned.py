"""What does a fine-tuned model say? The class of a text or a pair of texts, the answer to a question in a text."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from electra_jax import inference
from electra_jax.data.sentences import Sentence
from electra_jax.errors import UserError
from electra_jax.inference import Run
from electra_jax.objectives.networks import Network
from electra_jax.tasks import features

WINDOW_STRIDE = 128  # tokens between the starts of a long context's windows (BERT's and ELECTRA's SQuAD code)
LONGEST_ANSWER = 30  # tokens, as there
SHORTEST_CONTEXT = 16  # tokens that a question must leave for its context

ACTIVATIONS = {"none": lambda x: x, "tanh": jnp.tanh, "gelu": functools.partial(jax.nn.gelu, approximate=False)}


class Pair(NamedTuple):
  """An encoded text, with or without a second one."""

  sentence: Sentence  # its offsets are those of the text that `second` says
  second: int  # position of the second text's first token; 0: there is none


class Classes(NamedTuple):
  """What a classification head says."""

  labels: tuple[str, ...]
  values: Float[np.ndarray, "labels"]  # probabilities; of a regression (a single label) the value itself


class Span(NamedTuple):
  """The best answer within a context."""

  text: str
  start: int  # context[start:end]
  end: int
  score: float  # logit of its start plus that of its end
  no_answer_score: float  # the same of [CLS]: the lowest of all windows; SQuAD 2.0 answers if `score` exceeds it


# ---- encoding ----


def encode_pair(run: Run, first: str, second: str | None, max_tokens: int | None = None) -> Pair:
  """[CLS] first [SEP] second [SEP]; RoBERTa has two separators between. Offsets are those of the second, if given.

  Raises:
    UserError: a text is empty, or both together are too long.
  """
  length = max_tokens or run.config.data.sequence_length
  one = inference.encode(run, first)
  if second is None:
    return Pair(one, 0)
  if not second.strip():
    raise UserError("The second text is empty", got=repr(second), allowed="text with at least one visible character",
                    fix="leave the field out for a single text")
  ids, offsets = run.tokenizer.encode_words(second)
  joined = [*one.ids, *_separators(run), *ids, run.tokenizer.sep_id]
  if len(joined) > length:
    raise UserError("Two texts are too long for this model", got=f"{len(joined)} tokens in {first[:40]!r}...",
                    allowed=f"at most {length} tokens, special ones included", fix="shorten one of them")
  begin = len(joined) - len(ids) - 1
  return Pair(Sentence(second, joined, [(0, 0)] * begin + offsets + [(len(second),) * 2], []), begin)


def _separators(run: Run) -> list[int]:
  """What stands between two texts besides the first one's [SEP]: RoBERTa's vocabulary comes with a second one."""
  return [run.tokenizer.sep_id] * (features.num_separators(run.tokenizer) - 1)


def encode_windows(run: Run, question: str, context: str) -> list[Pair]:
  """The question with overlapping stretches of the context; every token of it is in one.

  Raises:
    UserError: one is empty, or the question leaves no room.
  """
  asked = inference.encode(run, question)
  if not context.strip():
    raise UserError("The context is empty", got=repr(context), allowed="the text that holds the answer",
                    fix="put it into the field `context`")
  begin = len(asked.ids) + len(_separators(run))
  room = run.config.data.sequence_length - begin - 1
  if room < SHORTEST_CONTEXT:
    raise UserError("The question is too long for this model", got=f"{len(asked.ids)} tokens in {question[:60]!r}...",
                    allowed=f"at most {len(asked.ids) + room - SHORTEST_CONTEXT} tokens", fix="shorten the question")
  ids, offsets = run.tokenizer.encode_words(context)
  windows, start = [], 0
  while True:
    kept = slice(start, start + room)
    windows.append(Pair(Sentence(context, [*asked.ids, *_separators(run), *ids[kept], run.tokenizer.sep_id],
                                 [(0, 0)] * begin + offsets[kept] + [(len(context),) * 2], []), begin))
    if start + room >= len(ids):
      return windows
    start += min(WINDOW_STRIDE, room)


def make_batch(run: Run, pairs: Sequence[Pair]) -> dict[str, np.ndarray]:
  """`inference.make_batch`; the second text has token type 1 (a model with a single type reads that one)."""
  batch = inference.make_batch(run, [pair.sentence for pair in pairs])
  for row, (sentence, second) in enumerate(pairs):
    batch["token_type_ids"][row, second:len(sentence.ids)] = int(second > 0)
  return batch


# ---- heads ----


def check_head(run: Run, head: str) -> None:
  """Raises where the model has no such head."""
  found = run.config.fine_tuned.head if "fine_tuned" in run.config else ""
  if found != head:
    raise UserError(f"This model has no {head.replace('_', ' ')}", got=found.replace("_", " ") or "no fine-tuned head",
                    allowed="a model that was fine-tuned for the task, in a Hugging Face folder",
                    fix="fine-tune it first, or ask for something else with --task")


def classify(run: Run, pairs: Sequence[Pair]) -> list[Classes]:
  """Probabilities of the labels, for each text or pair; of a regression its value.

  Raises:
    UserError: the model has no classification head.
  """
  check_head(run, "classification_head")
  labels = tuple(run.config.fine_tuned.labels)
  logits = _in_batches(run, pairs, _class_logits)
  return [Classes(labels, row if len(row) == 1 else np.asarray(jax.nn.softmax(row))) for row in logits]


def answer_questions(run: Run, questions: Sequence[Sequence[Pair]]) -> list[Span]:
  """The best span of each question's windows.

  Raises:
    UserError: the model has no span head.
  """
  check_head(run, "span_head")
  logits = iter(_in_batches(run, [window for windows in questions for window in windows], _span_logits))
  answers = []
  for windows in questions:
    spans = [best_span(window, next(logits)) for window in windows]
    best = max(spans, key=lambda span: span.score)
    answers.append(best._replace(no_answer_score=min(span.no_answer_score for span in spans)))
  return answers


def best_span(window: Pair, logits: Float[np.ndarray, "length 2"]) -> Span:
  """The likeliest start and end within the context, the end not before the start, of at most LONGEST_ANSWER tokens.

  >>> window = Pair(Sentence("a b c", [2, 9, 3, 7, 8, 9, 3], [(0, 0)] * 3 + [(0, 1), (2, 3), (4, 5), (5, 5)], []), 3)
  >>> best_span(window, np.array([[1, 1], [9, 9], [0, 0], [0, 2], [2, 0], [0, 1], [9, 9]], float))
  Span(text='b c', start=2, end=5, score=3.0, no_answer_score=2.0)
  """
  context = slice(window.second, len(window.sentence.ids) - 1)
  start, end = logits[context, 0], logits[context, 1]
  sums = start[:, None] + end[None, :]  # [start, end]
  allowed = np.triu(np.ones(sums.shape, bool)) & np.tri(*sums.shape, LONGEST_ANSWER - 1, dtype=bool)
  first, last = np.unravel_index(np.where(allowed, sums, -np.inf).argmax(), sums.shape)
  offsets = window.sentence.offsets[context]
  begin, stop = offsets[first][0], offsets[last][1]
  return Span(window.sentence.text[begin:stop], begin, stop, float(sums[first, last]), float(logits[0].sum()))


def _in_batches(run: Run, pairs: Sequence[Pair], logits_of) -> list[np.ndarray]:
  """A row of logits for each pair, in their order; pairs of similar length are computed together."""
  found = [np.empty(0)] * len(pairs)
  for indices in inference.batches_of([pair.sentence for pair in pairs], range(len(pairs))):
    batch = make_batch(run, [pairs[i] for i in indices])
    head = run.config.fine_tuned
    rows = jax.device_get(logits_of(run.params, batch, run.network, head.network, head.activation))
    for row, i in zip(rows, indices):
      found[i] = row
  return found


@functools.partial(jax.jit, static_argnames=("network", "name", "activation"))
def _class_logits(params: PyTree, batch, network: Network, name: str, activation: str) -> Float[Array, "batch labels"]:
  head = params[name]["classification_head"]
  x = network.encode(params, batch, batch["input_ids"])[:, 0].astype(jnp.float32)  # [batch, hidden]
  if "dense" in head:
    x = ACTIVATIONS[activation](_dense(x, head["dense"]))
  return _dense(x, head["output"])


@functools.partial(jax.jit, static_argnames=("network", "name", "activation"))
def _span_logits(params: PyTree, batch, network: Network, name: str, activation: str
                 ) -> Float[Array, "batch length 2"]:
  del activation
  hidden = network.encode(params, batch, batch["input_ids"]).astype(jnp.float32)  # [batch, length, hidden]
  return _dense(hidden, params[name]["span_head"]["output"])


def _dense(x, layer):
  return jnp.matmul(x, layer["kernel"], precision=jax.lax.Precision.HIGHEST) + layer["bias"]
