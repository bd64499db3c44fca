#!/usr/bin/env python3
"""Jobs of one command on a real GPU, of whose memory nothing is known and which take more later: how often they run out of memory.

    python3 bench/h200/one_command.py --carma target/h200/carma --out results

Everything is asked of carma's command line; the policy is the default, under MPS. What was too little for one of them is not tried with the others,
and each limit is half more than the one before (docs/recovery.md). `--virtual` rehearses on a virtual GPU, `--scale .56` makes all amounts those of a GPU with
80 GiB. About a minute and a half on one H200.
"""

import os
import time

from first_run import Carma, play_all, story, wait_for
from growth import arguments, submit

# GiB at first, seconds of work until more is taken, GiB in the end, GiB a second, seconds of work with all of it.
TASK = (8, 3, 65, 12, 5)


def play(options, jobs):
    carma = Carma(options, "adaptive", "mps", config="")
    try:
        # All wait before the first starts, so that each is given as much.
        for gpu in carma.json("gpus")["gpus"]:
            carma.text("drain", str(gpu["index"]))
        started = time.time()
        ids = [submit(carma, "grows", TASK) for _ in range(jobs)]
        carma.text("resume", "0")
        wait_for(lambda: all(carma.show(job)["job"]["ended_ms"] for job in ids), options.patience, "the jobs to end")
        return {"seconds": time.time() - started, "jobs": [story(carma.show(job)) for job in ids]}
    finally:
        carma.stop()


def gib(mib):
    return "none" if mib is None else f"{mib / 1024:.1f}"


def table(runs):
    print(f"{'job':>4} {'state':12}{'attempts':>9}{'OOM':>5}  limit GiB (peak)")
    for run in runs:
        for n, job in enumerate(run["jobs"], 1):
            oom = sum((a["code"] or "").startswith("OutOfMemory") for a in job["attempts"])
            limits = ", ".join(f"{gib(a['cap_mib'])} ({gib(a['peak_mib'])})" for a in job["attempts"])
            print(f"{n:4} {job['state']:12}{len(job['attempts']):9}{oom:5}  {limits}")
        print(f"all over after {run['seconds']:.0f} s")


def main():
    parser = arguments(__doc__)
    parser.add_argument("--jobs", type=int, default=4)
    options = parser.parse_args()
    options.carma = os.path.abspath(options.carma)
    play_all(options, "one_command", [(f"{options.jobs} jobs", options.jobs)], play, table)


if __name__ == "__main__":
    main()
