#!/usr/bin/env bash
# ./dev chaos
command_name=chaos
source scripts/common.sh
source scripts/setup.sh
source scripts/build.sh

show_help() {
  cat <<'TEXT'
usage: ./dev chaos --runs N --seed S

Runs real jobs, kills trainers, agents and nodes at random moments and compares what is restored with what was
captured. Ends with "chaos: kills=K restores=R wrong=0 lost_within_tolerance=0 slowest_restore_ms=T" and fails when a
restore was wrong or lost something that the placement tolerates.
TEXT
}

case "${1:-}" in
  --help | -h) show_help; exit ;;
  "") usage_error "say how many runs, and from which seed: --runs N --seed S" ;;
esac
ensure_packages build
ensure_venv
build_product release
exec "$venv_python" scripts/chaos.py "$@"
