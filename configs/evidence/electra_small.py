"""ELECTRA-Small on a budget of minutes: sizes, dropout, masks, λ, batch and rate of configs/small.py (ELECTRA Table 4).

Differs from the paper: the warm-up is a tenth of the run, which has tens of thousands of steps and not a million.
Initial weights are as wide for 256 units as 0.02 is for 768: both networks leave their plateaus thousands of updates
earlier. As by the released code's defaults, the generator has a quarter of the width and all embeddings are shared;
with half of it and the token table alone, which is the preprint's text, the discriminator learnt no position more
exactly than to a few tokens (docs/results/small-vs-bert.md). The optimizer is AdamW, with bias correction: in runs this
short the discriminator learnt less with LAMB, which the preprint names, at every rate that was tried
(docs/results/lamb-vs-adamw.md). Masks and GELU are the preprint's (`configs/small.py:released` has the released
code's). BERT and the other rows of each table inherit the data, batch, rate and initial weights.
"""

from configs import common, small


def get_config(argument: str | None = None):
  c = small.get_config()
  c.model.initializer_range = 0.035  # 0.02 * sqrt(768 / 256)
  c.generator.width_fraction = 1 / 4
  c.objective.weight_tying = "embeddings"
  c.optimizer.update(name="adamw", learning_rate=5e-4, warmup_steps=None)  # None: a tenth of the run
  c.train.batch_size = 128
  c.train.num_steps = 35_000  # about 5e16 FLOPs; the tool computes the steps from its budget
  c.train.log_every_steps = 200
  c.data.heldout_share = 0.005  # 400 thousand of 70 million tokens are enough for an evaluation
  c.eval.update(every_steps=2_000, max_examples=4096)
  c.checkpoint.every_steps = 4_000
  return common.variant(c, argument)
