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

# The core that aarch64.cmake emulates lacks FEAT_I8MM. The kernels that need it run on one that has it.
i8mm=(qemu-aarch64-static -cpu max -L "$sysroot" "$build/bin/engine_cpu_test" '--gtest_filter=*/neon_i8mm:MatMulTargetsTest.*')
[[ $("${i8mm[@]}" --gtest_list_tests) == *neon_i8mm* ]] || { echo "aarch64: qemu -cpu max has no target neon-i8mm" >&2; exit 1; }
"${i8mm[@]}" --gtest_brief=1
