#!/usr/bin/env bash
# Several measurements at the same time, each on a GPU of its own: line N of standard input is run with GPU N and with OUT/N for its results.
#
#     OUT=results bench/h200/beside.sh <<'LINES'
#     POLICIES=exclusive STATE=target/search bench/h200/search.sh
#     target/release/carma bench collocation --only resnet50-64px --budget 545s -o $OUT
#     LINES
#
# What they print is in OUT/N/log, and its last lines are printed when all are over. They share the host's processors and disk; nothing else.
set -uo pipefail
out=$(realpath "${OUT:-results}")
at=0
while IFS= read -r line; do
    [ -n "$line" ] || continue
    mkdir -p "$out/$at"
    (
        export CUDA_VISIBLE_DEVICES=$at OUT=$out/$at
        exec bash -c "$line"
    ) >"$out/$at/log" 2>&1 </dev/null &
    at=$((at + 1))
done
wait
for ((each = 0; each < at; each++)); do
    printf '\nGPU %d:\n' "$each"
    tail -n "${TAIL:-25}" "$out/$each/log"
done
