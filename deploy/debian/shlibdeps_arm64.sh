#!/usr/bin/env bash
# dpkg-shlibdeps for arm64 programs, whose libraries are in the tree WITHY_SYSROOT and not installed. Debian's arm64 and amd64 libraries
# have the same names and versions, so which package has a library is asked of the packages that this machine has.
set -euo pipefail
tree=$WITHY_SYSROOT/usr/lib/aarch64-linux-gnu
shlibs=$(mktemp)
trap 'rm -f "$shlibs"' EXIT
cat /var/lib/dpkg/info/*.shlibs >"$shlibs"
DEB_HOST_ARCH=arm64 dpkg-shlibdeps -L"$shlibs" -l"$tree" -l"$WITHY_SYSROOT/lib/aarch64-linux-gnu" "$@"
