#!/usr/bin/env bash
# ./dev test
command_name="test"
source scripts/common.sh
source scripts/setup.sh
source scripts/build.sh

show_help() {
  cat <<'TEXT'
usage: ./dev test [--all | --fast] [--since REV]
       ./dev test [--only NAME] [--preset release|debug|asan|tsan]
       ./dev test --times
       ./dev test --gpu [--sanitize]
       ./dev test --pauses

Without arguments: runs the tests that a change must pass, as CI does.
  release            all C++ tests, 500 simulator seeds, the Python tests
  sanitizers         the C++ tests of the modules that changed, under AddressSanitizer and ThreadSanitizer
  mutants            those that the change concerns, if the core changed
CONTRIBUTING.md says which test runs when.

  --fast        builds the programs, and runs the C++ tests of the modules that changed, a few Python tests, and Python
                test files that changed
  --all         the nightly run: every test in every preset, 10,000 seeds, all mutants, the fuzzers for ten minutes,
                the wheel in a bare Debian (needs root)
  --since REV   what differs from this revision counts as changed; default: the revision where the branch left origin's
                main branch or, on the main branch, the commit (or merge) before
  --preset P    all tests of this preset except the long ones; asan and tsan leave out Python tests and tests with the
                label release_only
  --only NAME   only tests whose name contains NAME (in release, unless --preset is given); cuda selects all tests of
                GPU code, on a test double of a driver
  --times       shows where the time of the last run went; if there is none, runs the tests of a change first
  --gpu         only the GPU tests, on this machine's GPU; if there is no GPU, or its driver is older than the build's
                CUDA, the command says so and ends with status 3
  --sanitize    with --gpu: only the kernels, under compute-sanitizer (memcheck, racecheck)
  --pauses      only the tests in which all agents, or only the leader, are stopped for 3 to 60 s at each stage of a
                restore; takes some 10 minutes after the build

The last line is "N passed, N failed", or "times: total_s=T" with --times. A test that exceeds its time limit is killed,
and its stacks are printed. A test that fails is not repeated.
TEXT
}

only=
preset=
gpu=
sanitize=
pauses=
kind=
since=
set_kind() {
  [[ -z $kind ]] || usage_error "--$kind and --$1 cannot be combined"
  kind=$1
}
while [[ $# -gt 0 ]]; do
  case "$1" in
    --help | -h) show_help; exit ;;
    --all | --fast | --times) set_kind "${1#--}"; shift ;;
    --since) since=$(option_value "$@"); shift 2 ;;
    --only) only=$(option_value "$@"); shift 2 ;;
    --gpu) gpu=yes; shift ;;
    --pauses) pauses=yes; shift ;;
    --sanitize) sanitize=--sanitize; shift ;;
    --preset) preset=$(option_value "$@"); check_preset "$preset"; shift 2 ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
done
[[ -z $kind$since || -z $only$preset$gpu$pauses ]] ||
  usage_error "--all, --fast, --times and --since cannot be combined with --only, --preset, --gpu or --pauses"
[[ -z $since || -z $kind || $kind == fast ]] || usage_error "--since cannot be combined with --$kind"
[[ -z $since ]] || git rev-parse --quiet --verify "$since^{commit}" >/dev/null || usage_error "there is no revision '$since'"
[[ -z $only$preset ]] || kind=preset

if [[ -n $gpu ]]; then
  [[ -z $preset$only ]] || usage_error "--gpu cannot be combined with --preset or --only"
  ensure_packages build test
  ensure_venv
  build_or_die release
  exec "$venv_python" scripts/gpu_tests.py --build build/release ${sanitize:+"$sanitize"}
fi
[[ -z $sanitize ]] || usage_error "--sanitize needs --gpu"
if [[ -n $pauses ]]; then
  [[ -z $preset$only ]] || usage_error "--pauses cannot be combined with --preset or --only"
  ensure_packages build test
  ensure_venv
  build_or_die release product
  say "pauses: testing, some 10 minutes"
  results=build/test-results
  rm -rf "$results"
  "$venv_python" scripts/pause_tests.py --build build/release --results "$results" || true
  exec "$venv_python" scripts/testing/summary.py "$results"
fi

if [[ $kind == times && -f build/test-results/times.json ]]; then exec python3 scripts/testing times; fi

clang=clang
[[ $kind != fast && ($kind != preset || -n $(compiler_group "${preset:-release}")) ]] || clang=
wheel=
[[ $kind != all ]] || wheel=wheel
# shellcheck disable=SC2086
ensure_packages build test etcd network $clang $wheel
if [[ $kind == times ]]; then
  python3 scripts/testing change >&2 || true
  exec python3 scripts/testing times
fi
exec python3 scripts/testing "${kind:-change}" --since "$since" --only "$only" --preset "${preset:-release}"
