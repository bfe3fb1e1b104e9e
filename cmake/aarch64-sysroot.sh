#!/usr/bin/env bash
# Makes an arm64 tree with the libraries that withy is built with, and prints where it is. May be run again. Called by tests/cross/aarch64.sh
# and ./withy package --arch arm64.
# The libraries go into a directory of their own (build/aarch64-sysroot): installed on the host, they would replace the amd64 packages.
set -euo pipefail
cd "$(dirname "$0")/.."

sysroot=$PWD/build/aarch64-sysroot
packages=libc6-dev,libstdc++-12-dev,libabsl-dev,libicu-dev,libgtest-dev,libgmock-dev,liburing-dev,nlohmann-json3-dev,libssl-dev
packages+=,libgrpc++-dev,protobuf-compiler-grpc,libprotobuf-dev,librocksdb-dev,prometheus-cpp-dev,libhwy-dev,libspdlog-dev,libsystemd-dev
packages+=,libcurl4-openssl-dev,libarchive-dev
made="$packages, links within the tree"
if [[ "$(cat "$sysroot/.complete" 2>/dev/null)" != "$made" ]]; then
  echo "withy: fetching arm64 libraries into build/aarch64-sysroot (about 400 MB, a minute)" >&2
  rm -rf "$sysroot"
  mkdir -p build
  # extract: nothing in the tree is configured or run; qemu needs only the files.
  mmdebstrap --quiet --architectures=arm64 --variant=extract --include="$packages" bookworm "$sysroot" >&2
  # Snappy's files for CMake name the place where Debian installs it.
  sed -i "s| \"/usr/lib/| \"$sysroot/usr/lib/|" "$sysroot"/usr/lib/aarch64-linux-gnu/cmake/Snappy/SnappyTargets*.cmake
  # Links to the root lead out of the tree; without their shared libraries programs would be linked to static ones.
  find "$sysroot" -type l -lname '/*' -printf '%p %l\n' | while read -r link target; do ln -sfn "$sysroot$target" "$link"; done
  echo "$made" >"$sysroot/.complete"
fi
echo "$sysroot"
