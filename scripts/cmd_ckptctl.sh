#!/usr/bin/env bash
# ./dev ckptctl
command_name=ckptctl
source scripts/common.sh
source scripts/setup.sh
source scripts/build.sh

ensure_packages build
build_program release ckptctl
exec build/release/bin/ckptctl "$@"
