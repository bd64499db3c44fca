#!/usr/bin/env bash
# Measures the service and sets it beside pueue and task-spooler. Arguments go to the benchmark:
# sections (launches peers latency idle queued listing) and --quick. Fetches the peers when they are
# missing and can be had; a peer that cannot be had is reported as skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

if ! command -v tsp >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends task-spooler; } >&2 ||
        echo "task-spooler cannot be installed and will be skipped" >&2
fi
if ! command -v pueue >/dev/null && [ ! -x target/peers/bin/pueue ]; then
    "$cargo" install --locked --root target/peers pueue >&2 ||
        echo "pueue cannot be installed and will be skipped" >&2
fi

exec "$cargo" bench -p carma --bench service -- "$@"
