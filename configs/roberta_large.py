"""RoBERTa-Large: RoBERTa Table 9 (355 M parameters); differs from Base in size, peak rate and warm-up."""

from configs import common, roberta_base, variants


def get_config(argument: str | None = None):
  c = roberta_base.get_config()
  c.model.update(common.SIZES["large"])
  c.optimizer.update(learning_rate=4e-4, warmup_steps=30_000)
  return variants.apply(c, argument)
