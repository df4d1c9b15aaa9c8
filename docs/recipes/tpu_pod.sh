#!/usr/bin/env bash
# Runs on all hosts of a TPU pod slice:
#   NAME=my-slice ZONE=us-central2-b WORKDIR=/mnt/share/run WORKERS=32 \
#     docs/recipes/tpu_pod.sh
# Each host needs the repository in ~/selsync_jax with its .venv (extras train and
# tpu). On a TPU pod, JAX finds the other hosts itself.
set -euo pipefail

: "${NAME:?the name of the slice}" "${ZONE:?the zone of the slice}"
: "${WORKERS:?the number of chips of the slice}"
: "${WORKDIR:?a folder that all hosts share, such as a mounted file share}"

token=$(openssl rand -hex 16)  # A secret for this run's processes.

gcloud compute tpus tpu-vm ssh "$NAME" --zone="$ZONE" --worker=all --command="
  cd selsync_jax && SELSYNC_CLUSTER_TOKEN=$token .venv/bin/python train.py \
    --config=configs/digits.py:selsync \
    --config.workers=$WORKERS \
    --workdir='$WORKDIR'"
