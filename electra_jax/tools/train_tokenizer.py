"""How do I learn a vocabulary without starting a run? Trains the tokenizer that a recipe describes.

Examples:
  python -m electra_jax.tools.train_tokenizer --config=configs/tiny.py --out=/tmp/tokenizer
  python -m electra_jax.tools.train_tokenizer --config=configs/base.py --config.data.path='corpus/**/*.txt' \\
    --config.data.tokenizer.kind=wordpiece --config.data.tokenizer.vocab_size=30522 --out=/data/wordpiece

The first is the demo's vocabulary from the documentation that Python carries; the second learns BERT's kind from your
own text. Use the result in any run with --config.data.tokenizer.path=DIR. The keys that matter are data.path,
data.text_field, data.heldout_share (held-out documents are left out here too) and data.tokenizer.*; their meaning is in
configs/common.py. The directory appears complete or not at all; one that exists is never overwritten.
"""

import sys

from absl import app, flags
from ml_collections import config_flags

from electra_jax import config as configuration
from electra_jax.data import documents, tokenizers
from electra_jax.errors import UserError

_CONFIG = config_flags.DEFINE_config_file("config", None, "The recipe, for example configs/tiny.py; --config.KEY=VALUE "
                                          "changes one of its keys.", lock_config=True)
_OUT = flags.DEFINE_string("out", None, "Directory to write the tokenizer to: new or empty.")


def run(config, directory: str) -> tokenizers.Tokenizer:
  """Trains the tokenizer of a recipe on its corpus, writes it to a directory and prints what came out."""
  config = configuration.resolve(config)
  tokenizer = tokenizers.train_tokenizer(config.data.tokenizer, documents.training_texts(config.data), directory,
                                         config.seed)
  sample = "The generator replaces [MASK] with plausible words."
  print(f"Wrote {directory}: {tokenizer.kind}, {tokenizer.vocab_size} entries, fingerprint "
        f"{tokenizer.fingerprint[:12]}.\nFor example: {' '.join(tokenizer.tokens(tokenizer.encode(sample)))}\n"
        f"Use it with --config.data.tokenizer.path={directory}")
  return tokenizer


def main(argv: list[str]) -> None:
  """Entry point."""
  if len(argv) > 1:
    raise UserError("There are arguments that are no flags", got=" ".join(argv[1:]), allowed="--config and --out",
                    fix="write --flag=value without spaces around =")
  for name, value in (("config", _CONFIG.value), ("out", _OUT.value)):
    if not value:
      raise UserError(f"--{name} is missing", got="nothing", allowed="both --config=RECIPE and --out=DIR",
                      fix="python -m electra_jax.tools.train_tokenizer --config=configs/tiny.py --out=/tmp/tokenizer")
  run(_CONFIG.value, _OUT.value)


def _parse_flags(argv: list[str]) -> list[str]:
  try:
    rest = flags.FLAGS(argv)
    if _CONFIG.value is not None:
      _CONFIG.value.to_dict()  # a recipe that could not be loaded says so only when it is used
    return rest
  except (flags.Error, AttributeError, OSError, ValueError) as error:  # a recipe's own mistakes included
    raise UserError("A flag cannot be understood", got=str(error), allowed="the flags of --help and the keys of "
                    "configs/common.py", fix="correct the flag") from error


if __name__ == "__main__":
  try:
    app.run(main, flags_parser=_parse_flags)
  except UserError as fault:
    print(f"error: {fault}", file=sys.stderr)
    sys.exit(2)
