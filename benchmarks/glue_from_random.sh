#!/usr/bin/env bash
# What is a small pre-trained encoder worth? Fine-tunes it and the same network with random parameters on CoLA, MRPC,
# RTE, STS-B and SST-2, three seeds at each of two rates, and prints the medians at each side's best rate. Heads read
# the mean of the states. A few labels: it takes minutes on two CPU cores, and there a pre-training counts.
# Usage: benchmarks/glue_from_random.sh WORKDIR DATA_DIR OUT_DIR [--tasks=sst2 --glue_set=KEY=VALUE ...]
#
#   WORKDIR    a pre-training's workdir of a shape like configs/tiny.py's.
#   DATA_DIR   has GLUE's folders (MRPC/train.tsv or .tsv.gz, ...).
#   STARTS     which of "pretrained random embeddings", in this order; the first two. embeddings: under new layers.
#   LAYERS     layers that start new for "embeddings"; 3, the tiny recipe's.
#   PYTHON     another interpreter than .venv's.
# OUT_DIR/START are sweeps of electra_jax.tools.experiments; started again, finished runs stay.
set -euo pipefail
workdir=$(cd "$1" && pwd) data=$(cd "$2" && pwd)
mkdir -p "$3"
out=$(cd "$3" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}

folders=()
for start in ${STARTS:-pretrained random}; do
  case $start in
    embeddings) settings="--glue_set=task.fresh_layers=${LAYERS:-3}" ;;
    random) settings=--glue_set=task.from_scratch=True ;;
    pretrained) settings=--glue_set=task.fresh_layers=0 ;;
    *) echo "STARTS names $start; allowed: embeddings, random, pretrained." >&2; exit 2 ;;
  esac
  "$python" -m electra_jax.tools.experiments run --init_from="$workdir" --glue="$data" --out="$out/$start" \
    --tasks=sst2,cola,mrpc,rte,stsb --glue_grid=optimizer.learning_rate=1e-3,2e-3 "$settings" --glue_set=task.pooling=mean \
    --glue_set=task.num_seeds=3 --glue_set=task.num_epochs=4 \
    --glue_set=task.max_train_examples=1000 --glue_set=task.max_length=64 --glue_set=sst2:task.max_length=48 \
    --glue_set=cola:task.max_length=32 --glue_set=task.layer_decay=1.0 --glue_set=model.hidden_dropout_prob=0.0 \
    --glue_set=model.attention_probs_dropout_prob=0.0 \
    --glue_set=train.compute_dtype=float32 --glue_set=log.tensorboard=False "${@:4}"
  folders+=("$out/$start")
done
"$python" -m benchmarks.glue_table "${folders[@]}"
