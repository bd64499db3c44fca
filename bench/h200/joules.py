#!/usr/bin/env python3
"""Whether the joules of jobs and of idle time add up to the GPU's energy counter.

    python3 bench/h200/joules.py --carma target/release/carma

Four trainings share a GPU by MPS under the default policy, after 12 s in which nothing runs. Prints the counter and its parts, and ends
with 1 where they are more than 1 % apart. `--virtual` rehearses on a virtual GPU. About a minute on one H200.
"""

import argparse
import os
import sys
import time

from first_run import CIFAR, GPT, RESNET, Carma


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--carma", required=True)
    parser.add_argument("--virtual", action="store_true")
    options = parser.parse_args()
    options.carma = os.path.abspath(options.carma)
    options.virtual_gpus = "virtual:1xH200"
    carma = Carma(options, "adaptive", "mps", config="")
    try:
        time.sleep(12)
        began = carma.json("gpus")["gpus"][0]["energy_j"]
        jobs = [carma.submit(task, mark=False)[0] for task in (RESNET, CIFAR, GPT, CIFAR)]
        carma.over(jobs, 200, "the trainings to end")
        time.sleep(3)
        gpu = carma.json("gpus")["gpus"][0]
        shown = [carma.show(job)["job"] for job in jobs]
    finally:
        carma.stop()
    parts = gpu["metered"]
    for job in shown:
        print(f"{job['name']:12}{job['state']:12}{job['energy_j']:10.1f} J")
    by_jobs = sum(job["energy_j"] for job in shown)
    total = by_jobs + parts["idle_j"] + parts["others_j"]
    print(f"jobs {by_jobs:.1f} J, idle {parts['idle_j']:.1f} J, others {parts['others_j']:.1f} J: {total:.1f} J")
    print(f"the counter went on by {parts['counter_j']:.1f} J, by {gpu['energy_j'] - began:.1f} J since the first job")
    sys.exit(0 if abs(total - parts["counter_j"]) <= parts["counter_j"] / 100 else 1)


if __name__ == "__main__":
    main()
