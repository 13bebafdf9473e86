#!/usr/bin/env bash
# ./dev chaos
command_name=chaos
source scripts/common.sh
source scripts/setup.sh
source scripts/build.sh

show_help() {
  cat <<'TEXT'
usage: ./dev chaos [--runs N] [--seed S] ...

Runs a real job and strikes it at random moments. It kills, stops and moves trainers, agents and nodes. It removes a
node's memory files, sends unauthenticated peers' bytes to every port, and lets the store through which the nodes meet hang, vanish
or lose all records. As root each node has a network namespace of its own; then it also cuts links, lets one pass one way
alone, and fills the disk of etcd, while a standby node waits for a node to be lost.

After each fault it compares what is restored with what was captured. All the while it asks "ckptctl health" on each
node, about once a second, and judges the answer by what the trainers tell of commits. The last line is
"chaos: kills=K restores=R wrong=0 lost_within_tolerance=0 silent=0 slowest_restore_ms=T". "silent" counts the moments
when commits had stopped for longer than allowed and health still said that the job is protected. The run fails when a
restore was wrong, when it lost something that the placement tolerates, or when health was wrong. All options:

TEXT
}

ensure_packages build etcd network
ensure_venv
if [[ "${1:-}" == --help || "${1:-}" == -h ]]; then
  show_help
  exec "$venv_python" scripts/chaos.py --help
fi
build_or_die release product chaos_trainer
exec "$venv_python" scripts/chaos.py "$@"
