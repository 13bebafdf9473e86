#!/usr/bin/env bash
# ./dev test
command_name="test"
source scripts/common.sh
source scripts/setup.sh
source scripts/build.sh

show_help() {
  cat <<'TEXT'
usage: ./dev test [--only NAME] [--preset release|debug|asan|tsan]
       ./dev test --gpu [--sanitize]
       ./dev test --pauses

Without arguments: builds and runs everything in release (C++ tests, simulator, Python tests, tests of real
processes), then the C++ tests under the address sanitizer, with 250 simulator seeds, those of what has threads under the
thread sanitizer, then the fuzzers for a minute.

  --preset P    this preset alone; asan and tsan leave out Python and what is labelled release_only
  --only NAME   only tests whose name contains NAME (in release, unless --preset says otherwise); cuda is all that has
                to do with GPUs, on a stand-in for a driver
  --gpu         the tests of that against this machine's GPU, and nothing else; without one, or with a driver older
                than the CUDA of the build, it says so and ends with status 3
  --sanitize    with --gpu: its kernels under compute-sanitizer (memcheck, racecheck), and nothing else
  --pauses      restores while all agents, or the leader alone, are stopped for 3 to 60 s at each stage, and nothing
                else; takes some 10 minutes beside the build

The last line is "N passed, N failed". A test that does not end in its time is killed, and its stacks are shown.
TEXT
}

only=
chosen=
gpu=
sanitize=
pauses=
while [[ $# -gt 0 ]]; do
  case "$1" in
    --help | -h) show_help; exit ;;
    --only) only=$(option_value "$@"); shift 2 ;;
    --gpu) gpu=yes; shift ;;
    --pauses) pauses=yes; shift ;;
    --sanitize) sanitize=--sanitize; shift ;;
    --preset) chosen=$(option_value "$@"); check_preset "$chosen"; shift 2 ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
done
if [[ -n $chosen ]]; then
  to_run=("$chosen")
elif [[ -n $only ]]; then
  to_run=(release)
else
  to_run=(release asan tsan)
fi

if [[ -n $gpu ]]; then
  [[ -z $chosen$only ]] || usage_error "--gpu goes with nothing else"
  ensure_packages build test
  ensure_venv
  build_or_die release
  exec "$venv_python" scripts/gpu_tests.py --build build/release ${sanitize:+"$sanitize"}
fi
[[ -z $sanitize ]] || usage_error "--sanitize goes with --gpu"
if [[ -n $pauses ]]; then
  [[ -z $chosen$only ]] || usage_error "--pauses goes with nothing else"
  ensure_packages build test
  ensure_venv
  build_or_die release product
  say "pauses: testing, some 10 minutes"
  results=build/test-results
  rm -rf "$results"
  "$venv_python" scripts/pause_tests.py --build build/release --results "$results" || true
  exec "$venv_python" scripts/test_summary.py "$results"
fi

fuzz=
[[ -n $chosen || -n $only ]] || fuzz=fuzz
# shellcheck disable=SC2086
ensure_packages build test etcd network $fuzz
ensure_venv

results=build/test-results
rm -rf "$results"
mkdir -p "$results"
for preset in "${to_run[@]}"; do
  say "$preset: building"
  begin=$SECONDS
  if ! build "$preset"; then
    say "$preset: the build failed; its first error is above"
    echo "$preset: the build" >"$results/$preset-broken.txt"
    break
  fi
  [[ $preset != release ]] || say "CUDA: $(cuda_summary release)"
  say "$preset: built in $((SECONDS - begin)) s"
  begin=$SECONDS
  read -ra prefix <<<"$(preset_prefix "$preset")"
  "${prefix[@]}" "$venv_python" scripts/run_tests.py --preset "$preset" --results "$results" --only "$only" ||
    echo "$preset: the test runner ended with status $?" >"$results/$preset-broken.txt"
  say "$preset: tested in $((SECONDS - begin)) s"
done
if [[ -n $fuzz ]]; then
  say "fuzz: building"
  if build fuzz fuzzers; then
    "$venv_python" scripts/run_fuzzers.py --build build/fuzz --seconds 60 --junit "$results/fuzz.xml" ||
      echo "fuzz: the runner ended with status $?" >"$results/fuzz-broken.txt"
  else
    echo "fuzz: the build" >"$results/fuzz-broken.txt"
  fi
fi
"$venv_python" scripts/test_summary.py "$results"
