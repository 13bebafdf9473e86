#!/usr/bin/env bash
# ./dev lint
command_name=lint
source scripts/common.sh
source scripts/setup.sh
source scripts/build.sh

show_help() {
  cat <<'TEXT'
usage: ./dev lint [--fix] [--only REGEX] [PART...]

Checks all tracked sources, or the named parts of the check:
  format    clang-format over C and C++        shell    shellcheck
  tidy      clang-tidy over the release build  python   ruff
  includes  every #include against the table in docs/architecture.md
  callers   finds functions that nothing in the product calls
  links     links in Markdown files, with their anchors

--fix lets clang-format and ruff repair sources. --only limits tidy to sources whose path begins with REGEX.
TEXT
}

sources() { git ls-files --cached --others --exclude-standard -- "$@" | while read -r file; do [[ ! -f $file ]] || echo "$file"; done; }

lint_format() {
  local mode=(--dry-run -Werror)
  [[ -z $fix ]] || mode=(-i)
  sources '*.c' '*.h' '*.cpp' '*.hpp' '*.inl' '*.cu' | xargs -r clang-format "${mode[@]}"
}

# tidy PRESET FOLDERS: clang-tidy over the sources of a configured build in one of the folders. A unity build gives it
# several sources at a time, so that it reads their headers once. *.cu are left out, since clang 14 cannot parse them
# with CUDA 12 or newer; most of what they run (kernels/*_body.hpp) is also in tests on the host.
tidy() {
  local log=build/$1/tidy.log
  local status=0
  local units="^$PWD/(build/$1/)?(${only:-($2)/}).*\.(c|cpp|cxx)$"
  run-clang-tidy -p "build/$1" -j "$(nproc)" -quiet "$units" >"$log.raw" 2>/dev/null || status=1
  sed -e 's/\x1b\[[0-9;]*m//g' -e "s|$PWD/||g" "$log.raw" >"$log"
  # A finding in a header comes once for each source that includes it.
  grep -E '^[^ ]+:[0-9]+:[0-9]+: (warning|error): ' "$log" | sort -u >&2
  return $status
}

lint_tidy() {
  configure release || die "cmake could not configure 'release'; its error is above"
  tidy release 'src|kernels|placement|schedule|tests|bench|examples|fuzz'
}

lint_shell() {
  { sources '*.sh' && echo dev && echo .ci/run; } | xargs shellcheck -x
}

lint_python() {
  ensure_venv
  if [[ -n $fix ]]; then
    "$venv_python" -m ruff check --fix .
  else
    "$venv_python" -m ruff check .
  fi
}

# count SCRIPT: runs a check whose output ends with "name=N", and keeps that for the last line.
count() {
  local line status=0
  line=$(python3 "scripts/$1") || status=1
  counts+=("$line")
  return $status
}

lint_includes() { count check_includes.py; }
lint_callers() { count check_callers.py; }
lint_links() { python3 scripts/check_links.py; }

fix=
only=
parts=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --help | -h) show_help; exit ;;
    --fix) fix=yes; shift ;;
    --only) only=$(option_value "$@"); shift 2 ;;
    format | tidy | shell | python | includes | callers | links) parts+=("$1"); shift ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
done
[[ ${#parts[@]} -gt 0 ]] || parts=(includes callers links format shell python tidy)

ensure_packages build lint
failed=()
counts=()
for part in "${parts[@]}"; do
  say "lint: $part"
  "lint_$part" || failed+=("$part")
done
[[ ${#failed[@]} -eq 0 ]] || say "lint found something in: ${failed[*]}"
echo "lint: ${counts[*]:-${parts[*]}}"
[[ ${#failed[@]} -eq 0 ]]
