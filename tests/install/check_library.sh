#!/usr/bin/env bash
# check_library.sh LIBRARY SOVERSION: what the library needs and exports.
# Inside someone's training process a second UCX, etcd, protobuf or logging library clashes with theirs, and so does
# any symbol that is not ours.
set -euo pipefail
library=$1 soversion=$2
fail() {
  echo "$library: $*" | xargs >&2
  exit 1
}

dynamic=$(readelf --dynamic --wide "$library")
grep -q "Library soname: \[libckptengine.so.$soversion\]" <<<"$dynamic" ||
  fail "its soname is not libckptengine.so.$soversion"

needed=$(sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p' <<<"$dynamic")
[[ -n $needed ]] || fail "readelf names nothing that it needs"
allowed='^(lib(c|m|gcc_s|stdc\+\+|dl|rt|pthread|xxhash)|ld-linux-[a-z0-9_-]+)\.so\.[0-9]+$'
strangers=$(grep -Ev "$allowed" <<<"$needed" || true)
[[ -z $strangers ]] || fail "it needs libraries that do not belong into a training process:" "$strangers"

# Version nodes (ABSOLUTE symbols, type A) are not symbols of ours.
exported=$(nm --dynamic --defined-only "$library" | awk '$2 != "A" {sub(/@.*/, "", $3); print $3}')
[[ -n $exported ]] || fail "it exports nothing"
foreign=$(grep -v '^ckpt_' <<<"$exported" || true)
[[ -z $foreign ]] || fail "it exports symbols other than ckpt_*:" "$foreign"

header=$(dirname "$0")/../../include/ckptengine/ckptengine.h
declared=$(sed -n 's/^CKPT_API .*[ *]\(ckpt_[a-z_]*\)(.*/\1/p' "$header" | sort)
[[ -n $declared ]] || fail "no function was found in ckptengine.h"
missing=$(comm -23 <(echo "$declared") <(sort <<<"$exported"))
[[ -z $missing ]] || fail "ckptengine.h declares what it does not export:" "$missing"
undeclared=$(comm -13 <(echo "$declared") <(sort <<<"$exported"))
[[ -z $undeclared ]] || fail "it exports what ckptengine.h does not declare:" "$undeclared"
