#!/usr/bin/env python3
"""A training of two processes on two GPUs under `carma serve`, beside a training on each: killed from outside, cancelled, and out of memory at its limit.

    python3 bench/h200/pair.py --carma target/release/carma --out results

All are clients of MPS. `carma cancel` has to leave the neighbours alone; what a death or an out-of-memory of the pair does to them cannot be helped (`peers.py`
measures that without carma), but none of them may be held responsible, and all have to go on. Two GPUs, about four minutes. `--virtual` rehearses on
two virtual GPUs, without PyTorch, where neighbours never die. Writes pair.json.
"""

import argparse
import os
import signal
import subprocess
import sys
import time

from first_run import CIFAR, HERE, Carma, read_marks, story, wait_for
from suspend import record

TASKS = os.path.join(HERE, "..", "..", "crates", "measure", "src", "trace", "carma_tasks.py")


def pair(carma, gib, steps):
    command = ["submit", "--parsable", "--name", "pair", "--gpus", "2", "--gpu-memory", f"{gib}G", "--"]
    if carma.options.virtual:
        task = f"{carma.options.carma} virtual-task --memory=6G --sm=.2 --startup=1s --work={steps // 5}s"
        command += ["/bin/sh", "-c", f"{task} & {task} & wait"]
    else:
        command += ["env", f"PYTHONPATH={HERE}", sys.executable, os.path.normpath(TASKS), "lm_two_processes", "--steps", str(steps)]
    answer = subprocess.run([carma.options.carma, "--socket", carma.socket, *command], capture_output=True, text=True)
    if answer.returncode != 0:
        raise RuntimeError(f"carma submit: {answer.stderr.strip()}")
    return int(answer.stdout)


def works(carma, job):
    wait_for(lambda: "step " in carma.text("logs", str(job)) or carma.show(job)["job"]["ended_ms"], 90, f"job {job} to work")


def kill(job):
    """As the kernel does for want of memory, or an administrator. Its other process asked to be killed with it."""
    mine = f"CARMA_JOB_ID={job}".encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                env = file.read().split(b"\0")
            if mine in env and not any(var.startswith(b"RANK=") for var in env):
                os.kill(int(pid), signal.SIGKILL)
        except OSError:
            continue


def attempts(carma, jobs):
    return [carma.show(job)["job"]["attempts"] for job in jobs]


def play(options, carma):
    started = [carma.submit(CIFAR, steps=200_000) for _ in range(2)]
    neighbours = [job for job, _ in started]
    for job, marks in started:
        carma.running(job)
        if not options.virtual:
            wait_for(lambda marks=marks: len(read_marks(marks)) > 2, 90, "a neighbour's first steps")
    rows = []
    for trial in range(options.kills):
        # Each of another command: that of the first is kept out of MPS afterwards.
        job = pair(carma, 16, 6000 + trial)
        works(carma, job)
        time.sleep(2)
        before = attempts(carma, neighbours)
        kill(job)
        carma.over([job], 30, "the pair to end")
        # A verdict takes up to `[recovery] fault-window`.
        time.sleep(12)
        for neighbour in neighbours:
            carma.running(neighbour)
        rows.append({"what": "killed", "died": sum(attempts(carma, neighbours)) - sum(before), "pair": story(carma.show(job))})
        print(f"killed, {trial + 1}: {rows[-1]['died']} of 2 neighbours died", flush=True)
        if not options.virtual:
            time.sleep(18)
    for trial in range(options.cancels):
        job = pair(carma, 16, 5000 + trial)
        works(carma, job)
        time.sleep(2)
        before, since = attempts(carma, neighbours), time.time()
        carma.text("cancel", str(job))
        carma.over([job], 30, "the pair to end")
        took = time.time() - since
        time.sleep(5)
        rows.append({"what": "cancelled", "took_s": took, "died": sum(attempts(carma, neighbours)) - sum(before), "pair": story(carma.show(job))})
        print(f"cancelled, {trial + 1}: {took:.1f} s, {rows[-1]['died']} of 2 neighbours died", flush=True)
    before = attempts(carma, neighbours)
    job = pair(carma, 3, 150)
    carma.over([job], 150, "the pair that runs out of memory to end")
    for neighbour in neighbours:
        carma.running(neighbour)
    rows.append({"what": "out of memory", "died": sum(attempts(carma, neighbours)) - sum(before), "pair": story(carma.show(job))})
    print(f"out of memory: {rows[-1]['died']} of 2 neighbours died", flush=True)
    for neighbour in neighbours:
        carma.text("cancel", str(neighbour))
    carma.over(neighbours, 40, "the neighbours to end")
    return {"rows": rows, "neighbours": [story(carma.show(neighbour)) for neighbour in neighbours]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--carma", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--cancels", type=int, default=3)
    parser.add_argument("--virtual", action="store_true")
    options = parser.parse_args()
    options.carma = os.path.abspath(options.carma)
    options.virtual_gpus = "virtual:2xA100-80GB"
    os.makedirs(options.out, exist_ok=True)
    carma = Carma(options, "oracle-magm", "mps", '[sampling]\nwindow = "5s"\n[mps]\ncaps = true\n')
    result = record(options, carma, play, "pair.json")
    for what in [*(row["pair"] for row in result["rows"]), *result["neighbours"]]:
        for number, attempt in enumerate(what["attempts"], 1):
            print(f"{what['name']:8} {what['state']:10} {number} {attempt['sharing']:11} {(attempt.get('verdict') or what['reason'])[:150]}")


if __name__ == "__main__":
    main()
