"""Model card: the README.md of an exported model, with its data, steps, FLOPs and evaluation."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ml_collections import ConfigDict

from electra_jax import flops, plotting

PLAIN_USE = """from transformers import AutoTokenizer, CLASS

tokenizer, model = AutoTokenizer.from_pretrained(NAME), CLASS.from_pretrained(NAME)"""
PIPELINE_USE = """from transformers import pipeline

run = pipeline("{task}", model=NAME)
print(run({text}))"""
# Ending of a class of transformers -> (the hub's task for its widget, lines of Python that use it, with NAME for the
# folder or repository).
CLASSES = {
  "ForMaskedLM": ("fill-mask", PIPELINE_USE.format(
    task="fill-mask", text='f"The name of the {run.tokenizer.mask_token} is given."')),
  "ForSequenceClassification": ("text-classification", PIPELINE_USE.format(
    task="text-classification", text='"One more text."')),
  "ForTokenClassification": ("token-classification", PIPELINE_USE.format(
    task="token-classification", text='"One more text."')),
  "ForPreTraining": ("feature-extraction", f"import torch\n{PLAIN_USE}" + """
with torch.no_grad():
  logits = model(**tokenizer("The name of the banana is given.", return_tensors="pt"))[0]"""),
  "ForQuestionAnswering": ("question-answering", PLAIN_USE), "ForMultipleChoice": ("multiple-choice", PLAIN_USE),
  "": ("feature-extraction", PLAIN_USE),
}
# Name in metrics.jsonl -> (the hub's metric, in words).
METRICS = {"mlm/loss": ("loss", "held-out masked-LM loss, nats"),
           "mlm/accuracy": ("accuracy", "held-out masked-LM accuracy"),
           "mlm/perplexity": ("perplexity", "held-out masked-LM perplexity"),
           "rtd/loss": ("loss", "held-out replaced-token loss, nats"),
           "rtd/auc": ("roc_auc", "held-out AUC of replaced tokens")}


class Publication(NamedTuple):
  """What a card says about the place where the model is published; empty parts are left out."""

  name: str = "PATH"  # folder or repository
  licence: str = ""  # one of the hub's identifiers: apache-2.0, mit, cc-by-4.0, other
  language: str = ""  # ISO 639: en, de; several are separated by commas


UNPUBLISHED = Publication()


def make(name: str, hf_config: dict, config: ConfigDict, step: int, num_parameters: int, evaluation: dict | None,
         imported_from: str = "", signs: Sequence[str] = (), publication: Publication = UNPUBLISHED,
         scores: Mapping[str, float] | None = None) -> str:
  """The card as Markdown with the Hugging Face hub's front matter.

  Args:
    name: of the network: encoder, discriminator or generator.
    evaluation: a row of metrics.jsonl, for a fine-tuned run {metric: summary}; None if there was none.
    imported_from: where the run's parameters came from, if they were imported.
    signs: what is wrong with the run, from `warning_signs.find`.
    scores: for a fine-tuned run the median of each metric over the seeds.
  """
  (architecture,) = hf_config["architectures"]
  task, use = next(row for ending, row in CLASSES.items() if architecture.endswith(ending))
  data, train, masking = config.data, config.train, config.data.masking
  is_fine_tuned = bool(config.task.name)
  tokens = step * train.batch_size * data.sequence_length
  updates = f"{train.num_steps:,}" if is_fine_tuned else f"{step:,} of {train.num_steps:,}"
  run = {"Optimizer updates": updates,
         "Batch": f"{train.batch_size:,} sequences of at most {data.sequence_length} tokens",
         "Optimizer": f"{config.optimizer.name}, peak learning rate {config.optimizer.learning_rate:g}, "
         f"{config.optimizer.warmup_steps:,} warm-up steps"}
  if is_fine_tuned:
    run["Started from"] = config.task.init_from
  else:
    run |= {"Objective": f"`{config.objective.name}`", "Token positions": f"{tokens:,}",
            "Masking": f"{masking.rate:.0%} of the tokens, {masking.mask_share:.0%} of them [MASK], "
                       f"{masking.random_share:.0%} random, unit `{masking.unit}`",
            "Started from": imported_from or config.checkpoint.init_from or "scratch"}
  return "\n".join([
    "---", "library_name: transformers", f"pipeline_tag: {task}",
    *(f"license: {publication.licence}" for _ in publication.licence[:1]),
    *(["language:", *(f"- {json.dumps(code.strip())}"  # in quotes, as `no`, Norwegian, is false in YAML
                      for code in publication.language.split(","))] if publication.language else []),
    "tags:", f"- {hf_config['model_type']}", "- electra_jax",
    *_model_index(publication.name if publication.name != "PATH" else name, task, config, evaluation, scores or {}),
    "---", "", f"# {name}", "",
    f"`{architecture}` with {num_parameters:,} parameters, "
    + (f"fine-tuned on {config.task.name}" if is_fine_tuned else "pre-trained") + " with electra_jax.", "",
    "```python", use.replace("NAME", json.dumps(publication.name)).replace("CLASS", architecture), "```", "",
    "## Model", "", *_table({
      "Layers": hf_config["num_hidden_layers"], "Hidden size": hf_config["hidden_size"],
      "Feed-forward size": hf_config["intermediate_size"], "Attention heads": hf_config["num_attention_heads"],
      "Vocabulary": f"{hf_config['vocab_size']:,} entries, {data.tokenizer.kind}, "
      + ("uncased" if data.tokenizer.lowercase else "cased"),
      "Longest input trained on": f"{data.sequence_length} tokens"}),
    "## Data", "", *_table({"Task": config.task.name, "Source": f"`{config.task.data_dir or config.task.train_path}`"}
                           if is_fine_tuned else
                           {"Source": f"`{data.path or 'not recorded'}`", "Format": data.format,
                            "Held out": f"{data.heldout_share:.1%} of the documents"}),
    "## Training", "", *_table(run),
    *([] if is_fine_tuned else _cost(config, step)),
    "## Evaluation", "", *_evaluation(evaluation, step), *(f"**Warning.** {sign}\n" for sign in signs)])


def _model_index(name: str, task: str, config: ConfigDict, evaluation: dict | None,
                 scores: Mapping[str, float]) -> list[str]:
  """The scores as the hub reads them; [] if there are none."""
  rows = [(metric, f"{metric} on the dev set, median over the seeds", value) for metric, value in scores.items()]
  rows += [(*METRICS[key], value) for key, value in (evaluation or {}).items() if key in METRICS]
  rows = [(kind, words, value) for kind, words, value in rows if math.isfinite(value)]
  data = config.task.name or "held-out text"
  return [] if not rows else [
    "model-index:", f"- name: {json.dumps(name)}", "  results:", "  - task:", f"      type: {task}", "    dataset:",
    f"      name: {json.dumps(data)}", f"      type: {json.dumps(data.replace(' ', '-'))}", "    metrics:",
    *(line for kind, words, value in rows for line in (
      f"    - type: {kind}", f"      name: {json.dumps(words)}", f"      value: {float(f'{value:.6g}')}"))]


def _cost(config: ConfigDict, step: int) -> list[str]:
  counts = (flops.paper_flops(config), flops.model_flops(config))
  return ["## Cost", "", "Of all the run's networks, up to this step.", "",
          *_table({count.convention: f"{step * count.per_step:.3g} FLOPs" for count in counts})]


def _evaluation(row: dict | None, step: int) -> list[str]:
  if row is None:
    return ["This checkpoint was not evaluated.", ""]
  if "step" not in row:
    return ["On the dev set, over the seeds of the run.", "", *_table({name: str(v) for name, v in row.items()})]
  values = {name: f"{value:.4g}" if value == value else "not finite"
            for name, value in sorted(row.items()) if "/" in name}
  when = "" if row["step"] == step else f" (at step {row['step']:,}, the last one before this checkpoint)"
  return [f"On held-out documents{when}; losses in nats.", "", *_table(values)]


def _table(rows: Mapping[str, object]) -> list[str]:
  return [plotting.markdown(["", ""], rows.items()), ""]
