#!/usr/bin/env bash
# check_interpose.sh LIBRARY: what libckptinterpose.so needs and exports. LD_PRELOAD brings it into every process.
set -euo pipefail
library=$1
fail() {
  echo "$library: $*" | xargs >&2
  exit 1
}

needed=$(readelf --dynamic --wide "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p')
strangers=$(grep -Ev '^(lib(c|dl|pthread)|ld-linux-[a-z0-9_-]+)\.so\.[0-9]+$' <<<"$needed" || true)
[[ -z $strangers ]] || fail "it needs libraries besides the C library:" "$strangers"

exported=$(nm --dynamic --defined-only "$library" | awk '$2 != "A" {sub(/@.*/, "", $3); print $3}')
grep -qx ncclAllReduce <<<"$exported" || fail "it does not stand before ncclAllReduce"
foreign=$(grep -Ev '^(nccl[A-Z]|ckpt_interpose_)' <<<"$exported" || true)
[[ -z $foreign ]] || fail "it exports symbols besides nccl* and ckpt_interpose_*:" "$foreign"

# A process without NCCL and engine does not notice it.
[[ $(LD_PRELOAD=$library bash -c 'echo as always') == "as always" ]] || fail "a preloaded shell does not work"
