#!/bin/bash
# Run this on each of HOSTS hosts, with the same arguments; HEAD is the name of one of them.
#   HEAD=node1 HOSTS=2 RANKS=4 examples/clusters/torchrun.sh my.yaml
set -euo pipefail
exec torchrun --nnodes "$HOSTS" --nproc-per-node "${RANKS:-1}" --max-restarts "${RESTARTS:-3}" \
    --rdzv-backend c10d --rdzv-endpoint "$HEAD:${PORT:-29500}" --rdzv-id "${ID:-trisect}" \
    -m trisect train "${1:?give a configuration}" --layout auto --out "${OUT:-runs/torchrun}" --resume \
    --interface "${INTERFACE:-eth0}"
