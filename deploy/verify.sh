#!/bin/sh
# Installs the build into an empty root, as docs/operations.md says, and checks the result: every unit's program, the
# files that a client and an operator need, and the units themselves. systemd-analyze verify must print nothing, because
# it returns 0 even on unknown keys.
# usage: verify.sh CMAKE BUILD_DIRECTORY
# Exit code: 0 good, 1 bad, 77 skipped because systemd-analyze is missing.
set -eu

cmake=$1
build=$2

if ! command -v systemd-analyze >/dev/null; then
  echo "skipped: systemd-analyze is missing (apt-get install systemd)"
  exit 77
fi

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
units=$root/usr/lib/systemd/system
failed=0

install_to() { # prefix
  if ! DESTDIR=$root "$cmake" --install "$build" --prefix "$1" >"$root/log" 2>&1; then
    tail -5 "$root/log"
    echo "cmake --install --prefix $1 failed"
    exit 1
  fi
}
check_programs() { # prefix
  for service in "$root$1"/lib/systemd/system/*.service; do
    program=$(sed -n 's/^ExecStart=\([^ ]*\).*/\1/p' "$service")
    if [ "$program" != "$1/bin/$(basename "$service" .service)" ] || [ ! -x "$root$program" ]; then
      echo "$service starts '$program', which is not there"
      failed=1
    fi
  done
}

# Two prefixes, one after the other: the units of the second must not keep paths of the first.
install_to /opt/withy
check_programs /opt/withy
install_to /usr
check_programs /usr

for file in bin/withyctl lib/sysusers.d/withy.conf lib/tmpfiles.d/withy.conf share/withy/models/withy-pocket-q8_0.gguf \
  share/withy/proto/withy/v1/config.proto share/withy/proto/withy/v1/calibration.proto \
  share/withy/proto/withy/v1/llm_service.proto share/withy/proto/withy/v1/types.proto \
  share/withy/examples/cpp/generate.cc share/withy/examples/python/generate.py \
  share/doc/withy/examples/prometheus/prometheus.yml share/doc/withy/examples/prometheus/withy-rules.yml \
  share/doc/withy/examples/prometheus/withy-alerts.yml share/doc/withy/examples/grafana/withy-overview.json \
  share/doc/withy/examples/grafana/withy-time.json share/doc/withy/examples/gpu.conf; do
  if [ ! -s "$root/usr/$file" ]; then
    echo "/usr/$file is not installed"
    failed=1
  fi
done

# The targets that every unit refers to.
for target in sysinit basic shutdown multi-user; do
  printf '[Unit]\nDescription=%s\n' "$target" >"$units/$target.target"
done

verify() { # unit
  if ! output=$(systemd-analyze --root="$root" --man=no verify "$1" 2>&1) || [ -n "$output" ]; then
    echo "$1: $output"
    failed=1
  fi
}
exposure() { # unit, highest exposure allowed, times ten
  if ! output=$(systemd-analyze --root="$root" security --offline=true --threshold="$2" "$1" 2>&1); then
    echo "$1 is more exposed than $2 tenths: $output"
    failed=1
  fi
}

for unit in "$units"/withy*.service "$units"/withy.target; do
  verify "$(basename "$unit")"
done

# The target must pull in exactly the services that exist.
for service in "$units"/*.service; do
  name=$(basename "$service")
  if ! grep -q "^Wants=.*$name" "$units/withy.target"; then
    echo "withy.target does not want $name"
    failed=1
  fi
done

# A frozen process must run again within ten seconds: the watchdog's timeout, the pause before the restart, and a second to start.
for service in "$units"/*.service; do
  watchdog=$(sed -n 's/^WatchdogSec=\([0-9]*\)$/\1/p' "$service")
  pause=$(sed -n 's/^RestartSec=\([0-9]*\)$/\1/p' "$service")
  if [ $((${watchdog:-99} + ${pause:-99} + 1)) -gt 10 ] || ! grep -qx 'WatchdogSignal=SIGKILL' "$service"; then
    echo "$service leaves a frozen process for more than ten seconds"
    failed=1
  fi
done

# The exposure of each service as systemd-analyze rates it, from 0 (none) to 10.
for service in "$units"/*.service; do
  exposure "$(basename "$service")" 15
done

# The same with the example drop-in for GPU boards: systemd accepts it, and it loosens only what it names.
gpu=$root/usr/share/doc/withy/examples/gpu.conf
for name in withy-model-worker.service withy-draft-worker.service; do
  mkdir -p "$root/etc/systemd/system/$name.d"
  cp "$gpu" "$root/etc/systemd/system/$name.d/gpu.conf"
  verify "$name"
  exposure "$name" 25
  for line in PrivateDevices=no MemoryDenyWriteExecute=no DevicePolicy=closed; do
    if ! grep -qx "$line" "$gpu"; then
      echo "gpu.conf lacks $line"
      failed=1
    fi
  done
done

set -- "$units"/withy*
[ "$failed" -eq 0 ] && echo "units verified: $#, and the GPU drop-in"
exit "$failed"
