#!/usr/bin/env bash
# Makes a TPU slice through a queued resource, installs this checkout on all its hosts, runs a recipe there, deletes it.
# Usage: launch/tpu_vm.sh create | install | run FLAGS... | status | delete
#   launch/tpu_vm.sh create && launch/tpu_vm.sh install
#   launch/tpu_vm.sh run --config=configs/base.py --workdir=/mnt/bucket/runs/base --config.data.path=gs://bucket/text
#
#   TPU=electra               name of the slice
#   ZONE=us-central1-a
#   TYPE=v5litepod-16         v5litepod-N (v5e), v5p-N, v6e-N: N counts chips (of v4 and v5p: cores)
#   VERSION=v2-alpha-tpuv5-lite   software of the hosts; v6e: v2-alpha-tpuv6e, v5p: v2-alpha-tpuv5
#   SPOT=1                    cheaper, may be taken away: `create` and `run` again, it resumes from its last checkpoint
#   BUCKET=my-bucket          `install` mounts it as /mnt/bucket on every host: the workdir must be one that all hosts see
#   REPOSITORY=URL            what `install` clones; by default this checkout's origin, at this commit
# PROJECT is taken from gcloud's own configuration.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tpu=${TPU:-electra} zone=${ZONE:-us-central1-a} type=${TYPE:-v5litepod-16} version=${VERSION:-v2-alpha-tpuv5-lite}

on_all_hosts() {
  gcloud compute tpus tpu-vm ssh "$tpu" --zone="$zone" --worker=all --command="$1"
}

action=${1:-}
[ $# -eq 0 ] || shift
case $action in
  create)
    gcloud compute tpus queued-resources create "$tpu" --node-id="$tpu" --zone="$zone" --accelerator-type="$type" \
      --runtime-version="$version" ${SPOT:+--spot}
    echo "In the queue; '$0 status' says ACTIVE when the slice is there."
    ;;
  status)
    gcloud compute tpus queued-resources describe "$tpu" --zone="$zone" --format="value(state.state)"
    ;;
  install)
    repository=${REPOSITORY:-$(git remote get-url origin)}
    commit=$(git rev-parse HEAD)
    on_all_hosts "set -e; [ -d electra_jax ] || git clone $(printf %q "$repository") electra_jax; cd electra_jax; \
git fetch --quiet; git checkout --quiet $commit; launch/environment.sh requirements.txt; \
.venv/bin/python -m pip install --quiet \"jax[tpu]==\$(.venv/bin/python -c 'import jax; print(jax.__version__)')\""
    if [ -n "${BUCKET:-}" ]; then
      on_all_hosts "set -e; sudo mkdir -p /mnt/bucket; mountpoint -q /mnt/bucket || \
sudo gcsfuse --implicit-dirs -o allow_other $(printf %q "$BUCKET") /mnt/bucket"
    fi
    ;;
  run)
    # One process a host; jax finds the others by itself. Words are quoted for the shell of the hosts.
    on_all_hosts "cd electra_jax && exec .venv/bin/python -m electra_jax.main$(printf ' %q' "$@")"
    ;;
  delete)
    gcloud compute tpus queued-resources delete "$tpu" --zone="$zone" --force --quiet
    ;;
  *)
    sed -n '2,/^set/{/^set/!p}' launch/tpu_vm.sh >&2
    exit 2
    ;;
esac
