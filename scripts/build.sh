# Sourced: configures and compiles. Everything it says goes to stderr.
# shellcheck shell=bash
presets="release debug asan tsan"

# Clones of the project share what the compiler cache holds: paths below this folder count as relative.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
# What the compiler says of the headers that it read tells the cache enough: nothing is preprocessed twice.
export CCACHE_DEPEND=1
# What uses precompiled headers is kept only if the cache need not look for __DATE__ in them.
export CCACHE_SLOPPINESS=pch_defines,time_macros

check_preset() {
  [[ " $presets " == *" $1 "* ]] || usage_error "there is no preset '$1'; the presets are: ${presets// /, }"
}

# ThreadSanitizer of GCC 12 and 13 cannot run where the kernel scatters mappings over more than 28 bits;
# its programs run without address randomization where that is allowed (also while the build asks them for their tests).
preset_prefix() {
  if [[ $1 == tsan ]] && setarch -R true 2>/dev/null; then echo "setarch -R"; fi
}

# configure PRESET: once; afterwards ninja does it whenever a CMake file changes.
configure() {
  local preset=$1 dir=build/$1
  [[ -f $dir/build.ninja && $dir/build.ninja -nt CMakePresets.json ]] && return
  quietly "$dir/configure.log" cmake --preset "$preset"
}

# compiler_group PRESET: the group of packages with its compiler, where that is not g++.
compiler_group() { [[ $1 != asan && $1 != tsan ]] || echo clang; }

# In front of a build that goes on beside something more urgent.
build_priority=()

# build PRESET [TARGET...]: compiles, a job per core; shows ninja's one-line progress on a terminal, and a line every
# half a minute elsewhere.
build() {
  local preset=$1 dir=build/$1 prefix
  shift
  [[ -f $dir/.ninja_log ]] ||
    say "$preset: the first build takes some 6 minutes of one core for the programs, 6 more for their tests, and up to 1 GB in $dir"
  configure "$preset" || return 1
  read -ra prefix <<<"$(preset_prefix "$preset")"
  local run=("${build_priority[@]}" "${prefix[@]}" cmake --build "$dir" -j "$(nproc)")
  [[ $# -eq 0 ]] || run+=(--target "$@")
  if [[ -t 2 ]]; then
    "${run[@]}" >&2 || return 1
  else
    patiently "$dir/build.log" "building $preset" "${run[@]}" || return 1
  fi
}

# build_or_die PRESET [TARGET...]
build_or_die() { build "$@" || die "the build of '$1' failed; its first error is above"; }

# What is installed: library, agent and tool, without tests and benches.
build_product() { build_or_die "$1" product; }

# build_program PRESET NAME: bin/NAME, and an error that says so where this version has none.
build_program() {
  { configure "$1" && quietly "build/$1/configure.log" ninja -C "build/$1" build.ninja; } ||
    die "cmake could not configure '$1'; its error is above"
  ninja -C "build/$1" -t query "bin/$2" >/dev/null 2>&1 || die "this version has no program '$2'"
  build_or_die "$1" "bin/$2"
}

# One line on CUDA, from what the configuration found.
cuda_summary() { sed -n 's/^CKPT_CUDA_SUMMARY:INTERNAL=//p' "build/$1/CMakeCache.txt"; }
