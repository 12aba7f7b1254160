"""What does a trained run say about my sentence? Fills masks, marks words that look replaced (ELECTRA Figure 2)."""

import json
import os
from collections.abc import Iterator

from absl import flags
from rich.console import Console
from rich.text import Text
from tqdm import tqdm

from electra_jax import inference
from electra_jax import main as main_lib
from electra_jax.data import lines
from electra_jax.errors import UserError
from electra_jax.inference import Answer
from electra_jax.tools import predict_screen

FLAGS = flags.FLAGS

USAGE = """Fills the masks of a sentence, and marks the words that look replaced, with a run's newest checkpoint.

  Fill a mask:             python -m electra_jax.tools.predict --workdir=runs/tiny "The name of the [MASK] is given."
  Find the odd word:       python -m electra_jax.tools.predict --workdir=runs/tiny "Return the purple of the list."
  Watch both networks:     python -m electra_jax.tools.predict --workdir=runs/tiny --corrupt "Return the length."
  Many lines, as JSONL:    python -m electra_jax.tools.predict --workdir=runs/tiny --input=in.txt --output=out.jsonl

Put each sentence in quotes; [MASK] and <mask> both stand for one hidden token. BERT and RoBERTa runs fill masks.
ELECTRA runs fill them with the generator; then the discriminator judges every word, the likeliest tokens put in: red
means "probably replaced". A sentence that begins with a dash goes behind `--`. Without a terminal or with NO_COLOR
set, [brackets] take the place of colours."""

CHUNK_LINES = 1024  # read at once from --input: a few batches, sorted by length


def read_sentences(path: str, text_field: str) -> Iterator[tuple[int, str]]:
  """(line number from 1, sentence) of a text file, one a line, or of a .jsonl file; blank lines are left out.

  Raises:
    UserError: the file is missing or no text, or a record has no such field.
  """
  if not os.path.isfile(path):
    raise UserError("The --input file does not exist", got=path,
                    allowed="a .txt file with a sentence a line, or .jsonl", fix="check the path")
  is_json = path.removesuffix(".gz").removesuffix(".zst").endswith((".jsonl", ".json"))
  for number, line in lines.read_lines(path):
    if not line.strip():
      continue
    if is_json:
      try:
        line = json.loads(line)[text_field]
        if not isinstance(line, str):
          raise TypeError(f"the field {text_field!r} holds no text")
      except (ValueError, KeyError, TypeError) as error:
        raise UserError("A line of --input cannot be used", got=f"{path}:{number}: {error!r}",
                        allowed=f'records like {{"{text_field}": "A sentence."}} (data.text_field of the run)',
                        fix="correct the line, or give a .txt file with a sentence a line") from error
    yield number, line


def answer_file(run: inference.Run, path: str, **options) -> Iterator[tuple[int, Answer]]:
  """(line number, answer) of every sentence of a file, in its order, with a progress bar; a chunk is in memory.

  Raises:
    UserError: as `read_sentences` (for the whole file, before the first answer) and `inference.answer`, with the line.
  """
  def chunk_answers(chunk):
    try:
      return inference.answer(run, [text for _, text in chunk], **options)
    except UserError:
      for number, text in chunk:  # which line was it?
        try:
          inference.encode_question(run, text)
        except UserError as error:
          raise UserError(error.what, got=f"{path}:{number}: {error.got}", allowed=error.allowed, fix=error.fix
                          ) from None
      raise

  field = run.config.data.text_field
  total = sum(1 for _ in read_sentences(path, field))
  if not total:
    raise UserError("The --input file holds no sentence", got=path, allowed="at least one line that is not blank",
                    fix="check the file")
  chunk = []
  with tqdm(total=total, desc="predicting", unit=" sentences") as bar:
    for count, numbered in enumerate(read_sentences(path, field), 1):
      chunk.append(numbered)
      if len(chunk) == CHUNK_LINES or count == total:
        yield from zip((number for number, _ in chunk), chunk_answers(chunk))
        bar.update(len(chunk))
        chunk = []


def record(one: Answer) -> dict:
  """An answer as JSON: offsets are half-open ranges of characters, probabilities lie in [0, 1]."""
  def rounded(probability):
    return round(probability, 6)

  def judged(text, words):
    return [{"word": text[start:end], "start": start, "end": end, "replaced": rounded(p)} for start, end, p in words]

  found = {"text": one.sentence.text}
  if one.candidates:
    found["masks"] = [{"start": start, "end": end, "candidates": [
      {"token": c.text.strip(), "starts_word": c.text.startswith(" "), "id": c.token_id,
       "probability": rounded(c.probability)} for c in candidates]}
      for (start, end), candidates in zip((one.sentence.offsets[i] for i in one.sentence.masks), one.candidates)]
    found["filled"] = one.filled.text
  if one.words is not None:
    found["words"] = judged(one.filled.text, one.words)
  if one.corruption is not None:
    text = one.corruption.sentence.text
    replaced = [r._asdict() | {"probability": rounded(r.probability)} for r in one.corruption.replacements]
    found["corrupted"] = {"text": text, "words": judged(text, one.corruption.words), "replacements": replaced,
                          "num_masked": one.corruption.num_masked}
  return found


def write_records(answers: Iterator[tuple[int, Answer]], path: str) -> int:
  """Writes one JSON object a line and returns their count; the file appears complete or not at all.

  Raises:
    UserError: it cannot be written.
  """
  partial, count = f"{path}.partial-{os.getpid()}", 0
  try:
    with open(partial, "w", encoding="utf-8") as file:
      for number, one in answers:
        count += 1
        file.write(json.dumps({"line": number} | record(one), ensure_ascii=False) + "\n")
    os.replace(partial, path)
  except OSError as error:
    raise UserError("The answers cannot be written", got=f"{path}: {error.strerror or error}",
                    allowed="a file in a folder that you may write to", fix="choose another --output") from error
  finally:
    if os.path.exists(partial):
      os.remove(partial)
  return count


def define_flags() -> None:
  """Not at import: other tools have flags of the same names."""
  flags.DEFINE_string("input", None, "File with a sentence a line (.txt), or JSONL with the run's data.text_field; "
                      ".gz and .zst are unpacked.")
  flags.DEFINE_string("output", None, "JSONL file for the answers, one line a sentence; without it they are shown.")
  flags.DEFINE_integer("step", None, "The checkpoint to use; the newest if not given.", lower_bound=0)
  flags.DEFINE_integer("top_k", 5, "Candidates per mask.", lower_bound=1)
  flags.DEFINE_float("threshold", 0.5, "Probability from which a word counts as replaced.", 0.0, 1.0)
  flags.DEFINE_boolean("corrupt", False, "Also mask 15 % of each sentence that has no mask (data.masking of the run), "
                       "let the generator fill it, and show which replacements the discriminator finds.")
  flags.DEFINE_integer("seed", 0, "Of --corrupt: which tokens are masked and what is drawn.", lower_bound=0)
  flags.declare_key_flag("workdir")


def main(argv: list[str]) -> None:
  """Reads the flags, loads the run, answers on the screen or into a file."""
  texts = argv[1:]
  if not FLAGS.workdir:
    raise UserError("--workdir is missing", got="nothing", allowed="the folder of a run that has a checkpoint",
                    fix='for example --workdir=runs/tiny "The name of the [MASK] is given."')
  if bool(texts) == bool(FLAGS.input):
    raise UserError("There is nothing to answer" if not texts else "There are two sources of sentences",
                    got=f"{len(texts)} sentences and --input={FLAGS.input}",
                    allowed="either sentences, or --input=FILE",
                    fix='write a sentence in quotes: "The name of the [MASK] is given."')
  main_lib.start_jax()
  run = inference.load(FLAGS.workdir, FLAGS.step)
  options = dict(top_k=FLAGS.top_k, with_corruption=FLAGS.corrupt, seed=FLAGS.seed)
  if FLAGS.input:
    answers = answer_file(run, FLAGS.input, **options)
  else:
    answers = enumerate(inference.answer(run, texts, **options), 1)
  if FLAGS.output:
    count = write_records(answers, FLAGS.output)
    print(f"Wrote {FLAGS.output}: {count:,} answers of {FLAGS.workdir}, step {run.step}.")
    return
  found = [one for _, one in answers]
  console = Console(highlight=False)
  console.print(Text(f"{FLAGS.workdir}, step {run.step}: {run.config.objective.name}, {run.tokenizer.kind} of "
                     f"{run.tokenizer.vocab_size:,} entries\n", style="dim"), soft_wrap=True)
  predict_screen.show(found, predict_screen.Screen(console, FLAGS.threshold))


if __name__ == "__main__":
  define_flags()
  main_lib.run(main, USAGE, takes_arguments=True)
