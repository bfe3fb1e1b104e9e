#!/usr/bin/env bash
# Runs clang-tidy on the product's sources, in the translation units that the build makes of them: tidy.sh BUILD_DIR. Excludes tests,
# which the compiler's warnings cover, and units that include LibTorch, whose headers take clang-tidy a minute each.
set -euo pipefail
build=$1
units=$(python3 - "$build" <<'PY'
import json, os, re, sys

root = os.getcwd()

def is_product(path):
    relative = os.path.relpath(path, root)
    return not relative.startswith(("..", "build", "tests/")) and not relative.endswith("_test.cc")

units = {}
for entry in json.load(open(os.path.join(sys.argv[1], "compile_commands.json"))):
    unit = os.path.realpath(os.path.join(entry["directory"], entry["file"]))
    sources = re.findall(r'^#include "(.*)"', open(unit).read(), re.M) if "/Unity/" in unit else [unit]
    if "torch/csrc/api" not in entry["command"] and all(map(is_product, sources)):
        units[unit] = sum(os.path.getsize(source) for source in sources)
print("\n".join(sorted(units, key=units.get, reverse=True)))  # the longest first
PY
)
echo "clang-tidy: $(wc -l <<<"$units") translation units on $(nproc) cores" >&2
xargs -P "$(nproc)" -n 1 clang-tidy -p "$build" --quiet --checks=-bugprone-suspicious-include \
  --extra-arg=-Wno-unknown-warning-option \
  --extra-arg=-Wno-unused-command-line-argument <<<"$units" 2> >(grep -v 'warnings generated\|^Suppressed\|^Use -header' >&2)
