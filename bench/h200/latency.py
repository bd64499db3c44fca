#!/usr/bin/env python3
"""A server beside trainings on one GPU, with and without a limit on its latency.

    python3 bench/h200/latency.py --carma target/h200/carma --out results

A BERT base that answers 40 requests a second, one sentence each, and trainings of which carma knows what they do alone, under the default policy
with MPS. Played with `--latency` and without. The latencies are those that the server measured; which trainings came beside it, with how
many threads, is asked of `carma show`. Wants two GPUs, the second for a look at the trainings alone. Two minutes a play; `--virtual` rehearses on
virtual GPUs. Writes latency.json.

`--cases changing` wants one GPU: the neighbour does little for 40 s, which is what carma knows of it, and then ever more, until the limit of
the server is exceeded, whatever was predicted, and carma sends it back. Windows of 5 s; about three minutes. Writes latency-changing.json.
"""

import argparse
import os
import re
import subprocess
import sys
import time

from first_run import TRAIN, Carma, play_all, wait_for

# Kind, steps, and for --virtual: GiB, SM, DRAM.
TRAININGS = [("cifar", 6000, 1.0, 0.23, 0.05), ("vit", 3000, 6.4, 0.7, 0.3)]

# The neighbour that changes: seconds of each phase, and the length of the products that it computes. Ten a step in the first phase, then
# as many as a step has time for. The longer they are, the longer a request's kernel waits for a free multiprocessor.
PHASES = [(40, 512), (18, 2048), (18, 8192), (18, 32768), (30, 131072)]
STEP_S = 0.1


def submit(carma, name, command, *more):
    command = [carma.options.carma, "--socket", carma.socket, "submit", "--parsable", "--name", name, *more, "--", *command]
    answer = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if answer.returncode != 0:
        raise RuntimeError(f"carma submit {name}: {answer.stderr.strip()}")
    return int(answer.stdout)


def server(carma, limit_ms, seconds):
    marks = os.path.join(carma.dir, "latencies")
    if carma.options.virtual:
        command = [carma.options.carma, "virtual-task", "--memory=1G", "--sm=0.2", "--dram=0.1", "--startup=3s", f"--work={seconds}s"]
        command += ["--latency=6ms"]
    else:
        command = [sys.executable, TRAIN, "--model", "serve", "--rest", seconds, "--marks", marks]
    more = [] if limit_ms is None else ["--latency", f"{limit_ms}ms"]
    return submit(carma, "server", command, *more), marks


def training(carma, task, *more):
    kind, steps, gib, sm, dram = task
    if carma.options.virtual:
        command = [carma.options.carma, "virtual-task", f"--memory={gib}G", f"--sm={sm}", f"--dram={dram}", "--startup=3s", "--work=200s"]
    else:
        command = [sys.executable, TRAIN, "--model", kind, "--steps", steps]
    return submit(carma, kind, command, *more)


def change(phases):
    """A neighbour that changes, as a process: for so many seconds, products of such a length. Ten steps a second in all phases, for carma to
    see no other rate; in the first one of ten products each, later of as many as there is time for."""
    import torch

    longest = phases[-1][1]
    a, b = torch.ones(4096, longest, device="cuda"), torch.ones(longest, 4096, device="cuda")
    done, tick = 0, time.time()
    for phase, (seconds, length) in enumerate(phases):
        print(f"phase {phase} at {time.time():.3f}", flush=True)
        until = time.time() + seconds
        while time.time() < until:
            tick = max(tick + STEP_S, time.time())
            computed = 0
            while time.time() < tick and (phase > 0 or computed < 10):
                torch.mm(a[:, :length], b[:length])
                torch.cuda.synchronize()
                computed += 1
            time.sleep(max(0, tick - time.time()))
            done += 1
            print(f"step {done}", flush=True)


def changing(carma, *more):
    command = [sys.executable, os.path.abspath(__file__), "--change"]
    if carma.options.virtual:
        # A virtual task does the same all the time: one after the other in a job.
        task = f"{carma.options.carma} virtual-task --memory=5G --startup=0s"
        phases = zip((0.05, 0.5, 0.7, 0.85, 1), PHASES)
        command = ["sh", "-c", "".join(f"echo phase {n}; {task} --sm={sm} --work={s}s; " for n, (sm, (s, _)) in enumerate(phases))]
    return submit(carma, "changing", command, *more)


def profile(carma, job, name):
    """Lets a job run alone until carma knows what it does, which takes fifteen seconds after its start-up."""
    carma.running(job, 60)
    # It refuses to predict of a job that it has not seen alone.
    wait_for(lambda: carma.try_json("predict", str(job)), carma.options.look, f"{name} to be known")
    carma.text("cancel", str(job))
    wait_for(lambda: carma.show(job)["job"]["ended_ms"], 30, f"{name} to end")


def latencies(carma, job, marks):
    """(when, milliseconds) of each request. A virtual server prints no time."""
    if not carma.options.virtual:
        # It is there once the server has started up.
        if not os.path.exists(marks):
            return []
        with open(marks) as file:
            return [tuple(map(float, line.split())) for line in file if line.endswith("\n")]
    found = re.findall(r"latency ([0-9.]+) ms", carma.text("logs", str(job)))
    return [(float(at), float(ms)) for at, ms in enumerate(found)]


def told(shown):
    """What `carma show` says of latency."""
    pairs = shown.items() if isinstance(shown, dict) else enumerate(shown)
    found = {}
    for key, value in pairs:
        if isinstance(value, (dict, list)):
            found |= told(value)
        elif "latency" in str(key) or key == "requests":
            found[key] = value
    return found


def percentile(values, percent):
    values = sorted(values)
    return values[min(len(values) - 1, len(values) * percent // 100)] if values else None


def play(options, limit_ms):
    carma = Carma(options, "adaptive", "mps", config="")
    try:
        job, marks = server(carma, limit_ms, 300)
        carma.running(job, 90)
        wait_for(lambda: len(latencies(carma, job, marks)) > 0, 120, "the first request")
        began = time.time()
        for task in TRAININGS:
            profile(carma, training(carma, task, "--exclusive"), task[0])
        # All are to meet.
        for gpu in carma.json("gpus")["gpus"][1:]:
            carma.text("drain", str(gpu["index"]))
        time.sleep(max(0, began + options.alone - time.time()))
        came = time.time()
        alone = [ms for _, ms in latencies(carma, job, marks)]
        jobs = [training(carma, task) for task in TRAININGS]
        looks = []
        while time.time() < came + options.beside:
            time.sleep(1)
            shown = [carma.show(other) for other in jobs]
            beside = [
                {"name": s["job"]["name"], "threads": s["attempts"][-1].get("thread_pct")} for s in shown if s["job"]["state"] == "RUNNING"
            ]
            looks.append({"t": time.time(), "beside": beside})
        waits = {s["job"]["name"]: s["job"]["reason"]["text"] for s in shown if s["job"]["state"] != "RUNNING"}
        every = latencies(carma, job, marks)
        # When all of it counts as started: imports take up to twenty seconds.
        late = [ms for at, ms in every if at >= came + options.beside / 2] if not options.virtual else [ms for _, ms in every[len(alone) :]]
        return {
            "limit_ms": limit_ms,
            "requests": len(every),
            "alone": {p: percentile(alone, p) for p in (50, 99)},
            "beside": {p: percentile(late, p) for p in (50, 99)},
            "within": None if limit_ms is None else sum(ms <= limit_ms for ms in late) / max(len(late), 1),
            "shown": told(carma.show(job)),
            "evicted": {s["job"]["name"]: [a["verdict"] for a in s["attempts"] if a["verdict"]] for s in shown},
            "waits": waits,
            "looks": looks,
        }
    finally:
        carma.stop()


def play_changing(options, limit_ms):
    carma = Carma(options, "adaptive", "mps", config='[sampling]\nwindow = "5s"\n[jobs]\nslowdown-window = "5s"\n')
    try:
        profile(carma, changing(carma, "--exclusive"), "the neighbour")
        job, marks = server(carma, limit_ms, 300)
        carma.running(job, 90)
        wait_for(lambda: told(carma.show(job)).get("latency_alone_ms"), options.look, "the server to be known")
        neighbour = changing(carma)
        came, sent_back, looks = time.time(), None, []
        until = came + 60 + sum(seconds for seconds, _ in PHASES)
        while time.time() < until:
            time.sleep(0.5)
            shown, beside = carma.show(job), carma.show(neighbour)
            phases = re.findall(r"^phase (\d+)", carma.text("logs", str(neighbour)), re.M)
            looks.append(
                {
                    "t": time.time() - came,
                    "served": len(latencies(carma, job, marks)),
                    "phase": int(phases[-1]) if phases else None,
                    "neighbour": beside["job"]["state"],
                    "reason": beside["job"]["reason"]["text"],
                    "rate": shown.get("rate"),
                    "kept": shown["job"].get("limit_kept"),
                    "latency_alone_ms": told(shown).get("latency_alone_ms"),
                }
            )
            if sent_back is None and any(a["verdict"] or a["ended_ms"] for a in beside["attempts"]):
                sent_back = time.time()
                until = min(until, sent_back + options.after)
        every = [ms for _, ms in latencies(carma, job, marks)]
        return {
            "limit_ms": limit_ms,
            "p99": {name: percentile(every[first:last], 99) for name, first, last in spans(looks, len(every))},
            "requests": {name: last - first for name, first, last in spans(looks, len(every))},
            "server": carma.show(job),
            "neighbour": carma.show(neighbour),
            "explained": carma.text("explain", str(neighbour)),
            "explained_server": carma.text("explain", str(job)),
            "history": carma.text("history", str(neighbour)),
            "log": [line for line in open(carma.log.name).read().splitlines() if "job" in line],
            "latencies": latencies(carma, job, marks),
            "came": came,
            "looks": looks,
        }
    finally:
        carma.stop()


def spans(looks, requests):
    """(name, first and last request) before the neighbour's first phase, in each of its phases, and once it has been sent away."""
    with_it = [look for look in looks if look["neighbour"] == "RUNNING" and look["phase"] is not None]
    starts = {}
    for look in with_it:
        starts.setdefault(f"phase {look['phase']}", look["served"])
    if with_it and not with_it[-1] is looks[-1]:
        starts["after"] = with_it[-1]["served"]
    ends = [*list(starts.values())[1:], requests]
    before = next(iter(starts.values()), requests)
    return [("before", 0, before), *((name, start, end) for (name, start), end in zip(starts.items(), ends))]


def table_changing(runs):
    for run in runs:
        print(f"limit {run['limit_ms']} ms; 99th percentile of latency:")
        for name, value in run["p99"].items():
            print(f"  {name:10}{'-' if value is None else f'{value:.1f} ms':>14} of {run['requests'][name]} requests")
        print(f"windows: {run['looks'][-1]['kept']}")
        for attempt in run["neighbour"]["attempts"]:
            print(f"neighbour, placed: {attempt['placed']['text']}")
            if attempt["verdict"]:
                print(f"neighbour, ended: {attempt['verdict']['text']}")
        print(run["explained"])


def table(runs):
    def ms(value):
        return "-" if value is None else f"{value:.1f}"

    print(f"{'limit ms':>9}{'requests':>10}{'p50 alone':>11}{'p99 alone':>11}{'p50 beside':>12}{'p99 beside':>12}{'within':>8}  beside it in the end")
    for run in runs:
        names = [f"{b['name']}{'' if b['threads'] is None else ' ' + str(b['threads']) + ' %'}" for b in run["looks"][-1]["beside"]]
        within = "-" if run["within"] is None else f"{run['within']:.3f}"
        limit = "none" if run["limit_ms"] is None else run["limit_ms"]
        print(
            f"{limit:>9}{run['requests']:10}{ms(run['alone'][50]):>11}{ms(run['alone'][99]):>11}"
            f"{ms(run['beside'][50]):>12}{ms(run['beside'][99]):>12}{within:>8}  {', '.join(names) or 'none'}"
        )
        for name, verdicts in run["evicted"].items():
            for verdict in verdicts:
                print(f"{'':11}{name}: {verdict}")
        for name, why in run["waits"].items():
            print(f"{'':11}{name} waits: {why}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--carma")
    parser.add_argument("--out")
    parser.add_argument("--virtual", action="store_true")
    parser.add_argument("--cases", default="steady", choices=["steady", "changing"], help="what the neighbours do")
    parser.add_argument("--limits", help="milliseconds; 20,none, and 20 with neighbours that change")
    parser.add_argument("--alone", type=float, default=25, help="seconds before others come")
    parser.add_argument("--look", type=float, default=90, help="seconds alone at most, until carma knows a training")
    parser.add_argument("--beside", type=float, default=60, help="seconds after that")
    parser.add_argument("--after", type=float, default=30, help="seconds after a neighbour that changes was sent away")
    parser.add_argument("--change", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.change:
        change(PHASES)
        return
    if options.carma is None or options.out is None:
        parser.error("--carma and --out are required")
    options.carma = os.path.abspath(options.carma)
    alone = options.cases == "changing"
    options.virtual_gpus = "virtual:1xH200" if alone else "virtual:2xH200"
    limits = options.limits or ("20" if alone else "20,none")
    plays = [(limit, None if limit == "none" else float(limit)) for limit in limits.split(",")]
    if alone:
        play_all(options, "latency-changing", plays, play_changing, table_changing)
    else:
        play_all(options, "latency", plays, play, table)


if __name__ == "__main__":
    main()
