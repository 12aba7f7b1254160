"""Results of a fine-tuning: a file for each seed, the best run's checkpoint, a table, a picture, a zip of answers.

`<workdir>/seeds/<seed>.json` marks a seed as finished; it is not run again. Next to it are its outputs (`<seed>.npz`),
from which ensembles are made. `<workdir>/checkpoints/` holds the parameters of the best seed.
"""

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from ml_collections import ConfigDict

from electra_jax import files, plotting
from electra_jax.data.tokenizers.base import Tokenizer
from electra_jax.errors import UserError
from electra_jax.files import read_json, write_json
from electra_jax.finetuning import ensembles, report, submissions
from electra_jax.tasks import baselines, labels, scoring
from electra_jax.tasks.base import Example, Task
from electra_jax.training import checkpoints
from electra_jax.training import workdir as workdir_lib

# Key of labels.json with a checksum -> what is wrong if it differs: what, got, allowed.
ORIGINS = {
  "examples": ("on other examples", "other texts or labels than before", "the data that the run began with"),
  "start": ("that started from other weights", "other weights under task.init_from than before, for example those of a "
            "later step", "the weights that the run began with")}


def checksum_of(examples: Mapping[str, Sequence[Example]]) -> str:
  """A hash of the texts and labels of each split."""
  digest = hashlib.blake2b(digest_size=16)
  for split, rows in examples.items():
    for example in rows:
      digest.update(repr((split, example.texts, example.label)).encode())
  return digest.hexdigest()


def claim(config: ConfigDict, workdir: str, checksums: Mapping[str, str]) -> None:
  """Makes a new workdir; if it has finished or started seeds, checks that they belong to this very run.

  Args:
    checksums: of what the configuration names and others may change: a row of ORIGINS each.

  Raises:
    UserError: it holds another run, or one on other examples or from other weights.
  """
  is_begun = bool(finished_seeds(workdir)) or os.path.isdir(os.path.join(workdir, "groups"))
  workdir_lib.claim(config, workdir, is_begun)
  path = os.path.join(workdir, "labels.json")
  recorded = read_json(path) if is_begun and os.path.exists(path) else {}
  for name, checksum in checksums.items():
    if recorded.get(name, checksum) != checksum:
      what, got, allowed = ORIGINS[name]
      raise UserError(f"The workdir {workdir} holds a run {what}", got=got, allowed=allowed,
                      fix=f"use another --workdir, or remove {workdir} to begin anew")
  if jax.process_index() == 0:
    os.makedirs(os.path.join(workdir, "seeds"), exist_ok=True)


def save_tokenizer_and_labels(workdir: str, tokenizer: Tokenizer, task: Task, checksums: Mapping[str, str]) -> None:
  """Saves the vocabulary, and labels.json: for prediction the label names in the order of the outputs, for `claim`
  the checksums."""
  if jax.process_index() == 0:
    folder = os.path.join(workdir, "tokenizer")
    if not os.path.isdir(folder):
      tokenizer.save(folder)
    write_json(os.path.join(workdir, "labels.json"), {
      "task": task.name, "head": task.head, "num_labels": task.num_labels, "label_names": list(task.label_names),
      **checksums})


def introduce(task: Task, examples: Mapping[str, Sequence[Example]], workdir: str, say: Callable[[str], None]) -> None:
  """Prints the label counts of the splits and the baselines to beat; baselines.json keeps the latter."""
  if jax.process_index():
    return
  for line in labels.introduce(task, examples):
    say(line)
  scores = baselines.measure(task, *(examples[split] for split in task.splits[:2]))
  write_json(os.path.join(workdir, "baselines.json"), scores)
  if scores:
    say(baselines.describe(task.metric, math.inf, scores))


def describe_baselines(workdir: str, metric: str, median: float) -> str:
  """`baselines.describe` for a fine-tuned workdir; "" if it has none."""
  path = os.path.join(workdir, "baselines.json")
  return baselines.describe(metric, median, read_json(path)) if os.path.exists(path) else ""


def finished_seeds(workdir: str) -> list[int]:
  """Seeds with a result, ascending."""
  folder = os.path.join(workdir, "seeds")
  names = os.listdir(folder) if os.path.isdir(folder) else []
  return sorted(int(name.removesuffix(".json")) for name in names if name.endswith(".json"))


def read_curve(folder: str, last_step: int) -> list[dict]:
  """Dev scores up to a step: [{"step": ..., "scores": [metrics of each seed]}]."""
  path = os.path.join(folder, "curve.json")
  return [row for row in read_json(path) if row["step"] <= last_step] if os.path.exists(path) else []


def write_curve(folder: str, curve: list[dict]) -> None:
  """Saves the dev scores so far."""
  if jax.process_index() == 0:
    write_json(os.path.join(folder, "curve.json"), curve)


def record(config: ConfigDict, task: Task, workdir: str, seeds: Sequence[int], scores: list[dict], outputs: dict,
           curve: list[dict]) -> None:
  """Writes each seed's outputs and answers, then its result, which marks it as finished.

  Args:
    outputs: {split: (split, outputs of each seed)} of the dev and test splits.
  """
  if jax.process_index():
    return
  for number, seed in enumerate(seeds):
    arrays = {f"{split}/{name}": x for split, (_, of_seeds) in outputs.items() for name, x in of_seeds[number].items()}
    path = os.path.join(workdir, "seeds", f"{seed}.npz")
    with files.atomic(path, "wb") as file:
      np.savez(file, **arrays)
    if task.files is not None:
      answers = {split: (task.decode(of_seeds[number], data.features, data.examples), data.examples)
                 for split, (data, of_seeds) in outputs.items()}
      submissions.write_files(os.path.join(workdir, "seeds", str(seed)), task.files(answers))
    own = [{"step": point["step"], **point["scores"][number]} for point in curve]
    write_json(os.path.join(workdir, "seeds", f"{seed}.json"), {
      "seed": seed, "task": task.name, "metric": task.metric, "select": config.task.select,
      "scores": scores[number], "curve": own})


def keep_best_run(config: ConfigDict, task: Task, workdir: str, seeds: Sequence[int], scores: list[dict],
                  params_of: Callable[[int], dict]) -> None:
  """Saves the parameters of the group's best seed unless an earlier one is as good; the step counts finished seeds.

  If all seeds have failed, nothing is saved.
  """
  before = [result["scores"][task.metric] for result in load(workdir)]
  values = [row[task.metric] for row in scores]
  best, best_before = scoring.best(values), scoring.best(before)
  if best is None or (best_before is not None and values[best] <= before[best_before]):
    return
  checkpoints.save_params(workdir, config.checkpoint, len(before) + len(seeds), params_of(best))


def load(workdir: str) -> list[dict]:
  """The results of all finished seeds."""
  return [read_json(os.path.join(workdir, "seeds", f"{seed}.json")) for seed in finished_seeds(workdir)]


def null_odds_threshold(workdir: str) -> float:
  """The odds above which the best run leaves a question unanswered, chosen on its dev set; 0 if it chose none."""
  runs = load(workdir)
  best = scoring.best([run["scores"][run["metric"]] for run in runs])
  path = os.path.join(workdir, "seeds", str(runs[best]["seed"]), "threshold.json") if best is not None else ""
  return read_json(path)["null_odds_threshold"] if os.path.exists(path) else 0.0


def conclude(config: ConfigDict, task: Task, workdir: str, say: Callable[[str], None]) -> dict[str, dict[str, float]]:
  """Summary of all seeds; writes results.json, results.md, curves.png and, if asked for, the test server's zip."""
  wanted = range(config.seed, config.seed + config.task.num_seeds)
  runs = [run for run in load(workdir) if run["seed"] in wanted]
  # A metric that is NaN in every run is about questions that the set does not have: it gets no row.
  names = [name for name in runs[0]["scores"]
           if name == task.metric or any(math.isfinite(run["scores"][name]) for run in runs)]
  summary = {name: scoring.summarise([run["scores"][name] for run in runs]) for name in names}
  if jax.process_index():
    return summary
  members = ensembles.choose([(workdir, run) for run in runs], task.metric, len(runs))
  together = ensembles.score(task, members)
  text = report.results_table(config, task, runs, summary, together)
  if sentence := describe_baselines(workdir, task.metric, summary[task.metric]["median"]):
    text += f"\n{sentence}\n"
  if members and task.head in ("classification", "multi_label"):
    text += f"\nThe best seed, {members[0][1]}, on {task.splits[1]}:\n\n" + labels.class_tables(
      task, *ensembles.answer(task, members[:1], task.splits[1]))
  text += f"\nOf the files: {describe_left_out(task)}.\n" if task.left_out else ""
  with open(os.path.join(workdir, "results.md"), "w", encoding="utf-8") as file:
    file.write(text)
  write_json(os.path.join(workdir, "results.json"), {"task": task.name, "summary": summary, "ensemble": together,
                                                     "init_from": config.task.init_from, "runs": runs})
  say(text)
  figure = plotting.new(6.5, 4.0)
  report.draw_curves(figure.add_subplot(), runs, task.metric, f"{task.name}, {len(runs)} seeds")
  plotting.save(figure, os.path.join(workdir, "curves.png"))
  with_tests = config.task.write_test_predictions
  if not members:
    say("No run has a dev score, so there are no answers to look at.")
  elif task.files is not None:
    say(submissions.write_ensemble(task, workdir, members, with_tests))
  elif with_tests and task.submission is not None:
    say(submissions.write(task, workdir, members[0][1]))
  return summary


def describe_scores(task: Task, step: int, num_steps: int, scores: list[dict]) -> str:
  """The dev scores of all seeds in one line."""
  values = [row[task.metric] for row in scores]
  summary = scoring.summarise(values)
  failed = f"  ({summary['num_failed']} without a finite score)" if summary["num_failed"] else ""
  return (f"dev at step {step:,}/{num_steps:,}: {task.metric} {' '.join(map(scoring.percent, values))}  "
          f"median {scoring.percent(summary['median'])}{failed}")


def describe_left_out(task: Task) -> str:
  """How many lines `Task.read` has left out, and the first of them."""
  where, why = next(iter(task.left_out.items()))
  return f"lines left out: {len(task.left_out):,}, the first {where} ({why})"
