#!/usr/bin/env bash
# Two hosts as islands, with no scheduler and no common file system. Each has a
# checkout, with .venv/bin/pip install -e '.[train,islands]'.
#   On the first host:  selsync meet --islands=2 --host=first.example --keep=point.json
#                       # In its own terminal; on a third host, it outlives both.
#   On both hosts:      export SELSYNC_INVITATION=...   # The printed invitation.
#   On the first host:  docs/recipes/islands_two_hosts.sh first
#   On the second host: docs/recipes/islands_two_hosts.sh second
# The second host must reach the first on port 7070. If it cannot be reached itself, its
# messages pass through there, too. For a direct way through a firewall, add
# --island_port=7071 to the command, and open that port on both hosts.
set -euo pipefail

name=${1:?a name of this island}

: "${SELSYNC_INVITATION:?the invitation that selsync meet prints}"

.venv/bin/python train.py \
  --island="$name" \
  --config=configs/digits.py:selsync \
  --config.workers=2 \
  --workdir="${WORKDIR:-runs/two-islands}"
