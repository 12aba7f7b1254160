"""What happens on bad input? The four-part error, at once, and nothing that existed is harmed.

Each row of a table says how the input is broken, and what the error must name. The real `pretrain` runs around a model
that compiles in a moment (tests/fake_objective.py); the command itself runs where the exit status or the flags matter.
"""

import re
import subprocess
import sys

import jax
import numpy as np
import pytest

from configs import base
from electra_jax import metrics, objectives, pretrain
from electra_jax.data import order, tokenizers
from electra_jax.data.sources import lines
from electra_jax.errors import UserError
from electra_jax.training import checkpoints
from tests import fake_objective
from tests.conftest import ROOT
from tests.small_runs import (
  STEPS,
  assert_four_parts,
  contents,
  environment,
  flip_byte,
  refused,
  shard_of,
  small,
)

pytestmark = pytest.mark.usefixtures("quick_model")


# ---- the corpus: (what makes the file, what the error names) ----

CORPUS = {
  "missing": (lambda path: path.unlink(), ["The corpus does not exist", "corpus.txt"]),
  "empty": (lambda path: path.write_text(""), ["text"]),
  "blank lines": (lambda path: path.write_text("\n \n\t\n" * 50), ["text"]),
  "binary": (lambda path: path.write_bytes(b"\x7fELF" + bytes(500)), ["binary", "corpus.txt", "byte offset 0"]),
  "zeros inside": (lambda path: path.write_bytes(b"Some text.\n" + bytes(500)),
                   ["binary", "corpus.txt", "byte offset 11"]),
  "not UTF-8": (lambda path: path.write_bytes(b"A clean line.\nA caf\xe9.\n"),
                ["not UTF-8", "corpus.txt", "byte offset 19"]),
  "one huge line": (lambda path: path.write_bytes(b"word " * (lines.MAX_LINE_CHARACTERS // 5 + 1)),
                    ["too long", "corpus.txt:1"]),
}


@pytest.mark.parametrize("with_tokenizer", [False, True], ids=["before a vocabulary", "before shards"])
@pytest.mark.parametrize("row", CORPUS)
def test_a_bad_corpus(place, row, with_tokenizer):
  make, words = CORPUS[row]
  make(place.corpus)
  tokenizer = {"data__tokenizer__path": str(place.run / "tokenizer")} if with_tokenizer else {}
  before = contents(place.root)
  with pytest.raises(UserError) as caught:
    pretrain.pretrain(small(place, **tokenizer), str(place.new))
  assert_four_parts(caught.value, *words)
  after = contents(place.root)
  assert {name: after.get(name) for name in before} == before
  left = {name.split("/")[1] for name in set(after) - set(before) if "/" in name}
  assert left <= ({"tokenizer"} if with_tokenizer else set())
  if with_tokenizer:  # it is whole, and the next try uses it
    tokenizers.load_tokenizer(str(place.new / "tokenizer"))


def test_the_corrected_command_works_in_the_same_workdir(place):
  """An error tells which key to change; the workdir of the first try must not then count as another run."""
  refused(place, place.new, "data.path is not set", data__path="")
  with pytest.raises(UserError, match="position_offset does not fit"):
    pretrain.pretrain(small(place, model__position_offset=4, model__max_position_embeddings=20), str(place.new))
  pretrain.pretrain(small(place), str(place.new))
  assert checkpoints.saved_steps(str(place.new)) == [2, 4]


def test_empty_documents_are_skipped(place):
  place.corpus.write_text("\n\n \n\n" + place.corpus.read_text().replace("\n\n", "\n\n\n \n\n\n"))
  pretrain.pretrain(small(place), str(place.new))
  assert checkpoints.load_params(str(place.new))[0] == STEPS
  a, b = (sorted(path.read_bytes() for path in (run / "shards").rglob("*.npy")) for run in (place.run, place.new))
  assert a == b


def sentences(number):
  return [f"The sea and a ship number {index} went over cold water." for index in range(number)]


@pytest.mark.parametrize(("text", "share", "evaluated"), [
  ("\n".join(sentences(40)), 0.1, True),  # one document: its last paragraphs are held out
  ("\n".join(sentences(40)), 0.99, True),  # one document, which its hash would hold out
  (" ".join(sentences(40)), 0.1, False),  # one paragraph
  ("\n\n".join(sentences(40)), 0.0, False)])
def test_little_or_nothing_held_out(place, capsys, text, share, evaluated):
  place.corpus.write_text(text)
  values = pretrain.pretrain(small(place, data__heldout_share=share), str(place.new))
  assert bool(values) == evaluated and all(np.isfinite(value) for value in values.values())
  shown = capsys.readouterr().err
  assert ("nothing is held out" in shown) != evaluated and "nan" not in shown
  assert {row["split"] for row in metrics.read_rows(str(place.new))} == {"train", "time", *["eval"] * evaluated}
  assert checkpoints.saved_steps(str(place.new)) == [2, 4]


# ---- configuration, vocabulary, shards, workdir: (what is broken, workdir, changes of the config, words) ----


def vocabulary_without_mask(place):
  (place.root / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "sea", "ship"]) + "\n")
  return {"data__tokenizer__path": str(place.root / "vocab.txt")}


def other_vocabulary(place):
  """The shards of a run next to a vocabulary that they were not made with."""
  names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
  (place.root / "vocab.txt").write_text("\n".join(names) + "\n")
  return {"data__tokenizer__path": str(place.root / "vocab.txt"), "data__shards_path": str(place.run / "shards")}


def damaged_first_shard(place):
  number = len(list((place.run / "shards" / "train").glob("[0-9]*.npy")))  # not lengths.npy
  (example, *_), _ = order.example_order(0, 8, number, 0)
  flip_byte(shard_of(place, int(example)))
  return {}


def file_in_place_of_workdir(place):
  place.new.write_text("years of work")
  return {}


CASES = {
  "a choice that does not exist": ("new", lambda place: dict(data__format="FULL-SENTENCE"), [
    "data.format is 'FULL-SENTENCE'", "did you mean FULL-SENTENCES?"]),
  "sequence longer than the position table": ("new", lambda place: dict(data__sequence_length=65), [
    "data.sequence_length 65", "64 usable rows", "model.max_position_embeddings"]),
  "two faults at once": ("new", lambda place: dict(data__sequence_length=65, train__batch_size=0), [
    "2 faults", "data.sequence_length 65", "train.batch_size is 0"]),
  "batch not divisible by the devices": ("new", lambda place: dict(train__batch_size=12), [
    "12 sequences over 8 devices", "use 16"]),
  "batch not divisible by the accumulation": ("new", lambda place: dict(train__accumulation_steps=3), [
    "train.batch_size 8 is not a multiple of train.accumulation_steps 3"]),
  "vocabulary without a mask token": ("new", vocabulary_without_mask, ["[MASK]", "vocab.txt"]),
  "vocabulary that does not exist": ("new", lambda place: dict(data__tokenizer__path="/nowhere"), ["/nowhere"]),
  "shards for another config": ("new", lambda place: dict(
    data__shards_path=str(place.run / "shards"), data__tokenizer__path=str(place.run / "tokenizer"),
    data__sequence_length=32), ["data.sequence_length is 32", "packed with 16", "--config.data.sequence_length=16"]),
  "shards for another vocabulary": ("new", other_vocabulary, ["another tokenizer", "fingerprint"]),
  "damaged shard": ("run", damaged_first_shard, ["A shard is damaged", ".npy", "CRC"]),
  "workdir of another model": ("run", lambda place: dict(model__hidden_size=32, data__masking__rate=0.3), [
    "holds another run", "model.hidden_size: 64 in the workdir, 32 asked for", "data.masking.rate"]),
  "workdir whose config is damaged": ("run", lambda place: (place.run / "config.json").write_text("{") and {}, [
    "config.json"]),
  "workdir is a file": ("new", file_in_place_of_workdir, ["cannot be written", "new"]),
  "workdir in a file": ("corpus.txt/run", lambda place: {}, ["cannot be written", "corpus.txt/run"]),
}


@pytest.mark.parametrize("row", CASES)
def test_bad_input_is_refused_and_harms_nothing(place, row):
  workdir, damage, words = CASES[row]
  changes = damage(place)
  before = contents(place.root)
  with pytest.raises(UserError) as caught:
    pretrain.pretrain(small(place, **changes), str(place.root / workdir))
  assert_four_parts(caught.value, *words)
  after = contents(place.root)
  assert {name: after.get(name) for name in before} == before
  new = {name for name in set(after) - set(before) if not name.startswith("new/tokenizer")}  # that is whole, and used
  assert new <= {"new"}


def test_base_needs_a_corpus(tmp_path):
  given = base.get_config()
  given.data.path = ""
  with pytest.raises(UserError) as caught:
    pretrain.pretrain(given, str(tmp_path / "new"))
  assert_four_parts(caught.value, "data.path is not set", "--config.data.path=/path/to/text",
                    "--config.data.path=pydoc:")


def test_checkpoints_of_another_model_are_not_touched(place):
  """Also where config.json does not tell."""
  before = contents(place.run / "checkpoints")

  def wider(*arguments):
    objective = fake_objective.make(*arguments)
    return objective._replace(init=lambda rng, batch: jax.tree.map(
      lambda x: x.repeat(2, axis=1), objective.init(rng, batch)))

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(objectives, "make", wider)
    with pytest.raises(UserError) as caught:
      pretrain.pretrain(small(place), str(place.run))
  assert_four_parts(caught.value, "is of another model", "(128, 8), asked for (128, 16)")
  assert contents(place.run / "checkpoints") == before


@pytest.mark.parametrize("changes", [{}, {"optimizer__learning_rate": 0.5}])
def test_checkpoints_without_config_are_not_gone_on_with(place, changes):
  """Nothing else says what the run was: another learning rate would go on in silence."""
  (place.run / "config.json").unlink()
  refused(place, place.run, "config.json", "restore it from a backup", **changes)


# ---- the command: flags and exit status ----

COMMANDS = {
  "typo in a flag": ("--config=configs/tiny.py --workdirr=W", ["workdirr", "Did you mean: workdir"]),
  "typo in a key": ("--config=configs/tiny.py --workdir=W --config.train.num_stepz=3", [
    "did you mean train.num_steps?"]),
  "value of another type": ("--config=configs/tiny.py --workdir=W --config.train.batch_size=many", ["batch_size=many"]),
  "recipe that does not exist": ("--config=configs/nope.py --workdir=W", ["configs/nope.py", "--config=tiny"]),
  "recipe that is no Python": ("--config=requirements.txt --workdir=W", [
    "The recipe cannot be loaded", "requirements.txt"]),
  "unknown variant of a recipe": ("--config=configs/tiny.py:tinny --workdir=W", ["tinny", "allowed: :tiny"]),
  "no recipe": ("--workdir=W", ["--config is missing"]),
  "extra argument": ("--config=configs/tiny.py --workdir=W data.txt", ["not flags", "data.txt"]),
  "incomplete process group": ("--config=configs/tiny.py --workdir=W", ["NUM_PROCESSES", "export all three"]),
  "no corpus": ("--config=configs/base.py --workdir=W --config.data.path=", ["data.path is not set", "pydoc:"]),
}


@pytest.mark.parametrize("row", COMMANDS)
def test_the_command_ends_with_status_2(tmp_path, row):
  arguments, words = COMMANDS[row]
  extra = {"NUM_PROCESSES": "2"} if row == "incomplete process group" else {}
  done = subprocess.run([sys.executable, "-m", "electra_jax.main", *arguments.replace("=W", f"={tmp_path}/W").split()],
                        cwd=ROOT, env=environment() | extra, capture_output=True, text=True, timeout=60)
  assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
  assert all(re.search(rf"^  {part}: +\S", done.stderr, re.MULTILINE) for part in ("got", "allowed", "fix"))
  assert all(word in done.stderr for word in words), done.stderr
  assert contents(tmp_path).keys() <= {"W"}
