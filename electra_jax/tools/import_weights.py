"""Import of a published model as a folder like a run's: weights under our names, config and tokenizer."""

import datetime
import os
from collections.abc import Callable

import jax
from absl import flags
from jaxtyping import PyTree
from ml_collections import ConfigDict

from electra_jax import config as config_lib
from electra_jax import files, sharding
from electra_jax import main as main_lib
from electra_jax.data import tokenizers
from electra_jax.errors import UserError
from electra_jax.exchange import formats, hub, initial, published
from electra_jax.training import checkpoints, setup

FLAGS = flags.FLAGS

USAGE = """Turns published weights into a folder like a run's at step 0.

  A BERT, to train on:    python -m electra_jax.tools.import_weights --weights=bert-base-uncased \\
                              --config=configs/bert_original_base.py --out=runs/bert
  An ELECTRA, both parts: python -m electra_jax.tools.import_weights --weights=DIR --config=configs/base.py \\
                              --out=runs/electra      (DIR holds discriminator/ and generator/)
  A vocabulary elsewhere: ... --config.data.tokenizer.path=vocab.txt

--weights is a Hugging Face folder (model.safetensors or pytorch_model.bin) or a name on the hub, a checkpoint of the
released TensorFlow code, or fairseq's RoBERTa. --config is the recipe to continue with; the weights' sizes and
vocabulary replace its own. Parts that the weights lack start fresh, and are named.

tools/predict, tools/export and tools/checkpoints read the folder. To train on, no import is needed:
--config.checkpoint.init_from takes the weights themselves, with their sizes and vocabulary (docs/own_text.md)."""


def import_weights(path: str, given: ConfigDict, out: str) -> initial.Start:
  """Writes `out`: config.json (with a branch `imported`), tokenizer/ and checkpoints/0/.

  Args:
    path: the weights, in any of `formats.FORMATS`, or their name on the Hugging Face hub.
    given: a recipe, not resolved; it is not changed. Its `data.tokenizer.path` is where the vocabulary is, if not next
      to the weights.

  Raises:
    UserError: weights, vocabulary and recipe do not fit each other, something is damaged, or `out` is taken.
  """
  folder = hub.fetch(path)
  weights = formats.read(folder)
  tokenizer = tokenizers.load_tokenizer(given.data.tokenizer.path or published.vocabulary_folder(folder))
  adapted = published.adapt(given, weights, tokenizer)
  config = config_lib.resolve(adapted)
  with files.new_folder(out) as partial:
    init = initial_params(config, tokenizer)
    start = initial.merge(weights, jax.eval_shape(init), tokenizer.vocab_size)
    if start.fresh:
      start = initial.merge(weights, jax.jit(init)(), tokenizer.vocab_size)
    config_lib.save(os.path.join(partial, "config.json"), adapted, config, imported={
      "weights": path, "fresh": start.fresh, "unused": start.unused, "date": datetime.date.today().isoformat()})
    tokenizer.save(os.path.join(partial, "tokenizer"))
    checkpoints.save_params(partial, config.checkpoint, 0, start.params)
  return start


def initial_params(config: ConfigDict, tokenizer: tokenizers.Tokenizer) -> Callable[[], PyTree]:
  """A function that makes the parameters that a run of this config would start from."""
  mesh = sharding.make_mesh({"data": 1, "fsdp": 1, "tensor": 1}, jax.devices()[:1])
  return setup.make(config, mesh, tokenizer.vocab_size).init_params


def main(argv: list[str]) -> None:
  """Imports what the flags say, and prints which parts start fresh or are not used."""
  del argv
  if not FLAGS.weights or not FLAGS.out or FLAGS.config is None:
    raise UserError("--weights, --config and --out are needed",
                    got=f"--weights={FLAGS.weights or ''} --out={FLAGS.out or ''}",
                    allowed="published weights, the recipe to continue with, and a new folder", fix="see --help")
  main_lib.start_jax()
  start = import_weights(FLAGS.weights, FLAGS.config, FLAGS.out)
  for what, names in (("Not in the weights, so it starts fresh", start.fresh), ("Not needed here", start.unused)):
    if names:
      print(f"{what}: {', '.join(names)}")
  print(f"Wrote {FLAGS.out}.")


if __name__ == "__main__":  # flags, too: other tools have some of the same names
  flags.declare_key_flag("config")  # appears in --help
  flags.DEFINE_string("weights", None, "Folder or file of the published weights, or their name on the hub.")
  flags.DEFINE_string("out", None, "The new folder.")
  main_lib.run(main, USAGE)
