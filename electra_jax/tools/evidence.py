"""Are the papers' claims true here? Repeats them on your text and your GPU, and prints what came out beside theirs."""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence

from absl import flags

from electra_jax import main as main_lib
from electra_jax import metrics
from electra_jax.errors import UserError
from electra_jax.tools import evidence_claims as claims
from electra_jax.tools import evidence_curves as curves
from electra_jax.tools import evidence_report as report
from electra_jax.tools import evidence_runs as runs

FLAGS = flags.FLAGS

USAGE = """Repeats a claim of the papers: pre-trains each model of its table, fine-tunes it on GLUE, collects figures.

  What would run:      python -m electra_jax.tools.evidence plan small-vs-bert --flops=1e17
  Run it:              python -m electra_jax.tools.evidence run small-vs-bert --flops=1e17 --data=CORPUS --glue=GLUE \\
                           --out=runs/evidence --devices=0,1
  Into the documents:  python -m electra_jax.tools.evidence publish --out=runs/evidence

Claims: CLAIMS. `all` means each of them.

The models of a claim get the same training FLOPs in the paper's convention (two rows of two claims: the same steps, the
same time), the same text, vocabulary, batch and hyper-parameters (configs/evidence.py). GLUE is fine-tuned as ELECTRA's
Table 5 says but for the learning rate, 3e-4 in place of 1e-4, with 5 seeds and at most 12,000 training examples a
task, which is all of CoLA, MRPC, STS-B and RTE.

Models that share a device (--devices=0,0) say nothing of their speed: time each alone with electra_jax.tools.bench and
give --speed for the rows of equal time.

Pre-training has its own chance, and with a small budget it can be larger than that of fine-tuning: --pretrainings=3
makes each model with three seeds, and the table tells their mean and standard deviation.

Kill it at any moment, or set --train_seconds and --glue_seconds: the same command goes on, and what is finished is not
run again, by no other claim either. With another --glue_set, --seeds or --max_train_examples the same models are
fine-tuned anew in folders of their own, and the figures are those of the latest command.

OUT/models/RECIPE-STEPS/pretrain is a workdir (RECIPE-STEPS-seed_N has further pre-trainings), glue/ and the like beside
it are the sweeps, OUT/evidence.json has all figures so far, written after every stage. `publish` merges them into
docs/results/evidence.json, draws docs/results/CLAIM.png and writes docs/results.md; what docs/results/CLAIM.md says is
put below its table."""

CLAIM_FILE = "claim.json"  # in a claim's folder: what it was run with
COMMAND_VARIABLE = "EVIDENCE_COMMAND"  # what to print as the command; launch/reproduce.sh sets it


def place() -> runs.Place:
  """Where things are, from the flags."""
  folder = FLAGS.shards or os.path.join(FLAGS.out, "data")
  return runs.Place(
    out=FLAGS.out, data=FLAGS.data, shards=folder, vocabulary=FLAGS.vocabulary, glue=FLAGS.glue,
    devices=tuple(FLAGS.devices.split(",")), train_seconds=FLAGS.train_seconds, glue_seconds=FLAGS.glue_seconds,
    glue_at_once=FLAGS.glue_at_once, num_seeds=FLAGS.seeds, max_train_examples=FLAGS.max_train_examples,
    settings=tuple(FLAGS.set), glue_settings=tuple(FLAGS.glue_set))


def chosen(arguments: list[str]) -> list[str]:
  """Names of claims.

  Raises:
    UserError: one does not exist.
  """
  names = list(claims.CLAIMS) if arguments == ["all"] else arguments
  for name in names or [""]:
    claims.claim_of(name)
  return names


def plan(arguments: list[str]) -> None:
  """Prints each run with its steps."""
  for name in chosen(arguments):
    print(claims.describe(name, claims.plan(name, FLAGS.out or "", FLAGS.flops, FLAGS.set,
                                            pretrainings=FLAGS.pretrainings)))


def run(arguments: list[str]) -> None:
  """Makes what is missing of each claim, and writes the figures after every stage."""
  if not FLAGS.out:
    raise UserError("--out is missing", got="nothing", allowed="a folder", fix="use --out=runs/evidence")
  names, only = chosen(arguments), tuple(filter(None, FLAGS.only.split(",")))
  plans = {}
  for name in names:
    record(name)
    plans[name] = planned(FLAGS.out, name, only)
    print(claims.describe(name, plans[name]), flush=True)
  runs.prepare([row for rows in plans.values() for row in rows], place())
  run_plans(plans)
  later = {name: [row for row in planned(FLAGS.out, name, only)
                  if row.model.name not in {one.model.name for one in plans[name]}] for name in names}  # of equal time
  if any(later.values()):
    run_plans(later)
  found = collect(FLAGS.out)
  for name in names:
    print(f"\n{name}\n" + report.table(claims.CLAIMS[name], [one for one in found if one["claim"] == name]))


def run_plans(plans: Mapping[str, Sequence[claims.Planned]]) -> None:
  """All models of several claims, so that no device waits for the end of a claim; a model of several has all their
  tasks."""
  rows, tasks = {}, {}
  for name, planned_rows in plans.items():
    for row in planned_rows:
      rows.setdefault(row.folder, row)
      tasks.setdefault(row.folder, {}).update(dict.fromkeys(chosen_tasks(name)))  # each once, in order
  runs.run([(row, list(tasks[folder])) for folder, row in rows.items()], place(), lambda: collect(FLAGS.out))


def chosen_tasks(name: str) -> list[str]:
  """Those of the claim that --tasks does not exclude."""
  wanted = FLAGS.tasks.split(",") if FLAGS.tasks else claims.CLAIMS[name].tasks
  return [task for task in claims.CLAIMS[name].tasks if task in wanted]


def record(name: str) -> None:
  """Keeps what a claim is run with; another budget in the same folder would compare two, other settings would not fit
  the models that claims share.

  Raises:
    UserError: the folder has runs of another budget or with other settings.
  """
  path, flops = os.path.join(FLAGS.out, name, CLAIM_FILE), FLAGS.flops or claims.CLAIMS[name].flops
  speeds = given_speeds(name) or (read_facts(FLAGS.out, name).get("speeds", {}) if os.path.exists(path) else {})
  facts = {"speeds": speeds, "flops": flops, "settings": list(FLAGS.set), "pretrainings": FLAGS.pretrainings,
           "fine_tuning": runs.fine_tuning_folder(place()),
           "command": os.environ.get(COMMAND_VARIABLE) or command_of(name, flops)}
  for other in recorded(FLAGS.out):
    before = read_facts(FLAGS.out, other)
    if before["settings"] != facts["settings"]:
      raise UserError(f"{FLAGS.out} holds runs with other settings, and claims share their models",
                      got=f"{before['settings']} for {other}, {facts['settings']} for {name}", allowed="the same",
                      fix="use another --out")
    if other == name and before["flops"] != facts["flops"]:
      raise UserError(f"{FLAGS.out} holds runs of another budget", got=f"{before['flops']:g} FLOPs there, "
                      f"{facts['flops']:g} asked for", allowed="the same", fix="use another --out")
  os.makedirs(os.path.dirname(path), exist_ok=True)
  with open(path, "w", encoding="utf-8") as file:
    json.dump(facts, file)


def command_of(name: str, flops: float) -> str:
  """What repeats a claim, but for places."""
  options = [f"--flops={flops:g}", *(f"--set={one}" for one in FLAGS.set), *runs.fine_tuning_flags(place()),
             *[f"--pretrainings={FLAGS.pretrainings}"] * (FLAGS.pretrainings > 1)]
  return " ".join(["python -m electra_jax.tools.evidence run", name, *options])


def given_speeds(name: str) -> dict[str, float]:
  """Recipe of the claim -> tokens a second, from --speed.

  Raises:
    UserError: no number, or a recipe that no claim has.
  """
  known, found = {model.recipe for claim in claims.CLAIMS.values() for model in claim.models}, {}
  for one in FLAGS.speed:
    recipe, _, number = one.partition("=")
    try:
      found[recipe] = float(number)
    except ValueError:
      found[recipe] = math.nan
    if recipe not in known or not 0 < found[recipe] < math.inf:
      raise UserError("--speed cannot be used", got=one,
                      allowed=f"RECIPE=TOKENS_PER_SECOND, of {', '.join(sorted(known))}",
                      fix="use --speed=electra_small=1.6e6 --speed=electra_small:fast=2.4e6")
  return {model.recipe: found[model.recipe] for model in claims.CLAIMS[name].models if model.recipe in found}


def recorded(out: str) -> list[str]:
  """The claims that were run in a folder."""
  return [name for name in claims.CLAIMS if os.path.exists(os.path.join(out, name, CLAIM_FILE))]


def read_facts(out: str, name: str) -> dict:
  """What `record` wrote."""
  with open(os.path.join(out, name, CLAIM_FILE), encoding="utf-8") as file:
    return json.load(file)


def planned(out: str, name: str, only: Sequence[str] = ()) -> list[claims.Planned]:
  """The models of a claim that was run, those of equal time too where the speeds are known."""
  facts = read_facts(out, name)
  rows = claims.plan(name, out, facts["flops"], facts["settings"])
  speeds, given = {}, facts.get("speeds", {})
  for row in rows:
    found = {one["metric"]: one for one in report.rows_of(name, row, "")}
    measured = found.get("train/tokens_per_second")
    is_finished = measured and measured["steps"] == measured["planned_steps"]
    speed = given.get(row.model.recipe, measured["value"] if is_finished else None)
    if speed:
      speeds[row.model.recipe] = row.config.train.batch_size * row.config.data.sequence_length / speed
  return [row._replace(fine_tuning=facts.get("fine_tuning", row.fine_tuning)) for row in claims.plan(
    name, out, facts["flops"], facts["settings"], seconds_per_step=speeds, only=only,
    pretrainings=facts.get("pretrainings", 1))]


def collect(out: str) -> list[dict]:
  """OUT/evidence.json: every figure of every claim so far."""
  found = []
  for name in recorded(out):
    command = read_facts(out, name)["command"]
    found += [one for rows in claims.by_model(planned(out, name)) for one in report.figures_of(name, rows, command)]
  report.save(os.path.join(out, "evidence.json"), found)
  return found


def publish(arguments: list[str]) -> None:
  """Merges the figures into the documents and draws the curves; without --out only writes the page anew."""
  del arguments
  folder = FLAGS.results
  path = os.path.join(folder, "evidence.json")
  rows = report.load(path)
  if FLAGS.out:
    rows = report.merge(rows, collect(FLAGS.out))
    for name in recorded(FLAGS.out):
      draw(name, os.path.join(folder, f"{name}.png"))
    report.save(path, rows)
  if not rows:
    raise UserError("There are no results to publish", got=f"{path} and --out={FLAGS.out or ''}",
                    allowed="runs of `run`", fix="launch/reproduce.sh small-vs-bert")
  page = report.page(rows, folder, os.path.relpath(folder, os.path.dirname(FLAGS.page) or "."))
  with open(FLAGS.page, "w", encoding="utf-8") as file:
    file.write(page)
  print(f"{len(rows)} figures: {path}, {FLAGS.page}")


def draw(name: str, path: str) -> None:
  """The curves of a claim, unless the picture that is there may show models that this folder has no runs of."""
  rows = planned(FLAGS.out, name)
  missing = [row.model.name for row in rows if not metrics.has_rows(row.workdir)]
  if missing and os.path.exists(path):
    print(f"{path} stays as it is: {FLAGS.out} has no runs of {', '.join(missing)}")
  else:
    curves.draw(name, rows, path)


COMMANDS: dict[str, Callable[[list[str]], None]] = {"plan": plan, "run": run, "publish": publish}


def define_flags() -> None:
  """Not at import: other tools have flags of the same names."""
  defaults = runs.Place._field_defaults
  flags.DEFINE_string("out", "", "Folder of the runs.")
  flags.DEFINE_float("flops", None, "Training FLOPs of each model, in the paper's convention; default: the claim's.",
                     lower_bound=1.0)
  flags.DEFINE_string("data", "", "The corpus, a data.path; not needed where the shards exist.")
  flags.DEFINE_string("shards", "", "Folder for tokenizer/ and FORMAT-LENGTH/shards; default: OUT/data.")
  flags.DEFINE_string("vocabulary", "", "A published WordPiece vocabulary (vocab.txt); empty = one is trained on DATA.")
  flags.DEFINE_string("glue", "", "Folder with GLUE's folders; empty = no fine-tuning.")
  flags.DEFINE_string("devices", "", "GPUs, with commas: a model on each; empty = one model at a time, on all.")
  flags.DEFINE_float("train_seconds", 0.0, "Stop each pre-training after so long, with a checkpoint; 0 = never.")
  flags.DEFINE_float("glue_seconds", 0.0, "Stop each model's fine-tunings after so long; 0 = never.")
  flags.DEFINE_integer("glue_at_once", defaults["glue_at_once"], "GLUE tasks that share a device.", lower_bound=1)
  flags.DEFINE_integer("pretrainings", 1, "Of each model, with as many seeds.", lower_bound=1)
  flags.DEFINE_integer("seeds", defaults["num_seeds"], "Fine-tunings of each task.", lower_bound=1)
  flags.DEFINE_integer("max_train_examples", defaults["max_train_examples"], "Of each GLUE task; 0 = all.",
                       lower_bound=0)
  flags.DEFINE_string("tasks", "", "Of GLUE, with commas; empty = the claim's.")
  flags.DEFINE_string("only", "", "Recipes of the claim, with commas; empty = all.")
  flags.DEFINE_multi_string("speed", [], "RECIPE=TOKENS_PER_SECOND alone on the device, for the rows of equal time; "
                            "default: what its run reached, which says nothing where models shared the device.")
  flags.DEFINE_multi_string("set", [], "KEY=VALUE of every pre-training.")
  flags.DEFINE_multi_string("glue_set", [], "KEY=VALUE, or TASK:KEY=VALUE, of the fine-tunings.")
  flags.DEFINE_string("results", "docs/results", "publish: the folder of evidence.json and the pictures.")
  flags.DEFINE_string("page", "docs/results.md", "publish: the page that is written.")


def main(argv: list[str]) -> None:
  """Entry point."""
  if len(argv) < 2 or argv[1] not in COMMANDS:
    raise UserError("What to do is not clear", got=" ".join(argv[1:]) or "nothing", allowed=", ".join(COMMANDS),
                    fix="python -m electra_jax.tools.evidence plan all")
  COMMANDS[argv[1]](argv[2:])


if __name__ == "__main__":
  define_flags()
  main_lib.run(main, USAGE.replace("CLAIMS", ", ".join(claims.CLAIMS), 1), takes_arguments=True)
