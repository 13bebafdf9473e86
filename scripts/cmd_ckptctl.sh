#!/usr/bin/env bash
# ./dev ckptctl
command_name=ckptctl
source scripts/common.sh
source scripts/setup.sh
source scripts/build.sh

ensure_packages build
build_program release ckptctl
# For the Python that `ckptctl export` starts.
export PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH}
[[ -n ${PYTHON:-} || ! -x $venv_python ]] || export PYTHON=$PWD/$venv_python
exec build/release/bin/ckptctl "$@"
