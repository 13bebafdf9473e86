#!/usr/bin/env bash
# ./dev demo
command_name=demo
source scripts/common.sh
source scripts/setup.sh
source scripts/build.sh

show_help() {
  cat <<'TEXT'
usage: ./dev demo [--nodes N] [--ranks-per-node N] [--protection P] [--text FILE] ...
       ./dev demo --jit [--faults kill,stop,spin,node]
       ./dev demo --resize N:M

Trains a small GPT on several "nodes" of this machine, twice: once undisturbed, and once with a snapshot in every
iteration. In the second run it kills a node at a random moment and starts a new one in its place. The last line is
"restored iteration K on 4 of 4 ranks (3 local, 1 peer); losses identical: yes". If the last line differs, the demo has
failed.

  --kill-all           kills every node; the state comes from storage: "(4 persistent)"
  --protection xor:4   nodes hold parity instead of copies; the lost shard is decoded: "(3 local, 1 decoded)";
                       docs/options.md lists other protections
  --standby            one more node is a standby node; it takes the dead node's place and fetches its pieces before
                       the job restarts: "(4 local)"
  --coordinator etcd   the coordination store is a real etcd server, which the demo starts and ends

With --jit, healthy processes stay: four ranks train with DDP under ckptrun. One is killed, one is stopped, one spins,
and a node dies. After each fault the demo shows how long it took until all trained again, and why. The last line is
"jit: faults=4 healthy_ended=0 slowest_ms=T; losses identical: yes". Any other end is a failure. It takes a minute;
"./dev demo --jit --help" lists its options.

With --resize 4:3, FSDP2 splits the GPT over four ranks. The job is killed, and one node is lost. Three ranks go on from
memory. The control is three ranks that load the same iteration with torch.distributed.checkpoint. The last line is
"resized 4 -> 3; losses as after a DCP load: yes". "./dev demo --resize --help" lists its options.

All options:
TEXT
}

program=demo.py
if [[ "${1:-}" == --jit ]]; then
  program=jit_demo.py
  shift
elif [[ "${1:-}" == --resize && "${2:-}" =~ ^(--help|-h)$ ]]; then
  program=resize_demo.py
  shift
elif [[ " $* " == *" --resize"[\ =]* ]]; then
  program=resize_demo.py
fi
if [[ "${1:-}" == --help || "${1:-}" == -h ]]; then
  [[ $program != demo.py ]] || show_help
  # The full list needs packages that a first run installs.
  if [[ -x $venv_python ]]; then exec "$venv_python" "examples/demo/$program" --help; fi
  echo "  (this list can be shown after the first ./dev demo)"
  exit
fi
etcd=
[[ " $* " != *etcd* ]] || etcd=etcd
# shellcheck disable=SC2086
ensure_packages build $etcd
# Python packages are installed while the programs are built.
ensure_venv &
venv_installer=$!
build_product release
wait "$venv_installer" || die "the virtual environment could not be made; the reason is above"
exec "$venv_python" "examples/demo/$program" "$@"
