#!/usr/bin/env bash
# From nothing to an ELECTRA that has learnt English: installs, trains the tokenizer, prepares the embedded corpus,
# pre-trains configs/tiny.py, evaluates, draws the curves and tries the model on a sentence. Minutes on two CPU cores.
# Usage: launch/demo.sh [WORKDIR]     Run again, it resumes where it stopped, or says that it is finished.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
workdir=${1:-$root/runs/tiny}
mkdir -p "$workdir"
workdir=$(cd "$workdir" && pwd)
cd "$root"

launch/environment.sh requirements.txt
# Two devices of a core each train 1.5 times as fast as one that spreads every operation over both cores.
export JAX_NUM_CPU_DEVICES=${JAX_NUM_CPU_DEVICES:-2}
# They wait for each other. On a machine that is busy with other work that can take a while; XLA would abort after 40 s.
export XLA_FLAGS="${XLA_FLAGS:-} --xla_cpu_collective_call_terminate_timeout_seconds=3600"
.venv/bin/python -m electra_jax.main --config=configs/tiny.py --workdir="$workdir"
.venv/bin/python -m electra_jax.tools.plot_run "$workdir"
.venv/bin/python -m electra_jax.tools.predict --workdir="$workdir" \
  "This function returns a list of [MASK] values." \
  "The name of the file is banana by the user."
.venv/bin/python -m electra_jax.tools.summary "$workdir"
