"""Variants of every recipe, the word behind the colon in --config=FILE:WORD (tiny, fast, fp8, released, short, ...)."""

from ml_collections import ConfigDict

from configs import common
from electra_jax.errors import unknown

SHORT_LENGTH = 128  # tokens of a row in the first of BERT's two runs


def tiny(config: ConfigDict) -> ConfigDict:
  """Shrinks any recipe to seconds on a laptop CPU and the embedded corpus: `--config=configs/base.py:tiny`."""
  config.model.update(hidden_size=64, embedding_size=64, num_hidden_layers=2, num_attention_heads=2,
                      intermediate_size=128)
  config.model.max_position_embeddings = 64 + config.model.position_offset
  config.generator.width_fraction = 1.0 if config.generator.width_fraction == 1 else 0.5  # equal sizes stay equal
  config.data.update(path="pydoc:", sequence_length=64, max_documents=400, heldout_share=0.05)
  config.data.tokenizer.update(vocab_size=1024, training_bytes=2_000_000)
  config.train.update(batch_size=16, num_steps=40, compute_dtype="float32", log_every_steps=10, steps_per_dispatch=1)
  config.optimizer.warmup_steps = config.train.get_ref("num_steps") // 4  # also of a run that the command line shortens
  config.eval.update(every_steps=0, max_examples=64)
  config.checkpoint.every_steps = 20
  return config


def fast(config: ConfigDict) -> ConfigDict:
  """Trades faithfulness for speed: no attention dropout, four times the batch in a quarter of the steps.

  The rate grows by the square root of the batch (You et al. 2020, LAMB). `--config=configs/small.py:fast`.
  """
  config.model.attention_probs_dropout_prob = 0.0
  config.train.update(batch_size=4 * config.train.batch_size, num_steps=config.train.num_steps // 4)
  config.optimizer.learning_rate *= 2
  if config.optimizer.warmup_steps is not None:
    config.optimizer.warmup_steps //= 4
  return config


def fp8(config: ConfigDict) -> ConfigDict:
  """Linear maps in 8 bits, where that is faster than in 16: `--config=configs/large.py:fp8` (docs/speed.md)."""
  config.train.matmul_precision = "fp8"
  return config


def released(config: ConfigDict) -> ConfigDict:
  """ELECTRA as the released code trains it where that departs from the preprint: `--config=configs/small.py:released`.

  Adam without bias correction, all embeddings shared, 85 % [MASK], GELU by tanh; of Small a generator as wide as the
  discriminator (its README), of Large masks of 25 %. Data and the order of draws stay ours (docs/differences.md).
  """
  config.optimizer.update(name="adamw", bias_correction=False)
  config.objective.weight_tying = "embeddings"
  config.data.masking.mask_share = 0.85  # the rest of the chosen tokens stay
  config.model.hidden_act = "gelu_new"
  if config.model.hidden_size == common.SIZES["small"]["hidden_size"]:
    config.generator.width_fraction = 1.0
  if config.model.hidden_size == common.SIZES["large"]["hidden_size"]:
    config.data.masking.rate = 0.25
  return config


def short(config: ConfigDict) -> ConfigDict:
  """The first of BERT's two runs: nine tenths of the updates, on rows of 128 tokens (Devlin et al. 2019, Appendix A.2).

  `--config=configs/base.py:short --workdir=runs/short`; `long` is the second.
  """
  if config.data.sequence_length <= SHORT_LENGTH:
    raise ValueError(f"':short' and ':long' are for recipes with rows longer than {SHORT_LENGTH} tokens; this one has "
                     f"{config.data.sequence_length}.")
  config.data.sequence_length = SHORT_LENGTH
  config.train.num_steps = _short_steps(config)
  return config


def long(config: ConfigDict) -> ConfigDict:
  """The second of BERT's two runs: the last tenth of the updates, at full length, from the parameters of the first.

  `--config=configs/base.py:long --workdir=runs/long --config.checkpoint.init_from=runs/short`, with its vocabulary.

  Differs from BERT, which does not say how the rate continues: it warms up anew, for a tenth of the updates at most.
  """
  config.train.num_steps -= _short_steps(config)
  config.optimizer.warmup_steps = None  # derived from the updates that are left
  return config


def continued(config: ConfigDict) -> ConfigDict:
  """Published weights, trained on with text of your own: a schedule for megabytes of text and one GPU.

  `--config=configs/bert_base.py:continued --config.checkpoint.init_from=PATH --config.data.path=TEXT`; the sizes are
  those of the weights. Objective, masks and format stay the recipe's.
  """
  config.data.update(sequence_length=min(SHORT_LENGTH, config.data.sequence_length), heldout_share=0.05)
  config.optimizer.update(name="adamw", learning_rate=5e-5)
  config.train.update(batch_size=64, num_steps=5000)
  config.optimizer.warmup_steps = config.train.get_ref("num_steps") // 10  # as in `tiny`
  config.eval.every_steps = config.checkpoint.every_steps = 500
  return config


def _short_steps(config: ConfigDict) -> int:
  return config.train.num_steps * 9 // 10


def apply(config: ConfigDict, argument: str | None) -> ConfigDict:
  """Applies the part of `--config=FILE:argument` after the colon; the recipes end with this call."""
  variants = {"": lambda c: c, "tiny": tiny, "fast": fast, "fp8": fp8, "short": short, "long": long,
              "continued": continued}
  if config.objective.name == "rtd":
    variants["released"] = released
  if (argument or "") not in variants:
    raise unknown("The recipe has no such variant", f":{argument}", [f":{name}" for name in variants if name],
                  "write --config=configs/base.pyCLOSEST, or leave the colon out")
  return variants[argument or ""](config)
