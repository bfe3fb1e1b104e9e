#!/usr/bin/env bash
# clang-tidy over every file of ours that the build compiles: tidy.sh BUILD_DIR. One line a file that fails.
set -euo pipefail
build=$1
files=$(python3 - "$build" <<'PY'
import json, os, sys
root = os.getcwd()
seen = set()
for entry in json.load(open(os.path.join(sys.argv[1], "compile_commands.json"))):
    path = os.path.realpath(os.path.join(entry["directory"], entry["file"]))
    # Generated files, and kernels for another instruction set than clang was told, are not ours to judge here.
    if path.startswith(root + "/") and not path.startswith(os.path.join(root, "build")):
        seen.add(path)
print("\n".join(sorted(seen)))
PY
)
count=$(wc -l <<<"$files")
echo "clang-tidy: $count files on $(nproc) cores" >&2
xargs -P "$(nproc)" -n 1 clang-tidy -p "$build" --quiet --extra-arg=-Wno-unknown-warning-option \
  --extra-arg=-Wno-unused-command-line-argument <<<"$files" 2> >(grep -v 'warnings generated\|^Suppressed\|^Use -header' >&2)
