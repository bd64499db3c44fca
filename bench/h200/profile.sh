#!/usr/bin/env bash
# `carma profile` on a real GPU: what it says of real tasks beside what `carma bench interference` measured of them.
#
#     bench/h200/profile.sh            # three tasks, one of them at half of the threads, one under Nsight Compute: 3 minutes
#
# Environment: CARMA (the binary), OUT (where the results go). REHEARSE=1 plays it on a virtual GPU with tiny tasks on the
# CPU: it shows that the script works.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
carma=$(realpath "${CARMA:-$here/../../target/release/carma}")
out=$(mkdir -p "${OUT:-results}" && realpath "${OUT:-results}")
task=("${PYTHON:-python3}" "$here/interference_tasks.py")
options=()
if [ -n "${REHEARSE:-}" ]; then
    options=(--gpus virtual:1xH200)
fi
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
profiles=$out/profiles.json
rm -f "$profiles"

# name, then options of `carma profile`
profile() {
    local name=$1
    shift
    local command=("${task[@]}" "$name")
    if [ -n "${REHEARSE:-}" ]; then
        # A virtual GPU is kept busy by carma's own task; the real one would never be seen on it.
        command=("$carma" virtual-task --work 10d --sm 0.5 --startup 1s)
    fi
    echo "== $name $*"
    local began=$SECONDS
    timeout 200 "$carma" profile "${options[@]}" -J "$name" --class "$name" -o "$profiles" --append "$@" -- "${command[@]}" \
        >"$out/$name.txt" 2>"$out/$name.err"
    echo "exit code $? after $((SECONDS - began)) s"
    tail -n 40 "$out/$name.txt"
    tail -n 5 "$out/$name.err"
}

profile bert_infer --seconds 10
profile resnet50 --seconds 10 --rates-by-threads 50
kernels=(--kernels --kernel-skip 200 --kernel-count 50)
if [ -n "${REHEARSE:-}" ]; then
    kernels=()
fi
profile vit_b16 --seconds 8 "${kernels[@]}"
pgrep -fa interference_tasks && echo "LEFT BEHIND" || echo "nothing was left behind"
"$carma" predict --profiles "$profiles" --group resnet50,vit_b16 --gpu H200 --sharing mps
