#!/usr/bin/env bash
# ./dev chaos
command_name=chaos
source scripts/common.sh
source scripts/setup.sh
source scripts/build.sh

show_help() {
  cat <<'TEXT'
usage: ./dev chaos [--runs N] [--seed S] ...

Runs a real job and strikes it at random moments: trainers, agents and nodes are killed, frozen and moved; as root, where
each node has a network namespace of its own, links are cut or pass one way alone, too, and the etcd through which the
nodes meet dies, freezes, or fills its disk, while a standby node waits for one to be lost. After each fault what is
restored is compared with what was captured. Ends with
"chaos: kills=K restores=R wrong=0 lost_within_tolerance=0 slowest_restore_ms=T" and fails when a restore was wrong or
lost something that the placement tolerates. All options:

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
