"""What do the papers claim, and which runs repeat it? A row for each claim, with the paper's own numbers."""

import os
from collections.abc import Sequence
from typing import NamedTuple

from ml_collections import ConfigDict, FrozenConfigDict

from electra_jax import config as config_lib
from electra_jax import flops, recipes
from electra_jax.errors import UserError
from electra_jax.tools import ablate

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
MODELS = "models"  # folder of all models, in that of the claims
AVERAGE = "average"  # ELECTRA section 3.1: of the eight tasks
PERPLEXITY = "perplexity"  # of held-out text; it means something only between masked LMs


class Model(NamedTuple):
  """A row of a table."""

  name: str
  recipe: str  # row of configs/evidence.py
  paper: dict[str, float | None]  # metric -> what the paper prints; of Base or of longer runs, so the order counts
  # What is equal. flops: the budget's | steps:NAME: as many as that model's | seconds:NAME: as long as that model took
  equal: str = "flops"


class Claim(NamedTuple):
  """A table of a paper, repeated."""

  source: str  # paper and table
  says: str  # what it claims, in one sentence
  models: tuple[Model, ...]
  metrics: tuple[str, ...] = (AVERAGE,)  # the columns that are compared
  tasks: tuple[str, ...] = GLUE  # WNLI is in no average (ELECTRA section 3.1)
  flops: float = 2e16  # of each run, in the paper's convention, where the command names none


def _glue(name: str, recipe: str, score: float | None, equal: str = "flops") -> Model:
  return Model(name, recipe, {AVERAGE: score}, equal)


def _roberta(name: str, recipe: str, mnli: float, sst2: float, perplexity: float | None = None) -> Model:
  return Model(name, recipe, {"mnli": mnli, "sst2": sst2} | ({PERPLEXITY: perplexity} if perplexity else {}))


ROBERTA_TASKS = ("mnli", "sst2")
CLAIMS: dict[str, Claim] = {
  "small-vs-bert": Claim(
    "ELECTRA Table 1", "ELECTRA-Small is ahead of BERT-Small at equal training FLOPs.",
    (_glue("ELECTRA-Small", "electra_small", 79.0), _glue("BERT-Small", "bert_small", 74.7)),
    tasks=(*GLUE, "wnli"), flops=1e17),
  "table3": Claim(
    "ELECTRA Table 3", "ELECTRA is best, All-Tokens MLM comes close; learning from 15 % of the tokens costs most.",
    (_glue("ELECTRA", "electra_small", 85.0), _glue("All-Tokens MLM", "all_tokens_mlm", 84.3),
     _glue("Replace MLM", "replace_mlm", 82.4), _glue("ELECTRA 15%", "electra_15", 82.4),
     _glue("BERT", "bert_small", 82.2))),
  "roberta-masking": Claim(
    "RoBERTa Table 1", "Dynamic masks are as good as static ones or slightly better.",
    (_roberta("static", "bert_static", 84.3, 92.5), _roberta("dynamic", "bert_small", 84.0, 92.9)),
    ROBERTA_TASKS, ROBERTA_TASKS),
  "roberta-formats": Claim(
    "RoBERTa Table 2", "Without NSP results are as good or better; single sentences hurt.",
    (_roberta("SEGMENT-PAIR, NSP", "bert_segment_pair", 84.0, 92.9),
     _roberta("SENTENCE-PAIR, NSP", "bert_sentence_pair", 82.9, 92.1),
     _roberta("FULL-SENTENCES", "bert_full_sentences", 84.7, 92.5),
     _roberta("DOC-SENTENCES", "bert_doc_sentences", 84.7, 92.7)), ROBERTA_TASKS, ROBERTA_TASKS),
  "roberta-batch": Claim(
    "RoBERTa Table 3", "At equal epochs a batch eight times as large has the better perplexity, one of 32 times too.",
    (_roberta("batch 128 (256)", "bert_batch_128", 84.7, 92.7, 3.99),
     _roberta("batch 1024 (2K)", "bert_batch_1024", 85.2, 92.9, 3.68),
     _roberta("batch 4096 (8K)", "bert_batch_4096", 84.6, 92.8, 3.77)), (PERPLEXITY, *ROBERTA_TASKS), ROBERTA_TASKS),
  "lamb-vs-adamw": Claim(
    "ELECTRA Appendix A", "LAMB does not outperform a well-tuned Adam.",
    (_glue("LAMB", "electra_lamb", None), _glue("AdamW", "electra_small", None))),
  "generator-size": Claim(
    "ELECTRA Figure 3, left", "At equal steps, generators of a quarter to a half of the discriminator are best.",
    (_glue("1/4", "electra_small", None), _glue("1/2", "generator_half", None, "steps:1/4"),
     _glue("1", "generator_full", None, "steps:1/4"))),
  "two-stage": Claim(
    "ELECTRA Figure 3, right", "Training in two stages does not outperform joint training; both are ahead of BERT.",
    (_glue("joint", "electra_small", None), _glue("two-stage", "two_stage", None), _glue("BERT", "bert_small", None))),
  "fast-vs-faithful": Claim(
    "our own recipes", "Without attention dropout, and with `:fast` as a whole, the same quality takes less time.",
    (_glue("faithful", "electra_small", None),
     _glue("no attention dropout", "electra_no_attention_dropout", None),
     _glue("no attention dropout, equal time", "electra_no_attention_dropout", None, "seconds:faithful"),
     _glue("fast", "electra_small:fast", None),
     _glue("fast, equal time", "electra_small:fast", None, "seconds:faithful"))),
}


class Planned(NamedTuple):
  """A model of a claim with its steps."""

  model: Model
  recipe: str  # FILE[:variant]
  config: FrozenConfigDict
  num_steps: int
  flops: float  # in the paper's convention
  folder: str  # pretrain/ and the sweeps over GLUE are below
  fine_tuning: str = "glue"  # folder of the sweeps; each way to fine-tune has its own

  @property
  def workdir(self) -> str:
    """Of the pre-training."""
    return os.path.join(self.folder, "pretrain")

  @property
  def sweeps(self) -> str:
    """Has step_N/, a sweep over GLUE from the checkpoint of that step."""
    return os.path.join(self.folder, self.fine_tuning)


def claim_of(name: str) -> Claim:
  """The row of CLAIMS.

  Raises:
    UserError: there is none.
  """
  if name not in CLAIMS:
    raise UserError("The claim is unknown", got=name or "nothing", allowed=", ".join(CLAIMS),
                    fix="launch/reproduce.sh small-vs-bert")
  return CLAIMS[name]


def plan(name: str, out: str, total_flops: float | None = None, settings: Sequence[str] = (), *,
         seconds_per_step: dict[str, float] | None = None, only: Sequence[str] = (),
         pretrainings: int = 1) -> list[Planned]:
  """Every run of a claim with the steps that its budget pays for; nothing is written.

  A row of equal time is left out until `seconds_per_step` has its own speed and the other row's.

  Args:
    name: a row of CLAIMS.
    out: folder of all claims.
    total_flops: of each run; None: the claim's.
    settings: KEY=VALUE for every recipe.
    seconds_per_step: recipe -> what a step took, as far as it is known.
    only: names of recipes; () = all.
    pretrainings: of each model, with as many seeds; the first ones of all models come first.

  Raises:
    UserError: the claim or a setting does not exist, or a recipe cannot be loaded.
  """
  claim = claim_of(name)
  total_flops, speeds = total_flops or claim.flops, seconds_per_step or {}
  rows: dict[str, Planned] = {}
  for model in claim.models:
    path = f"evidence:{model.recipe.replace(':', ',')}"
    _, given = recipes.load(path)
    ablate.override(given, settings)
    config_lib.fit_dispatches(given)
    config = config_lib.resolve(given)
    kind, _, other = model.equal.partition(":")
    if kind == "flops":
      steps = config_lib.whole_dispatches(flops.steps_within(config, total_flops), config.train.steps_per_dispatch)
    elif kind == "steps":
      steps = rows[other].num_steps
    elif speeds.get(model.recipe) and speeds.get(rows[other].model.recipe):
      steps = round(rows[other].num_steps * speeds[rows[other].model.recipe] / speeds[model.recipe])
      steps = config_lib.whole_dispatches(steps, config.train.steps_per_dispatch)
    else:
      continue
    given = ConfigDict(given.to_dict())
    given.train.num_steps = steps
    config_lib.fit_dispatches(given)
    config = config_lib.resolve(given)
    folder = os.path.join(out, MODELS, f"{model.recipe.replace(':', '_')}-{steps}")  # claims share a model
    rows[model.name] = Planned(model, path, config, steps, flops.paper_flops(config).per_run, folder)
  chosen = [row for row in rows.values() if not only or row.model.recipe in only]
  return [_with_seed(row, number) for number in range(pretrainings) for row in chosen]


def _with_seed(row: Planned, number: int) -> Planned:
  """A model's pre-training from other initial weights, masks, order and dropout; number 0 is the recipe's own."""
  if not number:
    return row
  seed = row.config.seed + number
  return row._replace(config=FrozenConfigDict(row.config.to_dict() | {"seed": seed}),
                      folder=f"{row.folder}-seed_{seed}")


def by_model(rows: Sequence[Planned]) -> list[list[Planned]]:
  """The pre-trainings of each model."""
  found: dict[str, list[Planned]] = {}
  for row in rows:
    found.setdefault(row.model.name, []).append(row)
  return list(found.values())


def describe(name: str, rows: Sequence[Planned]) -> str:
  """What will be run, for `plan`."""
  claim = claim_of(name)
  lines = [f"{name} ({claim.source}): {claim.says}"]
  width = max((len(row.model.name) for row in rows), default=0)
  for row, *others in by_model(rows):
    tokens = row.num_steps * row.config.train.batch_size * row.config.data.sequence_length
    lines.append(f"  {row.model.name:{width}} {row.recipe:50} {row.num_steps:>9,} steps of "
                 f"{row.config.train.batch_size:>5} = {row.flops:.3g} FLOPs, {tokens / 1e6:,.0f} M tokens"
                 + f", {len(others) + 1} pre-trainings" * bool(others))
  if any(one.equal.startswith("seconds:") and one not in [row.model for row in rows] for one in claim.models):
    lines.append("  (rows of equal time follow when the speeds are measured)")
  return "\n".join(lines)
