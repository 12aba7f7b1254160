"""The original BERT-Base (RoBERTa section 2, 110 M parameters): MLM and next sentence prediction, ten static masks.

Differs from BERT, whose first 90 % of steps ran at length 128 and whose data has 10 % of short sequences: RoBERTa
trains "only with full-length sequences" (section 3.1), and so does this recipe.
"""

from configs import common, variants


def get_config(argument: str | None = None):
  c = common.defaults()
  c.model.update(common.SIZES["base"])
  c.objective.name = "mlm_nsp"
  c.data.path = common.WIKIPEDIA
  c.data.format = "SEGMENT-PAIR"
  c.data.sequence_length = 512
  c.data.short_sequence_share = 0.0  # section 3.1: "we do not randomly inject short sequences"
  c.data.tokenizer.update(kind="wordpiece", vocab_size=30522)
  c.data.masking.update(common.BERT_MASKING)
  c.data.masking.num_static_masks = 10  # section 4.1: "training data was duplicated 10 times"
  c.optimizer.update(name="adamw", learning_rate=1e-4, warmup_steps=10_000, beta1=0.9, beta2=0.999, epsilon=1e-6,
                     weight_decay_rate=0.01, bias_correction=False)  # section 2.4; the released code's Adam
  c.train.batch_size = 256
  c.train.num_steps = 1_000_000
  return variants.apply(c, argument)
