#!/usr/bin/env bash
# ./dev chaos
command_name=chaos
source scripts/common.sh
source scripts/setup.sh
source scripts/build.sh

show_help() {
  cat <<'TEXT'
usage: ./dev chaos [--runs N] [--seed S] ...

Runs a real job, kills trainers, agents and nodes at random moments and compares what is restored with what was
captured. Ends with "chaos: kills=K restores=R wrong=0 lost_within_tolerance=0 slowest_restore_ms=T" and fails when a
restore was wrong, lost something that the placement tolerates, or did not end. All options:

TEXT
  python3 scripts/chaos.py --help
}

case "${1:-}" in
  --help | -h) show_help; exit ;;
esac
ensure_packages build
build_or_die release product chaos_trainer
exec python3 scripts/chaos.py "$@"
