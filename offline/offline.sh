# shellcheck shell=bash
# Sourced by ./withy and the scripts beside it: builds the offline programs and sets the environment they run fastest with.

# LibTorch's directory (empty: Debian's), programs
build_offline() {
  local torch=$1 build=build/offline
  shift
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DWITHY_SERVICES=OFF -DWITHY_TESTS=OFF -DWITHY_TORCH_DIR="$torch"
  if ! ninja -C "$build" -t query "$1" >/dev/null 2>&1; then
    echo "$(basename "$0"): LibTorch is missing: apt-get install libtorch-dev libopenblas0-pthread, or give --torch DIR" >&2
    exit 1
  fi
  ninja -C "$build" "$@"
}

# OpenBLAS of Debian 12 does not know recent processors and falls back to SSE kernels, eight times slower. OpenMP's threads compete
# for the processor while they wait.
if grep -qm1 avx512f /proc/cpuinfo 2>/dev/null; then export OPENBLAS_CORETYPE=${OPENBLAS_CORETYPE:-SkylakeX}; fi
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
