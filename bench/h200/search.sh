#!/usr/bin/env bash
# A search for a learning rate as jobs: 24 ResNet-50 at 64 pixels that differ in it, all submitted at once, nothing declared.
#
#     bench/h200/search.sh                                  # exclusive, the default with MPS and time-sliced, the published ones
#     REHEARSE=1 OUT=/tmp/search bench/h200/search.sh       # on one virtual GPU: its numbers mean nothing
#
# Environment: STEPS (of each; 340 take about 8 s alone on an H200), COUNT, POLICIES, and what trace.sh takes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export STATE=${STATE:-$here/../../target/search} JOBS=${COUNT:-24} WORK=1 ONLY='' ARRIVALS=batch
export POLICIES=${POLICIES:-exclusive,adaptive,adaptive+history,adaptive@time-slice,or-magm,oracle-magm}
mkdir -p "$STATE"
{
    printf 'start_s = 12\nwarm_up = ["python3", "-c", "import torch, timm"]\n'
    for ((at = 1; at <= JOBS; at++)); do
        printf '\n[[task]]\nname = "lr-%02d"\nclass = "light"\nmodules = ["torch", "timm"]\nsolo_s = 8\nsteps = %d\n' "$at" "${STEPS:-340}"
        printf 'command = ["python3", "%s/search.py", "--lr", "%s", "--steps", "{steps}"]\n' \
            "$here" "$(awk -v at="$at" 'BEGIN { printf "%.5f", 0.0005 * 1.3 ^ at }')"
        # The activity of one copy, as measured (docs/research/h200.md).
        printf 'virtual = ["--memory=2.4G", "--sm=0.13", "--gract=0.27", "--dram=0.02", "--work={work_s}s", "--startup=12s", "--loads-late"]\n'
    done
} >"$STATE/search.toml"
TASKS=$STATE/search.toml exec "$here/trace.sh"
