#!/usr/bin/env bash
# The measurement of NEW_TASKS_DATA.md, in parts of under ten minutes each; with SET=heavier_tasks that of
# HEAVIER_TASKS_DATA.md, with SET=later_tasks that of LATER_TASKS_DATA.md. Every MODE:GPU is measured at the same time as the others, on a share of the processors of its own.
#
#     bench/h200/new_tasks.sh smoke time-slice:0 mps:1     # 2 minutes: does every task start, alone and under MPS?
#     bench/h200/new_tasks.sh sets time-slice:0 mps:1      # alone, all pairs, 100 larger sets: about 9 minutes
#     bench/h200/new_tasks.sh again mps:0 time-slice:1     # all of that a second time, here on the other GPU: about 9 minutes
#     REPEAT=3 bench/h200/new_tasks.sh again ...           # a third time
#
# A part that did not get done in time goes on when it is called again. Environment: CARMA (the binary), OUT (where the log goes,
# and grows: a call that is killed leaves what it measured), STATE (where it is kept between calls; copy STATE/*.jsonl to go on
# elsewhere), BUDGET (seconds of a call). REHEARSE=1 plays it on virtual GPUs with tiny tasks on the CPU: its numbers mean nothing.
#
# The tool's own table, and its file of results with progress in it, are thrown away: what the sets do to each other is not
# to be seen before the predictor that is tested on them is fixed. new_tasks_log.py says only whether the measurement worked.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
set_=${SET:-new_tasks}
carma=$(realpath "${CARMA:-$here/../../target/release/carma}")
out=${OUT:-results}
state=${STATE:-$here/../../target/${set_//_/-}}
budget=${BUDGET:-560}
python=${PYTHON:-python3}
mkdir -p "$out" "$state"
tasks=$here/$set_.toml
options=()
if [ -n "${REHEARSE:-}" ]; then
    tasks=$state/rehearse.toml
    # A small machine takes long to start PyTorch so often.
    sed -E -e "s|\"python3\", \"([a-z_]+.py)\"|\"$python\", \"$here/\1\", \"--rehearse\"|" -e '/^processors_each/d' \
        -e 's/^startup_s = .*/startup_s = 900/' -e 's/^start_at_once = .*/start_at_once = 3/' "$here/$set_.toml" >"$tasks"
    options=(--gpus virtual:2xH200)
fi
"$python" "$here/$set_.py" --groups >"$state/groups.txt"

# New and later tasks meet in all pairs; the pairs of the heavier ones stand among their sets.
rounds=4 pairs=(--pairs)
if [ "$set_" = heavier_tasks ]; then
    rounds=3 pairs=()
fi

part=${1:?expected smoke, sets or again}
shift
case $part in
smoke) name=smoke what=(--solo --window 0.4) budget=${BUDGET:-110} ;;
sets) name=${set_//_/-} what=(--solo-rounds "$rounds" "${pairs[@]}" --groups "$state/groups.txt") ;;
again) name=${set_//_/-} what=(--solo-rounds "$rounds" "${pairs[@]}" --groups "$state/groups.txt" --repeat "${REPEAT:-2}") ;;
*)
    echo "$part: expected smoke, sets or again" >&2
    exit 2
    ;;
esac

# The NUMBER-th of COUNT shares of the processors; halves of one core stay together.
processors() {
    "$python" - "$@" <<'EOF'
import os
import sys


def core(cpu):
    try:
        with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") as siblings:
            return int(siblings.read().replace("-", ",").split(",")[0])
    except OSError:
        return cpu


number, count = map(int, sys.argv[1:])
usable = sorted(os.sched_getaffinity(0), key=lambda cpu: (core(cpu), cpu))
each = len(usable) // count
print(*usable[number * each : (number + 1) * each], sep=",")
EOF
}

measure() {
    local sharing=$1 gpu=$2 cpus=$3 log=$name-$1 code=0
    if [ -e "$state/$log.log.jsonl" ]; then
        cp "$state/$log.log.jsonl" "$out/"
    fi
    taskset -c "$cpus" "$carma" bench interference --tasks "$tasks" --budget "$budget" --logs "$state/logs-$sharing" \
        -o "$out/$log.json" --sharing "$sharing" --gpu "$gpu" "${options[@]}" "${what[@]}" >/dev/null || code=$?
    rm -f "$out/$log.json"
    cp "$out/$log.log.jsonl" "$state/" || true
    if [ "$code" != 0 ]; then
        tar -czf "$out/$log-logs.tar.gz" -C "$state" "logs-$sharing"
    fi
    return "$code"
}

runs=()
for at in "$@"; do
    measure "${at%:*}" "${at#*:}" "$(processors "${#runs[@]}" "$#")" &
    runs+=("$!")
done
worst=0
for run in "${runs[@]}"; do
    wait "$run" || worst=$?
done
"$python" "$here/new_tasks_log.py" "$out/$name"-*.log.jsonl
exit "$worst"
