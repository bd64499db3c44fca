#!/usr/bin/env python3
"""Short trainings of one command that come while a long one has a GPU, time-sliced, through `carma serve`: how long they wait, and what they cost the long one.

    python3 bench/h200/short.py --carma target/release/carma --out results

The default policy on one GPU (others are drained; `CUDA_VISIBLE_DEVICES` names another), nothing declared. A short training runs alone to its
end, so that its run time is known; then a long one begins, and when it has been alone for 40 s eight more of the short one's command come at once.
Both keep the GPU busy, so that nothing is gained where they take turns. Says when each short one started and was done, and how much longer the
long one took than its own rate before they came tells. About eleven minutes; `--virtual` rehearses on a virtual GPU, without PyTorch. Writes
short.json and the daemon's log.
"""

import argparse
import os
import re
import shutil
import statistics
import sys
import time

from first_run import TRAIN, Carma, story, wait_for
from suspend import order, record, submitted

# Steps a second alone on an H200, about: only virtual tasks go by them.
LONG_RATE, SHORT_RATE = 11.4, 32
MEMORY_GIB = 8


def train(steps):
    """The short training: a network whose layers fill the GPU. Only torch is imported, so that little of its run is start-up."""
    import torch
    from torch import nn

    began = time.time()
    width = 4096
    model = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(width, width), nn.GELU())), nn.Linear(width, 10)).to("cuda")
    inputs, labels = torch.randn(width, width, device="cuda"), torch.randint(0, 10, (width,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    printed = 0.0
    for step in range(1, steps + 1):
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        if step == 1 or step % 5 == 0 or step == steps:
            torch.cuda.synchronize()
            if time.time() - printed >= 0.5 or step == steps:
                printed = time.time()
                print(f"step {step}/{steps} {printed - began:.1f} s", flush=True)


class Job:
    """A training of the daemon's, or a virtual task in its place."""

    def __init__(self, carma, name, command, work):
        self.carma = carma
        if carma.options.virtual:
            command = [carma.options.carma, "virtual-task", f"--memory={MEMORY_GIB}G", "--sm=.95", "--gract=.98", "--dram=.2"]
            command += [f"--work={work:.0f}s", "--startup=3s"]
        self.id = submitted(carma, name, ["submit", "--parsable", "--name", name, "--", *command])

    def show(self):
        return self.carma.show(self.id)["job"]

    def done(self):
        """The share of its steps that it has printed."""
        found = re.findall(r"^step (\d+)/(\d+)", self.carma.text("logs", str(self.id)), re.M)
        return int(found[-1][0]) / int(found[-1][1]) if found else 0.0

    def times(self):
        """When it came, started and was over, seconds."""
        job = self.show()
        return [job[key] / 1000 for key in ("submitted_ms", "started_ms", "ended_ms")]


class Watch:
    """What happens meanwhile, about once a second: how far the long training is, who runs, and what is said of those who wait, where that changes."""

    def __init__(self, carma, long):
        self.carma, self.long = carma, long
        self.began = time.time()
        self.samples, self.said, self.asked = [], [], {}

    def look(self):
        now = time.time() - self.began
        queue = self.carma.json("queue")["jobs"]
        running = [job["id"] for job in queue if job["state"] == "RUNNING"]
        self.samples.append([round(now, 2), self.long.done(), running])
        for job in queue:
            # Numbers change all the time.
            kind = re.sub(r"[\d.]+", "N", f"{job['state']} {job['reason']['text']}")
            if self.asked.get(job["id"]) != kind:
                self.asked[job["id"]] = kind
                self.said.append([round(now, 2), job["id"], job["state"], job["reason"]["text"]])
        first = next((job["id"] for job in queue if job["state"] == "PENDING"), None)
        if first is not None and len(self.samples) % 15 == 0:
            self.said.append([round(now, 2), first, "explain", self.carma.text("explain", str(first))])
        return queue

    def until(self, over, seconds, what):
        def there():
            queue = self.look()
            time.sleep(0.6)
            return over(queue)

        wait_for(there, seconds, what)

    def rate(self, since, until):
        """Shares a second of the long training between two times of the watch."""
        there = [sample for sample in self.samples if since <= sample[0] <= until and sample[1] > 0]
        if len(there) < 5:
            return None
        slope, _ = statistics.linear_regression([sample[0] for sample in there], [sample[1] for sample in there])
        return slope


def play(options, carma):
    for gpu in carma.json("gpus")["gpus"][1:]:
        order(carma, "drain", str(gpu["index"]))
    python = [sys.executable, "-u"]
    short = lambda: Job(carma, "short", [*python, os.path.abspath(__file__), "--train", str(options.short_steps)], options.short_steps / SHORT_RATE)
    began = time.time()
    try:
        first = short()
        wait_for(lambda: first.show()["ended_ms"], 180, "the first short training to end")
        took = first.times()
        print(f"a short one alone takes {took[2] - took[1]:.1f} s", flush=True)
        steps = ["--model", "gpt2", "--steps", str(options.steps)]
        long = Job(carma, "long", [*python, TRAIN, *steps], options.steps / LONG_RATE)
        watch = Watch(carma, long)
        watch.until(lambda _: long.done() > 0, 120, "the long training's first step")
        since = watch.samples[-1][0]
        watch.until(lambda _: watch.samples[-1][0] >= since + options.alone, 120 + options.alone, "the time alone")
        came = watch.samples[-1][0]
        alone = watch.rate(since + 2, came)
        shorts = [short() for _ in range(options.jobs)]
        print(f"the long one alone would take {1 / alone:.0f} s of steps, and {options.jobs} short ones came {came - since:.0f} s after its first", flush=True)
        watch.until(lambda queue: not queue, options.patience, "all to end")
        whole = time.time() - began
        submitted, started, ended = long.times()
        over, start_up = ended - watch.began, since - (started - watch.began)
        expected = start_up + 1 / alone
        rows = []
        for job in (first, *shorts):
            at = job.times()
            row = {"job": job.id, "wait_s": at[1] - at[0], "run_s": at[2] - at[1], "jct_s": at[2] - at[0], "before_the_long_was_over": at[1] < ended}
            # As the long training saw it, once both were at work.
            row["long_beside"] = (watch.rate(at[1] - watch.began + 6, min(at[2] - watch.began - 1, over)) or 0) / alone
            rows.append(row | {"story": story(carma.show(job.id))})
        return {
            "completed": all(row["story"]["state"] == "COMPLETED" for row in rows) and long.show()["state"] == "COMPLETED",
            "attempts": [len(row["story"]["attempts"]) for row in rows],
            "short_alone_s": rows[0]["run_s"],
            "long": {
                "run_s": ended - started,
                "start_up_s": start_up,
                "alone_s": expected,
                "slowdown": (ended - started) / expected,
                "story": story(carma.show(long.id)),
            },
            "mean_wait_s": statistics.mean(row["wait_s"] for row in rows[1:]),
            "mean_jct_s": statistics.mean(row["jct_s"] for row in rows[1:]),
            "last_over_s": max(max(job.times()[2] for job in shorts), ended) - submitted,
            "whole_s": whole,
            "rows": rows,
            "output": {"short": carma.text("logs", str(first.id))[-800:], "long": carma.text("logs", str(long.id))[-800:]},
            "samples": watch.samples,
            "said": watch.said,
        }
    finally:
        shutil.copy(carma.log.name, os.path.join(options.out, "daemon.log"))


def table(result):
    print(f"{'short':>6}{'wait':>8}{'run':>8}{'JCT':>8}  long one's rate meanwhile, alone = 1")
    for row in result["rows"]:
        beside = f"{row['long_beside']:.2f}" if row["long_beside"] else "-"
        state = row["story"]["state"]
        print(f"{row['job']:6}{row['wait_s']:8.1f}{row['run_s']:8.1f}{row['jct_s']:8.1f}  {beside}{'' if state == 'COMPLETED' else f'  {state}'}")
    long = result["long"]
    print(f"the short ones wait {result['mean_wait_s']:.1f} s and are done after {result['mean_jct_s']:.1f} s in the mean (the first not counted)")
    print(f"the long one ran for {long['run_s']:.1f} s in place of {long['alone_s']:.1f} s: {long['slowdown']:.2f} times as long")
    print(f"all over {result['last_over_s']:.1f} s after the long one came, and {result['whole_s']:.1f} s after the first short one did")


def main():
    if sys.argv[1:2] == ["--train"]:
        train(int(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--carma", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=4850, help="of the long training")
    parser.add_argument("--short-steps", type=int, default=550)
    parser.add_argument("--jobs", type=int, default=8, help="short trainings beside the long one")
    parser.add_argument("--alone", type=float, default=40, help="seconds of the long training before they come")
    parser.add_argument("--patience", type=float, default=1200, help="seconds that all may take")
    parser.add_argument("--virtual", action="store_true")
    options = parser.parse_args()
    options.carma = os.path.abspath(options.carma)
    options.virtual_gpus = "virtual:1xH200"
    os.makedirs(options.out, exist_ok=True)
    carma = Carma(options, "adaptive", "time-slice")
    result = record(options, carma, play, "short.json")
    table(result)
    sys.exit(0 if result["completed"] else 1)


if __name__ == "__main__":
    main()
