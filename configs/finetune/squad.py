"""SQuAD as the papers fine-tune: --config=configs/finetune/squad.py:v2.0, :v1.1,large or :v2.0,roberta

ELECTRA Table 5 (rates, decay) with its released code's two epochs and 512 tokens; RoBERTa Table 10 with the 384 tokens
of Devlin et al., whose procedure it follows (section 5.2). Windows as in BERT's code.

The ELECTRA recipes predict the end from the start, as their paper does; the RoBERTa recipe predicts each on its own.

Differs from the released ELECTRA code, which halves the classifier's loss; here it is added in full.
"""

from configs import common
from configs.finetune import glue
from electra_jax.errors import unknown

VERSIONS = ("v1.1", "v2.0")


def electra(c, table_5=glue.electra) -> None:
  """ELECTRA Table 5, Base and Small."""
  table_5(c, "squad")
  c.task.update(num_epochs=2.0, max_length=512, span_head="joint")


def electra_large(c) -> None:
  """ELECTRA Table 5, Large."""
  electra(c, glue.electra_large)


def roberta(c) -> None:
  """RoBERTa Table 10; the same rate for all layers; beta2 of Table 9."""
  c.optimizer.update(name="adamw", learning_rate=1.5e-5, epsilon=1e-6, beta2=0.98, weight_decay_rate=0.01,
                     clip_norm=0.0)
  c.train.batch_size = 48
  c.task.update(warmup_share=0.06, num_epochs=2.0, max_length=384, num_seeds=5)


PAPERS = {"": electra, "large": electra_large, "roberta": roberta}


def get_config(argument: str | None = None):
  version, _, paper = (argument or "v2.0").partition(",")
  if version not in VERSIONS:
    raise unknown("The version is unknown", version, VERSIONS, "write --config=configs/finetune/squad.py:CLOSEST")
  if paper not in PAPERS:
    raise unknown("The paper is unknown", paper, filter(None, PAPERS),
                  f"write --config=configs/finetune/squad.py:{version},CLOSEST")
  c = common.defaults()
  c.task.name = f"squad_{version}"
  c.task.seeds_at_once = 1  # one run of this size fills an accelerator
  c.checkpoint.keep_last = 1
  c.eval.batch_size = 64
  PAPERS[paper](c)
  return c
