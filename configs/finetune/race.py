"""RACE as the papers fine-tune: --config=configs/finetune/race.py, :large or :roberta

RoBERTa Table 10 and section 5.3. ELECTRA has no RACE: its rows are Table 5's hyper-parameters with RoBERTa's batches.
"""

from configs import common
from configs.finetune import glue
from electra_jax.errors import unknown


def roberta(c, task: str) -> None:
  """RoBERTa Table 10: unlike GLUE, a learning rate of 1e-5 and 4 epochs."""
  glue.roberta(c, task)
  c.optimizer.learning_rate = 1e-5
  c.task.num_epochs = 4.0


PAPERS = {"": glue.electra, "large": glue.electra_large, "roberta": roberta}


def get_config(argument: str | None = None):
  if (argument or "") not in PAPERS:
    raise unknown("The paper is unknown", argument, filter(None, PAPERS),
                  "write --config=configs/finetune/race.py:CLOSEST, or leave the colon out")
  c = common.defaults()
  c.task.name = "race"
  c.checkpoint.keep_last = 1
  PAPERS[argument or ""](c, "race")
  c.train.batch_size = 16  # RoBERTa Table 10; questions, of four sequences each
  c.eval.batch_size = 16
  c.task.update(max_length=512, max_question_length=128, seeds_at_once=1)
  return c
