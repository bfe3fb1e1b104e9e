#!/usr/bin/env bash
# Builds base and engine for aarch64 and runs their tests under qemu. Called by ./withy test --arch aarch64; may be run again.
# The arm64 libraries go into a directory of their own (build/aarch64-sysroot): installed on the host, they would replace the amd64
# packages.
set -euo pipefail
cd "$(dirname "$0")/../.."

sysroot=$PWD/build/aarch64-sysroot
build=build/aarch64
packages=libc6-dev,libstdc++-12-dev,libabsl-dev,libicu-dev,libgtest-dev,libgmock-dev,liburing-dev,nlohmann-json3-dev,libssl-dev
if [[ ! -e $sysroot/.complete ]] || [[ "$(cat "$sysroot/.complete")" != "$packages" ]]; then
  echo "withy: fetching arm64 libraries into build/aarch64-sysroot (about 400 MB, under a minute)" >&2
  rm -rf "$sysroot"
  mkdir -p build
  # extract: nothing in the tree is configured or run; qemu needs only the files.
  mmdebstrap --quiet --architectures=arm64 --variant=extract --include="$packages" bookworm "$sysroot"
  echo "$packages" >"$sysroot/.complete"
fi
cmake -S . -B "$build" -G Ninja -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake -DWITHY_SYSROOT="$sysroot" \
  -DCMAKE_BUILD_TYPE=Release -DWITHY_SERVICES=OFF -DWITHY_OFFLINE=OFF >/dev/null
cmake --build "$build"
ctest --test-dir "$build" --output-on-failure -LE 'host|e2e' --timeout 900 "$@"
