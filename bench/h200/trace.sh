#!/usr/bin/env bash
# A short trace of real tasks under several policies (`carma bench trace`), in calls of under ten minutes each.
#
#     bench/h200/trace.sh                        # 16 jobs of 12 kinds; what did not get done goes on when it is called again
#     JOBS=48 WORK=1 ONLY= bench/h200/trace.sh   # the whole: for four GPUs, or for hours
#
#     ADD=out_of_memory,illegal_address KILL=0.5 JOBS=10 POLICIES=adaptive STATE=target/trace-faults bench/h200/trace.sh
#
# Environment: CARMA (the binary), OUT (where the results go; a call that is killed leaves all plays that were over), STATE (where
# they are kept between calls; copy plays/ and state/ from OUT there to go on elsewhere), BUDGET (of a call), POLICIES, REPEAT, JOBS,
# GAP, WORK, ONLY (kinds; empty: all), ADD (and these), KILL (the daemon, when this share has come), SEED, TASKS (a file of others),
# ARRIVALS (poisson, or a trace's file), FLOOR (`queue.floor` of the daemon: 0.6), LIMIT (of slowdown or latency, by kind: vit_b16=1.5,distilbert_serve=60ms),
# WINDOW (of the daemon: the tasks are as much shorter than those of the papers as 5 s are than their 30; slowdown is measured over as
# long). REHEARSE=2 plays it on two virtual GPUs: its numbers mean nothing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
carma=$(realpath "${CARMA:-$here/../../target/release/carma}")
out=${OUT:-results}
state=${STATE:-$here/../../target/trace}
only=${ONLY-resnet18_cifar,bert_infer,gpt2_decode,loader,dcgan_train,resnet50,bert_train,dlrm_train,unet_train,lstm,vit_b16,gpt2_medium}
policies=${POLICIES:-exclusive,adaptive,adaptive+history,or-magm,aegis-oracle}
mkdir -p "$out" "$state"
printf '[sampling]\nwindow = "%s"\n' "${WINDOW:-5s}" >"$state/carma.toml"
if [ -n "${FLOOR:-}" ]; then
    printf '[queue]\nfloor = %s\n' "$FLOOR" >>"$state/carma.toml"
fi
if [ -n "${LIMIT:-}" ]; then
    printf '[jobs]\nslowdown-window = "%s"\n' "${WINDOW:-5s}" >>"$state/carma.toml"
fi

options=(--policy "$policies" --repeat "${REPEAT:-1}" --jobs "${JOBS:-16}" --mean-gap "${GAP:-1s}" --work "${WORK:-0.3}"
    --seed "${SEED:-1}" --arrivals "${ARRIVALS:-poisson}" --config "$state/carma.toml" --budget "${BUDGET:-555s}")
if [ -n "$only" ]; then
    options+=(--only "$only")
fi
if [ -n "${ADD:-}" ]; then
    options+=(--add "$ADD")
fi
if [ -n "${LIMIT:-}" ]; then
    options+=(--limit "$LIMIT")
fi
if [ -n "${KILL:-}" ]; then
    options+=(--kill-daemon "$KILL")
fi
if [ -n "${TASKS:-}" ]; then
    options+=(--tasks "$TASKS")
fi
if [ -n "${REHEARSE:-}" ]; then
    options+=(--gpus "virtual:${REHEARSE}xH200" --speed 20)
fi

# Results are copied every few seconds and at the end, since a call may be killed without a chance to clean up.
keep() {
    if [ "$(realpath "$out")" != "$(realpath "$state")" ]; then
        for part in plays state daemons index.html jobs.csv summary.json; do
            cp -r "$state/$part" "$out/" 2>/dev/null || true
        done
        # Not every way to fetch results takes names with a plus.
        tar -C "$state" -czf "$out/plays.tgz" plays 2>/dev/null || true
    fi
}
keep_copying() {
    while sleep 5 && kill -0 $$; do
        keep
    done
}
keep_copying >/dev/null 2>&1 &
trap 'kill %1 2>/dev/null || true; keep' EXIT
"$carma" bench trace "${options[@]}" -o "$state"
