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
[ ${#names[@]} -gt 0 ] || names=(hangs attacks storm connections inject soak launches)

failed=()
summary=()
for name in "${names[@]}"; do
    arguments=(--carma "$carma" --seed "$seed" ${out:+--out "$out"} ${small:+--small})
    if [ "$name" = launches ]; then
        if [ -z "$beside" ]; then
            summary+=("SKIPPED  launches: no binary to set it against; give --beside")
            continue
        fi
        arguments+=(--beside "$beside")
    fi
    echo "=== $name"
    started=$SECONDS
    if python3 "$here/$name.py" "${arguments[@]}"; then
        summary+=("PASS     $name, $((SECONDS - started)) s")
    else
        failed+=("$name")
        summary+=("FAIL     $name, $((SECONDS - started)) s")
    fi
done
echo
printf '%s\n' "${summary[@]}"
if [ ${#failed[@]} -gt 0 ]; then
    echo "targets missed in: ${failed[*]}" >&2
    exit 1
fi
