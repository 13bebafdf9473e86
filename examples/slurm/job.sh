#!/usr/bin/env bash
#SBATCH --job-name=gpt
#SBATCH --nodes=5              # four that train, and one that stands by
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --no-kill              # a node that fails does not end the allocation
#SBATCH --requeue
#SBATCH --open-mode=append
# A job that goes on from memory when processes or nodes fail, as long as the allocation lasts:
#   sbatch examples/slurm/job.sh COMMAND...
# COMMAND is what one node runs (torchrun, or a trainer), with CKPTENGINE_NODE and the job's other options set.
# SHARED names a directory that all nodes see, TRAINING how many nodes train (the others stand by).
set -euo pipefail
[[ $# -ge 1 ]] || { echo "usage: sbatch $0 COMMAND..." >&2; exit 2; }

shared=${SHARED:-$SLURM_SUBMIT_DIR/ckptengine}/$SLURM_JOB_NAME
training=${TRAINING:-$((SLURM_JOB_NUM_NODES - 1))}
wait_limit_s=${WAIT_LIMIT_S:-15} # for a standby node to get what a lost one held
starts_max=100
changes=$shared/changes.$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}

umask 077 # who can read this can join the job
mkdir -p "$shared/coordination"
exec 9>"$shared/in-use"
flock --nonblock 9 || {
  echo "another allocation runs the job $SLURM_JOB_NAME in $shared; give this one another --job-name or SHARED" >&2
  exit 2
}
[[ -e $shared/token ]] || ckptctl token "$shared/token"
: >"$changes"
export CKPTENGINE_JOB=$SLURM_JOB_NAME CKPTENGINE_COORDINATION=$shared/coordination CKPTENGINE_TOKEN_FILE=$shared/token CKPTENGINE_AGENT=attach
# Who takes whose place: the leader tells.
export CKPTENGINE_MEMBER_HOOK="echo \$CKPTENGINE_MEMBER_CHANGE \$CKPTENGINE_MEMBER_NODE \$CKPTENGINE_MEMBER_REPLACEMENT >>'$changes'"

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
members=("${nodes[@]:0:training}")

# Slurm ends all processes of a step with it. Agents are therefore steps of their own, one for each node, which last until
# the allocation ends: training comes and goes beside them.
for i in "${!nodes[@]}"; do
  standby=()
  ((i < training)) || standby=(--standby)
  srun --overlap --nodes=1 --ntasks=1 --nodelist="${nodes[i]}" --cpus-per-task=2 \
    bash -c 'until ckptd "$@"; do sleep 1; done' agent --node="${nodes[i]}" "${standby[@]}" &
done
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

# on_all COMMAND...: once on each node that answers.
on_all() {
  for node in "${nodes[@]}"; do
    srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" "$@" || true
  done
}

# Trainers attach to an agent, and start none. SLURMD_NODENAME is the node's.
# `ckptctl status` exits with 1 while no agent answers, and with 2 if one answers that the job is not protected yet.
# shellcheck disable=SC2016
on_all bash -c 'for _ in {1..60}; do ckptctl status --node "$SLURMD_NODENAME"; [[ $? -eq 1 ]] || exit 0; sleep 1; done; exit 1' \
  &>/dev/null

# Whoever has the place of the node now: the last word that was told of it.
holder_of() {
  awk -v node="$1" '$2 == node && $1 == "replaced" { at = $3 } $2 == node && $1 == "returned" { at = node }
    END { print at ? at : node }' "$changes"
}

for ((start = 1; start <= starts_max; ++start)); do
  list=$(IFS=, && echo "${members[*]}")
  # shellcheck disable=SC2016
  if srun --overlap --nodes="$training" --ntasks="$training" --ntasks-per-node=1 --nodelist="$list" \
    --kill-on-bad-exit=1 bash -c 'CKPTENGINE_NODE=$SLURMD_NODENAME exec "$@"' node "$@"; then
    on_all ckptctl stop
    on_all ckptctl gc # the result is saved elsewhere: the memory is for the next job
    exit 0
  fi
  echo "start $start of training has ended; starting again" >&2
  sleep "$wait_limit_s"
  for i in "${!members[@]}"; do members[i]=$(holder_of "${members[i]}"); done
done
scontrol requeue "$SLURM_JOB_ID" # other machines, and what the option \`storage\` has
