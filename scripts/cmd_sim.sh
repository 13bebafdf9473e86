#!/usr/bin/env bash
# ./dev sim
command_name=sim
source scripts/common.sh
source scripts/setup.sh
source scripts/build.sh

show_help() {
  cat <<'TEXT'
usage: ./dev sim --seeds N [--first-seed S]
       ./dev sim --seed S [--faults 1,3] [--shake N] --trace
       ./dev sim --seed S --shrink
       ./dev sim --scale N [--sharers S]

Runs the protocol core with simulated crashes, delays, losses, partitions, torn writes and bit flips, and checks its
invariants after every event (docs/simulator.md).

  --seeds   runs N seeds; ends with "sim: seeds=N violations=0" and fails on any violation
  --trace   replays one seed and prints every event; --faults limits it to these faults of the seed's plan
  --shrink  finds the fewest faults with which a failing seed still fails, and prints the command that replays them
  --scale   measures what the protocol costs with N nodes, where S ranks share each main shard; ends with
            "sim: nodes=N messages_leader=.. messages_worker=.. decide_ms=.. memory_mb=.. violations=0"

More options: build/release/bin/ckpt_sim --help
TEXT
}

case "${1:-}" in
  --help | -h) show_help; exit ;;
  "") usage_error "give --seeds N, --seed S or --scale N" ;;
esac
ensure_packages build
build_program release ckpt_sim
exec build/release/bin/ckpt_sim "$@"
