#!/usr/bin/env python3
"""Whether the joules of jobs and of idle time add up to the GPUs' energy counters, and what `carma report` makes of the run.

    python3 bench/h200/joules.py --carma target/release/carma --out results

Four trainings a GPU, of which nothing is declared, under the default policy, after 12 s in which nothing runs. Prints the counters and
their parts, and ends with 1 where they are more than 1 % apart on any GPU. Writes to --out what `carma report --last 1h` prints and its
page. `--virtual N` rehearses on so many virtual GPUs. About a minute and a half on one H200 or on four.
"""

import argparse
import os
import sys
import time

from first_run import CIFAR, GPT, RESNET, Carma


def nothing_declared(task):
    name, model, steps, _, *rest = task
    return (name, model, steps, None, *rest)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--carma", required=True)
    parser.add_argument("--out", default="results")
    parser.add_argument("--virtual", type=int, metavar="N")
    options = parser.parse_args()
    options.carma = os.path.abspath(options.carma)
    options.virtual_gpus = f"virtual:{options.virtual}xH200"
    os.makedirs(options.out, exist_ok=True)
    carma = Carma(options, "adaptive", "mps", config="")
    try:
        time.sleep(12)
        tasks = [nothing_declared(task) for task in (RESNET, CIFAR, GPT, CIFAR)] * len(carma.json("gpus")["gpus"])
        jobs = [carma.submit(task, mark=False)[0] for task in tasks]
        carma.over(jobs, 300, "the trainings to end")
        time.sleep(3)
        gpus = carma.json("gpus")["gpus"]
        shown = [carma.show(job)["job"] for job in jobs]
        page = os.path.join(options.out, "report.html")
        print(carma.text("report", "--last", "1h", "--html", page).strip())
        with open(os.path.join(options.out, "report.txt"), "w") as file:
            file.write(carma.text("report", "--last", "1h") + carma.text("history") + carma.text("usage"))
    finally:
        carma.stop()
    for job in shown:
        print(f"{job['name']:12}{job['state']:12}{job['energy_j']:10.1f} J")
    by_jobs = sum(job["energy_j"] for job in shown)
    parts = {key: sum(gpu["metered"][key] for gpu in gpus) for key in ("counter_j", "idle_j", "others_j")}
    print(f"{len(gpus)} GPUs: jobs {by_jobs:.1f} J, idle {parts['idle_j']:.1f} J, others {parts['others_j']:.1f} J, counters {parts['counter_j']:.1f} J")
    total = by_jobs + parts["idle_j"] + parts["others_j"]
    apart = [sum(gpu["metered"][key] for key in ("jobs_j", "idle_j", "others_j")) / gpu["metered"]["counter_j"] - 1 for gpu in gpus]
    print(f"apart: {total / parts['counter_j'] - 1:+.3%} in all; " + ", ".join(f"GPU {n} {share:+.3%}" for n, share in enumerate(apart)))
    sys.exit(0 if max(map(abs, [total / parts["counter_j"] - 1, *apart])) <= 0.01 else 1)


if __name__ == "__main__":
    main()
