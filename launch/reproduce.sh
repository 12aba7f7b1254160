#!/usr/bin/env bash
# Repeats a claim of the papers on your GPU: pre-trains the models of its table, fine-tunes them on GLUE, prints ours
# next to theirs.
# Usage: DATA=/path/to/text GLUE=/path/to/glue launch/reproduce.sh CLAIM [--FLAG...]
#
#   CLAIM is small-vs-bert (ELECTRA Table 1), table3 (ELECTRA Table 3), roberta-masking, roberta-formats, roberta-batch
#   (RoBERTa Tables 1, 2, 3), lamb-vs-adamw, generator-size, two-stage, generator-training (ELECTRA Appendix A, Figure 3),
#   weight-tying (ELECTRA section 3.2), appendix-f-electra, appendix-f-bert, fast-vs-faithful, or all.
#   `launch/reproduce.sh plan CLAIM` only says what would run, `launch/reproduce.sh --help` names the flags.
#
#   DATA=...           the corpus, as data.path: text or JSONL files (with commas), a folder, a quoted glob. Needed once.
#   GLUE=...           the folder with CoLA, SST-2, ...; without it only the held-out losses are compared.
#   FLOPS=1e17         training FLOPs of each model in the paper's convention. An H100 does about 1e17 in ten minutes;
#                      the paper's Table 1 has 1.4e18. Default: the claim's own, 1e17 or 2e16.
#   VOCABULARY=...     a published vocab.txt; by default a WordPiece vocabulary is trained on DATA.
#   OUT=runs/evidence  the runs and results.json.   SHARDS=OUT/data  the packed text, shared by all claims.
#   DEVICES=0,1        GPUs: a model trains on each. By default all of them.
#   --pretrainings=3   each model with three seeds: the table has their mean and standard deviation.
#   PYTHON=...         another interpreter than .venv's.
#
# Kill it at any moment: the same command resumes, what is finished is not run again. When a claim has been run,
# `launch/reproduce.sh publish` puts its figures into docs/results.
set -euo pipefail
caller=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-.venv/bin/python}
if [ -z "${PYTHON:-}" ]; then launch/environment.sh requirements.txt; fi

from_caller() {  # paths are the caller's, not this script's
  if [ -z "$1" ] || [[ "$1" == /* || "$1" == *:* ]]; then echo "$1"; else echo "$caller/$1"; fi
}

data=()
IFS=, read -ra parts <<< "${DATA:-}"
for part in "${parts[@]}"; do data+=("$(from_caller "${part# }")"); done

devices=${DEVICES:-}
if [ -z "$devices" ] && command -v nvidia-smi > /dev/null; then
  devices=$(nvidia-smi --query-gpu=index --format=csv,noheader | paste -sd,)
fi
out=$(from_caller "${OUT:-$PWD/runs/evidence}")
case "${1:-}" in
  plan | publish) command=("$@" "--out=$out") ;;
  "" | -*) command=("$@") ;;
  *)
    command=(run "$@" "--out=$out" "--data=$(IFS=,; echo "${data[*]}")" "--glue=$(from_caller "${GLUE:-}")"
      "--shards=$(from_caller "${SHARDS:-$out/data}")" "--vocabulary=$(from_caller "${VOCABULARY:-}")"
      "--devices=$devices")
    export EXPERIMENTS_COMMAND="${FLOPS:+FLOPS=$FLOPS }launch/reproduce.sh $*"
    ;;
esac
exec "$python" -m electra_jax.tools.experiments "${command[@]}" ${FLOPS:+"--flops=$FLOPS"}
