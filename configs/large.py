"""ELECTRA-Large: ELECTRA Table 4, column "Large" (335 M parameters; the paper's data is XLNet's 33 B tokens)."""

from configs import common, variants


def get_config(argument: str | None = None):
  c = common.defaults()
  c.model.update(common.SIZES["large"])
  c.generator.width_fraction = 1 / 4
  c.data.path = common.WIKIPEDIA
  c.data.sequence_length = 512
  c.data.tokenizer.kind = "wordpiece"
  c.optimizer.learning_rate = 2e-4
  c.optimizer.warmup_steps = 10_000
  c.train.batch_size = 2048
  c.train.num_steps = 400_000
  return variants.apply(c, argument)
