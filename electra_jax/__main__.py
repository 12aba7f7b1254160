"""The command electra-jax, or python -m electra_jax: each sub-command is the main function of a module."""

import runpy
import sys

import electra_jax

COMMANDS = {  # sub-command -> (module, purpose)
  "train": ("main", "pre-train or fine-tune by a recipe; the same command resumes a run"),
  "finetune": ("main", "the same command, for recipes like glue:rte or own:classification"),
  "prepare": ("tools.prepare_data", "turn text into the shards of a run ahead of time"),
  "tokenizer": ("tools.train_tokenizer", "learn a vocabulary without starting a run"),
  "show-batch": ("tools.show_batch", "print what the model sees"),
  "predict": ("tools.predict", "fill masks, find replaced tokens, classify, answer, embed"),
  "report": ("tools.report", "write a page about a run"),
  "summary": ("tools.summary", "print how a run ended"),
  "plot": ("tools.plot_run", "draw the curves of runs"),
  "checkpoints": ("tools.checkpoints", "list, compare and average checkpoints"),
  "export": ("tools.export", "write a run as files that transformers loads"),
  "import": ("tools.import_weights", "turn a published model into a folder that runs start from"),
  "flops": ("tools.flops_report", "count operations: the papers' tables, or your configs"),
  "bench": ("tools.bench", "time the train step and the data of a recipe on this machine"),
  "compile-check": ("tools.compile_check", "check whether a recipe fits a TPU slice, and how fast it could be"),
}
USAGE = """Usage: electra-jax COMMAND [--FLAG=VALUE ...]     electra-jax COMMAND --help     electra-jax --version

{}

First try: electra-jax train --config=tiny --workdir=runs/tiny"""


def main() -> None:
  """Runs the sub-command that the first argument names."""
  name = sys.argv[1] if len(sys.argv) > 1 else "--help"
  if name == "--version":
    print(f"electra_jax {electra_jax.__version__}")
  elif name in COMMANDS:
    sys.argv[:2] = [f"electra-jax {name}"]
    runpy.run_module(f"electra_jax.{COMMANDS[name][0]}", run_name="__main__", alter_sys=True)
  else:
    is_help = name in ("--help", "-h", "help")
    usage = USAGE.format("\n".join(f"  {command:14} {about}" for command, (_, about) in COMMANDS.items()))
    print(usage if is_help else f"Unknown command: {name}\n\n{usage}", file=sys.stdout if is_help else sys.stderr)
    sys.exit(0 if is_help else 2)


if __name__ == "__main__":
  main()
