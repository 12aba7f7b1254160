"""Recorded behaviour: losses, batches and exports that a change of the structure must leave as they are.

`python -m tests.test_net --write [ROW...]` records rows anew that change by design; their commit says why.
Losses are compared to the last bit where the CPU, jax and the compiler's options are those of the record, elsewhere
within 1e-5.
"""

import functools
import hashlib
import json
import os
import pathlib
import sys
import tempfile
import warnings

import numpy as np
import pytest

from tests import small_runs
from tests.conftest import ROOT

RECORD = ROOT / "tests" / "behaviour.json"
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "rain", "fall", "over", "every", "roof", "in", "town",
         "while", "dogs", "came", "back", "wet", "but", "glad"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
UPDATES = 20

# row -> recipe, its changes. Each objective and each format is in one of them.
RUNS = {
  "tiny": ("tiny", {}),
  "rtd ELECTRA": ("small", {}),
  "mlm FULL-SENTENCES": ("roberta_base", {"model.position_offset": 1}),
  "mlm DOC-SENTENCES": ("bert_small", {"data.format": "DOC-SENTENCES"}),
  "mlm_nsp SEGMENT-PAIR": ("bert_original_base", {}),
  "mlm_nsp SENTENCE-PAIR": ("bert_original_base", {"data.format": "SENTENCE-PAIR"}),
  **{name: ("small", {"objective.name": name}) for name in
     ("electra_15", "electra_15_other", "replace_mlm", "all_tokens_mlm", "adversarial", "hard_tokens", "contrastive")},
  "two_stage": ("small", {"objective.name": "two_stage", "objective.weight_tying": "none",
                          "generator.width_fraction": 1.0}),
}
FORMATS = [name for name in RUNS if name.split()[-1].isupper()]


def write_corpus(folder: pathlib.Path) -> None:
  """Documents of sentences over WORDS, and a vocabulary that has them whole or in pieces."""
  rng = np.random.default_rng(0)
  documents = ("\n".join(" ".join(rng.choice(WORDS, rng.integers(2, 9))) + "." for _ in range(rng.integers(1, 9)))
               for _ in range(120))
  (folder / "corpus.txt").write_text("\n\n".join(documents))
  pieces = [*sorted(set("".join(WORDS))), "."]
  (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *pieces, *("##" + piece for piece in pieces), *WORDS[:-4]]))


def recipe(row: str, folder: pathlib.Path):
  """The row's recipe, in which everything is small; the same programs and shards wherever rows may share them."""
  import importlib

  name, changes = RUNS[row]
  given = importlib.import_module(f"configs.{name}").get_config("tiny")
  given.model.update(hidden_size=16, embedding_size=16, num_hidden_layers=1, num_attention_heads=2,
                     intermediate_size=32)
  given.data.update(path=str(folder / "corpus.txt"), max_documents=0, sequence_length=16, num_workers=1,
                    heldout_share=0.1 if row == "tiny" else 0.0, reader="threads")
  size = len((folder / "vocab.txt").read_text().splitlines())
  given.data.tokenizer.update(kind="wordpiece", lowercase=True, path=str(folder / "vocab.txt"), vocab_size=size)
  given.update_from_flattened_dict(changes)
  given.data.shards_path = str(folder / f"shards_{given.data.format}_{given.data.heldout_share}")
  given.train.update(batch_size=8, num_steps=UPDATES, log_every_steps=1)
  given.optimizer.warmup_steps = 2
  given.checkpoint.every_steps = 1000
  given.log.tensorboard = False
  return given


def loss_of(workdir: str, name: str = "loss") -> list[float]:
  from electra_jax import metrics

  return [value for row in metrics.read_rows(workdir) if row["split"] == "train" and
          (value := row.get(name)) is not None]


def losses(row: str, folder: pathlib.Path) -> list[float]:
  """Of each update of a pre-training."""
  from electra_jax import pretrain

  workdir = str(folder / row.replace(" ", "_"))
  pretrain.pretrain(recipe(row, folder), workdir)
  return loss_of(workdir)


def batches(row: str, folder: pathlib.Path) -> str:
  """A digest of the first five batches."""
  from electra_jax import config as config_lib
  from electra_jax.training import inputs

  data = inputs.open_data(config_lib.resolve(recipe(row, folder)), str(folder / f"{row} batches"))
  return digest({f"{step} {name}": array for step in range(5) for name, array in data.batch_at(step).items()})


def fine_tuning(row: str, folder: pathlib.Path) -> list[float]:
  """Losses of two seeds, one behind the other, from the encoder of `tiny`."""
  from configs.finetune import own
  from electra_jax import finetune

  source = str(folder / "tiny")
  if not os.path.exists(source):
    losses("tiny", folder)
  examples = [{"text": f"the {word} cat sat on the {other}", "label": str(len(word) % 2)}
              for word in WORDS for other in WORDS[:2]]
  for split in ("train", "dev"):
    (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, examples)))
  c = own.get_config("classification")
  c.train.update(batch_size=8, compute_dtype="float32", log_every_steps=1)
  c.eval.batch_size, c.data.reader = 8, "threads"
  c.log.tensorboard = False
  c.optimizer.learning_rate, c.task.layer_decay, c.task.fresh_layers = 1e-4, 0.8, 0
  c.task.update(init_from=source, train_path=str(folder / "train.jsonl"), dev_path=str(folder / "dev.jsonl"),
                max_length=16, num_epochs=2.0, num_seeds=2, seeds_at_once=2)
  finetune.finetune(c, str(folder / row))
  (metrics_file,) = (folder / row).rglob("metrics.jsonl")
  return [value for seed in (0, 1) for value in loss_of(str(metrics_file.parent), f"loss/seed_{seed}")]


def exported(row: str, folder: pathlib.Path) -> str:
  """A digest of the tensors that a fixed state gives transformers."""
  import safetensors.numpy

  from electra_jax import config as config_lib
  from electra_jax.data import tokenizers
  from electra_jax.tools import export
  from tests import workdirs

  given = recipe(row.removesuffix(" export"), folder)
  config = config_lib.resolve(given)
  workdir = folder / row
  (workdir / "tokenizer").mkdir(parents=True)
  config_lib.save(str(workdir / "config.json"), given, config)
  (workdir / "tokenizer" / "vocab.txt").write_text((folder / "vocab.txt").read_text())
  tokenizer = tokenizers.load_tokenizer(str(workdir / "tokenizer"), config.data.tokenizer)
  workdirs.save_random_params(str(workdir), config, tokenizer, 7)
  export.export(str(workdir), str(folder / f"{row} out"))
  return digest({f"{path.parent.name} {name}": array for path in sorted((folder / f"{row} out").rglob("*.safetensors"))
                 for name, array in safetensors.numpy.load_file(path).items()})


def digest(arrays: dict[str, np.ndarray]) -> str:
  lines = (f"{name} {array.dtype} {array.shape} {hashlib.sha1(np.ascontiguousarray(array)).hexdigest()}"
           for name, array in sorted(arrays.items()))
  return hashlib.sha1("\n".join(lines).encode()).hexdigest()


ROWS = {
  **dict.fromkeys(RUNS, losses),
  "fine-tuning": fine_tuning,
  **dict.fromkeys((f"{name} batches" for name in FORMATS),
                  lambda row, folder: batches(row.removesuffix(" batches"), folder)),
  "tiny export": exported,
  "mlm FULL-SENTENCES export": exported,
  "mlm_nsp SEGMENT-PAIR export": exported,
}


@functools.cache
def machine() -> dict[str, str]:
  """What the last bit of a loss depends on, besides the code."""
  import jax
  import jaxlib

  try:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line for line in lines if line.startswith("flags")), "")
  except OSError:
    flags = "unknown"
  return {"cpu": hashlib.sha1(flags.encode()).hexdigest()[:12], "cores": str(os.cpu_count()),
          "jax": f"{jax.__version__} {jaxlib.__version__}", "numpy": np.__version__}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  with small_runs.devices(1):
    write_corpus(path := tmp_path_factory.mktemp("net"))
    yield path


@pytest.fixture(scope="module")
def record():
  recorded = json.loads(RECORD.read_text())
  if recorded["machine"] != machine():
    warnings.warn(f"recorded on another machine ({recorded['machine']}, here {machine()}): losses within 1e-5",
                  stacklevel=2)
  return recorded


@pytest.mark.parametrize("row", ROWS)
def test_as_recorded(row, folder, record):
  found, expected = ROWS[row](row, folder), record["rows"][row]
  if isinstance(expected, str) or record["machine"] == machine():
    assert found == expected
  else:
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def write(rows: list[str]) -> None:
  recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {"rows": {}}
  if rows and recorded["machine"] != machine():
    raise SystemExit(f"Single rows can only be recorded on the machine of the others: {recorded['machine']}")
  with tempfile.TemporaryDirectory() as name, small_runs.devices(1):
    write_corpus(folder := pathlib.Path(name))
    found = {row: ROWS[row](row, folder) for row in rows or ROWS}
  kept = recorded["rows"] if rows else {}
  lines = ",\n".join(f"  {json.dumps(row)}: {json.dumps(value)}" for row, value in sorted({**kept, **found}.items()))
  RECORD.write_text(f'{{"machine": {json.dumps(machine())},\n "rows": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
  write(sys.argv[2:])
