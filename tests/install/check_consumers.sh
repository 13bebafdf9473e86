#!/usr/bin/env bash
# check_consumers.sh BUILD WORK CONSUMER VERSION: installs into a prefix, moves the prefix, and there builds and runs the
# programs in CONSUMER by find_package and by pkg-config.
set -euo pipefail
build=$1 work=$2 consumer=$3 version=$4
rm -rf "$work"
mkdir -p "$work"
cmake --install "$build" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/prefix"
cp -r "$consumer" "$work/source"
cd "$work"

run() {
  local said
  said=$("$@")
  [[ $said == "ckptengine $version" ]] || {
    echo "$1 said '$said', not 'ckptengine $version'" >&2
    exit 1
  }
}

echo "by find_package"
cmake -S source -B cmake -DCMAKE_PREFIX_PATH="$work/prefix" -DCKPT_WANTED="$version" >configure.log
cmake --build cmake
run cmake/consumer_c
run cmake/consumer_cpp

echo "by pkg-config"
folder=$(dirname "$(find "$work/prefix" -name ckptengine.pc)")
export PKG_CONFIG_PATH=$folder
[[ $(pkg-config --modversion ckptengine) == "$version" ]]
libraries=$(pkg-config --variable=libdir ckptengine)
read -ra flags <<<"$(pkg-config --cflags --libs ckptengine)"
"${CC:-cc}" -std=c11 -Wall -Wextra -Werror source/consumer.c -o consumer_c "${flags[@]}"
"${CXX:-c++}" -std=c++20 -Wall -Wextra -Werror source/consumer.cpp -o consumer_cpp "${flags[@]}"
export LD_LIBRARY_PATH=$libraries
run ./consumer_c
run ./consumer_cpp

echo "each header alone, and from strict C"
for header in prefix/include/ckptengine/*.hpp; do
  "${CXX:-c++}" -std=c++20 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -x c++ -include "$header" /dev/null "${flags[@]}"
done
"${CC:-cc}" -std=c99 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -x c -include prefix/include/ckptengine/ckptengine.h \
  /dev/null
rm -rf "$work"
