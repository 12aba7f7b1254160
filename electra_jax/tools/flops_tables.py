"""Costs of the rows of ELECTRA Tables 1 and 2 by our count, in the convention of its Appendix C.

The paper's figures are those of the preprint (two digits) or, if a row says ICLR, of the conference version.
"""

from dataclasses import dataclass, replace

from electra_jax.flops import NetworkSizes, paper_forward

BACKWARD = 2  # Appendix C: the backward pass takes as many operations as the forward pass
INFERENCE_LENGTH = 128  # Table 1: "Infer FLOPs assumes single length-128 input"


@dataclass(frozen=True)
class PaperRow:
  """A model of a table: our counts, and the figures of the paper and of the released counting script."""

  name: str
  source: str
  train_flops: float | None
  inference_flops: float
  parameters: int
  paper_train_flops: float | None = None
  paper_inference_flops: float | None = None
  paper_parameters: float | None = None
  reference_train_flops: float | None = None  # the released script's; the papers round, or count differently
  note: str = ""

  def as_dict(self) -> dict:
    """The fields, and the relative differences of our counts from the paper's and the script's."""
    def difference(ours, theirs):
      return None if ours is None or theirs is None else ours / theirs - 1

    return vars(self) | {
      "train_difference": difference(self.train_flops, self.paper_train_flops),
      "inference_difference": difference(self.inference_flops, self.paper_inference_flops),
      "parameters_difference": difference(self.parameters, self.paper_parameters),
      "reference_difference": difference(self.train_flops, self.reference_train_flops),
    }


def _bert(hidden: int, layers: int, *, embed: int = 0, vocab: int = 30522, length: int = 512, mlp: int = 0,
          **changes) -> NetworkSizes:
  return NetworkSizes(hidden=hidden, embed=embed or hidden, layers=layers, heads=max(1, hidden // 64),
                 mlp=mlp or 4 * hidden, vocab=vocab, length=length, heads_on_top=("mlm",), **changes)


SMALL = _bert(256, 12, embed=128, length=128)
BASE = _bert(768, 12)
LARGE = _bert(1024, 24)
ROBERTA = _bert(1024, 24, vocab=50265)
GPT = _bert(768, 12, vocab=40000, mlm_share=1.0)
ALBERT = _bert(4096, 12, embed=128, vocab=30000)
T5_ENCODER = replace(_bert(1024, 24, vocab=32000, mlp=65536, queries=128 * 128, mlm_share=0.0), heads=128)
T5_DECODER = replace(T5_ENCODER, cross_attention=True, mlm_share=1.0)


def training(networks: tuple[NetworkSizes, ...], batch_size: int, num_steps: float) -> float:
  """Operations of training the networks together, with each token going through all of them."""
  return BACKWARD * num_steps * batch_size * sum(net.length * sum(paper_forward(net).values()) for net in networks)


def inference(net: NetworkSizes) -> float:
  """Operations of one input of 128 tokens: the encoder and a hidden layer with one output at every token.

  A classifier needs that layer only at [CLS]; the released script, and so the tables, count it at each token.
  """
  single = replace(net, length=INFERENCE_LENGTH, heads_on_top=("rtd",))
  return INFERENCE_LENGTH * sum(paper_forward(single).values())


def parameters(net: NetworkSizes, *, positions: int = 512, shared_layers: bool = False) -> int:
  """Parameters of an encoder with its embeddings and layer norms, without head and pooler."""
  tables = net.embed * (net.vocab + positions + net.type_vocab + 2)  # 2: the layer norm
  projection = 0 if net.embed == net.hidden else (net.embed + 1) * net.hidden
  attention = 4 * net.hidden * (net.queries or net.hidden) + 3 * (net.queries or net.hidden) + net.hidden
  feed_forward = 2 * net.hidden * net.mlp + net.mlp + net.hidden
  layer = attention * (2 if net.cross_attention else 1) + feed_forward + 4 * net.hidden  # 4: two layer norms
  return tables + projection + layer * (1 if shared_layers else net.layers)


# ---- ELMo: two directions of two LSTM layers over characters; no Transformer, so its terms are its own ----
CHARACTERS, CHARACTER_WIDTH, LSTM_CELLS, LSTM_WIDTH, HIGHWAYS, SAMPLED_WORDS = 50, 16, 4096, 512, 2, 8192
FILTERS = {1: 32, 2: 32, 3: 64, 4: 128, 5: 256, 6: 512, 7: 1024}  # characters that a filter sees -> filters


def elmo_forward() -> dict[str, float]:
  """Operations per token; in training the softmax is over 8192 sampled words in each direction."""
  filters = sum(FILTERS.values())
  places = sum(width * count * (CHARACTERS - width + 1) for width, count in FILTERS.items())
  lstm = 2 * (4 * LSTM_CELLS * 2 * LSTM_WIDTH + LSTM_CELLS * LSTM_WIDTH)  # four gates, then the projection
  return {"characters": 2 * CHARACTER_WIDTH * places, "highway": HIGHWAYS * 2 * 2 * filters**2,
          "projection": 2 * filters * LSTM_WIDTH, "lstm": 2 * 2 * lstm,
          "sampled_softmax": 2 * 2 * LSTM_WIDTH * SAMPLED_WORDS}


def elmo_parameters() -> int:
  """Parameters of ELMo without its softmax."""
  filters = sum(FILTERS.values())
  convolutions = 262 * CHARACTER_WIDTH + sum((CHARACTER_WIDTH * w + 1) * n for w, n in FILTERS.items())
  lstm = 4 * LSTM_CELLS * (2 * LSTM_WIDTH + 1) + LSTM_CELLS * LSTM_WIDTH
  return convolutions + HIGHWAYS * 2 * filters * (filters + 1) + (filters + 1) * LSTM_WIDTH + 4 * lstm


# ---- XLNet: Transformer-XL's relative attention with two streams in training, 85 of 512 tokens predicted ----
PREDICTED = 85


def xlnet_forward(length: int, *, two_streams: bool, lookup: bool) -> float:
  """Operations of one sequence. That there is no memory of earlier segments and no lookup, and that relative positions
  are projected once for 32 sequences, is assumed to meet the script's total, so that this row is no independent check.

  `lookup` counts the token table as a product, as for every other model in inference.
  """
  h, layers, vocab, queried = 1024, 24, 32000, PREDICTED if two_streams else 0
  streams = 2 if two_streams else 1
  projections = 2 * h * h * (4 * length + 2 * queried + 2 * length / 32)  # query, key, value, output; positions
  scores = streams * 2 * h * length * (length + 2 * length + length)  # contents, relative positions, weights x values
  targets = 2 * 2 * h * length * queried  # the query stream's rows to their places and back
  feed_forward = 2 * 2 * h * 4 * h * (length + queried)
  elementwise = streams * 16 * length * length * 12  # softmax, dropout, scale, the two sums; 16 heads
  softmax = 2 * queried * h * vocab
  layer = projections + scores + targets + feed_forward + elementwise
  return layers * layer + softmax + lookup * 2 * length * h * vocab


def xlnet_parameters() -> int:
  """Parameters of XLNet-Large: five attention matrices a layer, no position table."""
  return 32000 * 1024 + 24 * (5 * 1024**2 + 8 * 1024**2 + 5 * 1024 + 3 * 1024 + 4 * 1024)


def _row(name: str, source: str, networks: tuple[NetworkSizes, ...], batch_size: int, num_steps: float, *paper,
         reference: float | None = None, note: str = "", **counting) -> PaperRow:
  """A row. `paper`: training operations, inference operations, parameters; the last network is the kept one."""
  kept = networks[-1]
  return PaperRow(name, source, training(networks, batch_size, num_steps), inference(kept),
                  parameters(kept, **counting), *paper, reference_train_flops=reference, note=note)


def rows() -> list[PaperRow]:
  """Every row, in the papers' order."""
  return [*_small_models(), *_large_models(), *_beyond_the_tables()]


def speedups() -> dict[str, str]:
  """Model -> its comparison with BERT-Base in training / inference (Table 1) or with ELECTRA-400K (Table 2).

  >>> speedups()["BERT-Small"], speedups()["BERT-Large"]
  ('45x / 7.8x', '(0.27x)')
  """
  by_name = {row.name: row for row in rows()}
  base, large = by_name["BERT-Base"], by_name["ELECTRA-400K"]

  def times(more: float | None, less: float | None) -> str:
    if not more or not less:
      return "-"
    return f"{more / less:.0f}x" if more / less >= 10 else f"{more / less:.2g}x"

  small = {row.name: f"{times(base.train_flops, row.train_flops)} / "
                     f"{times(base.inference_flops, row.inference_flops)}"
           for row in rows() if row.source.startswith("ELECTRA Table 1")}
  return small | {row.name: f"({times(row.train_flops, large.train_flops)})"
                  for row in rows() if row.source.startswith("ELECTRA Table 2")}


def _electra(encoder: NetworkSizes, generator_hidden: int) -> tuple[NetworkSizes, NetworkSizes]:
  heads = max(1, generator_hidden // 64)
  return (replace(encoder, hidden=generator_hidden, mlp=4 * generator_hidden, heads=heads),
          replace(encoder, heads_on_top=("rtd",)))


def _small_models() -> list[PaperRow]:
  table, conference = "ELECTRA Table 1", "ELECTRA Table 1 (ICLR)"
  elmo = elmo_forward()
  per_token = sum(elmo.values())
  small, base = _electra(SMALL, 128), _electra(BASE, 256)
  distilbert = replace(BASE, layers=6)
  fractions = [_row(f"ELECTRA-Small, {share} of the steps", conference, small, 128, steps, paper, 3.7e9, 14e6)
               for share, steps, paper in (("50 %", 500_000, 7.1e17), ("25 %", 250_000, 3.6e17),
                                           ("12.5 %", 125_000, 1.8e17), ("6.25 %", 62_500, 8.9e16))]
  return [
    PaperRow("ELMo", table, BACKWARD * 10 * 768_648_884 * per_token,  # ten epochs of the One Billion Word benchmark
        INFERENCE_LENGTH * (per_token - elmo["sampled_softmax"]), elmo_parameters(), 3.3e18, 2.6e10, 96e6, 3.411e18,
        "matrix products only; the script's own total is 3 % above the paper's"),
    _row("GPT", table, (GPT,), 128, 960_800, 4.0e19, 3.0e10, 117e6, reference=3.969e19),
    _row("BERT-Small", table, (SMALL,), 128, 1_450_000, 1.4e18, 3.7e9, 14e6, reference=1.419e18),
    _row("BERT-Base", table, (BASE,), 256, 1_000_000, 6.4e19, 2.9e10, 110e6, reference=6.428e19),
    PaperRow("DistilBERT", table, None, inference(distilbert), parameters(distilbert), None, 1.4e10, 66e6,
        note="the paper halves BERT-Base with its embedding lookup, which DistilBERT keeps whole"),
    _row("ELECTRA-Small", table, small, 128, 1_000_000, 1.4e18, 3.7e9, 14e6, note="generator 1/2 as in Table 4"),
    *fractions,
    _row("ELECTRA-Small, generator 1/4", "released script", _electra(SMALL, 64), 128, 1_000_000, 1.4e18, 3.7e9, 14e6,
         reference=1.294e18, note="the script's generator"),
    _row("ELECTRA-Base", table, base, 256, 766_000, 6.4e19, 2.9e10, 110e6, reference=6.425e19),
  ]


def _large_models() -> list[PaperRow]:
  table, conference = "ELECTRA Table 2", "ELECTRA Table 2 (ICLR)"
  large = _electra(LARGE, 256)
  xlnet = xlnet_forward(512, two_streams=True, lookup=False)
  xlnet_inference = xlnet_forward(INFERENCE_LENGTH, two_streams=False, lookup=True)

  def xlnet_row(source, batch_size, paper, reference, note):
    return PaperRow("XLNet" if reference else "XLNet, batch 2048", source, BACKWARD * 500_000 * batch_size * xlnet,
               xlnet_inference, xlnet_parameters(), paper, None, 360e6, reference, note)

  return [
    _row("BERT-Large", table, (LARGE,), 256, 1_000_000, 1.9e20, None, 335e6, reference=1.917e20),
    xlnet_row(table, 2048, 9.6e20, None, "the preprint's figure is a quarter of the later one: batches of 2048"),
    xlnet_row(conference, 8192, 3.9e21, 3.857e21, "two streams; assumptions chosen to meet the script"),
    _row("RoBERTa-100K", table, (ROBERTA,), 8000, 100_000, 6.4e20, None, 356e6),
    _row("RoBERTa-500K", table, (ROBERTA,), 8000, 500_000, 3.2e21, None, 356e6, reference=3.187e21),
    _row("BERT (ours)", table, (LARGE,), 2048, 464_000, 7.1e20, None, 335e6),
    _row("SpanBERT", table, (LARGE,), 256, 2_400_000, 7.1e20, None, 335e6,
         note="2.4M steps of 256 without its boundary head; the paper does not say what it counts"),
    _row("ELECTRA-400K", table, large, 2048, 400_000, 7.1e20, None, 335e6, reference=7.118e20),
    _row("ELECTRA-1.75M", conference, large, 2048, 1_750_000, 3.1e21, None, 335e6, reference=3.114e21),
  ]


def _beyond_the_tables() -> list[PaperRow]:
  t5 = training((T5_ENCODER, T5_DECODER), 2048, 1_000_000)
  t5_parameters = (parameters(T5_ENCODER, positions=0)
                   + parameters(replace(T5_DECODER, vocab=0), positions=0))  # one token table for both
  return [
    _row("ALBERT", "ELECTRA Table 3 (ICLR)", (ALBERT,), 4096, 1_500_000, 3.1e22, None, 235e6, reference=3.114e22,
         shared_layers=True, note="xxlarge: one layer's parameters, run twelve times"),
    PaperRow("T5-11B", "released script", t5, inference(T5_ENCODER) + inference(replace(T5_DECODER, vocab=0)),
        t5_parameters, None, None, 11e9, 4.582e22,
        "weighted sum and attention output at the width 1024, as the script has them; they are 16384 wide"),
  ]
