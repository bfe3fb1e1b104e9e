#!/bin/sh
# compile_once.sh SHARED OBJECT COMMAND...: OBJECT becomes a copy of SHARED, which COMMAND -o makes unless an earlier build has.
set -eu
shared=$1 object=$2
shift 2
if [ ! -e "$shared" ]; then
  mkdir -p "$(dirname "$shared")"
  "$@" -o "$shared.$$"
  mv "$shared.$$" "$shared"
fi
cp "$shared" "$object"
