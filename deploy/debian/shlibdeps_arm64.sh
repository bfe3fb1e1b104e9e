#!/usr/bin/env bash
# dpkg-shlibdeps for arm64 programs, whose libraries are in the tree WITHY_SYSROOT and not installed. Debian's arm64 and amd64 libraries
# have the same names and versions, so which package has a library is asked of the packages that this machine has, but for those that have
# another architecture's libraries (lib32gcc-s1, libc6-arm64-cross).
set -euo pipefail
tree=$WITHY_SYSROOT/usr/lib/aarch64-linux-gnu
shlibs=$(mktemp)
trap 'rm -f "$shlibs"' EXIT
find /var/lib/dpkg/info -name '*.shlibs' ! -name 'lib32*' ! -name 'libx32*' ! -name 'libc6-*' ! -name '*-cross.*' -exec cat {} + >"$shlibs"
DEB_HOST_ARCH=arm64 dpkg-shlibdeps -L"$shlibs" -l"$tree" -l"$WITHY_SYSROOT/lib/aarch64-linux-gnu" "$@"
