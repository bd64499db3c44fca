#!/usr/bin/env python3
"""Jobs of which nothing is declared, on virtual GPUs: what they lose beside each other while carma learns what they do.

    python3 bench/undeclared.py --carma target/release/carma
    python3 bench/undeclared.py --carma target/release/carma --policy adaptive,exclusive --repeats 3
    python3 bench/undeclared.py --carma before --carma target/release/carma --repeats 3

Each play has a daemon of its own. Jobs of a few kinds come at random; none says what memory it takes, how long it runs or what
it does to a GPU. All tasks are `carma virtual-task` and all GPUs are a model: the table compares policies and versions of carma,
and says nothing of a real GPU. Times are the daemon's, which go `--speed` times as fast as life.
"""

import argparse
import datetime
import json
import math
import os
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "trust"))

# The daemon in a folder of its own: it, its jobs and the folder go when this program ends, however it ends.
import lib  # noqa: E402

# SM activity alone, memory in GiB, seconds of work alone.
KINDS = {
    "light": [(0.10, 2, 60), (0.15, 3, 80), (0.20, 4, 100)],
    "mixed": [(0.15, 2, 60), (0.30, 4, 45), (0.50, 6, 90), (0.70, 8, 120), (0.90, 10, 150)],
    "heavy": [(0.70, 6, 60), (0.85, 8, 90), (0.95, 10, 120)],
}
SEARCH = "search"
"""Jobs of one program, no two of which have the same arguments, in place of jobs of a few kinds."""
BATCHES = [8, 16, 32, 64, 128, 256]
STARTUP_S = 8
# Of the SM activity. A task that moves as much as it computes would be bound by memory alone.
DRAM = 0.4
PAUSE_S = 0.25
"""Between two looks at the queue."""


def kind_name(kind):
    return SEARCH if len(kind) > 3 else f"{kind[0]:.0%} SM"


def searched(dice):
    """A training with another batch size and another width: memory from 2 to 12 GiB, four minutes in the mean."""
    width = dice.uniform(0.5, 1.5)
    return dice.uniform(0.15, 0.6), 1.5 + width * (0.5 + 0.025 * dice.choice(BATCHES)), dice.uniform(120, 360), SEARCH


def arrivals(options, seed):
    """Kinds in the order in which they come, each as often as any other, and when; the same for a seed."""
    dice = random.Random(seed)
    if options.kinds == SEARCH:
        drawn = [searched(dice) for _ in range(options.jobs)]
    else:
        kinds = KINDS[options.kinds]
        drawn = [kinds[number % len(kinds)] for number in range(options.jobs)]
        dice.shuffle(drawn)
    at, found = 0.0, []
    for kind in drawn:
        found.append((at, kind))
        at += dice.expovariate(1 / options.gap)
    return found


def submit(daemon, kind):
    sm, gib, work = kind[:3]
    command = [daemon.carma, "virtual-task", f"--sm={sm:.3f}", f"--dram={sm * DRAM:.3f}", f"--memory={round(gib * 1024)}M"]
    command += [f"--work={work:.1f}s", f"--startup={STARTUP_S}s"]
    return daemon.submit(command, name=kind_name(kind))


class Meter:
    """The energy counters of all GPUs over the daemon's time."""

    def __init__(self, daemon):
        self.daemon = daemon
        self.readings = []
        self.gpus = 0
        self.read()

    def read(self):
        answer = self.daemon.client().get("/v1/gpus")
        self.gpus = len(answer["gpus"])
        counters = [gpu["energy_j"] for gpu in answer["gpus"]]
        if all(counter is not None for counter in counters):
            self.readings.append((answer["now_ms"], sum(counters)))

    def at(self, when):
        """Joules at a time, between two readings by time."""
        before = [reading for reading in self.readings if reading[0] <= when]
        after = [reading for reading in self.readings if reading[0] > when]
        if not before or not after:
            return (before[-1] if before else after[0])[1] if self.readings else None
        (t0, j0), (t1, j1) = before[-1], after[0]
        return j0 + (j1 - j0) * (when - t0) / (t1 - t0)

    def between(self, start, end):
        first, last = self.at(start), self.at(end)
        return None if first is None or last is None else last - first


def play(options, carma, policy, seed):
    """All jobs once, and what became of them."""
    daemon = lib.Daemon(carma, gpus=options.gpus, policy=policy, args=["--speed", str(options.speed)], config=options.text)
    try:
        daemon.start()
        lib.until(lambda: all(gpu["status"] == "ok" for gpu in daemon.client().get("/v1/gpus")["gpus"]))
        meter, began, ids = Meter(daemon), time.monotonic(), []
        for at, kind in arrivals(options, seed):
            time.sleep(max(0.0, began + at / options.speed - time.monotonic()))
            ids.append((submit(daemon, kind), kind))
            meter.read()
        while daemon.queue():
            if time.monotonic() > began + options.patience:
                raise SystemExit(
                    f"{len(daemon.queue())} of {len(ids)} jobs are not done after {options.patience} s (--patience); "
                    f"the daemon's log:\n{daemon.log()[-3000:]}"
                )
            meter.read()
            time.sleep(PAUSE_S)
        meter.read()
        return result(meter, [job_row(daemon.show(job), kind) for job, kind in ids], carma, policy, seed)
    finally:
        daemon.stop()
        daemon.clean()


def job_row(shown, kind):
    job = shown["job"]
    attempts = [a for a in shown["attempts"] if a["started_ms"] is not None and a["ended_ms"] is not None]
    run = sum(a["ended_ms"] - a["started_ms"] for a in attempts) / 1000
    started = min((a["started_ms"] for a in attempts), default=job["ended_ms"])
    return {
        "kind": kind_name(kind),
        "state": job["state"],
        "submitted_ms": job["submitted_ms"],
        "ended_ms": job["ended_ms"],
        "jct_s": (job["ended_ms"] - job["submitted_ms"]) / 1000,
        "wait_s": (started - job["submitted_ms"]) / 1000,
        "run_s": run,
        "slowdown": run / (kind[2] + STARTUP_S),
        "attempts": [
            {
                "gpus": a["gpus"],
                "started_ms": a["started_ms"],
                "ended_ms": a["ended_ms"],
                "end": (a["verdict"] or {}).get("code", "unknown"),
            }
            for a in attempts
        ],
    }


def on_gpus(jobs, gpus, makespan_ms):
    """Jobs on a GPU: the mean over time and GPUs, and the most at once."""
    steps = []
    for attempt in (attempt for job in jobs for attempt in job["attempts"]):
        for gpu in attempt["gpus"]:
            # One that ends at the moment at which another starts does not count beside it.
            steps += [(attempt["started_ms"], 1, gpu), (attempt["ended_ms"], -1, gpu)]
    there, most, held = {}, 0, 0
    for when, step, gpu in sorted(steps):
        there[gpu] = there.get(gpu, 0) + step
        most = max(most, there[gpu])
        held -= when * step
    return held / makespan_ms / gpus, most


def quantile(values, share):
    """The least of the values that so many are not above."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def losses(jobs):
    slow = [job["slowdown"] for job in jobs]
    return {"mean": statistics.mean(slow), "p95": quantile(slow, 0.95), "worst": max(slow)}


def result(meter, jobs, carma, policy, seed):
    first, last = min(job["submitted_ms"] for job in jobs), max(job["ended_ms"] for job in jobs)
    joules = meter.between(first, last)
    mean, most = on_gpus(jobs, meter.gpus, last - first)
    ends = [attempt["end"] for job in jobs for attempt in job["attempts"]]
    return {
        "carma": carma,
        "policy": policy,
        "seed": seed,
        "makespan_s": (last - first) / 1000,
        "jct_s": statistics.mean(job["jct_s"] for job in jobs),
        "wait_s": statistics.mean(job["wait_s"] for job in jobs),
        "slowdown": losses(jobs),
        "jobs_per_gpu": mean,
        "most_on_a_gpu": most,
        "evicted": sum(end == "Evicted" for end in ends),
        "out_of_memory": sum(end.startswith("OutOfMemory") for end in ends),
        "not_completed": sum(job["state"] != "COMPLETED" for job in jobs),
        "energy_kj": None if joules is None else joules / 1000,
        "jobs": jobs,
    }


# --- tables --------------------------------------------------------------------------------------


def over(values, digits):
    """The mean of the repeats, and the least and the greatest where there are several."""
    values = [value for value in values if value is not None]
    if not values:
        return "-"
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} [{min(values):.{digits}f}-{max(values):.{digits}f}]"


def print_table(head, rows):
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        print("  ".join([row[0].ljust(widths[0]), *cells]).rstrip())


def short_names(paths):
    """Of each path as much of its end as tells it from the others."""
    parts = {path: Path(os.path.abspath(path)).parts for path in paths}
    names = {}
    for path, own in parts.items():
        others = [other for other in parts.values() if other != own]
        length = next(n for n in range(1, len(own) + 1) if all(other[-n:] != own[-n:] for other in others))
        names[path] = str(Path(*own[-length:]))
    return names


def report(plays, options):
    groups = {}
    for run in plays:
        groups.setdefault((run["carma"], run["policy"]), []).append(run)
    shown = short_names(options.carma) if len(options.carma) > 1 else {}
    groups = {f"{shown.get(carma, '')} {policy}".strip(): runs for (carma, policy), runs in groups.items()}
    columns = [
        ("makespan s", 0, lambda run: run["makespan_s"]),
        ("JCT s", 0, lambda run: run["jct_s"]),
        ("wait s", 0, lambda run: run["wait_s"]),
        ("slowdown", 2, lambda run: run["slowdown"]["mean"]),
        ("p95", 2, lambda run: run["slowdown"]["p95"]),
        ("worst", 2, lambda run: run["slowdown"]["worst"]),
        ("jobs/GPU", 2, lambda run: run["jobs_per_gpu"]),
        ("most", 0, lambda run: run["most_on_a_gpu"]),
        ("evicted", 1, lambda run: run["evicted"]),
        ("OOM", 1, lambda run: run["out_of_memory"]),
        ("failed", 1, lambda run: run["not_completed"]),
        ("kJ", 0, lambda run: run["energy_kj"]),
    ]
    rows = [
        [name, *(over([value(run) for run in runs], digits) for _, digits, value in columns)]
        for name, runs in groups.items()
    ]
    print_table(["", *(head for head, _, _ in columns)], rows)
    print()
    rows = []
    for name, runs in groups.items():
        for kind in [SEARCH] if options.kinds == SEARCH else map(kind_name, KINDS[options.kinds]):
            of = [[job for job in run["jobs"] if job["kind"] == kind] for run in runs]
            of = [jobs for jobs in of if jobs]
            each = [over([losses(jobs)[part] for jobs in of], 2) for part in ("mean", "p95", "worst")]
            jct, wait = (over([statistics.mean(job[of_what] for job in jobs) for jobs in of], 0) for of_what in ("jct_s", "wait_s"))
            rows.append([f"{name}, {kind}", str(sum(map(len, of))), jct, wait, *each])
    print_table(["by kind", "jobs", "JCT s", "wait s", "slowdown", "p95", "worst"], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--carma", action="append", required=True, help="the binary; several are set side by side")
    parser.add_argument("--policy", default="adaptive", help="one or several, with commas (adaptive)")
    parser.add_argument("--gpus", default="virtual:4xA100-40GB", help="(virtual:4xA100-40GB)")
    parser.add_argument("--speed", type=int, default=8, help="the daemon's time over life's (8)")
    parser.add_argument("--jobs", type=int, default=40, help="of a play (40)")
    parser.add_argument("--gap", type=float, default=1.0, help="mean seconds between two jobs, of the daemon's time (1)")
    parser.add_argument("--kinds", choices=[*sorted(KINDS), SEARCH], default="mixed", help="(mixed)")
    parser.add_argument("--seed", type=int, default=1, help="of the first repeat; each further one has the next (1)")
    parser.add_argument("--repeats", type=int, default=1, help="of each policy (1)")
    parser.add_argument("--config", type=Path, help="a configuration for the daemons; without it they have the defaults")
    parser.add_argument("--patience", type=int, default=900, help="a play that takes longer is given up, seconds of life (900)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where all figures go, with each job's")
    options = parser.parse_args()
    if not options.gpus.startswith("virtual:"):
        parser.error(f"--gpus {options.gpus}: only virtual GPUs (virtual:2xH200); the tasks use no others")
    for carma in options.carma:
        if not os.access(carma, os.X_OK):
            parser.error(f"--carma {carma}: there is no such program")
    if len({os.path.abspath(carma) for carma in options.carma}) < len(options.carma):
        parser.error("--carma: one program is named twice; name each version once, or more --repeats")
    if min(options.speed, options.jobs, options.repeats, options.patience) < 1 or options.gap <= 0:
        parser.error("--speed, --jobs, --repeats, --patience: 1 or more; --gap: more than 0")
    options.text = options.config.read_text() if options.config else ""
    policies = [policy.strip() for policy in options.policy.split(",")]
    about = {
        "machine": lib.machine(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "carma": {carma: lib.version_of(carma) for carma in options.carma},
        "gpus": options.gpus,
        "speed": options.speed,
        "kinds": options.kinds,
        "jobs": options.jobs,
        "gap_s": options.gap,
        "config": options.text,
    }
    # Whatever else the machine does meanwhile falls on all alike: they take turns.
    plays = []
    for seed in range(options.seed, options.seed + options.repeats):
        for carma in options.carma:
            for policy in policies:
                plays.append(play(options, carma, policy, seed))
                done = plays[-1]
                lib.say(
                    f"{short_names(options.carma)[carma]} {policy} seed {seed}: makespan {done['makespan_s']:.0f} s, "
                    f"slowdown {done['slowdown']['mean']:.2f}"
                )
                if options.json:
                    options.json.write_text(json.dumps({"version": 1, **about, "plays": plays}, indent=1) + "\n")
    report(plays, options)
    print(f"\n{options.gpus} (a model), {options.jobs} {options.kinds} jobs, a mean gap of {options.gap:g} s, ", end="")
    last = options.seed + options.repeats - 1
    seeds = f"seed {last}" if options.repeats == 1 else f"seeds {options.seed} to {last}"
    print(f"{seeds}, time x {options.speed}")
    print("several seeds: mean [least-greatest]; p95 and worst of the jobs of a play; kJ of all GPUs over the makespan")
    print(f"{about['machine']}; {about['date']}")
    for carma, version in about["carma"].items():
        print(f"{carma}: {version}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
