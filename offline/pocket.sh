#!/bin/bash
# Makes the pocket models from this repository alone: corpus, vocabulary, training, levels, TLM; GGUF files in models/.
# May be interrupted at any time: the same command continues from the last checkpoint.
#   offline/pocket.sh [--run DIR] [--out DIR] [--threads N] [--torch DIR]
#     --run DIR    checkpoints and loss curves (default: build/pocket)
#     --out DIR    where the GGUF files go (default: models)
#     --threads N  (default: all cores)
#     --torch DIR  directory of an unpacked torch package from PyPI, several times faster than Debian's LibTorch
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

run=build/pocket
out=models
threads=$(nproc)
torch=
while [ $# -gt 0 ]; do
  case "$1" in
    --run | --out | --threads | --torch)
      if [ -z "${2:-}" ]; then
        echo "pocket.sh: $1 needs a value" >&2
        exit 2
      fi
      ;;
    *)
      sed -n '2,8s/^# \{0,1\}//p' "$root/offline/pocket.sh" >&2
      exit 2
      ;;
  esac
  case "$1" in # directories are relative to the caller's directory
    --run) run=$(realpath -m -- "$2") ;;
    --out) out=$(realpath -m -- "$2") ;;
    --threads) threads=$2 ;;
    --torch) torch=$(realpath -m -- "$2") ;;
  esac
  shift 2
done

cd "$root"
. offline/offline.sh
build_offline "$torch" withy-train withy-corpus withy-elasticize withy-train-tlm
bin=build/offline/bin

train="$bin/withy-train --threads=$threads"
echo "1 of 5: training the target, which takes hours; each part prints the time left"
$train --model=target --out="$run/target" --steps=10500
echo "2 of 5: training the draft"
$train --model=draft --out="$run/draft" --steps=4000
mkdir -p "$out"
$train --model=draft --out="$run/draft" --export="$out/withy-pocket-draft-q8_0.gguf"
$train --model=target --out="$run/target" --export="$run/withy-pocket-f32.gguf" --type=f32
$train --model=draft --out="$run/draft" --export="$run/withy-pocket-draft-f32.gguf" --type=f32
echo "3 of 5: judging the target"
$train --model=target --out="$run/target" --evaluate=2400 --draft="$run/draft"
echo "4 of 5: levels"
$bin/withy-elasticize --model="$run/withy-pocket-f32.gguf" --out="$out/withy-pocket-q8_0.gguf" --work="$run/levels" \
  --threads="$threads" --text=corpus --learn=text --levels=20,30,40,50,60,70,80,90 --cuts=measured \
  --calibration_batches=32 --recovery_steps=400 --recoveries=2
echo "5 of 5: the TLM"
$bin/withy-train-tlm --model="$out/withy-pocket-q8_0.gguf" --out="$out/withy-pocket-tlm-q8_0.gguf" --run="$run/tlm" \
  --threads="$threads"
