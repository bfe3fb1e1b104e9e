#!/bin/bash
# Makes the models that ./withy bench quality and ./withy bench slo compare the elastic model with, from one plain model with the
# same number of steps: levels with units in other orders, levels that cut all layers alike, levels without anchors or without
# LoRA, and models made smaller in other ways.
# May be interrupted at any time: the same command continues.
#   offline/comparisons.sh --model FILE [--out DIR] [--torch DIR] [-- ARGS]
#     --model FILE plain GGUF; F32, F16 or BF16
#     --out DIR    where the files go (default: build/comparisons)
#     --torch DIR  directory of an unpacked torch package from PyPI, several times faster than Debian's LibTorch
#     -- ARGS      of withy-elasticize, for all files with levels; --text also of withy-baselines
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd) # file names on the command line are relative to the caller's directory

model=
out=$root/build/comparisons
torch=
while [ $# -gt 0 ]; do
  case "$1" in
    --model) model=${2:-} ;;
    --out) out=${2:-$out} ;;
    --torch) torch=${2:-} ;;
    --)
      shift
      break
      ;;
    *)
      model=
      break
      ;;
  esac
  shift "$(($# > 1 ? 2 : 1))"
done
if [ -z "$model" ]; then
  sed -n '2,10s/^# \{0,1\}//p' "$root/offline/comparisons.sh" >&2
  exit 2
fi
die() {
  echo "comparisons.sh: $*" >&2
  exit 1
}
[ -f "$model" ] || die "$model does not exist: ./withy train pocket writes build/pocket/withy-pocket-f32.gguf"
out=$(realpath -m -- "$out")
[ -z "$torch" ] || torch=$(realpath -m -- "$torch")

text=
others=() # all arguments but the text, which is identified by its contents
for ((i = 1; i <= $#; ++i)); do
  case "${!i}" in
    --text)
      i=$((i + 1))
      text=${!i:-}
      ;;
    --text=*) text=${!i#*=} ;;
    *) others+=("${!i}") ;;
  esac
done
[ -z "$text" ] || [ -f "$text" ] || die "--text $text does not exist"
sum() { sha256sum <"$1" | cut -c1-16; }
made_of="model $(sum "$model") text $(if [ -n "$text" ]; then sum "$text"; else echo corpus; fi) arguments ${others[*]}"
if [ -f "$out/made-of" ]; then
  known=$(cat "$out/made-of")
  [ "$known" = "$made_of" ] ||
    die "$out was made of \"$known\", not of \"$made_of\": give another --out, or remove the whole directory"
fi

. "$root/offline/offline.sh"
(
  cd "$root"
  build_offline "$torch" withy-elasticize withy-baselines
)
bin=$root/build/offline/bin
mkdir -p "$out"
echo "$made_of" >"$out/made-of"

count=0
elasticize() { # name, arguments
  local file=$out/$1.gguf
  count=$((count + 1))
  if [ -f "$file" ]; then
    echo "$count of 8: $file is there"
    return
  fi
  echo "$count of 8: $file"
  shift
  "$bin/withy-elasticize" --model="$model" --out="$file" --text=corpus --learn=text --levels=20,30,40,50,60,70,80,90 \
    --cuts=measured --calibration_batches=32 --recovery_steps=400 --recoveries=2 "$@"
}
echo "Seven elastic files one after the other, and baselines last. ours, gradient, magnitude, random take about as long as the"
echo "first one says, uniform and no-anchors somewhat less, no-lora and the baselines a small part of it."
elasticize ours "$@"
elasticize gradient "$@" --order=gradient
elasticize magnitude "$@" --order=magnitude
elasticize random "$@" --order=random
elasticize uniform "$@" --cuts=alike
elasticize no-anchors "$@" --cuts=alike --anchors=false
elasticize no-lora "$@" --recovery_steps=0
if [ ! -f "$out/baselines/4_bits-100.gguf" ]; then # the last one written
  echo "8 of 8: $out/baselines"
  "$bin/withy-baselines" --model="$model" --out="$out/baselines" --text="$text"
fi

models=ours=$out/ours.gguf,gradient=$out/gradient.gguf,magnitude=$out/magnitude.gguf,random=$out/random.gguf
models+=,uniform=$out/uniform.gguf,no-anchors=$out/no-anchors.gguf,no-lora=$out/no-lora.gguf
for file in "$out"/baselines/*.gguf; do
  name=$(basename "$file" .gguf)
  models+=,${name%-*}@${name##*-}=$file
done
echo "./withy bench quality --plot $out/levels.svg --models $models"
echo "./withy bench slo --pocket $out/ours.gguf --baselines $out/baselines --unordered $out/random.gguf --tables all --real all"
