"""Your own data: JSONL, CSV or TSV with a text (or two) and a label: --config=configs/finetune/own.py:classification

Or :multi_label, :regression, :tagging.
"""

from configs.finetune import glue
from electra_jax.errors import unknown

KINDS = ("classification", "multi_label", "regression", "tagging")


def get_config(argument: str | None = None):
  kind = argument or "classification"
  if kind not in KINDS:
    raise unknown("The kind of task is unknown", argument, KINDS, "write --config=configs/finetune/own.py:CLOSEST")
  c = glue.get_config()  # ELECTRA Table 5
  c.task.name = f"own_{kind}"
  c.task.update(num_seeds=5, select="best")
  return c
