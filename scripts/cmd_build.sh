#!/usr/bin/env bash
# ./dev build
command_name=build
source scripts/common.sh
source scripts/setup.sh
source scripts/build.sh

show_help() {
  cat <<'TEXT'
usage: ./dev build [--preset release|debug|asan|tsan] [TARGET...]

Configures and compiles all targets, or the named ones, into build/PRESET (default: release).
TEXT
}

preset=release
targets=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --help | -h) show_help; exit ;;
    --preset) preset=$(option_value "$@"); shift 2 ;;
    -*) usage_error "unknown option '$1'" ;;
    *) targets+=("$1"); shift ;;
  esac
done
check_preset "$preset"
# shellcheck disable=SC2046
ensure_packages build $(compiler_group "$preset")
say "building $preset in build/$preset"
build_or_die "$preset" "${targets[@]}"
say "CUDA: $(cuda_summary "$preset")"
say "built: build/$preset"
