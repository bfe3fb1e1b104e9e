#!/usr/bin/env bash
# Packs what is built and looks into the packages: names, dependencies found by shlibdeps, files, scripts. Installs nothing.
set -euo pipefail
build=$1
command -v dpkg-shlibdeps >/dev/null && command -v cpack >/dev/null || { echo "dpkg-dev or cpack is missing: skipped"; exit 77; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
(cd "$build" && cpack -G DEB -B "$out" >"$out/log" 2>&1) || { cat "$out/log"; exit 1; }
service=$(echo "$out"/withy_*.deb) models=$(echo "$out"/withy-models-pocket_*_all.deb)
fail=0
expect() { # what, file with it, pattern
  grep -Eq -- "$3" "$2" || { echo "$1: no '$3' in"; cat "$2"; fail=1; }
}
if command -v lintian >/dev/null; then
  lintian --allow-root --fail-on error "$service" "$models" >"$out/lintian" 2>&1 || { cat "$out/lintian"; exit 1; }
else
  echo "lintian is missing: not run"
fi
dpkg-deb -f "$service" >"$out/control"
for library in 'libgrpc\+\+1' 'librocksdb' 'libprotobuf' 'libc6' systemd; do expect control "$out/control" "^Depends:.*$library"; done
expect control "$out/control" '^Recommends: withy-models-pocket'
grep -E 'lib32|libx32|libc6-|-cross|:arm64|:amd64' "$out/control" && { echo "control: depends on another architecture's libraries"; fail=1; }
dpkg-deb -c "$service" >"$out/files"
for daemon in orchestrator model-worker draft-worker context-store profiler-agent; do
  expect files "$out/files" " \./usr/bin/withy-$daemon$"
  expect files "$out/files" " \./usr/lib/systemd/system/withy-$daemon.service$"
done
for file in usr/bin/withyctl usr/lib/systemd/system/withy.target usr/lib/sysusers.d/withy.conf usr/lib/tmpfiles.d/withy.conf usr/share/withy/proto/withy/v1/llm_service.proto; do
  expect files "$out/files" " \./$file$"
done
for file in man/man1/withyctl.1.gz man/man5/withy.textproto.5.gz bash-completion/completions/withyctl; do
  expect files "$out/files" " \./usr/share/$file$"
done
if grep -E 'elasticize|\.gguf$' "$out/files"; then echo "the service's package has files that it should not have"; fail=1; fi
dpkg-deb -c "$models" >"$out/model-files"
expect files "$out/model-files" 'share/withy/models/withy-pocket-q8_0\.gguf$'
for overlay in "$(dirname "$0")"/../models/*.overlay.gguf; do
  [[ ! -f $overlay ]] || expect files "$out/model-files" "share/withy/models/$(basename "$overlay")$"
done
dpkg-deb -x "$service" "$out/root"
expect units "$out/root/usr/lib/systemd/system/withy-orchestrator.service" '^ExecStart=/usr/bin/withy-orchestrator$'
zcat "$out/root/usr/share/man/man1/withyctl.1.gz" >"$out/withyctl.1"
expect "manual of withyctl" "$out/withyctl.1" '^.SS "withyctl generate'
zcat "$out/root/usr/share/man/man5/withy.textproto.5.gz" >"$out/withy.textproto.5"
expect "manual of the configuration" "$out/withy.textproto.5" '^.fBstore.arena_bytes.fR'
bash -c 'source "$1"; COMP_WORDS=(withyctl contexts show --c) COMP_CWORD=3; _withyctl; echo "${COMPREPLY[@]}"' - \
  "$out/root/usr/share/bash-completion/completions/withyctl" >"$out/completed"
expect completion "$out/completed" '--config'
dpkg-deb -e "$service" "$out/scripts"
for script in postinst prerm postrm; do
  [[ -x $out/scripts/$script ]] || { echo "no $script"; fail=1; }
  sh -n "$out/scripts/$script" || fail=1
done
exit $fail
