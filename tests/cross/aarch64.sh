#!/usr/bin/env bash
# Builds base and engine for aarch64 and runs their tests under qemu. Called by ./withy test --arch aarch64; may be run again.
set -euo pipefail
cd "$(dirname "$0")/../.."

sysroot=$(cmake/aarch64-sysroot.sh)
build=build/aarch64
cmake -S . -B "$build" -G Ninja -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake -DWITHY_SYSROOT="$sysroot" \
  -DCMAKE_BUILD_TYPE=Release -DWITHY_SERVICES=OFF -DWITHY_OFFLINE=OFF >/dev/null
cmake --build "$build"
ctest --test-dir "$build" --output-on-failure -LE 'host|e2e' --timeout 900 "$@"
