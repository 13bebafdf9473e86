#!/usr/bin/env bash
# ./dev test
command_name="test"
source scripts/common.sh
source scripts/setup.sh
source scripts/build.sh

show_help() {
  cat <<'TEXT'
usage: ./dev test [--all] [--since REV]
       ./dev test [--only NAME] [--preset release|debug|asan|tsan]
       ./dev test --gpu [--sanitize]
       ./dev test --pauses

Without arguments: runs the tests that a change must pass, as CI does.
  release            Python tests, tests of real processes and of the core, 1,000 simulator seeds
  address sanitizer  all other C++ tests, the fuzzers' inputs
  thread sanitizer   tests of code with threads
If the core changed, also the mutants of what changed, and the fuzzers for one minute. CONTRIBUTING.md says which test runs when.

  --all         the nightly run: every test in every preset, 100,000 seeds, the mutants, the fuzzers for ten minutes,
                the wheel in a bare Debian (needs root)
  --since REV   compare the core with this revision to see whether it changed; default: the revision where the branch
                left origin's main branch or, on the main branch, the commit (or merge) before
  --preset P    all tests of this preset except the nightly seeds; asan and tsan leave out Python tests and tests with
                the label release_only
  --only NAME   only tests whose name contains NAME (in release, unless --preset is given); cuda selects all tests of
                GPU code, on a test double of a driver
  --gpu         only the GPU tests, on this machine's GPU; if there is no GPU, or its driver is older than the build's
                CUDA, the command says so and ends with status 3
  --sanitize    with --gpu: only the kernels, under compute-sanitizer (memcheck, racecheck)
  --pauses      only the tests in which all agents, or only the leader, are stopped for 3 to 60 s at each stage of a
                restore; takes some 10 minutes after the build

The last line is "N passed, N failed". A test that exceeds its time limit is killed, and its stacks are printed.
TEXT
}

only=
chosen=
gpu=
sanitize=
pauses=
all=
since=
while [[ $# -gt 0 ]]; do
  case "$1" in
    --help | -h) show_help; exit ;;
    --all) all=yes; shift ;;
    --since) since=$(option_value "$@"); shift 2 ;;
    --only) only=$(option_value "$@"); shift 2 ;;
    --gpu) gpu=yes; shift ;;
    --pauses) pauses=yes; shift ;;
    --sanitize) sanitize=--sanitize; shift ;;
    --preset) chosen=$(option_value "$@"); check_preset "$chosen"; shift 2 ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
done
[[ -z $all$since || -z $only$chosen$gpu ]] || usage_error "--all and --since cannot be combined with --only, --preset or --gpu"
[[ -z $all || -z $since ]] || usage_error "--all cannot be combined with --since, because it runs everything"

if [[ -n $gpu ]]; then
  [[ -z $chosen$only ]] || usage_error "--gpu cannot be combined with --preset or --only"
  ensure_packages build test
  ensure_venv
  build_or_die release
  exec "$venv_python" scripts/gpu_tests.py --build build/release ${sanitize:+"$sanitize"}
fi
[[ -z $sanitize ]] || usage_error "--sanitize needs --gpu"
if [[ -n $pauses ]]; then
  [[ -z $chosen$only ]] || usage_error "--pauses cannot be combined with --preset or --only"
  ensure_packages build test
  ensure_venv
  build_or_die release product
  say "pauses: testing, some 10 minutes"
  results=build/test-results
  rm -rf "$results"
  "$venv_python" scripts/pause_tests.py --build build/release --results "$results" || true
  exec "$venv_python" scripts/testing/summary.py "$results"
fi

# The sources that the mutants break, the tests that must notice, and the fuzzers' sources.
core=(src/core src/sim placement tests/core tests/mutants fuzz)

# Lists the files of the core that changed. If the clone cannot tell, it fails: then all of the core counts as changed.
core_changes() {
  local base=$since
  if [[ -z $base ]]; then
    base=$(git merge-base HEAD origin/HEAD 2>/dev/null) || base=
    [[ -n $base && $base != "$(git rev-parse HEAD)" ]] || base=HEAD~1
  fi
  git rev-parse --quiet --verify "$base^{commit}" >/dev/null 2>&1 && git diff --name-only "$base" -- "${core[@]}"
}

fuzz_s=0
targets=()
if [[ -n $all ]]; then
  to_run=(release asan tsan) scope=all fuzz_s=600
elif [[ -n $chosen$only ]]; then
  to_run=("${chosen:-release}") scope=preset
else
  to_run=(release asan tsan) scope=change targets=(change)
  [[ -z $since ]] || git rev-parse --quiet --verify "$since^{commit}" >/dev/null || usage_error "there is no revision '$since'"
  if ! changes=$(core_changes) || [[ -n $changes ]]; then
    scope=core fuzz_s=60
    export CKPTENGINE_TEST_CORE_CHANGES=$changes  # for the mutants
    say "the core changed: mutants and fuzzers run, too"
  fi
fi

fuzz=
[[ $fuzz_s -eq 0 ]] || fuzz=fuzz
clang=
for preset in "${to_run[@]}"; do clang+=" $(compiler_group "$preset")"; done
wheel=
[[ -z $all ]] || wheel=wheel
# shellcheck disable=SC2086
ensure_packages build test etcd network $clang $wheel
# Python packages are installed while the first preset is built.
{ ensure_venv; ensure_integrations; ensure_cuda_tools; } &
venv_installer=$!

results=build/test-results
rm -rf "$results"
mkdir -p "$results"

# measure_cpu: sets cpu_s to the seconds of CPU that this shell's children have taken.
measure_cpu() {
  local file="$results/times.$BASHPID"
  times >"$file"
  cpu_s=$(awk -F '[ ms]+' 'END { printf "%d", $1 * 60 + $2 + $3 * 60 + $4 }' "$file")
  rm "$file"
}

# build_tests PRESET [TARGET...]: fails if the build fails.
build_tests() {
  local preset=$1 begin=$SECONDS begin_cpu_s cpu_s
  measure_cpu && begin_cpu_s=$cpu_s
  say "$preset: building${2:+ ${*:2}}"
  if ! build "$@"; then
    say "$preset: the build failed; its first error is above"
    echo "$preset: the build" >"$results/$preset-broken.txt"
    return 1
  fi
  measure_cpu
  say "$preset: built in $((SECONDS - begin)) s, $((cpu_s - begin_cpu_s)) s of CPU"
}

# run_tests PRESET PART...: runs the C++ tests (ctest) or the Python tests (pytest).
run_tests() {
  local preset=$1 begin=$SECONDS begin_cpu_s cpu_s prefix
  measure_cpu && begin_cpu_s=$cpu_s
  read -ra prefix <<<"$(preset_prefix "$preset")"
  "${prefix[@]}" "$venv_python" scripts/run_tests.py --preset "$preset" --results "$results" --only "$only" \
    --scope "$scope" --parts "${@:2}" ||
    echo "$preset: the test runner ended with status $?" >"$results/$preset-broken.txt"
  measure_cpu
  say "$preset: tested (${*:2}) in $((SECONDS - begin)) s, $((cpu_s - begin_cpu_s)) s of CPU"
}

# test_preset PRESET: runs all tests of a preset that belong to this run.
test_preset() {
  run_tests "$1" ctest
  if [[ $1 == release || $1 == debug ]]; then run_tests "$1" pytest; fi
}

# Tests spend much of their time waiting. Meanwhile the next preset is built, at the lowest priority.
jobs_of_tests=()
stop_tests() {
  local job
  for job in "${jobs_of_tests[@]}"; do kill -INT -- "-$job" 2>/dev/null || true; done
}
trap stop_tests EXIT
build_priority=(nice -n 19)

# test_in_background PRESET PART: runs tests in a process group of their own, so that an interrupt ends all of them.
# They have no terminal, because several runs would overwrite its line.
test_in_background() {
  set -m
  run_tests "$@" 2> >(cat >&2) &
  jobs_of_tests+=($!)
  set +m
}

await_venv() {
  [[ -n $venv_installer ]] || return 0
  wait "$venv_installer" || die "the virtual environment for the tests could not be made; the reason is above"
  venv_installer=
}

# The Python tests, which mostly wait, begin as soon as the programs are built that they run. The tests of one sanitizer
# begin when those of the other have ended.
of_sanitizer=
for preset in "${to_run[@]}"; do
  is_built=yes wanted=("${targets[@]}")
  [[ $preset != release || $scope != core ]] || wanted+=(mutants)
  if [[ $preset == release && ${#to_run[@]} -gt 1 ]]; then
    if build_tests release python_tests; then
      await_venv
      test_in_background release pytest
    fi
  fi
  build_tests "$preset" "${wanted[@]}" || is_built=
  await_venv
  [[ -n $is_built ]] || break
  [[ $preset != release ]] || say "CUDA: $(cuda_summary release)"
  if [[ ${#to_run[@]} -eq 1 ]]; then
    test_preset "$preset"
  elif [[ $preset == release ]]; then
    test_in_background release ctest
  else
    [[ -z $of_sanitizer ]] || wait "$of_sanitizer" || true
    test_in_background "$preset" ctest
    of_sanitizer=${jobs_of_tests[-1]}
  fi
done
if [[ -n $fuzz ]]; then
  say "fuzz: building"
  if build fuzz fuzzers; then
    "$venv_python" scripts/run_fuzzers.py --build build/fuzz --seconds "$fuzz_s" --junit "$results/fuzz.xml" ||
      echo "fuzz: the runner ended with status $?" >"$results/fuzz-broken.txt"
  else
    echo "fuzz: the build" >"$results/fuzz-broken.txt"
  fi
fi
for job in "${jobs_of_tests[@]}"; do wait "$job" || true; done
jobs_of_tests=()
if [[ -n $wheel ]]; then
  say "wheel: making it, and a bare Debian to install it in"
  if WHEEL=$(./dev wheel | tail -n 1) && [[ -n $WHEEL ]]; then
    export WHEEL
    "$venv_python" -m pytest -q --no-summary --rootdir . --timeout 1800 -o junit_family=xunit1 \
      --junit-xml="$results/wheel-pytest.xml" tests/wheel >&2 || true
  else
    echo "wheel: ./dev wheel" >"$results/wheel-broken.txt"
  fi
fi
if [[ -n $all ]]; then
  say "training systems: installing them into $venv (half a minute, and 0.8 GB of disk), and testing their adapters"
  if quietly build/setup-training-systems.log "$venv_python" -m pip install -r scripts/requirements_training_systems.txt; then
    CKPTENGINE_TEST_SYSTEMS=1 CKPTENGINE_BUILD_DIR="$PWD/build/release" PYTHONPATH="$PWD/scripts:$PWD/python" \
      "$venv_python" -m pytest -q --no-summary --rootdir . --timeout 300 -o junit_family=xunit1 \
      --junit-xml="$results/systems-pytest.xml" tests/process/test_{deepspeed,torchtitan,megatron,jit_long,jit_demo_long,resize_long,chaos_mechanisms_long}.py >&2 || true
  else
    echo "training systems: pip (log: build/setup-training-systems.log)" >"$results/systems-broken.txt"
  fi
fi
"$venv_python" scripts/testing/summary.py "$results"
