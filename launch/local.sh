#!/usr/bin/env bash
# Runs a recipe on this machine: all GPUs or TPU chips of it, or its CPU.
# Usage: launch/local.sh --config=configs/small.py --workdir=runs/small [--config.KEY=VALUE...]
#
#   PROCESSES=2 launch/local.sh ...   starts that many processes, which train together over loopback. One process drives
#                                     all devices of a host, so this is for trying out how several hosts work together;
#                                     on GPUs each process gets its share of CUDA_VISIBLE_DEVICES (or of all).
#   PORT=12345                        where they meet; a free one by default.
#   PYTHON=/path/to/python            another interpreter than .venv's.
#   GRACE=120                         seconds after the end of the first process until frozen ones are killed.
# Ctrl-C and SIGTERM reach all processes: each saves a checkpoint and ends with status 75. If one fails, all end,
# and so does this script, with its status.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-.venv/bin/python}
if [ -z "${PYTHON:-}" ]; then launch/environment.sh requirements.txt; fi
processes=${PROCESSES:-1}
if [ "$processes" -eq 1 ]; then
  exec "$python" -m electra_jax.main "$@"
fi

port=${PORT:-$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')}
export COORDINATOR_ADDRESS=127.0.0.1:$port NUM_PROCESSES=$processes
gpus=()
if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
  IFS=, read -ra gpus <<< "$CUDA_VISIBLE_DEVICES"
elif command -v nvidia-smi > /dev/null; then
  mapfile -t gpus < <(nvidia-smi --query-gpu=index --format=csv,noheader)
fi
if [ "${#gpus[@]}" -gt 0 ] && [ $((${#gpus[@]} % processes)) -ne 0 ]; then
  echo "Error: ${#gpus[@]} GPUs cannot be shared equally by PROCESSES=$processes" >&2
  exit 2
fi

running=()
for ((index = 0; index < processes; index++)); do
  if [ "${#gpus[@]}" -gt 0 ]; then
    share=$((${#gpus[@]} / processes))
    CUDA_VISIBLE_DEVICES=$(IFS=,; echo "${gpus[*]:index * share:share}")
    export CUDA_VISIBLE_DEVICES
  fi
  PROCESS_ID=$index "$python" -m electra_jax.main "$@" &
  running+=($!)
done
trap 'kill -TERM "${running[@]}" 2> /dev/null || true' INT TERM

status=0 end_by=
while [ "${#running[@]}" -gt 0 ]; do
  sleep 0.5 || true
  for index in "${!running[@]}"; do
    if ! kill -0 "${running[index]}" 2> /dev/null; then
      code=0
      wait "${running[index]}" || code=$?  # it has ended, and the shell remembers how
      unset "running[index]"
      case $status in  # 69 only says that another process is gone; the status of that one says why
        0 | 69) [ "$code" -eq 0 ] || status=$code ;;
      esac
      end_by=${end_by:-$((SECONDS + ${GRACE:-120}))}
    fi
  done
  if [ -n "$end_by" ] && [ "$SECONDS" -ge "$end_by" ] && [ "${#running[@]}" -gt 0 ]; then
    echo "Error: ${#running[@]} of $processes processes did not end ${GRACE:-120} s after the first; they are killed" >&2
    kill -KILL "${running[@]}" 2> /dev/null || true
    [ "$status" -ne 0 ] || status=69
    break
  fi
done
exit "$status"
