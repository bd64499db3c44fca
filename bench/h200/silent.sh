#!/usr/bin/env bash
# The trace of trace.sh with tasks that tell nothing of their steps: neither a heartbeat nor a line.
#
#     bench/h200/silent.sh                                # exclusive, and the default told nothing
#     REHEARSE=2 OUT=/tmp/silent bench/h200/silent.sh     # on virtual GPUs: its numbers mean nothing
#
# Environment: what trace.sh takes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export STATE=${STATE:-$here/../../target/silent} ONLY=${ONLY-} POLICIES=${POLICIES:-exclusive,adaptive}
mkdir -p "$STATE/silent"
cp "$here"/{interference,heavier,new,later}_tasks.py "$here"/../../crates/measure/src/trace/carma_tasks.py "$STATE/silent"
# A server's latency is what it prints, so that its virtual task has to.
sed -E -e 's|^command = \["python3", "carma_tasks.py", "([a-z0-9_]+)", "--steps", "([^"]+)"\]|command = ["sh", "-c", "exec env -u CARMA_HEARTBEAT python3 carma_tasks.py \1 --steps \2 >/dev/null 2>\&1"]|' \
    -e '/--progress/!s/"--loads-late"\]/"--loads-late", "--progress=silent"]/' \
    "$here/../../crates/measure/src/trace/tasks.toml" >"$STATE/silent/silent.toml"
TASKS=$STATE/silent/silent.toml exec "$here/trace.sh"
