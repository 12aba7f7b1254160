#!/usr/bin/env bash
# What is a small pre-trained encoder worth? Fine-tunes it and the same network with random parameters on CoLA, MRPC,
# RTE, STS-B and SST-2, three seeds at each of two rates, and prints both medians. About half an hour of a CPU core.
# Usage: launch/peers/glue_from_random.sh WORKDIR DATA_DIR OUT_DIR [--tasks=sst2 --rates=1e-3 --set=KEY=VALUE ...]
#
#   WORKDIR    a pre-training's workdir, for instance the demo's.
#   DATA_DIR   has GLUE's folders (MRPC/train.tsv or .tsv.gz, ...).
#   PYTHON     another interpreter than .venv's.
# OUT_DIR/pretrained and OUT_DIR/random are sweeps of electra_jax.tools.glue_sweep; started again, finished runs stay.
set -euo pipefail
workdir=$(cd "$1" && pwd) data=$(cd "$2" && pwd)
mkdir -p "$3"
out=$(cd "$3" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-.venv/bin/python}

for start in pretrained random; do
  scratch=$([ "$start" = random ] && echo True || echo False)
  "$python" -m electra_jax.tools.glue_sweep --init_from="$workdir" --data_dir="$data" --out="$out/$start" \
    --tasks=sst2,cola,mrpc,rte,stsb --rates=1e-3,3e-3 --set=task.from_scratch="$scratch" --set=task.num_seeds=3 \
    --set=task.num_epochs=2 --set=task.max_train_examples=16000 --set=task.max_length=64 --set=task.layer_decay=1.0 \
    --set=model.hidden_dropout_prob=0.0 --set=model.attention_probs_dropout_prob=0.0 \
    --set=train.compute_dtype=float32 --set=log.tensorboard=False "${@:4}"
done
"$python" -m tests.peers.glue_table "$out/pretrained" "$out/random"
