"""Submissions to the test server: GLUE's TSV files under their exact names in a zip, with their lines counted."""

import json
import os
import zipfile
from collections.abc import Mapping, Sequence

from electra_jax.errors import UserError, named
from electra_jax.files import atomic
from electra_jax.finetuning import ensembles
from electra_jax.tasks import glue, race, scoring, squad
from electra_jax.tasks.base import Task


def write(task: Task, workdir: str, runs: Sequence[dict]) -> str:
  """Writes submission.zip with the answers of the best seed; returns a message.

  Raises:
    UserError: a finished seed has no answers to the test splits.
  """
  best = scoring.best([run["scores"][task.metric] for run in runs])
  if best is None:
    return "No run has a dev score, so there is nothing to submit."
  path = os.path.join(workdir, "submission.zip")
  files, notes = answers(task, [(workdir, runs[best]["seed"])])
  write_zip(path, files)
  return "\n".join([f"Wrote {path} with {', '.join(files)}: the answers of seed {runs[best]['seed']}.", *notes])


def write_files_of_runs(task: Task, workdir: str, members: Sequence[tuple[str, int]], with_tests: bool) -> str:
  """Writes the ensemble's files (`Task.files`) and, with test answers, a zip; returns a message that lists them.

  Args:
    members: (workdir, seed) of every run with a dev score, the best first.
    with_tests: whether the test splits are answered too.
  """
  if not members:
    return "No run has a dev score, so there are no answers to look at."
  assert task.files is not None
  folder = os.path.join(workdir, "seeds", str(members[0][1]))
  lines = [f"The answers of the best seed are in {folder}: {', '.join(sorted(os.listdir(folder)))}."]
  if len(members) > 1:
    splits = [*task.splits[1:], *(task.test_splits if with_tests else ())]
    together = os.path.join(workdir, "ensemble")
    write_files(together, task.files({split: ensembles.answer(task, members, split) for split in splits}))
    lines.append(f"Those of {len(members)} runs together are in {together}.")
  if with_tests and task.test_splits:
    texts = {}
    for name in sorted(os.listdir(folder)):
      if name.startswith(task.test_splits):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
          texts[name] = file.read()
    if not texts:
      raise UserError("The best seed has not answered the test splits", got=f"no file of {named(task.test_splits)} in "
                      f"{folder}", allowed="test answers of every seed", fix="run it in a new workdir with "
                      "--config.task.write_test_predictions")
    write_zip(os.path.join(workdir, "submission.zip"), texts)
    lines.append(f"Wrote {os.path.join(workdir, 'submission.zip')} with {', '.join(texts)} of the best seed.")
  for split, expected in (squad.NUM_QUESTIONS | race.NUM_QUESTIONS).get(task.name, {}).items():
    path = os.path.join(folder, f"{split}_predictions.json")
    if os.path.exists(path):
      with open(path, encoding="utf-8") as file:
        count = len(json.load(file))
      if count != expected:
        lines.append(f"{split} has {count:,} questions; the official set has {expected:,}: its scores are not "
                     "comparable.")
  return "\n".join(lines)


def answers(task: Task, members: Sequence[tuple[str, int]]) -> tuple[dict[str, str], list[str]]:
  """({file name: text}, notes on unexpected counts) of one run, or of an ensemble of (workdir, seed).

  Raises:
    UserError: a run has no answers to a test split, or not one for each example.
  """
  assert task.submission is not None
  files, notes = {}, []
  for split in task.test_splits:
    predictions, examples = ensembles.answer(task, members, split)
    files |= task.submission(split, predictions, examples)
    expected = glue.expected_count(task.name, split)
    if len(examples) != expected:
      notes.append(f"{split} has {len(examples):,} examples; the server expects {expected:,}: it will refuse the file.")
  return files, notes


def write_files(folder: str, files: Mapping[str, str]) -> None:
  """Writes {file name: text} to a folder."""
  os.makedirs(folder, exist_ok=True)
  for name, text in files.items():
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
      file.write(text)


def write_zip(path: str, files: Mapping[str, str]) -> None:
  """Writes {file name: text} to the top level of a zip, atomically."""
  with atomic(path, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
    for name, text in files.items():
      archive.writestr(name, text)
