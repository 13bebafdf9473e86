#!/usr/bin/env bash
# ./dev wheel
command_name=wheel
source scripts/common.sh
source scripts/setup.sh
source scripts/build.sh

show_help() {
  cat <<'TEXT'
usage: ./dev wheel

Makes dist/ckptengine-VERSION-py3-none-manylinux_GLIBC_ARCHITECTURE.whl. The wheel has the Python package,
libckptengine, ckptd, ckptctl, UCX, and all other shared libraries that these need, except glibc. (libckptengine uses
the system's libstdc++.) `pip install` it on machines with CPython 3.10 or newer, and a glibc that is not older than this machine's
(2.36 on Debian 12). They need no compiler. The last line of the output is the path of the wheel.
TEXT
}

case "${1:-}" in
  "") ;;
  --help | -h) show_help; exit ;;
  *) usage_error "unknown argument '$1'" ;;
esac

# A virtual environment of its own: what packs wheels is no part of what tests need.
work=build/wheel
tools=$work/tools
ensure_tools() {
  local wanted
  wanted=$( (cat scripts/requirements_wheel.txt && pwd) | sha256sum | cut -d ' ' -f 1)
  [[ "$(cat $tools/.installed 2>/dev/null)" == "$wanted" ]] && return
  say "installing into $tools (PyPI): $(sed -e 's/#.*//' scripts/requirements_wheel.txt | xargs)"
  quietly $work/venv.log python3 -m venv --clear $tools ||
    die "'python3 -m venv' failed (log: $work/venv.log); on Debian its package is python3-venv"
  patiently $work/pip.log "installing into $tools" $tools/bin/pip install -r scripts/requirements_wheel.txt ||
    die "pip could not install scripts/requirements_wheel.txt (log: $work/pip.log); check the network and run this again"
  echo "$wanted" >$tools/.installed
}

ensure_packages build
mkdir -p $work
ensure_tools
build_product release
# Times of the last commit, so that the same sources make the same wheel.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 315532800)
export SOURCE_DATE_EPOCH PATH=$PWD/$tools/bin:$PATH
rm -rf $work/installed $work/pure
quietly $work/install.log cmake --install build/release --prefix $work/installed ||
  die "cmake --install failed (log: $work/install.log)"
say "packing"
quietly $work/pure.log pip wheel --no-deps --no-build-isolation --wheel-dir $work/pure --config-settings wheel.cmake=false . ||
  die "the Python files could not be packed (log: $work/pure.log)"
mkdir -p dist
python scripts/make_wheel.py $work/pure/ckptengine-*.whl $work/installed dist
