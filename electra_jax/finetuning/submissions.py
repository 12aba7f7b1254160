"""Submissions to the test server: GLUE's TSV files under their exact names in a zip, with their lines counted.

Tasks without such a server write each run's answers as files.
"""

import os
import zipfile
from collections.abc import Mapping, Sequence

from electra_jax.files import atomic, read_json
from electra_jax.finetuning import ensembles
from electra_jax.tasks import glue, race, squad
from electra_jax.tasks.base import Task


def write(task: Task, workdir: str, seed: int) -> str:
  """Writes submission.zip with the answers of a seed; returns a message.

  Raises:
    UserError: the seed has no answers to the test splits.
  """
  path = os.path.join(workdir, "submission.zip")
  files, notes = answers(task, [(workdir, seed)])
  write_zip(path, files)
  return "\n".join([f"Wrote {path} with {', '.join(files)}: the answers of seed {seed}.", *notes])


def write_ensemble(task: Task, workdir: str, members: Sequence[tuple[str, int]], with_tests: bool) -> str:
  """Writes the files (`Task.files`) of all runs together; returns a message that lists them and the best run's.

  Args:
    members: (workdir, seed) of every run with a dev score, the best first.
    with_tests: whether the test splits are answered too.
  """
  assert task.files is not None
  folder = os.path.join(workdir, "seeds", str(members[0][1]))
  lines = [f"The answers of the best seed are in {folder}: {', '.join(sorted(os.listdir(folder)))}."]
  if len(members) > 1:
    splits = [*task.splits[1:], *(task.test_splits if with_tests else ())]
    together = os.path.join(workdir, "ensemble")
    write_files(together, task.files({split: ensembles.answer(task, members, split) for split in splits}))
    lines.append(f"Those of {len(members)} runs together are in {together}.")
  for split, expected in (squad.NUM_QUESTIONS | race.NUM_QUESTIONS).get(task.name, {}).items():
    path = os.path.join(folder, f"{split}_predictions.json")
    count = len(read_json(path)) if os.path.exists(path) else expected
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
    _, expected = glue.row_of(task.name).tests[split]
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
