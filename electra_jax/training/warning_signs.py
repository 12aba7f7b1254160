"""Warning signs of a pre-training: what its metrics say, the likely cause, and the section that helps.

The console, tools/summary, the report and the model card all print what `find` gives.
"""

import math
from collections.abc import Callable

from ml_collections import ConfigDict

PAGE = "docs/troubleshooting.md"
AT_CHANCE = 0.51  # AUC; no discriminator here has recovered from below 0.516, and most plateaus are above 0.55
LOW_AUC = 0.65
NATS = 0.1  # of a masked LM's loss: at the unigram entropy, or risen since its best
MANY_PASSES = 40  # as many as BERT makes over its text
FEW_EXAMPLES = 1000


def find(config: ConfigDict, rows: list[dict]) -> list[str]:
  """A plain line for each sign in the last evaluation, the gravest first; [] up to a quarter of the steps, mostly.

  Args:
    config: resolved, of the run.
    rows: of its metrics.jsonl.
  """
  rows = [{name: value for name, value in row.items() if value == value} for row in rows]  # without NaN
  evaluations = [row for row in rows if row["split"] == "eval"]
  if not evaluations or config.task.name:
    return []
  is_early = 4 * evaluations[-1]["step"] <= config.train.num_steps
  signs = ((section, sign(config, evaluations)) for section, sign in SIGNS if sign is _collapsed or not is_early)
  return [f'{text} See "{section}" in {PAGE}.' for section, text in signs if text]


def _collapsed(config: ConfigDict, evaluations: list[dict]) -> str:
  last = evaluations[-1]
  generator_learns = last.get("mlm/loss", math.inf) < last.get("eval/unigram_entropy", -math.inf)
  if _is_first_stage(config, last) or not generator_learns or last.get("rtd/auc", 1.0) >= AT_CHANCE:
    return ""
  return ("The discriminator tells nothing apart (AUC 0.5, chance) although its generator learns: the learning rate is "
          "too high, and it hardly ever recovers. In a new workdir, halve --config.optimizer.learning_rate, warm up "
          f"over a third of the run (--config.optimizer.warmup_steps={config.train.num_steps // 3}), or take larger "
          "batches.")


def _unigram(config: ConfigDict, evaluations: list[dict]) -> str:
  del config
  last = evaluations[-1]
  loss, entropy = last.get("mlm/loss", -math.inf), last.get("eval/unigram_entropy", math.inf)
  if loss < entropy - NATS:
    return ""
  return (f"The masked LM does no better than the frequencies of the tokens (loss {loss:.2f}, unigram entropy "
          f"{entropy:.2f} nats): too few updates, too narrow a model, or too low a learning rate.")


def _rises(config: ConfigDict, evaluations: list[dict]) -> str:
  losses = [row["mlm/loss"] for row in evaluations if "mlm/loss" in row]
  if config.objective.name == "adversarial" or len(losses) < 2 or losses[-1] < min(losses) + NATS:
    return ""  # an adversary's own loss is not what it minimises
  return (f"The held-out MLM loss rises ({min(losses):.2f} at its best, now {losses[-1]:.2f}): where the training loss "
          "falls the model learns its text by heart, else the learning rate is too high.")


def _undecided(config: ConfigDict, evaluations: list[dict]) -> str:
  last = evaluations[-1]
  if "rtd/auc" not in last or _is_first_stage(config, last) or _collapsed(config, evaluations):
    return ""
  auc, recall = last["rtd/auc"], last.get("rtd/recall", 1.0)
  if auc >= LOW_AUC and recall > 0:
    return ""
  if auc >= LOW_AUC:
    return (f"The discriminator ranks replaced tokens above others (AUC {auc:.2f}), but marks none (recall 0): it is "
            "not sure enough of any yet.")
  return (f"The discriminator hardly tells replaced tokens from others (AUC {auc:.2f}, chance is 0.5; recall "
          f"{100 * recall:.1f} %): it does not look at their neighbours yet.")


def _few(config: ConfigDict, evaluations: list[dict]) -> str:
  last = evaluations[-1]
  epoch = last.get("epoch", 0.0)
  examples = round(last["step"] * config.train.batch_size / epoch) if epoch > 0 else FEW_EXAMPLES
  return f"The training set is small, about {examples:,} examples: more text helps most." * (examples < FEW_EXAMPLES)


def _passes(config: ConfigDict, evaluations: list[dict]) -> str:
  last = evaluations[-1]
  passes = last.get("epoch", 0.0) / max(1, last["step"]) * config.train.num_steps
  return (f"The run makes {passes:,.0f} passes over its text: more text, or fewer steps, would be worth more."
          * (passes > MANY_PASSES))


def _is_first_stage(config: ConfigDict, row: dict) -> bool:
  """Whether the generator is trained alone."""
  return config.objective.name == "two_stage" and row["step"] <= config.objective.generator_steps


# (section of PAGE, (config, evaluations) -> what is wrong, "" if it is not)
SIGNS: tuple[tuple[str, Callable], ...] = (
  ("The discriminator collapses", _collapsed), ("The masked LM does not learn", _unigram),
  ("The loss rises", _rises), ("The discriminator does not learn", _undecided), ("Little text", _few),
  ("Little text", _passes))
