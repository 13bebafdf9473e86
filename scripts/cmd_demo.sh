#!/usr/bin/env bash
# ./dev demo
command_name=demo
source scripts/common.sh
source scripts/setup.sh
source scripts/build.sh

show_help() {
  cat <<'TEXT'
usage: ./dev demo [--nodes N] [--ranks-per-node N] [--protection P] [--text FILE] ...

Trains a small GPT on several "nodes" of this machine, once undisturbed and once with a snapshot every iteration, in
which a node is killed at a random moment and a fresh one takes its place. Its last line is
"restored iteration K on 4 of 4 ranks (3 local, 1 peer); losses identical: yes"; any other end is a failure.
With --kill-all every node is killed, and the state comes from storage: "(4 persistent)". With --protection xor:4 nodes
hold parity instead of copies, and what the node had is decoded: "(3 local, 1 decoded)". docs/options.md says what else
there is. With --standby a further node stands by, takes the dead one's place and gets what it held before the job
starts again: "(4 local)". With --coordinator etcd the nodes meet through a real etcd server, which the demo starts and ends.
All options:
TEXT
}

if [[ "${1:-}" == --help || "${1:-}" == -h ]]; then
  show_help
  # The full list needs what is installed by a first run.
  if [[ -x $venv_python ]]; then exec "$venv_python" examples/demo/demo.py --help; fi
  echo "  (after the first ./dev demo)"
  exit
fi
etcd=
[[ " $* " != *etcd* ]] || etcd=etcd
# shellcheck disable=SC2086
ensure_packages build $etcd
ensure_venv
build_product release
exec "$venv_python" examples/demo/demo.py "$@"
