#!/usr/bin/env python3
"""Made-up traces of jobs whose memory comes late, through `carma simulate`: how often they run out of memory under `adaptive`, and what becomes of them.

    python3 bench/growing.py --carma target/release/carma --undeclared

Of 1 to 25 tasks of .6 to 130 GiB, whose memory is there at once or grows until 60 or 90 % of the run; 20 to 80 jobs at loads of .5 to 4, on six clusters in turn.
Earlier runs told what they take; `--declared 1.5`: users declare one and a half times that; `--undeclared`: nothing is known. The same seed makes the
same traces. Prints, by cluster, attempts out of memory a trace and the most of one, and geometric means over exclusive GPUs. Some seconds.
"""

import argparse
import concurrent.futures
import json
import math
import os
import random
import subprocess
import tempfile

# GPUs, and GiB of each.
CLUSTERS = {"2xH200": (2, 141), "4xH200": (4, 141), "4xA100-40GB": (4, 40), "8xA100-40GB": (8, 40), "4xV100-32GB": (4, 32), "8xH200": (8, 141)}
GROWTH = ["", "0:0.2;0.02:1", "0:0.05;0.3:0.4;0.6:1", "0:0.5;0.1:0.7;0.5:0.85;0.9:1", "0:0.1;0.05:0.9;0.5:1"]
TASK = "task,duration_s,memory_mib,gract,smact,smocc,drama,startup_s,memory_over_time,steps_per_s,declared_mib"


def make(path, number, seed, cluster, declared):
    """Writes trace and catalogue number `number`."""
    r = random.Random(seed * 1000 + number)
    gpus, gib = CLUSTERS[cluster]
    tasks = []
    count, large = r.choice([1, 3, 6, 12, 25]), r.random() < 0.4
    for _ in range(count):
        mib = int(1024 * (r.uniform(0.1, 0.85) * gib if large else r.lognormvariate(1.9, 0.9)))
        mib = max(600, min(mib, int(gib * 1024 * 0.93)))
        busy = r.choice([r.uniform(0.05, 0.4), r.uniform(0.3, 0.8), r.uniform(0.7, 1)])
        growth = r.choice(GROWTH)
        seconds = r.lognormvariate(r.choice([5.5, 6.5, 7.5]), 0.8)
        shares = [busy, busy * r.uniform(0.6, 1), busy * r.uniform(0.15, 0.6), busy * r.uniform(0.1, 0.7)]
        tasks.append((seconds, mib, shares, r.uniform(3, 30), growth))
    with open(path + ".tasks.csv", "w") as file:
        print(TASK, file=file)
        for n, (seconds, mib, shares, startup, growth) in enumerate(tasks):
            shares = ",".join(f"{share:.3f}" for share in shares)
            said = int(mib * declared) if declared else ""
            print(f"t{n},{seconds:.1f},{mib},{shares},{startup:.1f},{growth},{r.choice(['', 0, 5, 50])},{said}", file=file)
    jobs, load, wide = r.choice([20, 40, 80]), r.choice([0.5, 1, 2, 4]), r.choice([0, 0, 0.1, 0.3])
    rows, work = [], 0
    for _ in range(jobs):
        n = r.randrange(count)
        seconds = max(20, tasks[n][0] * r.choice([1, 1, 1, r.lognormvariate(0, 0.5)]))
        wants = r.choice([wants for wants in (2, 2, 4) if wants <= gpus]) if r.random() < wide else 1
        rows.append((n, seconds, wants, r.randrange(r.choice([1, 3]))))
        work += seconds * wants
    burst = r.random() < 0.3
    arrivals = sorted(0 if burst and r.random() < 0.5 else r.uniform(0, work / gpus / load) for _ in rows)
    with open(path + ".csv", "w") as file:
        print("arrival_s,task,duration_s,gpus,user", file=file)
        for at, (n, seconds, wants, user) in zip(arrivals, rows):
            print(f"{at:.1f},t{n},{seconds:.1f},{wants},u{user}", file=file)


def play(options, folder, number):
    """Exclusive and `adaptive` on one trace."""
    cluster = list(CLUSTERS)[number % len(CLUSTERS)]
    path = os.path.join(folder, str(number))
    make(path, number, options.seed, cluster, options.declared)
    command = [options.carma, "simulate", "--trace", path + ".csv", "--catalogue", path + ".tasks.csv", "--cluster", cluster]
    command += ["--sharing", options.sharing, "--policy", "exclusive", "--policy", "adaptive", "--json"]
    command += ["--undeclared"] if options.undeclared else []
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode != 0:
        raise SystemExit(f"trace {number}: {answer.stderr.strip()}")
    return cluster, *json.loads(answer.stdout)["rows"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--carma", required=True)
    parser.add_argument("--traces", type=int, default=360)
    parser.add_argument("--seed", type=int, default=9)
    parser.add_argument("--sharing", default="mps")
    parser.add_argument("--declared", type=float, help="times what a job takes")
    parser.add_argument("--undeclared", action="store_true")
    options = parser.parse_args()
    options.carma = os.path.abspath(options.carma)
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        played = list(pool.map(lambda number: play(options, folder, number), range(options.traces)))
    print(f"{'cluster':12}{'traces':>8}{'OOM':>7}{'most':>6}{'makespan':>10}{'JCT':>7}{'lost':>6}")
    for cluster in ["all", *CLUSTERS]:
        of = [(exclusive, ours) for where, exclusive, ours in played if cluster in ("all", where)]
        if not of:
            continue
        mean = lambda key: math.exp(sum(math.log(ours[key] / exclusive[key]) for exclusive, ours in of) / len(of))
        ooms, lost = [ours["oom"] for _, ours in of], sum(ours["not_completed"] for _, ours in of)
        print(f"{cluster:12}{len(of):8}{sum(ooms) / len(of):7.2f}{max(ooms):6}{mean('makespan_s'):10.3f}{mean('jct_mean_s'):7.3f}{lost:6}")


if __name__ == "__main__":
    main()
