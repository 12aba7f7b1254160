"""Your own data, JSONL, CSV or TSV with one or two texts and a label: --config=configs/finetune/own.py:classification

Or :multi_label, :regression, :tagging.
"""

from ml_collections.config_dict import placeholder

from configs.finetune import glue
from electra_jax.errors import unknown

KINDS = ("classification", "multi_label", "regression", "tagging")


def get_config(argument: str | None = None):
  kind = argument or "classification"
  if kind not in KINDS:
    raise unknown("The kind of task is unknown", argument, KINDS, "write --config=configs/finetune/own.py:CLOSEST")
  c = glue.get_config()  # ELECTRA Table 5, except for what config.fit_to_encoder derives from the encoder's width
  c.optimizer.learning_rate = placeholder(float)
  c.task.layer_decay, c.task.fresh_layers = placeholder(float), placeholder(int)
  c.task.update(name=f"own_{kind}", num_seeds=5, select="best")
  return c
