#!/bin/sh
# Checks the systemd units: systemd-analyze verify must print nothing, because it returns 0 even on unknown keys.
# usage: verify.sh UNIT_DIRECTORY BINARY_DIRECTORY_IN_UNITS
# Exit code: 0 good, 1 bad, 77 skipped for want of systemd-analyze.
set -eu

units=$1
bindir=$2

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
for unit in "$root"/etc/systemd/system/withy*.service "$root"/etc/systemd/system/withy.target; do
  name=$(basename "$unit")
  if ! output=$(systemd-analyze --root="$root" --man=no verify "$name" 2>&1) || [ -n "$output" ]; then
    echo "$name: $output"
    failed=1
  fi
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
  name=$(basename "$service")
  if ! output=$(systemd-analyze --root="$root" security --offline=true --threshold=25 "$name" 2>&1); then
    echo "$name is more exposed than 2.5: $output"
    failed=1
  fi
done

[ "$failed" -eq 0 ] && echo "units verified: $(ls "$root"/etc/systemd/system | wc -l)"
exit "$failed"
