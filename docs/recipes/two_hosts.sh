#!/usr/bin/env bash
# Two machines by hand. On the first:  docs/recipes/two_hosts.sh first.example 0
#                   and on the second: docs/recipes/two_hosts.sh first.example 1
# Both need the repository, a --workdir that they share, and each other's ports.
set -euo pipefail

first=${1:?the first host, as the second knows it}
number=${2:?0 on the first host, 1 on the second}

.venv/bin/python train.py \
  --coordinator="$first:7070" \
  --num_processes=2 \
  --process_id="$number" \
  --config=configs/digits.py:selsync \
  --config.workers=4 \
  --workdir="${WORKDIR:-runs/two-hosts}"
