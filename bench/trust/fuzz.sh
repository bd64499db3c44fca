#!/usr/bin/env bash
# Tries every reader of bytes from outside (crates/fuzz/tests/readers.rs): damaged samples for a while,
# then large inputs: zeros, random bytes, one line without end, deep nesting, many small values, gzip
# that unpacks to 16 times the size. Prints a table; exit code 1 after a panic, a hang or a blow-up.
#
#   CARMA_FUZZ_SECONDS  for the damaged samples of each reader, 60 unless told
#   CARMA_FUZZ_SEED     of the damage, random unless told; with the seed of a table the same inputs come again
#   CARMA_FUZZ_MIB      size of the large inputs, 64 unless told
#   CARMA_FUZZ_RSS_MIB  the most memory that a reader may take, 4096 unless told
#   CARMA_FUZZ_HANG_S   the longest that all large inputs of a reader together may take, 600 unless told
#
# Arguments: names of readers; all without any.
set -euo pipefail
cd "$(dirname "$0")/../.."

export CARMA_FUZZ_SECONDS=${CARMA_FUZZ_SECONDS:-60}
export CARMA_FUZZ_SEED=${CARMA_FUZZ_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
export CARMA_FUZZ_MIB=${CARMA_FUZZ_MIB:-64}
export CARMA_FUZZ_RSS_MIB=${CARMA_FUZZ_RSS_MIB:-4096}
hang=${CARMA_FUZZ_HANG_S:-600}

program=$(cargo test --release -q -p carma-fuzz --test readers --no-run --message-format json |
    sed -n 's/.*"executable":"\([^"]*readers-[^"]*\)".*/\1/p' | tail -n 1)
[ -x "$program" ] || { echo "the readers could not be built" >&2; exit 1; }

readers=("$@")
[ ${#readers[@]} -gt 0 ] || mapfile -t readers < <("$program" --list | sed -n 's/: test$//p')

out=$(mktemp)
trap 'rm -f "$out"' EXIT
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
echo "$(date -u +%F), $(nproc) x ${cpu:-$(uname -m)}, Linux $(uname -r), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
echo "$CARMA_FUZZ_SECONDS s of damaged samples and inputs of $CARMA_FUZZ_MIB MiB for each of ${#readers[@]} readers, at most $CARMA_FUZZ_RSS_MIB MiB of memory, seed $CARMA_FUZZ_SEED"
echo
echo '| reader | runs | max RSS, MiB | slowest, s | on | verdict |'
echo '|---|---:|---:|---:|---|---|'
bad=0
for reader in "${readers[@]}"; do
    code=0
    # The address space is bounded above what is judged, so that what goes wild ends here and not the machine.
    (
        ulimit -v $(((CARMA_FUZZ_RSS_MIB + 2048) * 1024))
        exec timeout -k 10 $((CARMA_FUZZ_SECONDS + hang)) "$program" --exact "$reader" --nocapture
    ) >"$out" 2>&1 || code=$?
    IFS=$'\t' read -r _ name runs rss slowest what < <(grep -a -m 1 '^FUZZ' "$out" || printf 'FUZZ\t%s\t-\t-\t-\t-\n' "$reader")
    case $code in
        0) verdict=ok ;;
        124 | 137) verdict=HANG ;;
        *)
            if grep -aq 'are in order for inputs\|memory allocation of .* failed' "$out"; then
                verdict=BLOW-UP
            else
                verdict=PANIC
            fi
            ;;
    esac
    echo "| $name | $runs | $rss | $slowest | $what | $verdict |"
    if [ "$verdict" != ok ]; then
        bad=$((bad + 1))
        grep -av '^FUZZ' "$out" | tail -n 25 >&2
    fi
done
echo
echo "$bad of ${#readers[@]} readers failed"
[ "$bad" = 0 ]
