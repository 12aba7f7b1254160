"""Your own data: JSONL, CSV or TSV with a text (or two) and a label: --config=configs/finetune/own.py:classification"""

from configs.finetune import glue


def get_config(argument: str | None = None):
  c = glue.get_config()  # ELECTRA Table 5
  c.task.name = f"own_{argument or 'classification'}"  # or regression, tagging
  c.task.update(num_seeds=5, select="best")
  return c
