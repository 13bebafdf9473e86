# Sourced by every command: messages, and running things quietly. Messages go to stderr, results to stdout.
# Whoever sources it has set command_name.
# shellcheck shell=bash disable=SC2154
set -euo pipefail

say() { echo "==> $*" >&2; }

die() {
  echo "dev: $*" >&2
  exit 1
}

usage_error() {
  echo "dev: $*; see './dev ${command_name} --help'" >&2
  exit 2
}

# The value of an option, or an error that names it: value=$(option_value --only "$@").
option_value() {
  [[ $# -ge 2 && -n "$2" ]] || usage_error "$1 needs a value"
  echo "$2"
}

# Runs a command with its output in a log; when it fails, shows the log from its first error on, or its end.
# quietly LOG COMMAND...
quietly() {
  local log=$1
  shift
  mkdir -p "$(dirname "$log")"
  if ! "$@" >"$log" 2>&1 </dev/null; then
    local first
    first=$(grep -nE -m 1 '^(FAILED:|CMake Error)' "$log" | cut -d : -f 1) || true
    if [[ -n $first ]]; then tail -n "+$first" "$log" | head -n 60 >&2; else tail -n 40 "$log" >&2; fi
    return 1
  fi
}

# The same for what takes long: also says every half a minute that it goes on, how far ninja is, and how long it may
# still take.
# patiently LOG WHAT COMMAND...
patiently() {
  local log=$1 what=$2 status=0 ticker begin=$SECONDS
  shift 2
  # Nothing that outlives this function keeps the caller's output open.
  while sleep "${DEV_PROGRESS_S:-30}" >/dev/null 2>&1; do
    say "$what: $((SECONDS - begin)) s so far$(steps_done "$log" $((SECONDS - begin)))"
  done &
  ticker=$!
  quietly "$log" "$@" || status=$?
  kill "$ticker" 2>/dev/null || true
  wait "$ticker" 2>/dev/null || true
  return "$status"
}

# steps_done LOG SECONDS: ", step 12/345, some 60 s left", as ninja counts steps in a log that began so many seconds ago;
# nothing where it does not. Steps differ, so the first ones tell little.
steps_done() {
  sed -n 's/^\[\([0-9]*\)\/\([0-9]*\)\].*/\1 \2/p' "$1" 2>/dev/null | tail -n 1 | {
    read -r ended all || return 0
    printf ', step %d/%d' "$ended" "$all"
    ((ended * 5 < all)) || printf ', some %d s left' $(($2 * (all - ended) / ended))
  }
}

# wait_until SECONDS COMMAND...
wait_until() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < deadline)) || return 1
    sleep 0.02
  done
}
