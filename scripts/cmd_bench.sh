#!/usr/bin/env bash
# ./dev bench
command_name=bench
source scripts/common.sh
source scripts/setup.sh
source scripts/build.sh

show_help() {
  cat <<'TEXT'
usage: ./dev bench [NAME...] [-- ARGUMENT...]
       ./dev bench --list

Runs the named benches, or all of them, one after the other. A bench NAME is bench/NAME.py or, without such a file,
the program bench_NAME of the release build. Each bench gets the ARGUMENTs after --. Every bench ends with lines
"ratio: NAME = X (ours A, theirs B, unit)".

The command fails if a bench fails. If all benches run and there is no GPU, benches that need one do not count as
failed. --list prints the names of all benches.

gpu_counts needs no GPU: it counts the bytes and kernel launches of a capture, and the bytes that GPU replication moves
across PCIe, on test doubles of the CUDA driver and of NCCL.
TEXT
}

# Every bench as "NAME COMMAND".
all_benches() {
  local file name
  for file in build/release/bench/bench_*; do
    name=${file##*/bench_}
    [[ -f $file && -x $file && ! -f bench/$name.py ]] && echo "$name $file" # else the script runs it
  done
  for file in bench/*.py; do
    name=$(basename "$file" .py)
    [[ -f $file && $name != _* ]] && echo "$name $venv_python $file"
  done
  return 0
}

names=()
arguments=()
list=
while [[ $# -gt 0 ]]; do
  case "$1" in
    --help | -h) show_help; exit ;;
    --list) list=yes; shift ;;
    --) shift; arguments=("$@"); break ;;
    -*) usage_error "unknown option '$1' (put arguments for a bench after --)" ;;
    *) names+=("$1"); shift ;;
  esac
done

ensure_packages build bench network
ensure_venv
build_or_die release
benches=$(all_benches | sort)
[[ -n $benches ]] || die "this version has no benches"
if [[ -n $list ]]; then
  cut -d ' ' -f 1 <<<"$benches"
  exit
fi
known=" $(cut -d ' ' -f 1 <<<"$benches" | xargs) "
for name in "${names[@]}"; do
  [[ $known == *" $name "* ]] || usage_error "there is no bench '$name'; the benches are:${known% }"
done

nothing_measured=3 # without a GPU
failed=()
export PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH}
while read -r name command; do
  [[ ${#names[@]} -eq 0 || " ${names[*]} " == *" $name "* ]] || continue
  say "bench $name"
  status=0
  # shellcheck disable=SC2086
  $command "${arguments[@]}" </dev/null || status=$?
  [[ $status -eq 0 || ($status -eq $nothing_measured && ${#names[@]} -eq 0) ]] || failed+=("$name")
done <<<"$benches"
[[ ${#failed[@]} -eq 0 ]] || die "these benches failed: ${failed[*]}"
