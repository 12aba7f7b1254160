"""What does the test server get? GLUE's TSV files under their exact names in a zip, every line counted."""

import json
import os
import zipfile
from collections.abc import Mapping, Sequence

from electra_jax.errors import UserError
from electra_jax.tasks import ensembles, glue, race, scoring, squad
from electra_jax.tasks.contract import Task


def write(config, task: Task, workdir: str, runs: Sequence[dict]) -> str:
  """Writes submission.zip with the answers of the best seed; returns what there is to say.

  Raises:
    UserError: a finished seed has no answers to the test splits.
  """
  del config
  best = scoring.best([run["scores"][task.metric] for run in runs])
  if best is None:
    return "No run has a dev score, so there is nothing to submit."
  path = os.path.join(workdir, "submission.zip")
  files, notes = answers(task, [(workdir, runs[best]["seed"])])
  write_zip(path, files)
  return "\n".join([f"Wrote {path} with {', '.join(files)}: the answers of seed {runs[best]['seed']}.", *notes])


def describe_files(task: Task, workdir: str, runs: Sequence[dict]) -> str:
  """Where the best seed's own files are (`Task.files`), and which splits have another number of answers than usual."""
  best = scoring.best([run["scores"][task.metric] for run in runs])
  if best is None:
    return "No run has a dev score, so there are no answers to look at."
  folder = os.path.join(workdir, "seeds", str(runs[best]["seed"]))
  lines = [f"The answers of the best seed are in {folder}: {', '.join(sorted(os.listdir(folder)))}."]
  for split, expected in (squad.NUM_QUESTIONS | race.NUM_QUESTIONS)[task.name].items():
    path = os.path.join(folder, f"{split}_predictions.json")
    if os.path.exists(path):
      with open(path, encoding="utf-8") as file:
        count = len(json.load(file))
      if count != expected:
        lines.append(f"{split} has {count} questions; the official set has {expected}: its scores are not comparable.")
  return "\n".join(lines)


def answers(task: Task, members: Sequence[tuple[str, int]]) -> tuple[dict[str, str], list[str]]:
  """({file name: text}, notes on odd counts) of one run, or of an ensemble of (workdir, seed).

  Raises:
    UserError: a run has no answers to a test split, or another number than there are examples.
  """
  files, notes = {}, []
  for split in task.test_splits:
    examples = task.read(split)
    outputs = [ensembles.load_outputs(workdir, seed, split) for workdir, seed in members]
    for (workdir, seed), one in zip(members, outputs):
      count = len(next(iter(one.values()))) if one else 0
      if count != len(examples):
        raise UserError(f"A run has not answered the split {split}",
                        got=f"{count} answers of seed {seed} in {workdir} for {len(examples)} examples",
                        allowed="an answer to each", fix="run it in a new workdir with "
                        "--config.task.write_test_predictions and the same data")
    files |= task.submission(split, task.decode(ensembles.average(outputs, task.head), [], examples), examples)
    expected = glue.expected_count(task.name.removesuffix("_ranking"), split)
    if len(examples) != expected:
      notes.append(f"{split} has {len(examples)} examples; the server expects {expected}: it will refuse the file.")
  return files, notes


def write_zip(path: str, files: Mapping[str, str]) -> None:
  """The files at the top of a zip, which appears whole."""
  with zipfile.ZipFile(f"{path}.partial", "w", zipfile.ZIP_DEFLATED) as archive:
    for name, text in files.items():
      archive.writestr(name, text)
  os.replace(f"{path}.partial", path)
