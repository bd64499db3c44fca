#!/usr/bin/env bash
# Runs what takes longer than one call to a machine may: each line of standard input as a shell command, one after another, in a session
# of their own that goes on when the call is over. Called again, without lines, it waits for them. Results are those that the lines leave in $OUT.
#
#     OUT=results bench/h200/long.sh <<'LINES'
#     POLICIES=exclusive STATE=$OUT/first bench/h200/trace.sh
#     POLICIES=adaptive STATE=$OUT/second bench/h200/trace.sh
#     LINES
#     OUT=results bench/h200/long.sh </dev/null
#
# Environment: OUT (gets all.tgz, what there is so far, every 10 s), BUDGET (seconds that a call waits; 560), STATE (where the lines leave
# their results and their output, `log`; target/long), TAIL (how many lines of it are printed at the end).
set -uo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
out=$(realpath "${OUT:-results}")
state=${STATE:-$here/target/long}
mkdir -p "$out" "$state/out"
state=$(realpath "$state")
lines=$(cat)
if [ -z "$lines" ] && [ ! -e "$state/lines" ]; then
    echo "long.sh: there is nothing to wait for in $state: no lines were given, now or before (a machine that was given back forgets them)" >&2
    exit 1
fi
if [ -n "$lines" ]; then
    if [ -e "$state/lines" ]; then
        echo "long.sh: $state has lines already: wait for them (</dev/null), or name another STATE" >&2
        exit 1
    fi
    printf '%s\n' "$lines" >"$state/lines"
    (
        cd "$here" || exit 1
        export OUT=$state/out
        unset STATE BUDGET
        exec setsid bash -c 'while IFS= read -r line; do
                echo "=== $(date -u +%T) $line"
                bash -c "$line" </dev/null
            done <"$0"
            echo "=== $(date -u +%T) all done"
            touch "$1"' "$state/lines" "$state/done"
    ) >"$state/log" 2>&1 </dev/null &
fi

keep() {
    tar -C "$state" -czf "$out/.all.tgz" --exclude=tasks out log 2>/dev/null
    mv "$out/.all.tgz" "$out/all.tgz"
}
end=$((SECONDS + ${BUDGET:-560}))
while [ ! -e "$state/done" ] && [ $SECONDS -lt $end ]; do
    sleep 5
    keep
done
keep
tail -n "${TAIL:-60}" "$state/log"
[ -e "$state/done" ] || echo "=== goes on"
