#!/usr/bin/env bash
# ./dev fuzz
command_name=fuzz
source scripts/common.sh
source scripts/setup.sh
source scripts/build.sh

show_help() {
  cat <<'TEXT'
usage: ./dev fuzz [NAME] [--seconds N] [--keep]

Builds the fuzzers (fuzz/, with clang and libFuzzer) and runs all of them, or the named one. They run one after the
other, for N seconds together (default 60). The last line is "fuzz: targets=N crashes=0". Any crash is a failure.

The inputs of all runs stay in build/fuzz/corpus. An input that crashes a fuzzer is kept in build/fuzz/crashes, and
every later run tries it again. With --keep, inputs that reach new code are also added to fuzz/corpus, which ./dev test
replays.
To run a fuzzer on one input: build/fuzz/fuzz/NAME FILE
TEXT
}

name=
keep=
seconds=60
while [[ $# -gt 0 ]]; do
  case "$1" in
    --help | -h) show_help; exit ;;
    --seconds) seconds=$(option_value "$@"); shift 2 ;;
    --keep) keep=--keep; shift ;;
    -*) usage_error "unknown argument '$1'" ;;
    *) [[ -z $name ]] || usage_error "give one NAME at most"; name=$1; shift ;;
  esac
done
[[ $seconds =~ ^[1-9][0-9]*$ ]] || usage_error "--seconds needs a positive whole number"

ensure_packages build clang
build_or_die fuzz fuzzers
exec python3 scripts/run_fuzzers.py --build build/fuzz --seconds "$seconds" --only "$name" ${keep:+"$keep"}
