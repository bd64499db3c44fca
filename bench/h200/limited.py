#!/usr/bin/env python3
"""A task that takes everything beside one with a limit of slowdown: it gets fewer threads.

    python3 bench/h200/limited.py --carma target/release/carma --out results

A small ResNet trains with `--max-slowdown`; then products of large matrices come, which with all threads would leave it a fraction. Both are known from
a run alone. carma starts the products with half of the threads (`CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`), or they wait; what the ResNet keeps is what it
prints. One GPU, three minutes; `--virtual` rehearses on a virtual one. Writes limited.json.
"""

import argparse
import os
import sys
import time

from first_run import TRAIN, Carma, play_all
from latency import profile, submit

CONFIG = '[sampling]\nwindow = "5s"\n[jobs]\nslowdown-window = "5s"\n'


def products():
    """Four products of 8192 x 8192 a step, without a pause."""
    import torch

    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    step, told = 0, 0.0
    while True:
        for _ in range(4):
            torch.mm(a, b)
        torch.cuda.synchronize()
        step += 1
        if time.time() - told > 0.5:
            told = time.time()
            print(f"step {step}", flush=True)


def task(carma, name, *more):
    if carma.options.virtual:
        load = {"cifar": "--memory=2G --sm=0.23 --dram=0.05", "products": "--memory=1G --sm=0.97 --dram=0.2"}[name]
        command = [carma.options.carma, "virtual-task", *load.split(), "--startup=3s", "--work=400s"]
    elif name == "cifar":
        command = [sys.executable, TRAIN, "--model", "cifar", "--steps", 1000000]
    else:
        command = [sys.executable, os.path.abspath(__file__), "--products"]
    return submit(carma, name, command, *more)


def play(options, limit):
    carma = Carma(options, "adaptive", "mps", config=CONFIG)
    try:
        for name in ("cifar", "products"):
            profile(carma, task(carma, name, "--exclusive"), name)
        limited = task(carma, "cifar", "--max-slowdown", limit)
        carma.running(limited, 60)
        heavy = task(carma, "products")
        began, looks, heavy_since = time.time(), [], None
        while time.time() < (heavy_since or began + options.look) + options.beside:
            time.sleep(1)
            shown, beside = carma.show(limited), carma.show(heavy)
            attempt = beside["attempts"][-1] if beside["attempts"] else {}
            if beside["job"]["state"] == "RUNNING" and heavy_since is None:
                heavy_since = time.time()
            looks.append(
                {
                    "t": time.time() - began,
                    "rate": shown.get("rate"),
                    "kept": shown["job"].get("limit_kept"),
                    "heavy": beside["job"]["state"],
                    "heavy_rate": beside.get("rate"),
                    "threads": attempt.get("thread_pct"),
                }
            )
        return {
            "limit": limit,
            "reason": beside["attempts"][-1]["placed"]["text"] if beside["attempts"] else beside["job"]["reason"]["text"],
            "explained": [carma.text("explain", str(job)) for job in (limited, heavy)],
            "shown": [shown, beside],
            "logs": [carma.text("logs", str(job))[-2000:] for job in (limited, heavy)],
            "looks": looks,
        }
    finally:
        carma.stop()


def table(runs):
    for run in runs:
        print(f"limit {run['limit']}: {run['reason']}")
        for look in run["looks"][:: max(1, len(run["looks"]) // 12)]:
            print(f"  {look['t']:6.1f} s  {look['heavy']:8} threads {look['threads']}  limited: {look['rate']}  heavy: {look['heavy_rate']}")
        print(f"windows: {run['looks'][-1]['kept']}")
        print(*run["explained"], sep="\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--carma")
    parser.add_argument("--out")
    parser.add_argument("--virtual", action="store_true")
    parser.add_argument("--limits", default="2", help="of slowdown, one play each")
    parser.add_argument("--look", type=float, default=60, help="seconds at most until a task is known, and until the products start")
    parser.add_argument("--beside", type=float, default=45, help="seconds from their start")
    parser.add_argument("--products", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.products:
        products()
        return
    if options.carma is None or options.out is None:
        parser.error("--carma and --out are required")
    options.carma = os.path.abspath(options.carma)
    options.virtual_gpus = "virtual:1xH200"
    play_all(options, "limited", [(limit, float(limit)) for limit in options.limits.split(",")], play, table)


if __name__ == "__main__":
    main()
