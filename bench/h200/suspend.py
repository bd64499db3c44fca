#!/usr/bin/env python3
"""Suspends, resumes and moves real trainings through `carma serve`, beside a training that runs on.

    python3 bench/h200/suspend.py --carma target/release/carma --out results

Compares the losses of a training that was suspended three times, and moved twice where there are two GPUs, with those of the same
training undisturbed, bit by bit; likewise of a job of three processes. Prints what each step took. Takes about five minutes of one
or two H200; `--virtual` rehearses on two virtual ones, without PyTorch. Writes suspend.json.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time

from first_run import HERE, WINDOW, Carma, machine, wait_for

LOSSES = os.path.join(HERE, "losses.py")
TOOK = re.compile(r"job (\d+) (is suspended|runs again): Took \{ lock_ms: (\d+), checkpoint_ms: (\d+), restore_ms: (\d+), unlock_ms: (\d+) \}")
PATIENCE_S = 120


def submitted(carma, name, command):
    """The number of the job that `carma submit --parsable ...` makes."""
    answer = subprocess.run([carma.options.carma, "--socket", carma.socket, *command], capture_output=True, text=True)
    if answer.returncode != 0:
        raise RuntimeError(f"carma submit {name}: {answer.stderr.strip()}")
    return int(answer.stdout)


class Training:
    """A job of losses.py, or a virtual task in its place."""

    def __init__(self, carma, name, steps, hold, processes=1, declared=40, more=(), across=1):
        self.carma, self.name, self.steps, self.processes = carma, name, steps, processes
        self.out = os.path.join(carma.dir, name)
        command = ["submit", "--parsable", "--name", name, "--sharing", "time-slice", "--gpu-memory", f"{declared}G", *more, "--"]
        if carma.options.virtual:
            work = steps / carma.options.steps * 60
            command += [carma.options.carma, "virtual-task", f"--memory={hold + 2}G", f"--sm={getattr(carma.options, 'sm', .3)}", f"--work={work}s", "--startup=1s"]
        else:
            command += [sys.executable, LOSSES, "--steps", str(steps), "--out", self.out]
            command += ["--hold", str(hold), "--processes", str(processes), "--across", str(across)]
        self.id = submitted(carma, name, command)

    def show(self):
        return self.carma.show(self.id)["job"]

    def done(self):
        """Steps that are done, of the process that is behind."""
        if self.carma.options.virtual:
            found = re.findall(r"^step (\d+)/(\d+)", self.carma.text("logs", str(self.id)), re.M)
            return int(found[-1][0]) / int(found[-1][1]) * self.steps if found else 0
        counts = []
        for number in range(self.processes):
            try:
                with open(f"{self.out}.{number}") as file:
                    counts.append(sum(1 for _ in file))
            except FileNotFoundError:
                counts.append(0)
        return min(counts)

    def reach(self, share):
        wait_for(lambda: self.done() >= self.steps * share or self.show()["ended_ms"], PATIENCE_S, f"{self.name} to get on")

    def memory_gib(self):
        tenants = [t for gpu in self.carma.json("gpus")["gpus"] for t in gpu["tenants"] if t["job"] == self.id]
        return sum(t["observed_mib"] or 0 for t in tenants) / 1024

    def state(self, wanted):
        def there():
            job = self.show()
            if job["reason"]["code"] in ("NotSuspended", "NotResumed", "Stuck") or job["ended_ms"]:
                raise RuntimeError(f"{self.name} is {job['state']}: {job['reason']['text']}")
            return job["state"] == wanted

        wait_for(there, PATIENCE_S, f"{self.name} to be {wanted}")

    def end(self):
        wait_for(lambda: self.show()["ended_ms"], PATIENCE_S, f"{self.name} to end")
        job = self.show()
        if job["state"] != "COMPLETED" or job["attempts"] != 1:
            raise RuntimeError(f"{self.name} {job['state']} after {job['attempts']} attempts: {job['reason']['text']}")

    def curves(self):
        """Each process's losses and what it ended with."""
        if self.carma.options.virtual:
            return [re.findall(r"^done", self.carma.text("logs", str(self.id)), re.M)] * self.processes
        curves = []
        for number in range(self.processes):
            with open(f"{self.out}.{number}") as file:
                curves.append(file.read().splitlines())
        return curves


def order(carma, *words):
    answer = subprocess.run([carma.options.carma, "--socket", carma.socket, *words], capture_output=True, text=True)
    if answer.returncode != 0:
        raise RuntimeError(f"carma {' '.join(words)}: {answer.stderr.strip()}")


def took(carma, job, what):
    """What the last errand of this kind took, seconds."""
    with open(carma.log.name) as file:
        found = [m for m in TOOK.findall(file.read()) if int(m[0]) == job and m[1] == what]
    lock, checkpoint, restore, unlock = (int(number) / 1000 for number in found[-1][2:])
    return {"lock_s": lock, "checkpoint_s": checkpoint, "restore_s": restore, "unlock_s": unlock}


def speed(training, seconds=2.0):
    before, since = training.done(), time.time()
    time.sleep(seconds)
    return (training.done() - before) / (time.time() - since)


def used_gib(carma):
    """Memory in use on all GPUs, as the driver says."""
    return sum(gpu["memory_used_mib"] or 0 for gpu in carma.json("gpus")["gpus"]) / 1024


def away_and_back(training, neighbour, label):
    """Suspends and resumes it; a row of the table."""
    carma = training.carma
    memory = training.memory_gib()
    beside = speed(neighbour)
    used = used_gib(carma)
    since = time.time()
    order(carma, "suspend", str(training.id))
    training.state("SUSPENDED")
    out = time.time() - since
    stood = training.done()
    alone = speed(neighbour)
    freed = used - used_gib(carma)
    if training.done() != stood:
        raise RuntimeError(f"{training.name} went on while it was suspended")
    since = time.time()
    order(carma, "resume", "--job", str(training.id))
    training.state("RUNNING")
    back = time.time() - since
    steps = {**took(carma, training.id, "is suspended"), **{k: v for k, v in took(carma, training.id, "runs again").items() if "re" in k or "un" in k}}
    return {"what": label, "gib": memory, "freed_gib": freed, "out_s": out, "back_s": back, **steps, "neighbour_beside": beside, "neighbour_alone": alone}


def moves(training, to):
    carma = training.carma
    memory = training.memory_gib()
    since = time.time()
    order(carma, "move", str(training.id), str(to))
    wait_for(lambda: training.show()["gpus"] == [to] and training.show()["state"] == "RUNNING", PATIENCE_S, "the move")
    whole = time.time() - since
    steps = {**took(carma, training.id, "is suspended"), **{k: v for k, v in took(carma, training.id, "runs again").items() if "re" in k or "un" in k}}
    # What the driver says, not what carma decided.
    wait_for(lambda: training.memory_gib() > 0, PATIENCE_S, "its memory to be seen there")
    return {"what": f"move to GPU {to}", "gib": memory, "out_s": whole, **steps}


def compare(name, curves, reference):
    """Whether curves are all of a reference, or its beginning but for the line at their end."""
    same = True
    for curve in curves:
        whole = len(curve) == len(reference)
        steps, expected = (curve, reference) if whole else (curve[:-1], reference[: len(curve) - 1])
        differ = [at for at, (a, b) in enumerate(zip(steps, expected)) if a != b]
        same &= not differ
        print(f"{name}: {len(steps)} lines, " + ("bit by bit the same" if not differ else f"DIFFERENT from line {differ[0]} on"))
    return same


def play(options, carma):
    numbers = [gpu["index"] for gpu in carma.json("gpus")["gpus"]]
    gpus = len(numbers)
    # All begin on the first GPU.
    for gpu in numbers[1:]:
        order(carma, "drain", str(gpu))
    undisturbed = Training(carma, "undisturbed", options.steps, 1)
    undisturbed.reach(0.02)
    neighbour = Training(carma, "neighbour", options.steps * 50, 0, declared=8)
    neighbour.reach(0.0001)
    undisturbed.end()
    reference = undisturbed.curves()[0]
    rows = []

    disturbed = Training(carma, "disturbed", options.steps, 1)
    disturbed.reach(0.05)
    for at in (0.1, 0.3, 0.5):
        disturbed.reach(at)
        rows.append(away_and_back(disturbed, neighbour, "suspend and resume"))
    if gpus > 1:
        order(carma, "resume", "--gpu", str(numbers[1]))
        for at, to in ((0.7, numbers[1]), (0.85, numbers[0])):
            disturbed.reach(at)
            rows.append(moves(disturbed, to))
        order(carma, "drain", str(numbers[1]))
    disturbed.end()

    several = Training(carma, "several", options.steps // 2, 1, processes=3)
    several.reach(0.2)
    rows.append(away_and_back(several, neighbour, "3 processes"))
    several.end()

    large = Training(carma, "large", options.steps // 2, 20, declared=60)
    large.reach(0.2)
    rows.append(away_and_back(large, neighbour, "suspend and resume"))
    large.end()

    if neighbour.show()["state"] != "RUNNING":
        raise RuntimeError("the neighbour did not run on")
    same = compare("suspended and moved", disturbed.curves(), reference)
    same &= compare("a job of 3 processes", several.curves(), reference)
    return {"gpus": gpus, "same": same, "rows": rows}


def table(result):
    print(f"{'':20}{'GiB':>7}{'lock':>7}{'ckpt':>7}{'restore':>8}{'unlock':>7}{'out':>7}{'back':>7}{'freed':>9}   neighbour steps/s")
    for row in result["rows"]:
        beside = f"{row['neighbour_beside']:8.1f} -> {row['neighbour_alone']:.1f}" if "neighbour_beside" in row else ""
        print(
            f"{row['what']:20}{row['gib']:7.1f}{row['lock_s']:7.2f}{row['checkpoint_s']:7.2f}{row['restore_s']:8.2f}"
            f"{row['unlock_s']:7.2f}{row['out_s']:7.2f}{row.get('back_s', 0):7.2f}{row.get('freed_gib', 0):9.1f}   {beside}"
        )
    print("GiB and seconds; out and back through the command line, the others in the driver")


def record(options, carma, play, name):
    """Plays, stops the daemon, and writes the result beside the machine's name."""
    try:
        result = {"machine": machine(options), **play(options, carma)}
    except Exception:
        print(carma.tail(), file=sys.stderr)
        raise
    finally:
        carma.stop()
    with open(os.path.join(options.out, name), "w") as file:
        json.dump(result, file, indent=1)
    print(json.dumps(result["machine"]))
    return result


def run(doc, play, table, name, gpus, policy, config=WINDOW, steps=4000, more=(), **of_virtual):
    """The command line of a measurement: plays it with a daemon, prints its table and writes NAME; exit code 1 where losses differ. `gpus`,
    `of_virtual`: where it is rehearsed."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--carma", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=steps)
    for option, default, meaning in more:
        parser.add_argument(option, type=int, default=default, help=meaning)
    parser.add_argument("--virtual", action="store_true")
    options = parser.parse_args()
    options.carma = os.path.abspath(options.carma)
    options.virtual_gpus = gpus
    vars(options).update(of_virtual)
    os.makedirs(options.out, exist_ok=True)
    carma = Carma(options, policy, "time-slice", config)
    result = record(options, carma, play, name)
    table(result)
    sys.exit(0 if result["same"] else 1)


if __name__ == "__main__":
    # Nothing keeps a job from joining but memory.
    config = '[sampling]\nwindow = "5s"\n[gate]\nenabled = false\n'
    run(__doc__, play, table, "suspend.json", "virtual:2xH200", "oracle-magm", config)
