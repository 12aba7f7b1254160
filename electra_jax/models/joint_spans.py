"""Answer spans whose end depends on their start: ELECTRA's question-answering head.

The published paper (section 3.1) takes XLNet's module for SQuAD, which predicts start and end jointly, and a classifier
for "no answer". So p(start, end) = p(start) p(end | start): training gives the head the right start, prediction
searches a beam of starts and, for each, a beam of ends.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from electra_jax.config import MAX_ANSWER_LENGTH, NUM_BEST
from electra_jax.models import fused
from electra_jax.models.attention import MASK_BIAS
from electra_jax.models.heads import select_positions
from electra_jax.models.transformer import Dropout, TransformerConfig, multiply


class JointSpanHead(nn.Module):
  """log p(start) of each token, and log p(end | start) of each token that is not before the start.

  The paper says that the end is predicted from the start, but does not give the network. Here a start's logit is linear
  in its vector, an end's is Dense, GELU, layer norm and Dense of [token's vector; start's vector]. Both distributions
  are over the real tokens; an end before its start has probability 0. [CLS] as start and end means "not in this text".

  Differs from the released ELECTRA code: both distributions are over all real tokens, the question's included, where
  the code's are over the context and [CLS]; there is a layer norm, as in XLNet's; ends before the start have no
  probability; spans are compared by log-probabilities, since the logits of two starts' ends have no common zero; and
  the classifier for "no answer" reads [CLS] alone. The hidden layer is as wide as the encoder (512 there), with dropout
  before it (none there).
  """

  config: TransformerConfig
  num_best: int = NUM_BEST  # spans to return, and starts and ends to try
  max_answer: int = MAX_ANSWER_LENGTH  # longest span in tokens

  @nn.compact
  def __call__(self, x: Float[Array, "batch length hidden"], batch: dict[str, Array], train: bool = False) -> Array:
    """In training float32 [batch, length, 2]: log p(start), log p(end | batch["start"]); else the spans of `search`."""
    c = self.config
    mask, implementation = batch["attention_mask"], c.implementation()
    x = Dropout(c.hidden_dropout_prob, name="dropout")(x, train)
    start = log_shares(c.dense(1, name="start")(x)[..., 0], mask)  # [batch, length]
    kernel, bias = c.dense(c.hidden_size, name="dense").parameters(2 * c.hidden_size)
    scale, offset = c.layer_norm("layer_norm").parameters(c.hidden_size)
    output, output_bias = c.dense(1, name="output").parameters(c.hidden_size)
    of_token = multiply(x, kernel[:c.hidden_size], c.dtype)  # the same for every start: [batch, length, hidden]

    def ends(vectors: Float[Array, "batch hidden"], starts: Int[Array, "batch"]) -> Float[Array, "batch length"]:
      product = of_token + multiply(vectors, kernel[c.hidden_size:], c.dtype)[:, None]
      y = fused.bias_gelu(product, bias, c.hidden_act, implementation)
      y = fused.layer_norm(y, scale, offset, c.layer_norm_eps, implementation)
      logits = fused.add_bias(multiply(y, output, c.dtype), output_bias)[..., 0]
      return log_shares(logits, mask & (jnp.arange(x.shape[1]) >= starts[:, None]))

    if train:
      vector = select_positions(x, batch["start"][:, None])[:, 0]
      return jnp.stack([start, ends(vector, batch["start"])], axis=-1)
    return search(start, x, ends, batch["may_start"], batch["may_end"], self.num_best, self.max_answer)


def log_shares(logits: Float[Array, "batch length"], mask: Bool[Array, "batch length"]) -> Float[Array, "batch length"]:
  """log softmax over the tokens of the mask, float32."""
  return jax.nn.log_softmax(jnp.where(mask, logits.astype(jnp.float32), MASK_BIAS))


def search(start: Float[Array, "batch length"], x: Float[Array, "batch length hidden"], ends: Callable,
           may_start: Bool[Array, "batch length"], may_end: Bool[Array, "batch length"], num_best: int,
           max_answer: int) -> Float[Array, "batch spans 4"]:
  """The likeliest spans of each row by beam search: `num_best` starts with `num_best` ends each.

  Args:
    start: log p(start).
    x: the tokens' vectors; `ends` gets those of the starts.
    ends: (vectors [batch, hidden], starts [batch]) -> log p(end | start) [batch, length].
    max_answer: longest span in tokens.

  Returns:
    (log p(start), log p(end | start), start, end) of [CLS] as start and end, then of `num_best` spans, the likeliest
    first, filled up with (0, 0, -1, -1). NaN where the network gives NaN.
  """
  length = start.shape[1]
  size, places = min(num_best, length), jnp.arange(length)
  of_start, starts = jax.lax.top_k(jnp.where(may_start, start, -jnp.inf), size)  # [batch, size]
  starts = jnp.concatenate([jnp.zeros((len(start), 1), starts.dtype), starts], axis=1)  # [batch, 1 + size]

  def of_each(vectors_and_starts):
    """One start at a time, as the hidden states of all ends would take `size` times the encoder's activations."""
    vectors, firsts = vectors_and_starts
    shares = ends(vectors, firsts)
    distance = places - firsts[:, None]
    fits = may_end & (distance >= 0) & (distance < max_answer)
    return (*jax.lax.top_k(jnp.where(fits, shares, -jnp.inf), size), shares[:, 0])

  vectors = jnp.moveaxis(select_positions(x, starts), 1, 0)  # [1 + size, batch, hidden]
  of_end, lasts, of_first = jax.lax.map(of_each, (vectors, starts.T))  # [1 + size, batch, size] (2x), [1 + size, batch]
  of_end, lasts = (jnp.moveaxis(x[1:], 0, 1) for x in (of_end, lasts))  # [batch, starts, ends]
  spans = jnp.stack(jnp.broadcast_arrays(of_start[..., None], of_end, starts[:, 1:, None], lasts), axis=-1)
  spans = spans.reshape(len(start), size * size, 4)
  sums, order = jax.lax.top_k(spans[..., 0] + spans[..., 1], min(num_best, size * size))
  spans = jnp.take_along_axis(spans, order[..., None], axis=1)
  spans = jnp.where((sums == -jnp.inf)[..., None], jnp.array([0.0, 0.0, -1.0, -1.0]), spans)
  missing = jnp.tile(jnp.array([0.0, 0.0, -1.0, -1.0]), (len(start), num_best - spans.shape[1], 1))
  null = jnp.stack([start[:, 0], of_first[0], jnp.zeros_like(start[:, 0]), jnp.zeros_like(start[:, 0])], axis=-1)
  return jnp.concatenate([null[:, None], spans, missing], axis=1)
