"""The command: python -m electra_jax.main --config=configs/tiny.py --workdir=runs/tiny"""

import io
import os
import signal
import sys
import traceback
from collections.abc import Callable

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from electra_jax import config as config_lib
from electra_jax import recipes
from electra_jax.errors import Interrupted, NoAnswerError, UserError

FLAGS = flags.FLAGS
config_flags.DEFINE_config_file(
  "config", None, "The recipe, a file in configs/. FILE:tiny shrinks it to a laptop and the embedded corpus. Every key "
  "of configs/common.py can be changed: --config.train.num_steps=20 --config.data.path=/path/to/text", lock_config=True)
flags.DEFINE_string(
  "workdir", None, "Folder of the run: config, tokenizer, shards, checkpoints, logs; by default runs/NAME of the "
  "recipe. The same command in the same workdir resumes where it stopped.")

USAGE = """Pre-trains and fine-tunes a text encoder as in the ELECTRA and RoBERTa papers.

  The demo, minutes on a laptop CPU:   python -m electra_jax.main --config=configs/tiny.py --workdir=runs/tiny
  ELECTRA-Base on your own text:       python -m electra_jax.main --config=configs/base.py --workdir=runs/base \\
                                           --config.data.path=/path/to/text
  From published weights, on your text: python -m electra_jax.main --config=configs/bert_base.py:continued \\
                                           --workdir=runs/mine --config.checkpoint.init_from=/path/to/bert \\
                                           --config.data.path=/path/to/text
  Fine-tuning on GLUE or your data:    python -m electra_jax.main --config=configs/finetune/glue.py:rte \\
                                           --workdir=runs/rte --config.task.init_from=runs/base \\
                                           --config.task.data_dir=/path/to/glue
  Any recipe, shrunk to try it:        python -m electra_jax.main --config=configs/roberta_base.py:tiny --workdir=runs/t

A run can be killed at any moment: the same command resumes from the last checkpoint. On Ctrl-C, SIGTERM, SIGHUP,
SIGUSR1 or SIGUSR2 it writes one first; the same again ends it at once. Recipes are in configs/; configs/common.py has
every key with its reason.

Exit status: 0 finished; 2 a mistake that you can repair, explained in four lines; 75 stopped by a signal after
writing a checkpoint, start it again to resume; 69 another process of the run or the reader of its data does not
answer, start all again; 130 ended by Ctrl-C without a checkpoint; 1 a fault of the program."""


def main(argv: list[str]) -> None:
  """Checks the config, joins the process group, and pre-trains or, if there is a task, fine-tunes."""
  del argv
  if FLAGS["config"].value is None:
    raise UserError("--config is missing", got="nothing", allowed="a recipe; see `python -m electra_jax.main --help`",
                    fix="for a first try: --config=configs/tiny.py --workdir=runs/tiny")
  config, folder = config_lib.resolve(FLAGS.config), FLAGS.workdir or default_workdir()
  check_quickly(config, folder)
  start_jax()
  from electra_jax import finetune, metrics, pretrain
  from electra_jax.training import workdir

  metrics.check_services(config.log)  # before minutes of preparation
  recipe = recipes.shorten(config_flags.get_config_filename(FLAGS["config"]))
  chosen = "" if FLAGS.workdir else " (--workdir names another)"
  print(f"Recipe {recipe}, workdir {folder}{chosen}.", flush=True)
  with workdir.lock(folder):
    (finetune.finetune if config.task.name else pretrain.pretrain)(FLAGS.config, folder, recipe=recipe)


def check_quickly(config: ConfigDict, workdir: str) -> None:
  """Checks what needs no jax, whose import takes seconds.

  Raises:
    UserError: there is no such task or metric, no text and no shards, nothing to start from, a dev file of
      `eval.finetune_tasks` cannot be read, or a package for it or for the logs is not installed.
  """
  from electra_jax import metrics
  from electra_jax.exchange import hub

  start = config.checkpoint.init_from
  if config.task.name:
    from electra_jax import tasks
    tasks.check(config.task)
    start = config.task.init_from
  elif not config.data.path:
    from electra_jax.data.shards import corpus
    corpus.check(config.data, workdir)
  if config.eval.finetune_tasks:
    from electra_jax import tasks
    tasks.check_all_during(config)
  if start and not os.path.isdir(os.path.join(workdir, "checkpoints")):  # a run that resumes needs no start
    config_lib.check_exists(hub.fetch(start))
  metrics.check_installed(config.log)


def default_workdir() -> str:
  """runs/NAME of the recipe, or runs/NAME-VARIANT."""
  path, _, variant = config_flags.get_config_filename(FLAGS["config"]).partition(":")
  name = os.path.basename(path).removesuffix(".py")
  return os.path.join("runs", "-".join([name, *variant.split(",")]) if variant else name)


def start_jax() -> None:
  """Turns on the persistent compilation cache and joins the process group.

  Raises:
    UserError: the environment asks for a device that jax cannot use, or describes the group wrongly.
    NoAnswerError: the other processes do not come.
  """
  import jax

  from electra_jax import distributed

  cache = os.environ.get("JAX_COMPILATION_CACHE_DIR") or os.path.expanduser("~/.cache/electra_jax/compiled")
  jax.config.update("jax_compilation_cache_dir", cache)
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
  distributed.start()
  distributed.check_devices()


def run(main_function: Callable[[list[str]], None], usage: str, *, takes_arguments: bool = False) -> None:
  """absl's app.run for `main` and every tool: prints user errors without a traceback.

  The exit status is theirs (2, or 69 for a NoAnswerError), Interrupted.STATUS for a run that was asked to stop, and
  130 for Ctrl-C elsewhere. --help prints `usage` above the flags.
  """
  outlive_console()
  sys.modules["__main__"].__doc__ = f"{usage.rstrip()}\n"  # an empty line in front of the flags
  logging.set_verbosity(logging.WARNING)

  def parse(argv: list[str]) -> list[str]:
    try:
      argv = recipes.with_paths(argv)
      recipes.check_command(argv)
      rest = FLAGS(argv)
    except flags.Error as error:  # its last line, as a traceback may come before it
      raise UserError("A flag cannot be understood", got=str(error).strip().split("\n")[-1], fix="correct the flag",
                      allowed="the flags of --help and the keys of configs/common.py") from error
    expand_home({name: FLAGS[name] for name in FLAGS if not name.startswith("config")})
    if FLAGS["config"].value is not None:
      expand_config(FLAGS.config)
    if len(rest) > 1 and not takes_arguments:
      raise UserError("There are arguments that are not flags", got=" ".join(rest[1:]), allowed="--name=value",
                      fix="write --name=value without spaces around the equals sign")
    return rest

  try:
    app.run(main_function, flags_parser=parse)
  except UserError as error:
    print(f"\nError: {error}", file=sys.stderr)
    leave(error.STATUS)
  except Interrupted as stop:
    print(f"\n{stop}", file=sys.stderr)
    sys.exit(Interrupted.STATUS)  # in all processes
  except KeyboardInterrupt:
    print("\nInterrupted.", file=sys.stderr)
    leave(128 + signal.SIGINT)
  except Exception as error:
    if known := _find_known(error):
      print(f"\nError: {known}", file=sys.stderr)
      leave(known.STATUS)
    traceback.print_exc()
    leave(1)


def expand_home(flag_of: dict[str, flags.Flag]) -> None:
  """Replaces a leading `~`, which shells do not expand after an equals sign, by the home folder."""
  for flag in flag_of.values():
    if isinstance(flag.value, str):
      flag.value = os.path.expanduser(flag.value)


def expand_config(config: ConfigDict) -> None:
  """The same for every key of a config; only paths begin with `~`."""
  config.update_from_flattened_dict({key: os.path.expanduser(value) for key, value in config_lib.flatten(config).items()
                                     if isinstance(value, str)})


class _Dropping(io.FileIO):
  """A file that silently drops what it cannot write any more."""

  def write(self, data) -> int:
    try:
      return super().write(data)
    except OSError:
      return len(data)


def outlive_console() -> None:
  """Lets this process outlive the reader of its output: `| head`, a closed terminal, a full disk under the log."""
  for number in range(3):
    try:
      os.fstat(number)
    except OSError:  # closed: the next file opened would get its number, and C++ code would print into it
      os.open(os.devnull, os.O_RDWR)
  for name, number in (("stdout", 1), ("stderr", 2)):
    stream = getattr(sys, name)
    if stream is getattr(sys, f"__{name}__"):  # None if it was closed; any other is not the console
      raw = io.BufferedWriter(_Dropping(number, "w", closefd=False))
      setattr(sys, name, io.TextIOWrapper(raw, encoding=getattr(stream, "encoding", "utf-8"), errors="backslashreplace",
                                          line_buffering=True))


def _find_known(error: Exception) -> UserError | None:
  """The error for a cause outside the program: a lost process, or too little memory; else None."""
  if "jax" not in sys.modules:
    return None
  from electra_jax import distributed
  from electra_jax.training import memory

  return distributed.find_lost_process(error) or memory.find_exhausted(error, FLAGS["config"].value)


def leave(status: int) -> None:
  """Ends this process, even if the run's other processes do not know yet that it must end.

  jax's orderly exit would wait five minutes for them while they wait for us; once we are gone, they are told and end
  too. Python's exit would wait for its threads, one of which may be what does not answer.
  """
  jax = sys.modules.get("jax")
  if status == NoAnswerError.STATUS or (jax is not None and jax.distributed.is_initialized()):
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
  sys.exit(status)


if __name__ == "__main__":
  run(main, USAGE)
