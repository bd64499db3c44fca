#!/usr/bin/env bash
# The trust campaign: all programs of this folder, one after the other, with the full sizes (about an hour and a half), or
# with `--small` with sizes that take less than a minute together. Fails if any misses a target; says which at the end.
#
#   bench/trust/run.sh [--small] [--carma PATH] [--beside PATH] [--out DIR] [--seed N] [NAME...]
#
# --carma: the binary under test [target/release/carma]. --beside: an earlier one, for launches.py, which is skipped
# without it. --out: folder for the raw results and the plot. NAME: run these only.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
carma=$here/../../target/release/carma beside='' out='' seed=1 small=''
names=()
while [ $# -gt 0 ]; do
    case $1 in
        --small) small=1 ;;
        --carma | --beside | --out | --seed)
            [ $# -ge 2 ] || { echo "run.sh: $1 needs a value" >&2; exit 2; }
            printf -v "${1#--}" %s "$2"
            shift
            ;;
        -*)
            echo "run.sh: unknown option $1; see the head of this file" >&2
            exit 2
            ;;
        *) names+=("${1%.py}") ;;
    esac
    shift
done
[ -x "$carma" ] || { echo "run.sh: there is no $carma; build it, or name one with --carma" >&2; exit 2; }
[ ${#names[@]} -gt 0 ] || names=(hangs limits attacks storm connections inject soak launches)

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# Runs one program; its report and its outcome go to files.
run() {
    local name=$1 started=$SECONDS outcome=PASS
    local arguments=(--carma "$carma" --seed "$seed" ${out:+--out "$out"} ${small:+--small})
    if [ "$name" = launches ]; then
        if [ -z "$beside" ]; then
            echo "SKIPPED  launches: no binary to set it against; give --beside" >"$results/$name.outcome"
            return
        fi
        arguments+=(--beside "$beside")
    fi
    python3 "$here/$name.py" "${arguments[@]}" >"$results/$name" || outcome=FAIL
    # How it went by its own last line, which tells what was skipped, too.
    local said skipped=''
    said=$(grep "^$name: .* targets missed, " "$results/$name" | tail -n 1)
    [[ $outcome = PASS && $said = *': SKIPPED, '* ]] && outcome=SKIPPED
    [[ -z $said || $said = *', 0 skipped' ]] || skipped=", ${said##*, }"
    printf '%-8s %s, %s s%s\n' "$outcome" "$name" $((SECONDS - started)) "$skipped" >"$results/$name.outcome"
}

if [ -n "$small" ]; then
    # They wait more than they work, and assert nothing about speed: two at a time.
    for lane in 0 1; do
        for ((i = lane; i < ${#names[@]}; i += 2)); do run "${names[i]}"; done &
    done
    wait
    for name in "${names[@]}"; do echo "=== $name"; cat "$results/$name" 2>/dev/null; done
else
    for name in "${names[@]}"; do
        echo "=== $name"
        run "$name"
        cat "$results/$name" 2>/dev/null
    done
fi
echo
for name in "${names[@]}"; do cat "$results/$name.outcome"; done
if grep -qs ^FAIL "$results"/*.outcome; then
    echo "targets missed in: $(grep -ls ^FAIL "$results"/*.outcome | xargs -n1 basename -s .outcome | xargs)" >&2
    exit 1
fi
