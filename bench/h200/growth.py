#!/usr/bin/env python3
"""The growth guard on a real GPU: jobs that take turns, of which nothing is known, and which take more memory later.

    python3 bench/h200/growth.py --carma target/h200/carma --out results

Everything is asked of carma's command line; the policy is the default, time-sliced. `--virtual` rehearses on a virtual GPU, `--scale .56`
makes all amounts those of a GPU with 80 GiB. Two to three minutes a case on one H200.
"""

import argparse
import os
import subprocess
import sys

from first_run import TRAIN, Carma, play_all, story, wait_for

# Of an H200 with 140 GiB: (GiB at first, seconds of work until more is taken, GiB in the end, GiB a second, seconds of work with
# all of it). A job may have company once it was alone for about half a minute.
CASES = {
    # Together 155 GiB: the younger one has to go, at both speeds.
    "fast": [(25, 45, 45, 8, 20), (25, 8, 110, 8, 5)],
    "slow": [(25, 45, 45, 2, 45), (25, 8, 110, 2, 5)],
    # Together 133 GiB and two contexts: both may stay.
    "fits": [(25, 45, 45, 4, 25), (25, 8, 88, 4, 5)],
    # The older one keeps to what it took: the younger one is suspended until that is over.
    "alone": [(25, 0, 25, 1, 75), (25, 8, 120, 2, 5)],
    # The older one grows, the younger one keeps to what it took: 160 GiB.
    "older": [(30, 55, 110, 4, 5), (50, 0, 50, 1, 60)],
}


def submit(carma, name, task):
    scale = carma.options.scale
    gib, at, to, rate, rest = task
    gib, to, rate = gib * scale, to * scale, rate * scale
    command = [carma.options.carma, "--socket", carma.socket, "submit", "--parsable", "--name", name, "--"]
    if carma.options.virtual:
        over = (to - gib) / rate
        command += [carma.options.carma, "virtual-task", f"--memory={gib}G", "--sm=0.4", "--dram=0.2", "--startup=3s"]
        command += [f"--work={at + over + rest}s"]
        command += [f"--grow-to={to}G", f"--grow-after={at}s", f"--grow-over={over}s"] if to > gib else []
    else:
        command += [sys.executable, TRAIN, "--model", "grow", "--gib", gib, "--at", at, "--to-gib", to, "--rate", rate]
        command += ["--rest", rest]
    answer = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if answer.returncode != 0:
        raise RuntimeError(f"carma submit {name}: {answer.stderr.strip()}")
    return int(answer.stdout)


def seconds(ms):
    return None if ms is None else ms / 1000


def play(options, case):
    carma = Carma(options, "adaptive", "time-slice", config="")
    try:
        # They are to meet.
        for gpu in carma.json("gpus")["gpus"][1:]:
            carma.text("drain", str(gpu["index"]))
        jobs, fullest = [], 0
        for n, task in enumerate(CASES[case]):
            jobs.append(submit(carma, f"{case}-{n}", task))
            carma.running(jobs[-1], 90)

        def over():
            nonlocal fullest
            fullest = max(fullest, carma.json("gpus")["gpus"][0]["memory_used_mib"])
            return all(carma.show(job)["job"]["ended_ms"] for job in jobs)

        wait_for(over, options.patience, f"{case} to end")
        gpu = carma.json("gpus")["gpus"][0]
        return {
            "case": case,
            "memory_mib": gpu["memory_mib"],
            "fullest_mib": fullest,
            "jobs": [story(carma.show(job)) | {"suspended_s": seconds(carma.show(job)["job"].get("suspended_ms"))} for job in jobs],
        }
    finally:
        carma.stop()


def table(runs):
    print(f"{'case':8}{'job':10}{'state':15}{'attempts':>9}{'peak GiB':>16}{'OOM':>5}{'guard':>7}{'fullest GiB':>13}")
    for run in runs:
        for job in run["jobs"]:
            codes = [a["code"] or "" for a in job["attempts"]]
            peaks = " ".join(f"{(a['peak_mib'] or 0) / 1024:.1f}" for a in job["attempts"])
            oom = sum("OutOfMemory" in code for code in codes)
            away = "" if job["suspended_s"] is None else f"   suspended for {job['suspended_s']:.0f} s"
            guard = sum("GrowthGuard" in code for code in codes)
            print(
                f"{run['case']:8}{job['name']:10}{job['state']:15}{len(job['attempts']):9}{peaks:>16}{oom:5}{guard:7}"
                f"{run['fullest_mib'] / 1024:13.1f}{away}"
            )
            for attempt in job["attempts"]:
                print(f"{'':18}{attempt['verdict']}")


def arguments(description):
    """What scripts of jobs whose memory grows are told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--carma", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--virtual", action="store_true")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--patience", type=float, default=240, help="seconds that jobs which are together may take")
    return parser


def main():
    parser = arguments(__doc__)
    parser.add_argument("--cases", default=",".join(CASES))
    options = parser.parse_args()
    options.carma = os.path.abspath(options.carma)
    play_all(options, "growth", [(case, case) for case in options.cases.split(",")], play, table)


if __name__ == "__main__":
    main()
