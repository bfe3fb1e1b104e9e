# shellcheck shell=bash
# `./withy bench slo`, sourced by ./withy: prepares the files that withy-bench-slo needs, starts the service on the inflated model
# and runs the program. Everything that is measured is in the program (bench/slo/slo.cc). Uses die, say, compile, from_caller,
# run_here and start_temporary_service of ./withy.
#
# Four options are the script's own; all others go to the program as they are:
#   --elastic FILE  with --prompts FILE and --tlm FILE: another model with levels, judged, timed and served as it is
#   --shape NAME    published shape that the pocket model is inflated to (default smollm2-135m)
#   --simulate      do not start the service; every trace runs on the simulated board
#   --without-tlm   the service runs without a TLM; the simulated board keeps it

# Prints the value of the last `--NAME VALUE` or `--NAME=VALUE` among the arguments, else DEFAULT.
option_value() { # NAME DEFAULT, arguments
  local name=--$1 value=$2
  shift 2
  while [[ $# -gt 0 ]]; do
    case $1 in
      "$name")
        [[ $# -gt 1 ]] || die "bench slo: $name needs a value"
        value=$2
        shift ;;
      "$name="*) value=${1#*=} ;;
    esac
    shift
  done
  echo "$value"
}

slo_file() { # NAME DEFAULT, arguments: the option as an absolute path
  local value
  value=$(option_value "$@") || exit 1
  [[ -n $value ]] || die "bench slo: --$1 needs a value"
  from_caller "$value"
}

# Sets slo_elastic, slo_pocket, slo_tlm and slo_shape, and ends the script with the command that makes a file where one is missing.
check_bench_slo() { # arguments
  local small baselines file files
  [[ " $* " != *" --help "* ]] || return 0
  slo_elastic=$(option_value elastic "" "$@") || exit 1
  if [[ -n $slo_elastic ]]; then
    check_bench_slo_elastic "$@"
    return
  fi
  slo_pocket=$(slo_file pocket "$PWD/models/withy-pocket-q8_0.gguf" "$@") || exit 1
  slo_tlm=$(slo_file tlm "$PWD/models/withy-pocket-tlm-q8_0.gguf" "$@") || exit 1
  small=$(option_value small "$PWD/models/withy-pocket-draft-q8_0.gguf" "$@") || exit 1
  baselines=$(option_value baselines "$PWD/build/comparisons/baselines" "$@") || exit 1
  slo_shape=$(option_value shape smollm2-135m "$@") || exit 1
  [[ -n $slo_shape ]] || die "bench slo: --shape needs a value"
  [[ -f $slo_pocket ]] ||
    die "$slo_pocket does not exist: make it with ./withy elasticize --model build/pocket/withy-pocket-f32.gguf --out $slo_pocket"
  [[ -f $slo_tlm ]] ||
    die "$slo_tlm does not exist: make it with ./withy train tlm --model $slo_pocket --out $slo_tlm --run build/tlm"
  IFS=, read -ra files <<<"$small"
  for file in "${files[@]}"; do
    [[ -f $(from_caller "$file") ]] ||
      die "$file does not exist: ./withy train pocket makes the draft (--small '' leaves it out)"
  done
  [[ -z $baselines || -d $(from_caller "$baselines") ]] ||
    die "$baselines does not exist: make it with ./withy train comparisons --model build/pocket/withy-pocket-f32.gguf \
(--baselines '' leaves it out)"
}

# Of a run with --elastic.
check_bench_slo_elastic() { # arguments
  local prompts
  slo_elastic=$(from_caller "$slo_elastic")
  prompts=$(option_value prompts "" "$@") || exit 1
  slo_tlm=$(option_value tlm "" "$@") || exit 1
  [[ -n $prompts ]] || die "bench slo: --elastic needs --prompts FILE, prompts of your own as JSON lines"
  [[ -n $slo_tlm ]] || die "bench slo: --elastic needs --tlm FILE: make it with ./withy train tlm --model $slo_elastic --prompts FILE --out FILE"
  slo_tlm=$(from_caller "$slo_tlm")
  [[ -f $slo_elastic ]] ||
    die "$slo_elastic does not exist: make it with ./withy elasticize, or with withyctl models overlay"
  [[ -f $slo_tlm ]] || die "$slo_tlm does not exist: make it with ./withy train tlm --model $slo_elastic --prompts FILE --out $slo_tlm"
  [[ -f $(from_caller "$prompts") ]] || die "$prompts does not exist: name a file of JSON lines, {\"prompt\": \"…\"}"
}

# Sets inflated to the pocket model in the shape that is timed; makes it where it is missing.
inflate_for_slo() { # directory, shape
  local dir=$1 shape=$2 sum
  sum=$(sha256sum <"$slo_pocket")
  inflated=$dir/$shape-${sum:0:8}.gguf
  [[ ! -f $inflated ]] || return 0
  say "inflating $slo_pocket to $shape"
  build/release/bin/withy-inflate --model "$slo_pocket" --shape "$shape" --out "$inflated.new" >&2
  rm -f "$dir"/*-"$shape".gguf "$dir/$shape"-????????.gguf # inflated from other pocket models; hundreds of megabytes each
  mv "$inflated.new" "$inflated"
}

bench_slo() { # arguments
  local dir=$PWD/build/bench/slo shape=${slo_shape:-} inflated service=1 service_tlm=${slo_tlm:-} app tokens="" program_args=()
  if [[ " $* " == *" --help "* ]]; then
    compile release withy-bench-slo
    run_here build/release/bin/withy-bench-slo --help
  fi
  while [[ $# -gt 0 ]]; do
    case $1 in
      --shape | --elastic) shift ;;
      --shape=* | --elastic=*) ;;
      --simulate) service=0 ;;
      --without-tlm) service_tlm=off ;;
      *) program_args+=("$1") ;;
    esac
    shift
  done
  compile release withy-services withy-bench-slo withy-inflate
  mkdir -p "$dir"
  if [[ -n $slo_elastic ]]; then
    inflated=$slo_elastic
    set -- --pocket "$slo_elastic" --model "$slo_elastic" --tlm "$slo_tlm" --work "$dir" "${program_args[@]}"
  else
    inflate_for_slo "$dir" "$shape"
    set -- --pocket "$slo_pocket" --model "$inflated" --tlm "$slo_tlm" --small "$PWD/models/withy-pocket-draft-q8_0.gguf" \
      --baselines "$PWD/build/comparisons/baselines" --work "$dir" "${program_args[@]}"
  fi
  if [[ $service == 1 ]]; then
    start_temporary_service "model { path: \"$inflated\" } orchestrator { tlm_path: \"$service_tlm\" }" calibrate
    for app in xiaoai gboard shortcuts octopus gmail rewind; do
      tokens+=${tokens:+,}$(build/release/bin/withyctl apps bind "bench.$app" --print)
    done
    set -- "$@" --address "$WITHY_ADDRESS" --tokens "$tokens"
  fi
  run_here build/release/bin/withy-bench-slo "$@"
}
