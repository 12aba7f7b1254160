"""Training of the tokenizer that a recipe describes, without a run."""

from absl import flags
from ml_collections import ConfigDict

from electra_jax import config as configuration
from electra_jax import main as main_lib
from electra_jax.data import tokenizers
from electra_jax.data.sources import documents
from electra_jax.errors import UserError

FLAGS = flags.FLAGS
flags.adopt_module_key_flags(main_lib)  # --config appears in --help
flags.DEFINE_string("out", None, "Directory to write the tokenizer to: new or empty.", allow_override=True)

USAGE = """Trains the tokenizer that a recipe describes.

  python -m electra_jax.tools.train_tokenizer --config=configs/tiny.py --out=/tmp/tokenizer
  python -m electra_jax.tools.train_tokenizer --config=configs/base.py --config.data.path='corpus/**/*.txt' \\
    --config.data.tokenizer.kind=wordpiece --config.data.tokenizer.vocab_size=30522 --out=/data/wordpiece

The first learns the demo's vocabulary from the documentation that Python carries, the second one of BERT's kind from
your own text. Kinds are sentencepiece (unigram) and sentencepiece_bpe, both with bytes for characters that the text
lacks, wordpiece and byte_bpe (RoBERTa's). The same text gives the same files.

Use the result in any run with --config.data.tokenizer.path=DIR. The keys that matter are data.path, data.text_field,
data.heldout_share (held-out documents are left out here, too) and data.tokenizer.*; configs/common.py explains them.
The directory appears complete or not at all; one that exists is never overwritten.
"""


def run(config: ConfigDict, directory: str) -> tokenizers.Tokenizer:
  """Trains the tokenizer of a recipe on its corpus, writes it to a directory and describes it."""
  config = configuration.resolve(config)
  tokenizer = tokenizers.train_tokenizer(config.data.tokenizer, documents.training_texts(config.data), directory,
                                         config.seed)
  sample = "The generator replaces [MASK] with plausible words."
  print(f"Wrote {directory}: {tokenizer.kind}, {tokenizer.vocab_size:,} entries, fingerprint "
        f"{tokenizer.fingerprint[:12]}.\nFor example: {' '.join(tokenizer.tokens(tokenizer.encode(sample)))}\n"
        f"Use it with --config.data.tokenizer.path={directory}")
  return tokenizer


def main(argv: list[str]) -> None:
  """Entry point."""
  del argv
  for name in ("config", "out"):
    if not FLAGS[name].value:
      raise UserError(f"--{name} is missing", got="nothing", allowed="both --config=RECIPE and --out=DIR",
                      fix="python -m electra_jax.tools.train_tokenizer --config=configs/tiny.py --out=/tmp/tokenizer")
  run(FLAGS.config, FLAGS.out)


if __name__ == "__main__":
  main_lib.run(main, USAGE)
