#!/usr/bin/env bash
# Fine-tunes MiniLM on MRPC, RTE, STS-B and SST-2 with electra_jax and with transformers' run_glue recipe: the same
# weights, heads, batches and hyper-parameters on both sides. Minutes on a GPU.
# Usage: benchmarks/minilm_glue.sh DATA_DIR WEIGHTS_DIR OUT_DIR [--jobs=8 --tasks=rte --num_seeds=2 --num_train=64 ...]
#
#   DATA_DIR      has GLUE's folders (MRPC/train.tsv or .tsv.gz, ...).
#   WEIGHTS_DIR   has config.json, model.safetensors (or model_fp16.safetensors) and vocab.txt.
#   PYTHON        the interpreter with jax; PEER_PYTHON the one with torch and transformers, the same by default.
# OUT_DIR/scores.json has every score, scores.md the medians, ours/TASK each workdir, log_*.txt what each process said.
set -euo pipefail
data=$(cd "$1" && pwd) weights=$(cd "$2" && pwd)
mkdir -p "$3"
out=$(cd "$3" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec "${PYTHON:-.venv/bin/python}" -m benchmarks.minilm_glue "$data" "$weights" "$out" "${@:4}"
