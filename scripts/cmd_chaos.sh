#!/usr/bin/env bash
# ./dev chaos
command_name=chaos
source scripts/common.sh
source scripts/setup.sh
source scripts/build.sh

show_help() {
  cat <<'TEXT'
usage: ./dev chaos [--runs N] [--seed S] ...

Runs a real job and injects faults at random moments. It kills, stops and moves trainers, agents and nodes. It removes
a node's memory files and sends bytes from unauthenticated peers to every port. It makes the coordination store hang,
vanish or lose all records. As root it gives each node a network namespace of its own. Then it also cuts links, in both
directions or in one, and fills etcd's disk, while a standby node waits for a node to be lost.

After each fault it compares the restored state with the captured one. About once a second it runs "ckptctl health" on
each node and compares the answer with the commits that the trainers report. The last line is
"chaos: kills=K restores=R wrong=0 lost_within_tolerance=0 silent=0 slowest_restore_ms=T". "silent" counts the moments
when commits had stopped for longer than allowed and health still said that the job is protected. The run fails if a
restore was wrong, if it lost a commit although the placement survives the fault, or if health was wrong. All options:

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
