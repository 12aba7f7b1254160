"""Answers of a trained model about a sentence: filled masks, words that look replaced (ELECTRA Figure 2)."""

import itertools
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from absl import flags
from ml_collections import ConfigDict
from rich.console import Console
from rich.text import Text
from tqdm import tqdm

from electra_jax import files
from electra_jax import main as main_lib
from electra_jax.data.sources import lines, tables
from electra_jax.errors import UserError
from electra_jax.inference import pretraining_heads
from electra_jax.tools import predict_screen
from electra_jax.tools.predict_tasks import TASKS, Item, QuestionKind, items_of

FLAGS = flags.FLAGS

USAGE = """Fills the masks of a sentence, and marks the words that look replaced, with a run's newest checkpoint.

  Fill a mask:             python -m electra_jax.tools.predict --workdir=runs/tiny "The name of the [MASK] is given."
  Find the odd word:       python -m electra_jax.tools.predict --workdir=runs/tiny "Return the purple of the list."
  Vectors of texts:        python -m electra_jax.tools.predict --workdir=runs/tiny --task=embed "Return the length."
  A published model:       python -m electra_jax.tools.predict --workdir=FOLDER "The name of the [MASK] is given."
  With a fine-tuned model: python -m electra_jax.tools.predict --workdir=FOLDER --task=classify "A fine film."
  Two texts:               ... --task=classify "A man sleeps." --pair="Nobody is awake."
  An answer in a text:     ... --task=question "Who sat?" "The cat sat on the mat."
  One of several:          ... --task=choose "The sky is" "blue." "loud." "made of stone."
  Tags of words:           ... --task=tag "Ada lives in London ."
  Many lines, as JSONL:    python -m electra_jax.tools.predict --workdir=runs/tiny --input=in.txt --output=out.jsonl

Put each sentence in quotes; [MASK] and <mask> both stand for one hidden token. BERT and RoBERTa runs fill masks.
ELECTRA runs fill them with the generator; then the discriminator judges every word of the filled sentence: red means
"probably replaced". A sentence that begins with a dash goes after `--`. Without a terminal or with NO_COLOR set,
[brackets] take the place of colours.

FOLDER: an export, or published weights with their vocabulary next to them: Hugging Face's, a released TensorFlow
checkpoint of BERT or ELECTRA, fairseq's RoBERTa. Input files are text with a sentence a line, or .jsonl, .csv and .tsv
with a field or column for each name; answers are JSON lines with the number of the line they answer. --task chooses
the question."""

Answered = tuple[int, Item, Any]  # line number from 1, question, answer
CHUNK_LINES = 1024  # lines of --input that are answered together: a few batches, sorted by length


def columns_of(config: ConfigDict, task: QuestionKind) -> dict[str, str]:
  """Field of a question -> its column in --input, which is called as in the data of the run."""
  fields = (*task.fields, *task.optional)
  columns = config.task.text_fields
  if columns == "text":  # the default
    return dict(zip(fields, fields)) | ({"text": config.data.text_field} if "text" in fields else {})
  return dict(zip(fields, fields)) | dict(zip(fields, map(str.strip, columns.split(","))))


def read_questions(path: str, task: QuestionKind, columns: Mapping[str, str]) -> Iterator[tuple[int, Item]]:
  """(line number from 1, question) of each line of a text file or record of a table; blank lines are skipped.

  A line of text is the only field, so several fields need a table.

  Args:
    columns: field of the question -> column of the table.

  Raises:
    UserError: the file is missing or not text, or a record lacks a field.
  """
  is_table, takes_text = tables.kind_of(path) is not None, len(task.fields) == 1
  example = {columns[field]: ["Some", "text."] if field in task.lists else "Some text." for field in task.fields}
  allowed = f"records like {json.dumps(example)} in {', '.join(tables.KINDS)}"
  if takes_text:
    allowed = f"a .txt file with a sentence a line, or {allowed}"
  if not os.path.isfile(path):
    raise UserError("The --input file does not exist", got=path, allowed=allowed, fix="check the path")
  if not (is_table or takes_text):
    raise UserError("--input is no .jsonl file", got=path, allowed=allowed, fix="check the path")
  if not is_table:
    yield from ((number, {task.fields[0]: line}) for number, line in lines.read_lines(path) if line.strip())
    return
  for number, values in tables.read(path):
    item = {field: values.get(column) for field, column in columns.items() if field in task.fields or column in values}
    for field, value in item.items():
      parts = value if field in task.lists and isinstance(value, list) else [value]
      if not all(isinstance(part, str) for part in parts):
        column = columns[field]
        what = f"the field {column!r} holds no text" if column in values else f"there is no field {column!r}"
        raise UserError("A record of --input cannot be used", got=f"{path}:{number}: {what}", allowed=allowed,
                        fix="correct the line; fields are named as in the run's data")
    yield number, item


def answer_file(run: pretraining_heads.TrainedModel, path: str, task: QuestionKind, **options) -> Iterator[Answered]:
  """Every question of a file with its answer, in order, with a progress bar.

  Raises:
    UserError: as `read_questions` (for the whole file, before the first answer) and `task.encode`, with the line.
  """
  columns = columns_of(run.config, task)
  total = sum(1 for _ in read_questions(path, task, columns))
  if not total:
    raise UserError("The --input file holds no sentence", got=path, allowed="at least one line that is not blank",
                    fix="check the file")
  answered = answer(run, read_questions(path, task, columns), task, path, **options)
  yield from tqdm(answered, total=total, desc="predicting", unit=" sentences", disable=None)


def answer(run: pretraining_heads.TrainedModel, questions: Iterator[tuple[int, Item]], task: QuestionKind,
           path: str = "", **options) -> Iterator[Answered]:
  """Numbered questions with their answers; CHUNK_LINES of them are in memory.

  Raises:
    UserError: as `task.encode`, with the line if the questions come from the file `path`.
  """
  def encode(number: int, item: Item) -> Any:
    try:
      return task.encode(run, item)
    except UserError as error:
      place = f"{path}:{number}: " if path else ""
      raise UserError(error.what, got=f"{place}{error.got}", allowed=error.allowed, fix=error.fix) from None

  while chunk := list(itertools.islice(questions, CHUNK_LINES)):
    answers = task.ask(run, [encode(number, item) for number, item in chunk], **options)
    yield from ((number, item, answer) for (number, item), answer in zip(chunk, answers))


def write_records(answers: Iterator[Answered], path: str, task: QuestionKind) -> int:
  """Writes one JSON object a line and returns their count; the file appears complete or not at all.

  Raises:
    UserError: it cannot be written.
  """
  count = 0
  try:
    with files.atomic(path) as file:
      for answered in answers:
        count += 1
        file.write(json_line(task, *answered))
  except OSError as error:
    raise UserError("The answers cannot be written", got=f"{path}: {error.strerror or error}",
                    allowed="a file in a folder that you may write to", fix="choose another --output") from error
  return count


def json_line(task: QuestionKind, number: int, item: Item, answer: Any) -> str:
  """An answer as a line of JSON, with the number of its question's line."""
  return json.dumps({"line": number} | task.record(item, answer), ensure_ascii=False) + "\n"


def main(argv: list[str]) -> None:
  """Reads the flags, loads the model, and answers on the screen or into a file."""
  texts, task = argv[1:], TASKS[FLAGS.task]
  if not FLAGS.workdir:
    raise UserError("--workdir is missing", got="nothing", allowed="the folder of a run that has a checkpoint",
                    fix='for example --workdir=runs/tiny "The name of the [MASK] is given."')
  if bool(texts) == bool(FLAGS.input):
    raise UserError("There is nothing to answer" if not texts else "There are two sources of sentences",
                    got=f"{len(texts)} sentences and --input={FLAGS.input}",
                    allowed="either sentences, or --input=FILE",
                    fix='write a sentence in quotes: "The name of the [MASK] is given."')
  items = items_of(task, texts, FLAGS.pair)
  main_lib.start_jax()
  run = pretraining_heads.load(FLAGS.workdir, FLAGS.step)
  name = FLAGS.workdir if run.step is None else f"{FLAGS.workdir}, step {run.step:,}"
  options: dict[str, Any] = {"top_k": FLAGS.top_k, "pooling": FLAGS.pooling,
                             "with_combined": not FLAGS.input if FLAGS.combined is None else FLAGS.combined}
  if FLAGS.input:
    answered = answer_file(run, FLAGS.input, task, **options)
  else:
    answered = answer(run, enumerate(items, 1), task, **options)
  if FLAGS.output:
    print(f"Wrote {FLAGS.output}: {write_records(answered, FLAGS.output, task):,} answers of {name}.")
  else:
    show(run, answered, task, name)


def show(run: pretraining_heads.TrainedModel, answered: Iterator[Answered], task: QuestionKind, name: str) -> None:
  """Draws the answers of a model called `name`, or prints them as JSON lines."""
  if not task.is_drawn:
    for row in answered:
      print(json_line(task, *row), end="")
    return
  answers = [answer for *_, answer in answered]
  console = Console(highlight=False)
  console.print(Text(f"{name}: {run.config.objective.name}, {run.tokenizer.kind} of "
                     f"{run.tokenizer.vocab_size:,} entries\n", style="dim"), soft_wrap=True)
  predict_screen.show(answers, predict_screen.Screen(console, FLAGS.threshold))


if __name__ == "__main__":  # flags, too: other tools have some of the same names
  flags.DEFINE_string("input", None, "File with a sentence a line (.txt), or .jsonl, .csv or .tsv with the columns "
                      "of the run's data (data.text_field, task.text_fields); .gz and .zst are unpacked.")
  flags.DEFINE_enum("task", "auto", list(TASKS), "What is asked: " + "; ".join(
    f"{name}: {task.what}" for name, task in TASKS.items()) + ".")
  flags.DEFINE_string("output", None, "JSONL file for the answers, one line a sentence; without it they are shown.")
  flags.DEFINE_integer("step", None, "The checkpoint to use; the newest if not given.", lower_bound=0)
  flags.DEFINE_integer("top_k", 5, "Candidates per mask.", lower_bound=1)
  flags.DEFINE_enum("pooling", None, ["mean", "cls"], "For --task=embed: the mean over all tokens, or [CLS]; by "
                    "default what a folder of sentence-transformers says, else the mean.")
  flags.DEFINE_string("pair", "", "For --task=classify: the second text.")
  flags.DEFINE_float("threshold", 0.5, "Probability from which a word counts as replaced.", 0.0, 1.0)
  flags.DEFINE_boolean("combined", None, "For an ELECTRA: also rank each mask's candidates by both networks together "
                       "(Appendix E), 100 passes a mask; by default for sentences, not for --input.")
  flags.declare_key_flag("workdir")
  main_lib.run(main, USAGE, takes_arguments=True)
