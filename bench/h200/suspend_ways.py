#!/usr/bin/env python3
"""Suspends and resumes programs of many kinds through `carma serve`, and says what becomes of each.

    python3 bench/h200/suspend_ways.py --carma target/release/carma --out results

The programs are those of ways_tasks.toml and more_ways_tasks.toml, without those that need nothing else of the driver than another
(`--only` picks some). Three are played at a time, time-sliced, beside a training that is left alone: each is suspended seconds after it has
memory, resumed five seconds later, and waited for. Whatever the driver can do, none may be lost: it completes, in the same attempt or
another, or fails by itself. Ends with 1 where one did not. `--control` plays the same programs without a suspension: one that ends in
neither is slow, not stuck. About eight minutes of one H200; `--virtual` rehearses. Writes suspend_ways.json.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor

from first_run import HERE, WINDOW, Carma, machine, wait_for

PROGRAMS = (
    "compiled,graphs,loaders,actors,native,threads,distributed,ipc,expandable,of_total,pool,trials,notebook,checkpoints,"
    "executes_anew,monitored,offload,triton,fraction,games,abrupt,cupy"
)
# Seconds.
AWAY = 5


def programs(only, work):
    """Name, command and declared memory of each, with `work` times the work that it has in a trace: it must outlast its suspension."""
    found = {}
    for file in ("ways_tasks.toml", "more_ways_tasks.toml"):
        with open(os.path.join(HERE, file), "rb") as text:
            for task in tomllib.load(text)["task"]:
                command = [word.replace("{steps}", str(round(work * task["steps"]))) for word in task["command"]]
                found[task["name"]] = (command, task["memory"], task["virtual"])
    return {name: found[name] for name in only.split(",")}


class Job:
    """One program, as a job."""

    def __init__(self, carma, command, memory, *more):
        self.carma = carma
        # The virtual task stands for any program in a rehearsal.
        words = ["submit", "--parsable", "--gpu-memory", memory, "--sharing", "time-slice", "--chdir", HERE, *more, "--", *command]
        self.id = int(self.order(*words))

    def order(self, *words):
        """Gives an order and returns what it printed; an error where it was refused."""
        answer = subprocess.run([self.carma.options.carma, "--socket", self.carma.socket, *words], capture_output=True, text=True)
        if answer.returncode:
            raise RuntimeError(f"carma {shlex.join(words)}: {answer.stderr.strip()}")
        return answer.stdout

    def show(self):
        return self.carma.show(self.id)["job"]

    def held_gib(self):
        """Its memory on the GPU, as the driver says."""
        tenants = [t for gpu in self.carma.json("gpus")["gpus"] for t in gpu["tenants"] if t["job"] == self.id]
        return sum(t["observed_mib"] or 0 for t in tenants) / 1024

    def becomes(self, wanted, refused):
        """Waits until it has a state, or until an order was not carried out; what came of it, and after how many seconds."""
        since = time.time()

        def done():
            job = self.show()
            if job["ended_ms"]:
                return f"ended: {job['state']}"
            if job["reason"]["code"] in refused or job["attempts"] > 1:
                return f"{job['reason']['code']}: {job['reason']['text']}"
            return "done" if job["state"] == wanted else None

        return wait_for(done, self.carma.options.patience, f"job {self.id} to be {wanted}"), time.time() - since

    def said(self):
        """What it has printed so far."""
        return self.carma.text("logs", str(self.id))

    def goes_on(self):
        """Seconds until it prints more than it has, or ends; none where it does neither."""
        since, before = time.time(), self.said()
        try:
            wait_for(lambda: self.said() != before or self.show()["ended_ms"], self.carma.options.patience, f"job {self.id} to go on")
        except RuntimeError:
            return None
        return time.time() - since


def threads(word):
    """State, kernel function and processor time of each thread of processes that have a word in their command line."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/cmdline", "rb") as file:
                if word.encode() not in file.read().split(b"\0"):
                    continue
            for thread in os.listdir(f"/proc/{process}/task"):
                at = f"/proc/{process}/task/{thread}"
                with open(f"{at}/stat") as stat, open(f"{at}/wchan") as wchan:
                    name, _, rest = stat.read().partition("(")[2].rpartition(")")
                    fields = rest.split()
                    found.append([int(process), int(thread), name, fields[0], int(fields[11]) + int(fields[12]), wchan.read()])
        except OSError:
            continue  # It ended meanwhile.
    return found


def play(carma, name, command, memory, virtual):
    """One program: suspended, resumed, and its end."""
    options = carma.options
    if options.virtual:
        command = [options.carma, "virtual-task", *(word.replace("{work_s}", "24") for word in virtual)]
    job = Job(carma, command, f"{max(8, 1.4 * float(memory[:-1])):.0f}G")
    row = {"name": name, "job": job.id}
    try:
        wait_for(lambda: job.held_gib() > 0.3 or job.show()["ended_ms"], options.patience, f"{name} to use the GPU")
        time.sleep(6)
        row["gib"] = job.held_gib()
        if options.control:
            row["suspend"] = "left alone"
        else:
            job.order("suspend", str(job.id))
            row["suspend"], row["out_s"] = job.becomes("SUSPENDED", ("NotSuspended", "Stuck", "NotResumed"))
        if row["suspend"] == "done":
            time.sleep(AWAY)
            row["left_gib"] = job.held_gib()
            job.order("resume", "--job", str(job.id))
            row["resume"], row["back_s"] = job.becomes("RUNNING", ("NotResumed", "Stuck"))
            row["on_s"] = job.goes_on()
    except RuntimeError as error:
        row["error"] = str(error)
    try:
        wait_for(lambda: job.show()["ended_ms"], options.patience, f"{name} to end")
    except RuntimeError as error:
        row["error"] = f"{row.get('error', '')} {error}".strip()
        row["threads"] = [threads(name)]
        time.sleep(2)
        row["threads"].append(threads(name))
        subprocess.run([options.carma, "--socket", carma.socket, "cancel", str(job.id)], capture_output=True, check=False)
    shown = job.show()
    row |= {"state": shown["state"], "attempts": shown["attempts"], "reason": shown["reason"]["text"]}
    row["said"] = job.said().strip()[-600:]
    # A line each, so that a call that is killed leaves what was over.
    print(json.dumps(row), flush=True)
    return row


def table(rows):
    print(f"\n{'PROGRAM':15}{'GIB':>6}{'OUT S':>7}{'LEFT':>6}{'BACK S':>8}{'ON S':>7}{'ATTEMPTS':>10}  {'STATE':11}WHAT CAME OF IT")
    for row in rows:
        cells = [f"{row[key]:.1f}" if row.get(key) is not None else "-" for key in ("gib", "out_s", "left_gib", "back_s", "on_s")]
        told = row.get("error") or next((row[key] for key in ("suspend", "resume") if row.get(key, "done") != "done"), "")
        if row["state"] != "COMPLETED":
            told = f"{told} {row['reason']}".strip()
        print(f"{row['name']:15}{cells[0]:>6}{cells[1]:>7}{cells[2]:>6}{cells[3]:>8}{cells[4]:>7}{row['attempts']:>10}  {row['state']:11}{told[:150]}")
    print("GIB: memory on the GPU when it was suspended; LEFT: seconds into the suspension; OUT, BACK: through the command line; ON: until it printed more")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--carma", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", default=PROGRAMS)
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--work", type=float, default=2, help="times the work that each has in a trace")
    parser.add_argument("--patience", type=float, default=150, metavar="SECONDS", help="for each step, start-up with others among them")
    parser.add_argument("--control", action="store_true", help="suspends none")
    parser.add_argument("--virtual", action="store_true")
    options = parser.parse_args()
    options.carma, options.virtual_gpus = os.path.abspath(options.carma), "virtual:1xH200"
    os.makedirs(options.out, exist_ok=True)
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    info = machine(options)
    # Nothing keeps a job from joining but memory.
    carma = Carma(options, "oracle-magm", "time-slice", WINDOW + "[gate]\nenabled = false\n")
    try:
        if options.virtual:
            steady = [options.carma, "virtual-task", "--memory=1G", "--sm=0.2", "--work=100000s"]
        else:
            steady = [sys.executable, "ways_tasks.py", "plain", "--steps", "100000000"]
        neighbour = Job(carma, steady, "8G")
        with ThreadPoolExecutor(options.at_once) as pool:
            rows = list(pool.map(lambda item: play(carma, item[0], *item[1]), programs(options.only, options.work).items()))
        beside = neighbour.show()
        subprocess.run([options.carma, "--socket", carma.socket, "cancel", str(neighbour.id)], capture_output=True, check=False)
        with open(carma.log.name) as log:
            said = log.read()
    finally:
        carma.stop()
    with open(os.path.join(options.out, "suspend_ways.json"), "w") as file:
        json.dump({"machine": info, "neighbour": beside["state"], "rows": rows, "daemon": said}, file, indent=1)
    table(rows)
    print(f"the neighbour is {beside['state']}, attempt {beside['attempts']}")
    kept = beside["state"] == "RUNNING" and beside["attempts"] == 1
    sys.exit(0 if kept and all(row["state"] == "COMPLETED" for row in rows) else 1)


if __name__ == "__main__":
    main()
