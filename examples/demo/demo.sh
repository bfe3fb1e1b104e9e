#!/usr/bin/env bash
# Three apps on one service with different contexts and SLOs. Run by ./withy demo, which sets CTL (withyctl),
# METRICS (address of the profiler agent) and WITHY_ADDRESS.
set -euo pipefail
: "${CTL:?}" "${METRICS:?}" "${WITHY_ADDRESS:?}"
tokens=$(mktemp -d)
trap 'rm -rf "$tokens"' EXIT
export XDG_CONFIG_HOME=$tokens

as() { # app: makes the following calls as this app
  # If the service kept running, the app is registered from the last demo.
  WITHY_TOKEN=$("$CTL" apps bind "$1" --print 2>/dev/null || "$CTL" apps renew "$1" --print)
  export WITHY_TOKEN
}

ask() { # title, then arguments of withyctl generate, the prompt last
  printf '\n\033[1m%s\033[0m\n' "$1"
  shift
  printf '%s\n' "${*: -1}" | sed 's/^/  > /'
  "$CTL" generate --stats --greedy --max-tokens 48 "$@" 2>"$tokens/stats" | sed 's/^/  /'
  echo
  sed 's/^/    /' "$tokens/stats"
}

new_context() { # system prompt
  "$CTL" contexts create --system "$1" --json | sed -n 's/.*"contextId": *"\([^"]*\)".*/\1/p; s/.*"context_id": *"\([^"]*\)".*/\1/p' | head -1
}

"$CTL" status

as launcher
launcher=$(new_context "Choose one function from the catalogue and answer with the call.")
ask "launcher: pick a function, first token within 300 ms" --context "$launcher" --slo-ttft-ms 300 \
  "The phone has these functions:
- remove_timer(person)
- save_box(time)
Could you please remove the timer for Katal now?"

as notes
notes=$(new_context "Find the answer to the question in the notes and write it after Answer:")
ask "notes: answer from a passage, no hurry" --context "$notes" \
  "Here are the notes: Rilo has Thursday as a free day. Mibekel has Friday as a free day.
Which is the free day of Mibekel?"
ask "notes, next turn: its context goes on, and its KV is reused" --context "$notes" \
  "Which is the free day of Rilo?"

as messages
ask "messages: a smart reply, as a share of the full model's time (TTFT 100 %, TPOT 100 %)" \
  --slo-ttft-ratio 1 --slo-tpot-ratio 1 \
  --system "Write the reply to the message for the owner, in the right style." \
  "Style: formal
Now: at the station, back at 16:15
New message: Belin sends at what time do you arrive?"

printf '\n\033[1m%s\033[0m\n' "messages: a strict SLO that no setting can meet is refused, with what could be had"
"$CTL" generate --strict --slo-ttft-ms 0.01 "Hello" 2>&1 | sed 's/^/  /' || true

printf '\n\033[1m%s\033[0m\n' "three apps at once: their answers share every pass over the weights"
for app in launcher notes messages; do
  (
    as "$app"
    "$CTL" generate --greedy --max-tokens 24 "Lonir has 90 songs and sells 4. How many are left now?" >"$tokens/$app.txt"
  ) &
done
wait
for app in launcher notes messages; do printf '  %s: %s\n' "$app" "$(cat "$tokens/$app.txt")"; done

printf '\n\033[1m%s\033[0m\n' "what the profiler agent saw (http://$METRICS/metrics)"
python3 - "$METRICS" <<'PY' 2>/dev/null || "$CTL" status
import re, sys, urllib.request
text = urllib.request.urlopen(f"http://{sys.argv[1]}/metrics", timeout=5).read().decode()
rows = {}
for kind, labels, value in re.findall(r'^withy_phase_duration_seconds_(sum|count)\{([^}]*)\} (\S+)', text, re.M):
    rows.setdefault(labels, {})[kind] = float(value)
print(f"  {'process':16}{'phase':14}{'count':>7}{'mean ms':>10}")
for labels, row in sorted(rows.items()):
    names = dict(re.findall(r'(\w+)="([^"]*)"', labels))
    if row.get("count"):
        print(f"  {names.get('process', ''):16}{names.get('phase', ''):14}{row['count']:7.0f}{1000 * row['sum'] / row['count']:10.3f}")
PY
