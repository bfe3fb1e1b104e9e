#!/bin/sh
# Checks the systemd units: systemd-analyze verify must print nothing, because it returns 0 even on unknown keys.
# usage: verify.sh UNIT_DIRECTORY BINARY_DIRECTORY_IN_UNITS GPU_DROP_IN
# Exit code: 0 good, 1 bad, 77 skipped for want of systemd-analyze.
set -eu

units=$1
bindir=$2
gpu=$3

if ! command -v systemd-analyze >/dev/null; then
  echo "skipped: systemd-analyze is missing (apt-get install systemd)"
  exit 77
fi

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

# A root with the units, stand-ins for the binaries, and the targets that every unit refers to.
mkdir -p "$root/etc/systemd/system" "$root/usr/lib/systemd/system" "$root$bindir"
cp "$units"/withy* "$root/etc/systemd/system/"
for target in sysinit basic shutdown multi-user; do
  printf '[Unit]\nDescription=%s\n' "$target" >"$root/usr/lib/systemd/system/$target.target"
done
for service in "$root"/etc/systemd/system/*.service; do
  name=$(basename "$service" .service)
  printf '#!/bin/sh\n' >"$root$bindir/$name"
  chmod +x "$root$bindir/$name"
done

failed=0
verify() { # unit
  if ! output=$(systemd-analyze --root="$root" --man=no verify "$1" 2>&1) || [ -n "$output" ]; then
    echo "$1: $output"
    failed=1
  fi
}
exposure() { # unit, the most it may be exposed, times ten
  if ! output=$(systemd-analyze --root="$root" security --offline=true --threshold="$2" "$1" 2>&1); then
    echo "$1 is more exposed than $2 tenths: $output"
    failed=1
  fi
}

for unit in "$root"/etc/systemd/system/withy*.service "$root"/etc/systemd/system/withy.target; do
  verify "$(basename "$unit")"
done

# The target must pull in exactly the services that exist.
for service in "$root"/etc/systemd/system/*.service; do
  name=$(basename "$service")
  if ! grep -q "^Wants=.*$name" "$root/etc/systemd/system/withy.target"; then
    echo "withy.target does not want $name"
    failed=1
  fi
done

# How exposed each service is, from 0 (not at all) to 10.
for service in "$root"/etc/systemd/system/*.service; do
  exposure "$(basename "$service")" 25
done

# The same with the example drop-in for GPU boards: it is understood, it takes back what it says, and little else.
for name in withy-model-worker.service withy-draft-worker.service; do
  mkdir -p "$root/etc/systemd/system/$name.d"
  cp "$gpu" "$root/etc/systemd/system/$name.d/gpu.conf"
  verify "$name"
  exposure "$name" 25
  for line in PrivateDevices=no MemoryDenyWriteExecute=no DevicePolicy=closed; do
    if ! grep -qx "$line" "$gpu"; then
      echo "$gpu lacks $line"
      failed=1
    fi
  done
done

[ "$failed" -eq 0 ] && echo "units verified: $(ls "$units" | wc -l), and the GPU drop-in"
exit "$failed"
