"""Floating-point operations of training, in two conventions: ours for MFU, the paper's for its tables (ELECTRA C).

In both a multiplication and an addition are two operations. Terms are per training step, over the global batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

from ml_collections import ConfigDict

from electra_jax.config import num_predictions
from electra_jax.objectives.table import ROWS

# Dense bfloat16 FLOP/s of one jax device by `device_kind`, from the vendors' data sheets. V100 has no bfloat16: this
# is its float16 rate. On TPU v2 and v3 a jax device is one of a chip's two cores. Parts of a card (MIG) are not listed.
HARDWARE_PEAKS = MappingProxyType({
  "Tesla V100-SXM2-16GB": 125e12, "Tesla V100-SXM2-32GB": 125e12, "Tesla V100-SXM3-32GB": 125e12,
  "NVIDIA A100-SXM4-40GB": 312e12, "NVIDIA A100-SXM4-80GB": 312e12,
  "NVIDIA A100-PCIE-40GB": 312e12, "NVIDIA A100 80GB PCIe": 312e12,
  "NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H100 PCIe": 756e12, "NVIDIA H100 NVL": 835e12,
  "NVIDIA H200": 989e12,
  "TPU v2": 22.5e12, "TPU v3": 61.5e12, "TPU v4": 275e12,
  "TPU v5 lite": 197e12, "TPU v5e": 197e12, "TPU v5": 459e12, "TPU v5p": 459e12,
  "TPU v6 lite": 918e12, "TPU v6e": 918e12,
})

PAPER_MLM_SHARE = 0.15625  # share of positions at the MLM softmax: 20 of 128, in the released code at every length


@dataclass(frozen=True)
class FlopCount:
  """A count with its convention; `terms` are operations per training step by `network/component`."""

  convention: str
  terms: dict[str, float]
  num_steps: int

  @property
  def per_step(self) -> float:
    """Operations of one optimizer update."""
    return sum(self.terms.values())

  @property
  def per_run(self) -> float:
    """Operations of the whole run."""
    return self.num_steps * self.per_step


@dataclass(frozen=True)
class NetworkSizes:
  """The sizes that determine the cost of one encoder."""

  hidden: int
  embed: int
  layers: int
  heads: int
  mlp: int
  vocab: int
  length: int
  heads_on_top: tuple[str, ...]  # of HEADS
  type_vocab: int = 2
  queries: int = 0  # width of queries, keys and values over all heads; 0: hidden
  cross_attention: bool = False  # whether each layer has a second attention, over an encoder of the same length
  mlm_share: float = PAPER_MLM_SHARE  # share of positions at the softmax, in the paper's count; 1 for language models


def model_flops(config: ConfigDict) -> FlopCount:
  """The matrix products that a training step needs, for MFU.

  Backward costs twice forward (x3 in all), embedding lookups cost nothing, the MLM head runs at masked slots only, and
  the vocabulary is the padded one. Recomputation (remat) is not counted, as a step does not need it.

  Args:
    config: a resolved config.
  """
  def forward(network: NetworkSizes) -> dict[str, float]:
    predictions = num_predictions(config.data.masking.rate, network.length)
    predictions *= ROWS[config.objective.name].predicted_share
    return _encoder(network) | _heads(network, predictions / network.length)

  return _count("matmuls only, 3 x forward, sparse lookups", config, config.model.vocab_size, forward, 3)


def paper_flops(config: ConfigDict) -> FlopCount:
  """The ELECTRA paper's count, for comparison with its tables (Appendix C).

  Backward costs as much as forward (x2), every embedding lookup is a product with a one-hot vector (token, position
  and segment tables), 15.625 % of positions reach the MLM softmax, and operations other than matrix products (softmax,
  dropout, layer norm, activation, bias, residual) count too. Within 0.1 % of the totals that the released code prints.

  Args:
    config: a resolved config.
  """
  return _count("ELECTRA Appendix C: 2 x forward, dense lookups, all operations", config,
                config.data.tokenizer.vocab_size, paper_forward, 2)


def steps_within(config: ConfigDict, total_flops: float) -> int:
  """Optimizer updates that a budget in the paper's convention pays for, to the nearest; at least 1.

  With equal budgets, recipes compare as in the paper's tables: "the same training FLOPs" (section 3.3).
  """
  return max(1, round(total_flops / paper_flops(config).per_step))


def paper_forward(net: NetworkSizes) -> dict[str, float]:
  """The paper's count for one network's forward pass: operations per token by term."""
  lookup = 2 * net.embed * (net.vocab + net.length + net.type_vocab)
  return _encoder(net) | _heads(net, net.mlm_share) | {"embedding_lookup": lookup, "elementwise": _elementwise(net)}


def _count(convention: str, config: ConfigDict, vocab_size: int, forward: Callable[[NetworkSizes], dict[str, float]],
           factor: int) -> FlopCount:
  """The count of a whole step; `forward` gives one network's operations per token by term."""
  num_tokens = config.train.batch_size * config.data.sequence_length
  terms = {f"{name}/{term}": float(_passes(config, name, factor) * num_tokens * count)
           for name, network in _networks(config, vocab_size).items() for term, count in forward(network).items()}
  return FlopCount(convention, terms, config.train.num_steps)


def _passes(config: ConfigDict, network: str, factor: int) -> float:
  """A step's cost of a network in forward passes, `factor` if it learns, 1 if it is frozen; the mean over the run."""
  if config.objective.name != "two_stage":
    return factor
  first = config.objective.generator_steps / config.train.num_steps  # the first stage's share
  return factor * first + (1 - first) if network == "generator" else factor * (1 - first)


def _networks(config: ConfigDict, vocab_size: int) -> dict[str, NetworkSizes]:
  """The encoders that one step runs, by name; a generator made of token counts costs nothing."""
  def network(branch, heads_on_top):
    return NetworkSizes(hidden=branch.hidden_size, embed=config.model.embedding_size, layers=branch.num_hidden_layers,
                   heads=branch.num_attention_heads, mlp=branch.intermediate_size, vocab=vocab_size,
                   length=config.data.sequence_length, heads_on_top=heads_on_top,
                   type_vocab=config.model.type_vocab_size)

  return {name: network(config.generator if name == "generator" else config.model, heads_on_top)
          for name, heads_on_top in ROWS[config.objective.name].networks.items()
          if name != "generator" or config.generator.kind == "learned"}


def kept_network(config: ConfigDict) -> NetworkSizes:
  """The encoder that fine-tuning keeps: the discriminator, or the masked LM itself; the vocabulary unpadded."""
  networks = _networks(config, config.data.tokenizer.vocab_size)
  return next(network for name, network in networks.items() if name != "generator")


# Forward operations per input token. A dense layer of n inputs and m outputs costs 2 n m.


def _encoder(net: NetworkSizes) -> dict[str, float]:
  queries, attentions = net.queries or net.hidden, net.layers * (2 if net.cross_attention else 1)
  return {
    "embedding_projection": 0 if net.embed == net.hidden else 2 * net.embed * net.hidden,
    "attention_projections": attentions * 2 * net.hidden * (3 * queries + net.hidden),  # query, key, value; output
    "attention_scores": attentions * 2 * (queries + net.hidden) * net.length,  # query x key, weights x value
    "feed_forward": net.layers * 2 * 2 * net.hidden * net.mlp,
  }


def _mlm_head(net: NetworkSizes, share: float) -> dict[str, float]:
  return {"mlm_head": 2 * net.hidden * net.embed * share, "mlm_softmax": 2 * net.embed * net.vocab * share}


def _hidden_layer(net: NetworkSizes) -> float:
  return 2 * net.hidden**2 + 2 * net.hidden  # a hidden layer, then one logit


# head -> (network, share of masked positions) -> its terms.
HEADS = MappingProxyType({
  "mlm": _mlm_head,
  "full_mlm": lambda net, share: _mlm_head(net, 1.0),
  "rtd": lambda net, share: {"rtd_head": _hidden_layer(net)},
  "sentence": lambda net, share: {"sentence_head": _hidden_layer(net) / net.length},  # at [CLS] only
  "nsp": lambda net, share: {"nsp_head": (2 * net.hidden**2 + 4 * net.hidden) / net.length},  # at [CLS] only
  "copy": lambda net, share: {"copy_head": 2 * net.hidden},
  "baseline": lambda net, share: {"baseline_head": 2 * net.hidden * share},
})


def _heads(net: NetworkSizes, share: float) -> dict[str, float]:
  return {term: count for head in net.heads_on_top for term, count in HEADS[head](net, share).items()}


# Operations per entry, counted by hand from the formulas; an exponential is one operation. Softmax finds and subtracts
# the maximum, takes the exponential, sums and divides; dropout draws, compares, multiplies and rescales; the tanh form
# of GELU has eight; layer norm subtracts, squares, divides, scales and shifts.
SOFTMAX, DROPOUT, GELU, LAYER_NORM = 5, 4, 8, 5


def _elementwise(net: NetworkSizes) -> float:
  embedding = net.embed * (2 + LAYER_NORM + DROPOUT) + (0 if net.embed == net.hidden else net.hidden)
  biases = 6 * net.hidden + net.mlp  # query, key, value, output, both of the feed-forward block
  blocks = 2 * net.hidden * (DROPOUT + 1 + LAYER_NORM)  # after attention and feed-forward; 1 = the residual
  scores = net.heads * net.length * (SOFTMAX + DROPOUT + 1)  # 1 = the division by sqrt(head size)
  layers = net.layers * (biases + blocks + scores + net.mlp * GELU)
  hidden_layer = net.hidden * (1 + GELU) + 1
  mlm = net.embed * (1 + GELU + LAYER_NORM) + net.vocab * (1 + SOFTMAX)
  heads = {"mlm": net.mlm_share * mlm, "full_mlm": mlm, "rtd": hidden_layer, "sentence": hidden_layer / net.length,
           "nsp": 3 * net.hidden / net.length, "copy": 1, "baseline": net.mlm_share}
  return embedding + layers + sum(heads[head] for head in net.heads_on_top)
