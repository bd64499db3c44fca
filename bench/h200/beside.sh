#!/usr/bin/env bash
# Runs several measurements at the same time, each on its own GPU: line N of standard input, counted from 0, runs as a shell command with
# CUDA_VISIBLE_DEVICES=N, and its results go to OUT/N.
#
#     OUT=results bench/h200/beside.sh <<'LINES'
#     POLICIES=exclusive STATE=target/search bench/h200/search.sh
#     target/release/carma bench collocation --only resnet50-64px --budget 545s -o $OUT
#     LINES
#
# Output goes to OUT/N/log; the last lines of each log are printed at the end, with the exit code, and the largest of them is the one of this
# program. The measurements share the host's processors, memory and disk.
set -uo pipefail
out=$(realpath "${OUT:-results}")
pids=()
at=0
while IFS= read -r line; do
    [ -n "$line" ] || continue
    mkdir -p "$out/$at"
    (
        export CUDA_VISIBLE_DEVICES=$at OUT=$out/$at
        exec bash -c "$line"
    ) >"$out/$at/log" 2>&1 </dev/null &
    pids+=($!)
    at=$((at + 1))
done
codes=() worst=0
for pid in ${pids[@]+"${pids[@]}"}; do
    code=0
    wait "$pid" || code=$?
    codes+=("$code")
    [ "$code" -le "$worst" ] || worst=$code
done
for ((each = 0; each < at; each++)); do
    printf '\nGPU %d, exit code %d:\n' "$each" "${codes[each]}"
    tail -n "${TAIL:-25}" "$out/$each/log"
done
exit "$worst"
