"""The command: python -m electra_jax.main --config=configs/tiny.py --workdir=runs/tiny"""

import os
import sys

from absl import app, flags, logging
from ml_collections import config_flags

from electra_jax.errors import UserError

FLAGS = flags.FLAGS
config_flags.DEFINE_config_file(
  "config", None, "The recipe, a file in configs/. FILE:tiny shrinks it to a laptop and the embedded corpus. Every key "
  "of configs/common.py can be changed: --config.train.num_steps=20 --config.data.path=/path/to/text", lock_config=True)
flags.DEFINE_string(
  "workdir", None, "Folder of the run: config, tokenizer, shards, checkpoints, logs. The same command in the same "
  "workdir goes on where it stopped.")

USAGE = """Pre-trains a text encoder the way the ELECTRA and RoBERTa papers do.

  The demo, minutes on a laptop CPU:   python -m electra_jax.main --config=configs/tiny.py --workdir=runs/tiny
  ELECTRA-Base on your own text:       python -m electra_jax.main --config=configs/base.py --workdir=runs/base \\
                                           --config.data.path=/path/to/text
  Any recipe, shrunk to try it:        python -m electra_jax.main --config=configs/roberta_base.py:tiny --workdir=runs/t

Kill it at any moment: the same command goes on from the last checkpoint. Recipes are in configs/, every key with its
reason is in configs/common.py."""


def main(argv: list[str]) -> None:
  """Starts the process group and runs what `config.mode` says."""
  del argv
  for name in ("config", "workdir"):
    if FLAGS[name].value is None:
      raise UserError(f"--{name} is missing", got="nothing", allowed="see `python -m electra_jax.main --help`",
                      fix="for a first try: --config=configs/tiny.py --workdir=runs/tiny")
  start_jax()
  from electra_jax import pretrain  # after the start-up: these imports touch jax's devices

  modes = {"pretrain": pretrain.pretrain}
  if FLAGS.config.mode not in modes:
    raise UserError("config.mode is unknown", got=FLAGS.config.mode, allowed=", ".join(modes),
                    fix="set --config.mode=pretrain")
  modes[FLAGS.config.mode](FLAGS.config, FLAGS.workdir)


def start_jax() -> None:
  """Joins the process group and switches the persistent compilation cache on."""
  import jax

  from electra_jax import distributed

  cache = os.environ.get("JAX_COMPILATION_CACHE_DIR") or os.path.expanduser("~/.cache/electra_jax/compiled")
  jax.config.update("jax_compilation_cache_dir", cache)
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
  distributed.start()


def run(main_function, usage: str, *, takes_arguments: bool = False) -> None:
  """absl's app.run for `main` and every tool: user errors are told in four lines, without a traceback.

  The exit status is 2 for them. `usage` is what --help prints above the flags.
  """
  sys.modules["__main__"].__doc__ = usage
  logging.set_verbosity(logging.WARNING)

  def parse(argv: list[str]) -> list[str]:
    try:
      rest = FLAGS(argv)
      if FLAGS["config"].value is not None:
        FLAGS.config.to_dict()  # a recipe that cannot be loaded says so only when it is used
    except (flags.Error, AttributeError, OSError, TypeError, ValueError) as error:
      if isinstance(error, UserError):
        raise
      said = str(error.args[0] if error.args else error).strip().split("\n")
      got = said[-1] if any(line.startswith("Traceback") for line in said) else "\n    ".join(said)
      raise UserError("A flag cannot be understood", got=got, allowed="the flags of --help and the keys of "
                      "configs/common.py", fix="correct the flag") from error
    if len(rest) > 1 and not takes_arguments:
      raise UserError("There are arguments that are no flags", got=" ".join(rest[1:]), allowed="--name=value",
                      fix="write --name=value without blanks around the equals sign")
    return rest

  try:
    app.run(main_function, flags_parser=parse)
  except UserError as error:
    print(f"\nError: {error}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
  run(main, USAGE)
