#!/usr/bin/env bash
# All hosts of a TPU pod slice: NAME=my-slice ZONE=us-central2-b \
#   WORKDIR=/mnt/share/run WORKERS=32 docs/recipes/tpu_pod.sh
# Each host needs the repository in ~/selsync_jax with its .venv (extra tpu).
# JAX on a TPU pod knows all about the other hosts.
set -euo pipefail

: "${NAME:?the name of the slice}" "${ZONE:?its zone}"
: "${WORKERS:?how many chips the slice has}"
: "${WORKDIR:?a folder that all hosts share, for example a mounted file share}"

gcloud compute tpus tpu-vm ssh "$NAME" --zone="$ZONE" --worker=all --command="
  cd selsync_jax && .venv/bin/python train.py \
    --config=configs/digits.py:selsync \
    --config.workers=$WORKERS \
    --workdir='$WORKDIR'"
