"""Answers of pre-training heads: masks filled, replaced tokens found, vectors of texts, batches corrupted.

`load` reads a workdir; everything else is a pure function of the loaded run and texts. ELECTRA answers with its
generator (masks) and its discriminator (replaced tokens), section 2 of its paper; BERT and RoBERTa with their MLM head.
"""

import bisect
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree
from ml_collections import ConfigDict

from electra_jax.data import sentences
from electra_jax.data.sentences import Sentence, piece_text
from electra_jax.errors import UserError
from electra_jax.exchange import sentence_transformers
from electra_jax.inference.loading import TrainedModel
from electra_jax.inference.loading import load as load
from electra_jax.models.attention import MASK_BIAS
from electra_jax.models.heads import POOLINGS
from electra_jax.objectives import electra_mlm, generators
from electra_jax.objectives.predictors import Predictor

Batch = dict[str, np.ndarray]  # the fields of data/pipeline.py

BATCH_SIZE = 64  # rows of one call: with 64 masks a row, a vocabulary of 50 k makes 0.8 GB of logits
WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")  # judged as one word: letters and digits, or one other sign


class TokenCandidate(NamedTuple):
  """A token for a mask."""

  text: str  # as `piece_text` gives it
  token_id: int
  probability: float


class TokenScore(NamedTuple):
  """The discriminator's view of a token or a word, text[start:end]."""

  start: int
  end: int
  probability: float  # that it was replaced


def encode(run: TrainedModel, text: str | Sentence) -> Sentence:
  """`sentences.encode` with the run's tokenizer and length; an encoded sentence is returned as it is.

  Raises:
    UserError: the text has no token, or more than the run was trained on.
  """
  if isinstance(text, Sentence):
    return text
  return sentences.encode(run.tokenizer, text, run.config.data.sequence_length)


def make_batch(run: TrainedModel, encoded: Sequence[Sentence]) -> Batch:
  """`sentences.make_batch` with the run's padding and length."""
  return sentences.make_batch(encoded, run.tokenizer.pad_id, run.config.data.sequence_length)


def batches_of(encoded: Sequence[Sentence], wanted: Sequence[int]) -> Iterator[list[int]]:
  """Indices of the wanted sentences, BATCH_SIZE at a time, similar lengths together."""
  order = sorted(wanted, key=lambda index: len(encoded[index].ids))
  for start in range(0, len(order), BATCH_SIZE):
    yield order[start:start + BATCH_SIZE]


def special_rows(run: TrainedModel) -> Bool[np.ndarray, "vocab"]:
  """Which rows of the token table are never an answer: special tokens, and the padding of the vocabulary."""
  is_special = np.zeros(run.config.model.vocab_size, bool)
  is_special[[*run.tokenizer.special_ids, *range(run.tokenizer.vocab_size, len(is_special))]] = True
  return is_special


def fill_mask(run: TrainedModel, texts: Sequence[str | Sentence], top_k: int = 5) -> list[list[list[TokenCandidate]]]:
  """For each text and each mask in it the `top_k` likeliest tokens, the best first; never special tokens.

  The masks of a text are filled independently of each other, as in training. `top_k` is at most all ordinary tokens.

  Raises:
    UserError: as `encode`; or there is a mask and the run has no masked LM.
  """
  is_special = special_rows(run)
  top_k = min(top_k, int((~is_special).sum()))
  encoded = [encode(run, text) for text in texts]
  if any(sentence.masks for sentence in encoded):
    _check_masked_lm(run, "This run has no masked LM to fill masks with")
  return _candidates(run, encoded, lambda batch: _top_candidates(run.params, batch, is_special, run.network, top_k))


def _candidates(run: TrainedModel, encoded: Sequence[Sentence], rank: Callable[[Batch], tuple]
                ) -> list[list[list[TokenCandidate]]]:
  """For each text and each mask in it what `rank` gives: (ids, probabilities), both [batch, predictions, top]."""
  candidates = [[] for _ in encoded]
  for indices in batches_of(encoded, [i for i, sentence in enumerate(encoded) if sentence.masks]):
    ids, probabilities = jax.device_get(rank(make_batch(run, [encoded[i] for i in indices])))
    for row, i in enumerate(indices):
      candidates[i] = [[TokenCandidate(piece_text(run.tokenizer, int(token)), int(token), float(probability))
                        for token, probability in zip(ids[row, slot], probabilities[row, slot])]
                       for slot in range(len(encoded[i].masks))]
  return candidates


@functools.partial(jax.jit, static_argnames=("network", "top_k"))
def _top_candidates(params, batch, is_special: Bool[Array, "vocab"], network: Predictor, top_k: int
                    ) -> tuple[Int[Array, "batch predictions top"], Float[Array, "batch predictions top"]]:
  probabilities = jax.nn.softmax(network.mlm_logits(params, batch))  # [batch, predictions, vocab]
  best, ids = jax.lax.top_k(jnp.where(is_special, -1.0, probabilities), top_k)
  return ids, best


def fill_mask_together(run: TrainedModel, encoded: Sequence[Sentence], top_k: int = 5
                       ) -> list[list[list[TokenCandidate]]]:
  """`fill_mask`, but generator and discriminator rank the candidates together (ELECTRA Appendix E).

  A candidate's probability is the appendix's p_data, which is not normalised over the candidates; at most 100 are
  ranked. While one mask is ranked, the generator's likeliest tokens fill the others.
  """
  is_special = special_rows(run)
  number = min(electra_mlm.NUM_CANDIDATES, int((~is_special).sum()))
  settings = (number, min(top_k, number), run.config.objective.sampling_temperature,
              electra_mlm.corrupted_share(run.config))
  return _candidates(run, encoded, lambda batch: _rank_together(run.params, batch, is_special, run.network, settings))


@functools.partial(jax.jit, static_argnames=("network", "settings"))
def _rank_together(params, batch, is_special: Bool[Array, "vocab"], network: Predictor, settings
                   ) -> tuple[Int[Array, "batch predictions top"], Float[Array, "batch predictions top"]]:
  number, top_k, temperature, mask_rate = settings
  logits = jnp.where(is_special, MASK_BIAS, network.mlm_logits(params, batch) / temperature)
  ids, p_data = electra_mlm.rank(logits, lambda ids: network.rtd_logits(params, batch, ids),
                                 electra_mlm.fill(logits, batch), batch["masked_positions"], number, mask_rate)
  best, order = jax.lax.top_k(p_data, top_k)
  return jnp.take_along_axis(ids, order, axis=-1), best


def detect_replaced(run: TrainedModel, texts: Sequence[str | Sentence]) -> list[list[TokenScore]]:
  """For each text the probability that each of its ordinary tokens was replaced, with character offsets.

  Fill masks first: the discriminator has never seen a mask token in training.

  Raises:
    UserError: as `encode`; or the run has no discriminator.
  """
  check_electra(run, "This run has no discriminator to find replaced words with")
  encoded = [encode(run, text) for text in texts]
  scores = [[] for _ in encoded]
  for indices in batches_of(encoded, range(len(encoded))):
    batch = make_batch(run, [encoded[i] for i in indices])
    probabilities = jax.device_get(_replaced_probabilities(run.params, batch, run.network))
    for row, i in enumerate(indices):
      scores[i] = [TokenScore(*encoded[i].offsets[position], float(probabilities[row, position]))
                   for position in encoded[i].ordinary]
  return scores


@functools.partial(jax.jit, static_argnames="network")
def _replaced_probabilities(params, batch, network: Predictor) -> Float[Array, "batch length"]:
  return jax.nn.sigmoid(network.rtd_logits(params, batch, batch["input_ids"]))


def embed(run: TrainedModel, texts: Sequence[str | Sentence], pooling: str | None = None
          ) -> list[Float[np.ndarray, "hidden"]]:
  """For each text a vector of the kept encoder's last layer: [CLS]'s, or the mean over all tokens, special ones too.

  Args:
    pooling: mean | cls; None: what a folder of sentence-transformers says, with its normalisation, else mean.

  Raises:
    UserError: as `encode`; or `pooling`, or that of the folder, is unknown.
  """
  own = sentence_transformers.Embedding()
  if pooling is None and run.folder:
    own = sentence_transformers.read(run.folder) or own
  pooling = pooling or own.pooling
  if pooling not in POOLINGS:
    raise UserError("The pooling is unknown", got=pooling, allowed=", ".join(POOLINGS), fix="use --pooling=mean")
  encoded = [encode(run, text.lower() if own.lowercase and isinstance(text, str) else text) for text in texts]
  vectors_of = [np.empty(0)] * len(encoded)
  for indices in batches_of(encoded, range(len(encoded))):
    vectors = jax.device_get(pooled(run.params, make_batch(run, [encoded[i] for i in indices]), run.network, pooling))
    for vector, i in zip(vectors, indices):
      vectors_of[i] = vector / max(float(np.linalg.norm(vector)), 1e-12) if own.is_normalised else vector
  return vectors_of


@functools.partial(jax.jit, static_argnames=("network", "pooling"))
def pooled(params: PyTree, batch: dict[str, Array], network: Predictor, pooling: str) -> Float[Array, "batch hidden"]:
  """One vector a row: the kept encoder's output, pooled over the real tokens by a row of `POOLINGS`."""
  hidden = network.encode(params, batch, batch["input_ids"]).astype(jnp.float32)  # [batch, length, hidden]
  return POOLINGS[pooling](hidden, batch["attention_mask"])


def judge_words(text: str, tokens: Sequence[TokenScore]) -> list[TokenScore]:
  """Words and signs of a text, each with the highest probability among its tokens: one replaced piece spoils a word.

  >>> judge_words("a mat.", [TokenScore(0, 1, 0.25), TokenScore(2, 4, 0.5), TokenScore(4, 5, 0.75),
  ...                        TokenScore(5, 6, 0.0)])
  [TokenScore(start=0, end=1, probability=0.25), TokenScore(start=2, end=5, probability=0.75), \
TokenScore(start=5, end=6, probability=0.0)]
  """
  starts = [token.start for token in tokens]
  ends = [max(token.end, token.start + 1) for token in tokens]  # bytes of one character may have an empty range
  words = []
  for word in WORD.finditer(text):
    parts = tokens[bisect.bisect_right(ends, word.start()):bisect.bisect_left(starts, word.end())]
    if parts:
      words.append(TokenScore(word.start(), word.end(), max(token.probability for token in parts)))
  return words


def corrupt(run: TrainedModel, batch: Batch, seed: int = 0) -> Int[np.ndarray, "batch length"]:
  """The discriminator's input: the generator's draws at the masked positions of a pipeline batch (ELECTRA section 2).

  Raises:
    UserError: the run has no generator next to its encoder.
  """
  check_electra(run, "This run has no generator that corrupts text for a discriminator")
  _check_masked_lm(run, "This run's replacements are drawn from token counts, which it does not keep")
  return jax.device_get(_corrupt(run.params, batch, jax.random.key(seed), run.network, run.config.objective))


@functools.partial(jax.jit, static_argnames=("network", "config_objective"))
def _corrupt(params, batch, rng, network: Predictor, config_objective: ConfigDict) -> Int[Array, "batch length"]:
  return generators.corrupt(rng, network.mlm_logits(params, batch), batch, config_objective).ids


def _check_masked_lm(run: TrainedModel, what: str) -> None:
  if run.network.mlm_logits is None:
    raise UserError(what, got=f"generator.kind={run.config.generator.kind!r}",
                    allowed="a run with generator.kind='learned', or a masked LM",
                    fix="ask it about sentences without masks: it judges their words" if run.network.rtd_logits else
                    "ask it what it was fine-tuned for: --task=classify, for example")


def check_electra(run: TrainedModel, what: str) -> None:
  """Raises the UserError `what` if there is no discriminator."""
  if run.network.rtd_logits is None:
    raise UserError(what, got=f"objective.name={run.config.objective.name!r}",
                    allowed="a run with objective.name='rtd'",
                    fix="fill masks with it instead, or train an ELECTRA: --config=configs/tiny.py")


# ---- everything about a sentence ----


class SentenceAnswer(NamedTuple):
  """All answers of a run about one sentence."""

  sentence: Sentence
  candidates: list[list[TokenCandidate]]  # per mask, best first
  filled: Sentence  # the best candidate in each mask; the sentence itself if it has none
  words: list[TokenScore] | None  # of `filled`; None: the run has no discriminator
  combined: list[list[TokenCandidate]] | None = None  # as `candidates`, by both networks together; only if asked for


def encode_question(run: TrainedModel, text: str | Sentence) -> Sentence:
  """`encode`, for a text that the run can answer.

  Raises:
    UserError: as `encode`; or there is no mask to fill and no discriminator to judge the words.
  """
  sentence = encode(run, text)
  if not sentence.masks and run.network.rtd_logits is None:
    _check_masked_lm(run, "This run neither fills masks nor judges words")
    raise UserError("There is nothing to predict: no mask, and this run has no discriminator to judge the words",
                    got=f"{sentence.text[:60]!r} for objective.name={run.config.objective.name!r}",
                    allowed="a sentence with [MASK] or <mask>; without one only for runs with objective.name='rtd'",
                    fix="write [MASK] in place of a word")
  return sentence


def answer(run: TrainedModel, texts: Sequence[str | Sentence], *, top_k: int = 5, with_combined: bool = False
           ) -> list[SentenceAnswer]:
  """The run's answers about each text; `with_combined` costs 100 passes a mask, and is ignored where it does not apply.

  Raises:
    UserError: as `encode_question`, or the run cannot do what is asked for.
  """
  encoded = [encode_question(run, text) for text in texts]
  candidates = fill_mask(run, encoded, top_k)
  best = [{position: ranked[0].token_id for position, ranked in zip(sentence.masks, masks)}
          for sentence, masks in zip(encoded, candidates)]
  filled = [sentences.put_in(run.tokenizer, sentence, new_ids) for sentence, new_ids in zip(encoded, best)]
  words, combined = [None] * len(texts), [None] * len(texts)
  if run.network.rtd_logits is not None:
    words = [judge_words(sentence.text, tokens) for sentence, tokens in zip(filled, detect_replaced(run, filled))]
  if with_combined and electra_mlm.applies(run.config):
    combined = fill_mask_together(run, encoded, top_k)
  return [SentenceAnswer(*row) for row in zip(encoded, candidates, filled, words, combined)]
