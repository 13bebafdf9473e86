#!/usr/bin/env bash
# ./dev bundle
command_name=bundle
source scripts/common.sh
source scripts/setup.sh
source scripts/build.sh

show_help() {
  cat <<'TEXT'
usage: ./dev bundle

Makes dist/ckptengine-VERSION-ARCHITECTURE.tar.gz with bin/, include/, lib/ and python/. lib/ has libckptengine and the
shared libraries that the programs need, including UCX's plug-ins but not glibc. You can unpack the bundle in any
folder. The machine's glibc must not be older than this machine's.

If the build has CUDA, the bundle's gpu_all runs tests and benches on a machine with a GPU, the most valuable first.
gpu_test and gpu_bench run only one kind. That machine needs Python, but neither network nor compiler.
TEXT
}

case "${1:-}" in
  "") ;;
  --help | -h) show_help; exit ;;
  *) usage_error "unknown argument '$1'" ;;
esac

# The shared libraries that files need and glibc does not bring, as paths.
needed_libraries() {
  { ldd "$@" 2>/dev/null || true; } | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
    grep -Ev '/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv|util|anl|nsl|nss_[a-z]+))\.so[.0-9]*$' || true
}

# UCX loads its transports from a folder ucx/ beside libucs, and does without those whose own libraries a machine lacks:
# what RDMA needs (libibverbs, librdmacm) is the machine's, matching its drivers.
ucx_plugins() {
  local folder
  folder=$(needed_libraries "$@" | sed -n 's|/libucs\.so.*|/ucx|p')
  [[ -z $folder || ! -d $folder ]] || echo "$folder"
}

# write_launcher NAME SCRIPT: a program of the bundle that runs one of its scripts, with the machine's own libraries: the
# bundle's might be older than those that its Python and PyTorch need.
write_launcher() {
  cat >"$stage/$1" <<END
#!/bin/sh
here=\$(dirname "\$(readlink -f "\$0")")
export PYTHONDONTWRITEBYTECODE=1
exec python3 "\$here/$2" --build "\$here" "\$@"
END
  chmod +x "$stage/$1"
}

ensure_packages build test bench
build_or_die release
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' build/release/CMakeCache.txt)
name=ckptengine-$version-$(uname -m)
stage=dist/$name
rm -rf "$stage"
quietly build/release/install.log cmake --install build/release --prefix "$stage" ||
  die "cmake --install failed (log: build/release/install.log)"
[[ -n "$(ls "$stage"/bin 2>/dev/null)" ]] ||
  die "the build installed no programs, so there is nothing to pack (log: build/release/install.log)"

mkdir -p "$stage/lib"
plugins=$(ucx_plugins "$stage"/bin/*)
if [[ -n $plugins ]]; then
  mkdir -p "$stage/lib/ucx"
  cp -P "$plugins"/*.so* "$stage/lib/ucx/"
fi
mapfile -t libraries < <(needed_libraries "$stage"/bin/*)
for library in "${libraries[@]}"; do
  [[ $library == "$PWD/$stage"/* ]] || cp -L "$library" "$stage/lib/"
done
if [[ -d python/ckptengine ]]; then
  mkdir -p "$stage/python"
  cp -r python/ckptengine "$stage/python/"
  find "$stage/python" -name __pycache__ -type d -prune -exec rm -r {} +
fi
# For a machine with a GPU. Folders are those of a build and of the sources, so that scripts find everything.
if [[ -x build/release/bench/bench_gpu ]]; then
  mkdir -p "$stage"/{tests,bench,scripts,python/tests}
  cp build/release/tests/{cuda_{conformance,device,timestamps,engine,exchange,replicator},nccl_conformance}_test "$stage/tests/"
  cp build/release/bench/bench_{gpu,parity_cuda} bench/{gpu,pin,_gpu_beside,_gpu_idle,_gpu_trainer,_gpu_training}.py "$stage/bench/"
  cp scripts/{fork_server,gpu_all,gpu_driver,gpu_tests}.py "$stage/scripts/"
  cp -r build/release/tests/cuda_double "$stage/tests/"  # for gpu_all --stand-in
  cp python/tests/{conftest,comm_words,communicating,cuda_trainer,torch_trainer,test_cuda}.py "$stage/python/tests/"
  mkdir -p "$stage/tests/process" "$stage/tests/chaos"
  cp tests/process/{conftest,gpu_replication_trainer,test_gpu_replication}.py "$stage/tests/process/"
  cp tests/process/{optimizer_{kernels,steps},rank_processes,recompute_{,gpu_}trainer}.py "$stage/tests/process/"
  cp tests/process/test_{optimizer,recompute_gpu}.py "$stage/tests/process/"
  cp build/release/tests/liboptimizer_for_tests.so "$stage/tests/"
  cp tests/chaos/processes.py "$stage/tests/chaos/"
  cp build/release/cuda_version.txt "$stage/"
  mapfile -t libraries < <(needed_libraries "$stage"/tests/*_test "$stage"/bench/bench_* | grep -v '/lib\(cuda\|nccl\)\.so')
  for library in "${libraries[@]}"; do cp -L "$library" "$stage/lib/"; done
  write_launcher gpu_all scripts/gpu_all.py
  write_launcher gpu_test scripts/gpu_tests.py
  write_launcher gpu_bench bench/gpu.py
fi
cp LICENSE "$stage/"
find "$stage" -type f \( -perm -u+x -o -name '*.so*' \) -exec strip --strip-unneeded {} + 2>/dev/null || true  # not scripts
tar -C dist -czf "$stage.tar.gz" "$name"
rm -r "$stage"
echo "$stage.tar.gz"
