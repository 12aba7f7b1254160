"""Rules of the configuration: the allowed values of each key of configs/common.py, checked by `config.resolve`.

All faults are reported together, each with its key, its value and what is allowed.
"""

import difflib
import re
from collections.abc import Iterator

from ml_collections import ConfigDict

from electra_jax.objectives.table import ROWS

SHORT_EXAMPLES = ("DOC-SENTENCES", "SENTENCE-PAIR")  # formats with larger batches where they are short (RoBERTa 4.2)

CHOICES = {
  "model.hidden_act": ("gelu", "gelu_new"),
  "model.position_init": ("normal", "sinusoidal"),
  "generator.kind": ("learned", "unigram", "uniform"),
  "objective.name": ROWS,
  "objective.weight_tying": ("token_embeddings", "embeddings", "none", "all"),
  "data.format": ("ELECTRA", "FULL-SENTENCES", "DOC-SENTENCES", "SEGMENT-PAIR", "SENTENCE-PAIR"),
  "data.text_format": ("auto", "text", "jsonl", "json", "csv", "tsv", "parquet"),
  "data.on_bad_record": ("error", "skip"),
  "data.reader": ("auto", "tf", "threads"),
  "data.tokenizer.kind": ("sentencepiece", "sentencepiece_bpe", "wordpiece", "byte_bpe"),
  "data.masking.unit": ("token", "word", "span"),
  "optimizer.name": ("lamb", "adamw"),
  "optimizer.schedule": ("linear", "cosine", "constant", "wsd", "inverse_sqrt"),
  "train.on_nonfinite": ("stop", "skip"),
  "train.compute_dtype": ("bfloat16", "float32"),
  "train.matmul_precision": ("default", "fp8"),
  "train.kernels": ("auto", "xla", "triton", "mosaic", "pallas"),
  "train.remat": ("none", "full", "dots", "all_dots"),
  "task.class_weights": ("none", "balanced"),
  "task.pooling": ("cls", "mean"),
  "task.pooler": ("none", "tanh", "gelu"),
  "task.span_head": ("independent", "joint"),
  "task.select": ("last", "best"),
}

# What a number must do -> (whether it does, the keys of such numbers).
BOUNDS = {
  "be positive": (lambda value: value > 0, (
    "data.sequence_length", "data.shard_examples", "data.num_workers", "data.tokenizer.vocab_size",
    "data.tokenizer.training_bytes", "data.masking.rate", "train.batch_size", "train.accumulation_steps",
    "train.steps_per_dispatch", "train.log_every_steps", "eval.batch_size", "checkpoint.every_steps",
    "checkpoint.keep_last", "optimizer.learning_rate", "optimizer.epsilon", "model.initializer_range",
    "model.embedding_size", "model.type_vocab_size", "generator.width_fraction", "generator.depth_fraction",
    "objective.sampling_temperature", "task.max_length", "task.num_epochs", "task.evals_per_epoch", "task.num_seeds",
    "task.window_stride", "task.max_question_length")),
  "not be negative": (lambda value: value >= 0, (
    "seed", "train.num_steps", "data.max_documents", "data.masking.num_static_masks", "data.masking.rarity_exponent",
    "eval.every_steps", "eval.finetune_every_steps", "eval.max_examples", "checkpoint.keep_every_steps",
    "model.layer_norm_eps", "model.position_offset", "optimizer.warmup_steps", "optimizer.clip_norm",
    "optimizer.weight_decay_rate", "objective.mlm_weight", "objective.rtd_weight", "objective.encoder_mlm_weight",
    "objective.generator_steps", "task.seeds_at_once", "task.max_train_examples", "task.fresh_layers")),
  "lie between 0 and 1": (lambda value: 0 <= value <= 1, (
    "data.heldout_share", "data.short_sequence_share", "data.masking.rate", "data.masking.mask_share",
    "data.masking.random_share", "task.warmup_share", "task.layer_decay")),
  "be at least 0 and below 1": (lambda value: 0 <= value < 1, (
    "model.hidden_dropout_prob", "model.attention_probs_dropout_prob", "optimizer.beta1", "optimizer.beta2")),
}
SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")  # of a network

# Pre-training keys that fine-tuning does not support -> the value that has no effect.
PRETRAINING_ONLY = {"train.steps_per_dispatch": 1, "optimizer.shard_state": False}


def choice_faults(c: ConfigDict) -> Iterator[str]:
  """Values that are not among CHOICES; nothing can be derived from them."""
  for key, allowed in CHOICES.items():
    value = _lookup(c, key)
    if value not in allowed:
      close = difflib.get_close_matches(str(value), allowed, n=1)
      yield f"{key} is {value!r}; allowed: {', '.join(allowed)}" + (f"; did you mean {close[0]}?" if close else "")


def range_faults(c: ConfigDict) -> Iterator[str]:
  """Faults by every other rule, in a config whose derived keys are filled in."""
  for bounds, (fits, keys) in BOUNDS.items():
    for key in keys:
      if not fits(_lookup(c, key)):  # NaN, too
        yield f"{key} is {_lookup(c, key)}; it must {bounds}"
  for key in [f"{net}.{size}" for net in _networks(c) for size in SIZES]:
    if not _lookup(c, key) > 0:
      yield f"{key} is {_lookup(c, key)}; it must be positive"
  if c.data.sentences != "line" and not re.fullmatch(r"[a-z]{2,3}(-\w+)?", c.data.sentences):
    yield f"data.sentences is {c.data.sentences!r}; allowed: line, or the code of a language, such as en"
  yield from _joint_faults(c)
  yield from _dispatch_faults(c)
  yield from _objective_faults(c)
  if c.task.name:
    yield from _task_faults(c)
  if c.eval.finetune_tasks and not c.task.data_dir:
    yield f"eval.finetune_tasks is {c.eval.finetune_tasks!r}, but task.data_dir, where their examples are, is empty"
  if "wsc" in c.eval.finetune_tasks.split(",") and "discriminator" in ROWS[c.objective.name].networks and (
      c.objective.weight_tying != "all" or c.generator.kind != "learned"):
    yield (f"eval.finetune_tasks has wsc, which needs a masked LM, but objective.name={c.objective.name} keeps a "
           "discriminator without one; take wnli_ranking")


def _networks(c: ConfigDict) -> tuple[str, ...]:
  """The branches that describe this run's networks; a masked LM has no generator, token counts need no network."""
  has_none = "generator" not in ROWS[c.objective.name].networks or c.generator.kind != "learned"
  return ("model",) if has_none else ("model", "generator")


def _joint_faults(c: ConfigDict) -> Iterator[str]:
  """Faults by rules that involve several keys."""
  for net in _networks(c):
    hidden, heads = c[net].hidden_size, c[net].num_attention_heads
    if heads > 0 and hidden % heads:
      yield f"{net}.hidden_size {hidden} is not a multiple of {net}.num_attention_heads {heads}"
  rows = c.model.max_position_embeddings - c.model.position_offset
  if c.data.sequence_length > rows:
    yield (f"data.sequence_length {c.data.sequence_length} is longer than the position table's {rows} usable rows "
           f"(model.max_position_embeddings {c.model.max_position_embeddings} minus model.position_offset "
           f"{c.model.position_offset})")
  if c.data.sequence_length < 8:
    yield f"data.sequence_length is {c.data.sequence_length}; two segments and their separators need at least 8"
  if c.model.vocab_size < c.data.tokenizer.vocab_size:
    yield f"model.vocab_size {c.model.vocab_size} is below data.tokenizer.vocab_size {c.data.tokenizer.vocab_size}"
  if c.train.accumulation_steps > 0 and c.train.batch_size % c.train.accumulation_steps:
    yield (f"train.batch_size {c.train.batch_size} is not a multiple of train.accumulation_steps "
           f"{c.train.accumulation_steps}")
  if c.objective.name == "mlm_nsp" and c.data.format not in ("SEGMENT-PAIR", "SENTENCE-PAIR"):
    yield f"objective.name=mlm_nsp needs data.format SEGMENT-PAIR or SENTENCE-PAIR, got {c.data.format!r}"
  masking = c.data.masking
  if masking.mask_share + masking.random_share > 1 + 1e-9:
    yield f"data.masking.mask_share + random_share is {masking.mask_share + masking.random_share}; at most 1"
  if masking.rarity_exponent and masking.unit != "token":
    yield (f"data.masking.rarity_exponent is {masking.rarity_exponent}, which is for tokens, but data.masking.unit is "
           f"{masking.unit!r}; set one of them to its default")
  if c.optimizer.warmup_steps > max(1, c.train.num_steps):
    yield (f"optimizer.warmup_steps {c.optimizer.warmup_steps} is longer than train.num_steps {c.train.num_steps}; a "
           f"tenth is usual: --config.optimizer.warmup_steps={c.train.num_steps // 10}")
  if [size for size in c.mesh.values() if size == 0 or size < -1] or list(c.mesh.values()).count(-1) > 1:
    yield f"mesh is {dict(c.mesh)}; each axis is positive, and at most one is -1 (the rest of the devices)"


def _dispatch_faults(c: ConfigDict) -> Iterator[str]:
  """Faults in cadences: the host has control only after each call of `train.steps_per_dispatch` updates."""
  updates = c.train.steps_per_dispatch
  if updates > 1 and c.data.format in SHORT_EXAMPLES:
    yield (f"train.steps_per_dispatch is {updates}, but batches of equal token counts (data.format {c.data.format}) "
           "differ in shape; set it to 1")
  for key in ("train.num_steps", "train.log_every_steps", "eval.every_steps", "eval.finetune_every_steps",
              "checkpoint.every_steps", "objective.generator_steps"):
    if updates > 0 and _lookup(c, key) % updates:
      yield f"{key} {_lookup(c, key)} is not a multiple of train.steps_per_dispatch {updates}; 1 always fits"


def _objective_faults(c: ConfigDict) -> Iterator[str]:
  """Faults in the generator, which each objective and each way to share weights restricts."""
  name, tying = c.objective.name, c.objective.weight_tying
  if c.generator.kind != "learned" and name in ("two_stage", "adversarial", "hard_tokens"):
    yield f"generator.kind is {c.generator.kind!r}, but objective.name={name} trains its generator; set it to learned"
  sizes = [size for size in SIZES if c.generator[size] != c.model[size]]
  both = ", ".join(f"{size} {c.generator[size]} and {c.model[size]}" for size in sizes)
  if name == "two_stage":
    if sizes:
      yield (f"objective.name=two_stage starts the discriminator as a copy of the generator, so both must have equal "
             f"sizes; got {both}; set generator.width_fraction and depth_fraction to 1")
    if tying != "none":
      yield (f"objective.weight_tying is {tying!r}, but objective.name=two_stage freezes one network while the other "
             "learns; set it to none")
    if not 0 < c.objective.generator_steps < c.train.num_steps:
      yield (f"objective.generator_steps is {c.objective.generator_steps}; both stages need a step of the "
             f"{c.train.num_steps} in train.num_steps")
    elif c.optimizer.warmup_steps > min(c.objective.generator_steps, c.train.num_steps - c.objective.generator_steps):
      yield (f"optimizer.warmup_steps is {c.optimizer.warmup_steps}; each stage of objective.name=two_stage warms up, "
             f"and the shorter one must have as many steps; the first has {c.objective.generator_steps}")
  if tying == "all" and "generator" in _networks(c) and name != "two_stage":
    if name not in ("rtd", "electra_15", "electra_15_other", "contrastive"):
      yield (f"objective.weight_tying is 'all', but objective.name={name} does not train a masked LM and a "
             "replaced-token detector together; set it to token_embeddings, embeddings or none")
    if sizes:
      yield (f"objective.weight_tying 'all' needs equal sizes of generator and model; got {both}; set "
             "generator.width_fraction and depth_fraction to 1")


def _task_faults(c: ConfigDict) -> Iterator[str]:
  """Faults in a fine-tuning."""
  t = c.task
  if not t.init_from:
    yield "task.init_from is empty; give a run's workdir or published weights (with task.from_scratch: for their sizes)"
  by_path = t.name.startswith("own_") or (t.name.startswith("squad_") and t.train_path and t.dev_path)
  missing = "train_path" if by_path else "data_dir"
  if not t[missing]:
    yield f"task.{missing} is empty; task.name={t.name} reads its examples there"
  if t.class_weights != "none" and t.name != "own_classification":
    yield f"task.class_weights is {t.class_weights!r}, which is for task.name=own_classification; set it to none"
  rows = c.model.max_position_embeddings - c.model.position_offset
  if t.max_length > rows:
    yield (f"task.max_length {t.max_length} is longer than the {rows} positions of the model: "
           f"set --config.task.max_length={rows}; longer texts are cut to it")
  for key, neutral in PRETRAINING_ONLY.items():
    if _lookup(c, key) != neutral:
      yield f"{key} is {_lookup(c, key)}, but it is for pre-training; in fine-tuning set it to {neutral}"
  if c.train.accumulation_steps != 1:
    yield "train.accumulation_steps is for pre-training; in fine-tuning lower task.seeds_at_once to save memory"


def _lookup(config: ConfigDict, key: str):
  for part in key.split("."):
    config = config[part]
  return config
