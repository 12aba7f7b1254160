#!/usr/bin/env bash
# The walk of a new user, from an empty folder: install, demo, own text, own labels, export, transformers, report.
# Usage: docs/walk.sh FOLDER
#   FOLDER is new. What is installed, made and trained lies in it; the checkout is only read.
#   STEPS=2000   updates of each pre-training
#   EPOCHS=3     passes over the labels
#   START=       published weights for the labels (docs/own_labels.md); without them the run on the own text
# Prints each command, and at the end how long each part took.
set -euo pipefail
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${1:?Usage: docs/walk.sh FOLDER}
mkdir "$folder"
cd "$folder"
PATH=$PWD/environment/bin:$PATH
times=()

part() { # NAME COMMAND...: runs it, and keeps how long it took
  local name=$1 began=$SECONDS
  shift
  printf '\n== %s\n$ %s\n' "$name" "$*"
  "$@"
  times+=("$(printf '%-28s %5d s' "$name" $((SECONDS - began)))")
}

install() {
  python3 -m venv environment
  pip wheel --quiet --no-deps --wheel-dir=wheels "$checkout"
  pip install --quiet wheels/*.whl 'huggingface_hub>=0.30' 'transformers>=5' 'torch>=2.6'
}

# Text and labels that every checkout has: its pages, and which lines are prose and which are program.
collect() {
  cat "$checkout"/README.md "$checkout"/docs/*.md > text.txt
  python - "$checkout" << 'END'
import csv, pathlib, random, sys
root = pathlib.Path(sys.argv[1])
lines = {kind: {line.strip() for path in sorted(root.glob(names)) for line in path.read_text().splitlines()}
         for kind, names in (("prose", "docs/*.md"), ("program", "electra_jax/*.py"))}
rows = [(line, kind) for kind, found in lines.items()
        for line in random.Random(0).sample(sorted(line for line in found if len(line) > 40), 600)]
with open("labels.csv", "w", newline="", encoding="utf-8") as file:
  csv.writer(file).writerows([("text", "label"), *rows])
END
}

part "install the wheel" install
part "version" electra-jax --version
part "the demo" electra-jax train --config=tiny --workdir=demo --config.train.num_steps="${STEPS:-2000}"
part "ask it" electra-jax predict --workdir=demo "The name of the [MASK] is given." "The name of the banana is given."
part "collect text and labels" collect
part "own text" electra-jax train --config=tiny --workdir=mine --config.data.path=text.txt \
  --config.train.num_steps="${STEPS:-2000}"
part "how it ended" electra-jax summary mine
part "own labels" electra-jax finetune --config=own:classification --workdir=labels \
  --config.task.init_from="${START:-mine}" --config.task.train_path=labels.csv --config.task.max_length=64 \
  --config.task.num_epochs="${EPOCHS:-3}"
part "ask it" electra-jax predict --workdir=labels --task=classify "return the sum of all values" "for x in rows:"
part "export" electra-jax export --workdir=labels --out=exported
part "load in transformers" python -c 'from transformers import pipeline
print(pipeline("text-classification", model="exported")("for name, value in sorted(rows.items()):"))'
part "a page about the run" electra-jax report mine
part "a page about the labels" electra-jax report labels

printf '\nThe walk is done:\n'
printf '  %s\n' "${times[@]}"
