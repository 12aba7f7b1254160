"""ELECTRA-Base: ELECTRA Table 4, column "Base" (110 M parameters). "Base" is a size, not a base class."""

from configs import common, variants


def get_config(argument: str | None = None):
  c = common.defaults()
  c.model.update(common.SIZES["base"])
  c.generator.width_fraction = 1 / 3
  c.data.path = common.WIKIPEDIA
  c.data.sequence_length = 512
  c.data.tokenizer.kind = "wordpiece"
  c.optimizer.learning_rate = 2e-4
  c.optimizer.warmup_steps = 10_000
  c.train.batch_size = 256
  c.train.num_steps = 766_000
  return variants.apply(c, argument)
