"""GLUE as the papers fine-tune: --config=configs/finetune/glue.py:cola, :cola,large, :cola,roberta or :cola,bert

ELECTRA Table 5 (its Base and Small, or `large`), RoBERTa Table 10 (`roberta`) and, for the comparisons of RoBERTa's
section 4, the original BERT paper (`bert`). From the grids these take the middle learning rate and a batch of 16 or 32;
electra_jax.tools.experiments runs the whole grid.

Differs from the released ELECTRA code, whose Adam has no bias correction and whose MRPC and STS-B examples are shown in
both orders (`task.swap_pairs`, which the paper does not mention).

Differs from fairseq's RoBERTa, whose head has no dropout, whose Adam decays biases and layer norms too, and which
starts RTE, STS-B and MRPC with a new head: here the hidden layer of the MNLI model's head is kept.
"""

from configs import common
from electra_jax.errors import unknown

TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "qnli_ranking", "rte", "wnli", "wnli_ranking", "wsc")
LONG = ("rte", "stsb")  # ELECTRA Table 5: 10 epochs; RoBERTa trains 10 on every task


def electra(c, task: str) -> None:
  """ELECTRA Table 5, Base and Small; median of 10 runs (section 3.1)."""
  c.optimizer.update(name="adamw", learning_rate=1e-4, epsilon=1e-6, weight_decay_rate=0.0)
  c.train.batch_size = 32
  c.task.update(layer_decay=0.8, warmup_share=0.1, num_epochs=10.0 if task in LONG else 3.0, num_seeds=10)


def electra_large(c, task: str) -> None:
  """ELECTRA Table 5, Large."""
  electra(c, task)
  c.optimizer.learning_rate = 5e-5
  c.task.layer_decay = 0.9


def roberta(c, task: str) -> None:
  """RoBERTa Table 10 and section 5.1: early stopping on the dev metric, median of 5 runs; beta2 of Table 9."""
  del task
  c.optimizer.update(name="adamw", learning_rate=2e-5, epsilon=1e-6, beta2=0.98, weight_decay_rate=0.1, clip_norm=0.0)
  c.train.batch_size = 16
  c.task.update(warmup_share=0.06, num_epochs=10.0, select="best", pooler="tanh", num_seeds=5,
                max_length=512)  # section 5.1: everything that Table 10 does not name is as in pre-training


def bert(c, task: str) -> None:
  """RoBERTa section 3.3: "following the original BERT paper" (its Appendix A.3), median of 5; the released Adam."""
  del task
  c.optimizer.update(name="adamw", learning_rate=3e-5, epsilon=1e-6, weight_decay_rate=0.01, bias_correction=False)
  c.train.batch_size = 32
  c.task.update(warmup_share=0.1, num_epochs=3.0, pooler="tanh", num_seeds=5)


PAPERS = {"": electra, "large": electra_large, "roberta": roberta, "bert": bert}


def get_config(argument: str | None = None):
  task, _, paper = (argument or "cola").partition(",")
  if task not in TASKS:
    raise unknown("The task is unknown", task, TASKS, "write --config=configs/finetune/glue.py:CLOSEST")
  if paper not in PAPERS:
    raise unknown("The paper is unknown", paper, filter(None, PAPERS),
                  f"write --config=configs/finetune/glue.py:{task},CLOSEST")
  c = common.defaults()
  c.task.name = task
  # Fetched by TFDS; or a folder with GLUE's own files, or SuperGLUE's WSC (RoBERTa's WNLI, section 5.1)
  c.task.data_dir = "tfds:super_glue" if task == "wsc" else "tfds:glue"
  c.checkpoint.keep_last = 1
  c.eval.batch_size = 64
  PAPERS[paper](c, task)
  return c
