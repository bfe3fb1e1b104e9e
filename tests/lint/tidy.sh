#!/usr/bin/env bash
# Runs clang-tidy on the product's sources: tidy.sh BUILD_DIR. units.py says which, and in which translation units.
set -euo pipefail
units=$(python3 tests/lint/units.py "$1" "$1/lint")
echo "clang-tidy: $(wc -l <<<"$units") translation units on $(nproc) cores" >&2
xargs -P "$(nproc)" -n 1 clang-tidy -p "$1/lint" --quiet --checks=-bugprone-suspicious-include \
  --extra-arg=-Wno-unknown-warning-option \
  --extra-arg=-Wno-unused-command-line-argument <<<"$units" 2> >(grep -v 'warnings generated\|^Suppressed\|^Use -header' >&2)
