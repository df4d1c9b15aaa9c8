#!/usr/bin/env bash
# Two hosts without a scheduler.
#   On the first host:  docs/recipes/two_hosts.sh first.example 0
#   On the second host: docs/recipes/two_hosts.sh first.example 1
# Before that, on both: export SELSYNC_CLUSTER_TOKEN=..., the same secret.
# Both need the repository, a shared --workdir, and access to all ports of the other.
# Here a worker is a GPU, and each host has two. If each has eight that should share a
# worker's batch: --config.workers=2 --config.mapper=mesh --config.mesh.data=8.
set -euo pipefail

first=${1:?the name of the first host, as seen from the second}
index=${2:?0 on the first host, 1 on the second}

: "${SELSYNC_CLUSTER_TOKEN:?a secret that both hosts share}"

.venv/bin/python train.py \
  --coordinator="$first:7070" \
  --num_processes=2 \
  --process_id="$index" \
  --config=configs/digits.py:selsync \
  --config.workers=4 \
  --workdir="${WORKDIR:-runs/two-hosts}"
