#!/usr/bin/env bash
# Runs clang-tidy on the product's compiled files: tidy.sh BUILD_DIR. Excludes tests, which the compiler's warnings cover, and
# files that include LibTorch, whose headers take clang-tidy a minute per file.
set -euo pipefail
build=$1
files=$(python3 - "$build" <<'PY'
import json, os, sys
root = os.getcwd()
seen = set()
for entry in json.load(open(os.path.join(sys.argv[1], "compile_commands.json"))):
    path = os.path.realpath(os.path.join(entry["directory"], entry["file"]))
    relative = os.path.relpath(path, root)
    if relative.startswith(("..", "build", "tests/", "offline/train/", "offline/elastic/")) or relative.endswith("_test.cc"):
        continue
    if "torch/csrc/api" in entry["command"]:
        continue
    seen.add(path)
print("\n".join(sorted(seen)))
PY
)
count=$(wc -l <<<"$files")
echo "clang-tidy: $count files on $(nproc) cores" >&2
xargs -P "$(nproc)" -n 1 clang-tidy -p "$build" --quiet --extra-arg=-Wno-unknown-warning-option \
  --extra-arg=-Wno-unused-command-line-argument <<<"$files" 2> >(grep -v 'warnings generated\|^Suppressed\|^Use -header' >&2)
