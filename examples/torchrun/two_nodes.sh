#!/usr/bin/env bash
# Two "nodes" of this machine train under torchrun: each has an agent of its own, and the agents outlive the workers.
# Kill a worker (its process number is printed) and see both go on from memory.
#   [PROGRAM=fsdp2.py] examples/torchrun/two_nodes.sh [arguments of the program]
# On a cluster run the line with torchrun on every node, without CKPTENGINE_NODE, and name a `coordination` that all nodes see.
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
export PYTHONPATH="$here/../../python${PYTHONPATH:+:$PYTHONPATH}"
export CKPTENGINE_JOB=${CKPTENGINE_JOB:-torchrun-example}
export GLOO_SOCKET_IFNAME=lo CKPTENGINE_INTERFACE=lo
# Both nodes share the cores. And with several threads on busy cores PyTorch now and then rounds a process's first
# AdamW step otherwise: replicas then differ, and are not committed.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# Else torchrun gives restarted workers the store of those before them, and gloo may look for these.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
port=${PORT:-29400}

nodes=()
trap 'kill "${nodes[@]}" 2>/dev/null || true; wait' EXIT
for node in node0 node1; do
  CKPTENGINE_NODE=$node python3 -m torch.distributed.run --nnodes 2 --nproc-per-node 1 --max-restarts 3 \
    --rdzv-backend c10d --rdzv-endpoint "localhost:$port" --rdzv-id "$CKPTENGINE_JOB" "$here/${PROGRAM:-train.py}" "$@" &
  nodes+=($!)
done
status=0
for node in "${nodes[@]}"; do wait "$node" || status=1; done
exit "$status"
