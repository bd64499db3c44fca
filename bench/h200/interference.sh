#!/usr/bin/env bash
# The measurement behind docs/research/interference.md, in parts of under ten minutes each.
#
#     bench/h200/interference.sh smoke          # 2 minutes: does every task start, alone and under MPS?
#     bench/h200/interference.sh time-slice     # alone, all pairs, 60 triples, 20 quadruples: about 9 minutes
#     bench/h200/interference.sh mps            # the same under MPS: about 9 minutes
#     bench/h200/interference.sh threads        # MPS thread percentages: alone, and 20 pairs divided: about 8 minutes
#     bench/h200/interference.sh limited-50     # alone, and pairs of which one has half of the threads: about 7 minutes
#     bench/h200/interference.sh limited-25     # or a quarter
#     SET=later_tasks PAIRS=40 bench/h200/interference.sh limited-50     # the same of another set of tasks: about 5 minutes
#
# A part that did not get done in time goes on when it is called again. Environment: CARMA (the binary), OUT (where the
# results go, and grow: a call that is killed leaves what it measured), STATE (where they are kept between calls; copy
# STATE/*.jsonl to go on elsewhere), BUDGET (seconds of a call), NAME (of the results), SET (which tasks: the name of a file here), PAIRS (how
# many of `limited`, each both ways round), ONLY (these tasks). REHEARSE=1 plays it on a virtual GPU with tiny tasks on the CPU: its numbers mean nothing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
carma=$(realpath "${CARMA:-$here/../../target/release/carma}")
out=${OUT:-results}
state=${STATE:-$here/../../target/interference}
budget=${BUDGET:-555}
set_=${SET:-interference}
name=${NAME:-${set_//_/-}-h200}
mkdir -p "$out" "$state"
tasks=$here/$set_.toml
options=()
if [ -n "${ONLY:-}" ]; then
    options+=(--only "$ONLY")
fi
if [ -n "${REHEARSE:-}" ]; then
    tasks=$state/rehearse.toml
    python=${PYTHON:-python3}
    # A small machine has no processors to give away.
    sed -E -e "s|\"python3\", \"([a-z_]+.py)\"|\"$python\", \"$here/\1\", \"--rehearse\"|" \
        -e '/^processors_each/d' "$here/$set_.toml" >"$tasks"
    options+=(--gpus virtual:1xH200)
fi

run() {
    local name=$1
    shift
    # Whatever ends the call: what was measured is kept.
    local code=0
    if [ -e "$state/$name.log.jsonl" ]; then
        cp "$state/$name.log.jsonl" "$out/"
    fi
    "$carma" bench interference --tasks "$tasks" --budget "$budget" --logs "$state/logs" -o "$out/$name.json" \
        "${options[@]}" "$@" || code=$?
    cp "$out/$name.log.jsonl" "$state/" || true
    if [ "$code" != 0 ]; then
        tar -czf "$out/$name-logs.tar.gz" -C "$state" logs
    fi
    return "$code"
}

for part in "${@:-time-slice}"; do
    case $part in
    smoke)
        whole=$budget
        budget=${BUDGET:-150}
        run smoke-time-slice --solo --sharing time-slice --window 0.4
        run smoke-mps --solo --sharing mps --window 0.4
        budget=$whole
        ;;
    time-slice | mps) run "$name" --pairs --triples 60 --quads 20 --sharing "$part" ;;
    threads) run "$name" --sharing mps --threads 25,50,75,100 --splits 50/50,25/75,75/25 --split-pairs 20 ;;
    limited-*)
        percent=${part#limited-}
        run "$name-$part" --sharing mps --threads "$percent" --splits "100/$percent,$percent/100" --split-pairs "${PAIRS:-60}"
        ;;
    *)
        echo "$part: expected smoke, time-slice, mps, threads, limited-50 or limited-25" >&2
        exit 2
        ;;
    esac
done
