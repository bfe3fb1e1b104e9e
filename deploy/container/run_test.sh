#!/usr/bin/env bash
# Runs run-withy with the processes of a build: they serve, one that is killed comes back, a wrong configuration ends all, and
# SIGTERM ends all with 0.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")") build=$1
export WITHY_BINDIR=$build/bin
dir=$(mktemp -d)
trap 'kill -KILL -- "-$runner" 2>/dev/null || true; rm -rf "$dir"' EXIT
set -m # each job has a process group of its own
cat >"$dir/withy.textproto" <<TEXT
run_dir: "$dir/run"
state_dir: "$dir/state"
store { arena_bytes: 67108864 }
profiler { metrics_listen: "127.0.0.1:0" }
TEXT
ctl() { env -u WITHY_ADDRESS "$build/bin/withyctl" "$@" --config "$dir/withy.textproto"; }
until_serving() {
  local deadline=$((SECONDS + 120))
  until ctl status --quiet 2>/dev/null; do
    [[ $SECONDS -lt $deadline ]] || { ctl status || true; cat "$dir/log"; exit 1; }
    kill -0 "$runner" || { cat "$dir/log"; exit 1; }
    read -rt 0.2 <> <(:) || true
  done
}
"$here/run-withy" --config "$dir/withy.textproto" >"$dir/log" 2>&1 &
runner=$!
until_serving
for process in context-store model-worker; do
  old=$(pgrep -g "$runner" -f "bin/withy-$process ")
  kill -KILL "$old"
  while kill -0 "$old" 2>/dev/null; do read -rt 0.05 <> <(:) || true; done
  until_serving
  new=$(pgrep -g "$runner" -f "bin/withy-$process ") || true
  [[ -n $new && $new != "$old" ]] || { echo "withy-$process was not started again"; exit 1; }
done
kill -TERM "$runner"
status=0
wait "$runner" || status=$?
[[ $status -eq 0 ]] || { echo "ended with $status after SIGTERM"; cat "$dir/log"; exit 1; }
! pgrep -g "$runner" >/dev/null || { echo "processes are left"; exit 1; }
echo 'nonsense: 1' >>"$dir/withy.textproto"
status=0
"$here/run-withy" --config "$dir/withy.textproto" >"$dir/log" 2>&1 || status=$?
[[ $status -eq 2 ]] || { echo "a wrong configuration ended it with $status"; cat "$dir/log"; exit 1; }
