#!/usr/bin/env bash
# ./dev chaos
command_name=chaos
source scripts/common.sh
source scripts/setup.sh
source scripts/build.sh

show_help() {
  cat <<'TEXT'
usage: ./dev chaos [--mode plain|recompute|resize|spread] [--runs N] [--seed S] ...
       ./dev chaos --jit [--runs N | --minutes N] [--seed S]

Runs a real job and injects faults at random moments. It kills, stops and moves trainers, agents and nodes. It removes
a node's memory files and sends bytes from unauthenticated peers to every port. It makes the coordination store hang,
vanish or lose all records. As root it gives each node a network namespace of its own. Then it also cuts links, in both
directions or in one, and fills etcd's disk, while a standby node waits for a node to be lost.

After each fault it compares the restored state with the captured one. About once a second it runs "ckptctl health" on
each node and compares the answer with the commits that the trainers report. The last line is
"chaos: kills=K restores=R wrong=0 lost_within_tolerance=0 silent=0 slowest_restore_ms=T". "silent" counts the moments
when commits had stopped for longer than allowed and health still said that the job is protected. The run fails if a
restore was wrong, if it lost a commit although the placement survives the fault, or if health was wrong.

With --mode, the job uses a mechanism, and its processes are also killed and stopped at that mechanism's stages:
  recompute  AdamW updates each rank's state, and nodes repeat the updates (docs/mechanisms.md). Agents, trainers and
             nodes are struck while nodes repeat an update.
  resize     likewise, and the ranks split one state. The job comes back with another number of ranks, which take over
             shards (docs/elastic.md). Ranks are struck while they decide, load, exchange and restore, agents and
             nodes during all of that and before the new ranks' first commit.
  spread     all ranks have the same state, and fetch parts of it from the few nodes that are left
             (docs/mechanisms.md). The number of ranks changes, too, and the same is struck.
Each trainer writes digests of its state in each iteration, and compares them after a restore and when it trains the
iteration again. The last line then also counts restores by another number of ranks, "resized", and updates: "recomputed"
(repeated), "recomputed_in_vain" and "not_recomputed" (see docs/mechanisms.md). All kinds of faults of a mode have
a name for --only.

With --jit, the job's healthy ranks keep their processes (docs/jit.md). At random moments a rank is killed or stopped, it
spins and holds Python's interpreter lock, it is late and suspected, or an agent is killed. The last line is
"chaos: faults=N redone_iterations=N slowest_ms=T wrong=0 healthy_ended=0". The run fails if a loss differs from that of
an undisturbed run, or if a healthy process has ended. "./dev chaos --jit --help" lists its options.

All options:

TEXT
}

program=chaos.py
targets=(product chaos_trainer)
if [[ "${1:-}" == --jit ]]; then
  program=chaos_jit.py
  targets=(product)
  shift
fi
if [[ "${1:-}" == --help || "${1:-}" == -h ]]; then
  [[ $program != chaos.py ]] || show_help
  # The full list needs packages that a first run installs.
  if [[ -x $venv_python ]]; then exec "$venv_python" "scripts/$program" --help; fi
  echo "  (this list can be shown after the first ./dev chaos)"
  exit
fi
ensure_packages build etcd network
ensure_venv
build_or_die release "${targets[@]}"
exec "$venv_python" "scripts/$program" "$@"
