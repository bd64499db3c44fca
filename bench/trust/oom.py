#!/usr/bin/env python3
"""A thousand out-of-memory deaths of known cause, half of them beside neighbours: is the right one blamed?

    python3 bench/trust/oom.py --carma target/release/carma --out oom.json

Starts daemons of its own on virtual GPUs (first at speed 1, then at 60), lets jobs and processes that are not
carma's (`carma virtual-task`, which carma did not start) take memory, and compares carma's verdict on the first
attempt of each job that died with what really happened. Needs nothing but Python 3 and the binary.

What "known cause" means. A virtual GPU refuses an allocation by two rules (crates/virtual-gpu/src/physics.rs):
an MPS client that would exceed its cap is refused, and then told the cap as the total; otherwise whoever asks for
more than the GPU has left is refused, and told the GPU's memory and who else holds how much of it. The task prints
these numbers when it dies. Here they go to a file that carma never sees, and from there the cause follows:

    own cap       the total told is the job's cap
    own forecast  the total is the GPU's, and what the task held plus what it wanted exceeds what was declared for it
    no forecast   nothing was declared
    neighbour     it wanted no more than was declared, others had filled the GPU, and the largest of them was a job
    foreign       the same, and the largest of them was a process that carma did not start

So the cause is read off each death, not assumed from the set-up: a neighbour that itself ran out of memory counts
as what it is. The job's log, which carma does read, holds the same message every other time (PyTorch); of the rest,
one half has a message that ends with what was wanted (JAX), the other only "CUDA error: out of memory" (CUDA, cuDNN).

A verdict is right when it says culprit (own cap, own forecast), victim (neighbour, foreign; and if it names
somebody, that one must have been among those who held memory there, and must have exceeded what it promised, if
it is a job), or that there is no forecast to judge by or that the job was alone and does not fit (no forecast).
"Unknown" is carma's own word. Everything else is wrong. Blamed wrongly is a victim that is called culprit, and
whoever is named or implied as having filled a GPU when the job's own doing was the cause.
Targets: none blamed wrongly, unknown at most 5 %. Exit code 1 when one is missed.

The seed decides all sizes, times and words; what the machine's load does to the order of events it does not.
"""

import argparse
import collections
import datetime
import http.client
import json
import os
import platform
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

CAPACITY = 40960  # MiB, of the virtual A100-40GB
GPUS = "virtual:{}xA100-40GB"
CAUSES = ["own cap", "own forecast", "no forecast", "neighbour", "foreign"]
PATIENCE = 60.0


class Api(http.client.HTTPConnection):
    """HTTP over the daemon's Unix socket."""

    def __init__(self, path):
        super().__init__("carma", timeout=30)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body)
        for last in (False, True):
            try:
                self.request(method, path, data, {"content-type": "application/json"})
                answer = self.getresponse()
                text = answer.read()
                break
            except (http.client.HTTPException, OSError):
                self.close()
                if last:
                    raise
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {text.decode(errors='replace')}")
        return json.loads(text)


class Daemon:
    """A daemon in a directory of its own."""

    def __init__(self, carma, gpus, speed, policy, keep):
        self.carma, self.speed, self.keep = carma, speed, keep
        self.dir = tempfile.mkdtemp(prefix="carma-oom-")
        self.socket = os.path.join(self.dir, "s")
        config = os.path.join(self.dir, "carma.toml")
        with open(config, "w") as file:
            # What is tested is the blame, not the placement: without forecasts a GPU is shared once its first job has
            # settled, which is to take a second in life.
            window = f'window = "{speed}s"\n' if policy == "or-rr" else ""
            file.write(f'[sampling]\n{window}startup-patience = "{speed}s"\n[queue]\nmost-jobs = 0\n')
        self.log = open(os.path.join(self.dir, "daemon.log"), "w")
        self.child = subprocess.Popen(
            [carma, "--socket", self.socket, "serve", "--gpus", GPUS.format(gpus), "--policy", policy,
             "--sharing", "time-slice", "--speed", str(speed), "--state", os.path.join(self.dir, "state"),
             "--config", config],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        self.api = Api(self.socket)
        status = wait(f"the daemon to answer; see {self.log.name}", self.answers)
        self.virtual = os.path.join(status["runtime_dir"], "virtual-gpus.sock")

    def answers(self):
        if self.child.poll() is not None:
            raise RuntimeError(f"the daemon ended with {self.child.returncode}; see {self.log.name}")
        try:
            return self.api.call("GET", "/v1/status")
        except (OSError, http.client.HTTPException):
            self.api.close()
            return None

    def held(self):
        """Memory of each job by the last look, MiB."""
        gpus = self.api.call("GET", "/v1/gpus")["gpus"]
        return {t["job"]: t["observed_mib"] or 0 for gpu in gpus for t in gpu["tenants"]}

    def end(self):
        self.child.terminate()
        try:
            self.child.wait(20)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self.log.close()
        if not self.keep:
            shutil.rmtree(self.dir, ignore_errors=True)


def wait(what, check, patience=PATIENCE, pause=0.03):
    started = time.monotonic()
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() - started > patience:
            raise RuntimeError(f"waited in vain for {what}")
        time.sleep(pause)


def seconds(value):
    """As carma reads a time; 0 it reads as no time."""
    return f"{max(1, round(value * 1000))}ms"


class Wave:
    """One trial on each GPU at once, all of one kind."""

    def __init__(self, daemon, rng, gpus, counter):
        self.daemon, self.rng, self.gpus, self.counter = daemon, rng, gpus, counter
        self.jobs, self.strangers = {}, {}

    def submit(self, args, declared, sharing):
        """Submits a task; its own words go to a file beside, and perhaps to its log."""
        self.counter[0] += 1
        told = os.path.join(self.daemon.dir, f"told-{self.counter[0]}")
        words = self.rng.choice(["numbers", "numbers", "wanted", "nothing"])
        says = {
            "numbers": "cat $f >&2",
            "wanted": r"sed 's/\(Tried to allocate [0-9.]* [A-Za-z]*\).*/\1./' $f >&2",
            "nothing": "echo 'RuntimeError: CUDA error: out of memory' >&2",
        }
        task = " ".join([self.daemon.carma, "virtual-task", "--sm", "0.02", *args])
        # The first attempt counts; a later one writes elsewhere.
        line = f"f={told}; [ -e $f ] && f=$f.$$; {task} 2> $f; code=$?; [ $code = 0 ] || {says[words]}; exit $code"
        request = {"command": ["/bin/sh", "-c", line], "cwd": "/", "max_retries": 0,
                   "env": {"PATH": "/usr/local/bin:/usr/bin:/bin"}, "sharing": sharing}
        if declared is not None:
            request["gpu_memory_mib"] = declared
        job = self.daemon.api.call("POST", "/v1/jobs", request)["id"]
        self.jobs[job] = {"job": job, "told": told, "declared": declared, "sharing": sharing, "words": words,
                          "args": args}
        return job

    def stranger(self, gpu, args):
        """Starts a task that carma does not know."""
        env = {"PATH": "/usr/bin:/bin", "CARMA_VIRTUAL_GPUS": self.daemon.virtual, "CUDA_VISIBLE_DEVICES": str(gpu),
               "CARMA_VIRTUAL_SPEED": str(self.daemon.speed)}
        child = subprocess.Popen([self.daemon.carma, "virtual-task", "--sm", "0.02", *args], env=env, cwd="/",
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.daemon.log)
        self.strangers[child.pid] = child

    def sees_strangers(self):
        """Whether a process that is not carma's is seen on each GPU; one that ended cannot be."""
        for pid, child in self.strangers.items():
            if child.poll() is not None:
                raise RuntimeError(f"process {pid}, not of carma's, ended with {child.returncode} before it was seen; "
                                   f"see {self.daemon.log.name}")
        gpus = self.daemon.api.call("GET", "/v1/gpus")["gpus"]
        return all(gpu["foreign"] for gpu in gpus)

    def hold(self, jobs, mib):
        """Waits until jobs hold this much, or are dead."""
        def done():
            held = self.daemon.held()
            return all(held.get(job, 0) >= mib or self.death(job) for job in jobs)
        wait(f"jobs {jobs} to hold {mib} MiB", done)

    def death(self, job):
        try:
            with open(self.jobs[job]["told"]) as file:
                return "out of memory" in file.read()
        except OSError:
            return False

    def span(self, real):
        """A time of the task's for so many seconds in life."""
        return seconds(real * self.daemon.speed)

    def startup(self):
        """From at once to several looks."""
        return self.span(self.rng.choice([0.0, 0.005, 0.05, 0.3, 1.0]) * self.rng.random())

    def memory(self, low, high):
        return f"{self.rng.randint(low, high)}M"

    def neighbours(self, kind):
        """Those who are there before: jobs that keep their promise, or strangers."""
        kept = []
        if kind.endswith("beside"):
            for gpu in range(self.gpus):
                low = self.rng.randint(2000, 15000)
                args = ["--memory", f"{low}M", "--startup", "0s", "--work", "100000s"]
                if self.rng.random() < 0.5:
                    # It grows and stays within what it promised.
                    args += ["--grow-to", f"{self.rng.randint(low, 16000)}M", "--grow-after",
                             self.span(self.rng.uniform(0.5, 3.0))]
                kept.append(self.submit(args, None if kind.startswith("none") else 16384, "time-slice"))
        elif kind.endswith("strangers"):
            for gpu in range(self.gpus):
                self.stranger(gpu, ["--memory", self.memory(2000, 12000), "--startup", "0s", "--work", "100000s"])
            wait("strangers to be seen", self.sees_strangers)
        self.hold(kept, 1)

    def run(self, kind):
        """Lets them die. Returns what is known of each death."""
        try:
            return self.play(kind)
        finally:
            self.end()

    def play(self, kind):
        rng = self.rng
        work = ["--work", "100000s"]
        self.neighbours(kind)
        subjects = []
        for _ in range(self.gpus):
            if kind.startswith("cap"):
                args = ["--memory", self.memory(4800, 14000), "--startup", self.startup(), *work]
                if rng.random() < 0.4:
                    # It fits at first and grows later.
                    args = ["--memory", self.memory(1000, 4000), "--startup", self.startup(), "--grow-to",
                            self.memory(4200, 14000), "--grow-after", self.span(rng.uniform(0.0, 1.5)), *work]
                subjects.append(self.submit(args, 4096, "mps"))
            elif kind.startswith("forecast"):
                args = ["--memory", self.memory(41000, 90000), "--startup", self.startup(), *work]
                if rng.random() < 0.4:
                    args = ["--memory", self.memory(1000, 4000), "--startup", self.startup(), "--grow-to",
                            self.memory(41000, 90000), "--grow-after", self.span(rng.uniform(0.0, 1.5)), *work]
                subjects.append(self.submit(args, 4096, "time-slice"))
            elif kind.startswith("none"):
                args = ["--memory", self.memory(41000, 90000), "--startup", self.startup(), *work]
                subjects.append(self.submit(args, None, "time-slice"))
            elif kind == "greedy":
                # A neighbour that is to take 20 GiB fills what the other leaves, before it grows or after.
                left = rng.randint(0, 1200)
                args = ["--memory", self.memory(8000, 19000), "--startup", "0s", "--grow-to",
                        f"{CAPACITY - 5000 - left}M", "--grow-after", self.span(rng.uniform(2.0, 3.5)), *work]
                self.submit(args, 20480, "time-slice")
            else:
                subjects.append(self.patient())
        if kind == "greedy":
            self.hold(list(self.jobs), 1)
            for _ in range(self.gpus):
                subjects.append(self.patient())
        if kind == "filled":
            self.hold(subjects, 450)
            for gpu in range(self.gpus):
                left = rng.randint(0, 1200)
                self.stranger(gpu, ["--memory", f"{CAPACITY - 5000 - left}M", "--startup",
                                    self.span(rng.uniform(0.0, 0.5)), *work])
        return self.collect()

    def patient(self):
        """A job that grows within what was declared for it, when others may have filled the GPU."""
        args = ["--memory", "5000M", "--startup", self.startup(), "--grow-to", self.memory(6300, 10200),
                "--grow-after", self.span(self.rng.uniform(2.5, 5.0)), "--work", "100000s"]
        return self.submit(args, 10240, self.rng.choice(["time-slice", "mps"]))

    def collect(self):
        """Waits for the deaths and the verdicts, then ends everybody."""
        started = time.monotonic()
        deaths, last = {}, started
        # Whoever is to die does so within some seconds, as the growths above say.
        while time.monotonic() - started < PATIENCE:
            for job in self.jobs:
                if job not in deaths and self.death(job):
                    deaths[job] = last = time.monotonic()
            quiet = time.monotonic() - last > (7.0 if len(deaths) < self.gpus else 0.7)
            if quiet or len(deaths) == len(self.jobs):
                break
            time.sleep(0.05)
        found = []
        for job in deaths:
            detail = wait(f"the verdict on job {job}", lambda job=job: self.verdict(job))
            found.append(self.judge(job, detail))
        return [death for death in found if death]

    def verdict(self, job):
        detail = self.daemon.api.call("GET", f"/v1/jobs/{job}")
        first = detail["attempts"][0] if detail["attempts"] else {}
        return detail if first.get("verdict") else None

    def judge(self, job, detail):
        """A death: its cause by the numbers that the virtual GPU told, and carma's verdict."""
        facts = self.jobs[job]
        first = detail["attempts"][0]
        with open(facts["told"]) as file:
            text = file.read()
        number = r"([0-9.]+) (bytes|MiB|GiB)"
        said = re.search(rf"Tried to allocate {number}\. GPU \d+ has a total capacity of {number} of which {number} is "
                         rf"free\..*this process has {number} memory in use", text)
        if not said:
            raise RuntimeError(f"job {job} says nothing of memory: {text}")
        scale = {"bytes": 1 / 2**20, "MiB": 1, "GiB": 1024}
        sizes = [float(said[i]) * scale[said[i + 1]] for i in (1, 3, 5, 7)]
        wanted, total, free, held = sizes
        others = {int(pid): float(n) * scale[unit] for pid, n, unit in
                  re.findall(rf"Process (\d+) has {number} memory in use", text)}
        declared, cap = facts["declared"], first.get("cap_mib")
        strangers = {pid: mib for pid, mib in others.items() if pid in self.strangers}
        # Hundredths of a GiB are printed.
        if cap is not None and abs(total - cap) <= 16:
            cause = "own cap"
        elif declared is None:
            cause = "no forecast"
        elif abs(held + wanted - declared) <= 16:
            return None
        elif held + wanted > declared:
            cause = "own forecast"
        else:
            largest = max(others, key=others.get, default=None)
            cause = "foreign" if largest in strangers else "neighbour"
        verdict = first["verdict"]["text"]
        row = {**facts, "speed": self.daemon.speed, "cause": cause, "verdict": verdict, "beside": bool(others),
               "wanted_mib": wanted, "total_mib": total, "free_mib": free, "held_mib": held, "others_mib": others,
               "cap_mib": cap}
        row["result"], row["blamed_wrongly"] = self.compare(cause, verdict, first["gpus"], strangers)
        row.pop("told")
        return row

    def compare(self, cause, verdict, gpus, strangers):
        """Right, wrong or unknown; and whether somebody is blamed who must not be."""
        victim, culprit = ": victim, " in verdict, ": culprit, " in verdict
        if ": unknown, " in verdict:
            return "unknown", False
        if cause in ("own cap", "own forecast"):
            return ("right", False) if culprit else ("wrong", victim)
        if cause == "no forecast":
            return ("right", False) if culprit or "no forecast to judge by" in verdict else ("wrong", victim)
        if not victim:
            return "wrong", True
        pid = re.search(r"victim, pid (\d+)", verdict)
        if pid and int(pid[1]) not in strangers:
            return "wrong", True
        job = re.search(r"victim, job (\d+) took more", verdict)
        if job:
            named = self.jobs.get(int(job[1]))
            grows = named and "--grow-to" in named["args"] and named["declared"] is not None
            to = int(named["args"][named["args"].index("--grow-to") + 1][:-1]) if grows else 0
            if not grows or to <= named["declared"]:
                return "wrong", True
        return "right", False

    def end(self):
        for child in self.strangers.values():
            child.kill()
        for child in self.strangers.values():
            child.wait()
        # A second attempt may just be starting: until nobody is left.
        def over():
            live = self.daemon.api.call("GET", "/v1/jobs")["jobs"]
            for job in live:
                try:
                    self.daemon.api.call("POST", f"/v1/jobs/{job['id']}/cancel", {})
                except RuntimeError:
                    pass
            return not live
        wait("the wave to end", over, pause=0.2)


# Kinds, with the policy that lets them share and their share of the deaths.
KINDS = [
    ("cap alone", "oracle-magm", 0.16), ("cap beside", "oracle-magm", 0.13), ("cap strangers", "oracle-magm", 0.07),
    ("forecast alone", "oracle-magm", 0.16), ("forecast beside", "oracle-magm", 0.08),
    ("none alone", "or-rr", 0.13), ("none beside", "or-rr", 0.05),
    ("greedy", "oracle-magm", 0.14), ("filled", "oracle-magm", 0.08),
]


def campaign(options, speed, count, rows):
    rng = random.Random(f"{options.seed}/{speed}")
    counter = [0]
    for policy in ("oracle-magm", "or-rr"):
        daemon = Daemon(options.carma, options.gpus, speed, policy, options.keep)
        try:
            for kind, of, share in KINDS:
                if of != policy:
                    continue
                want = round(count * share)
                waves = 0
                while want > 0:
                    wave = Wave(daemon, rng, options.gpus, counter)
                    found = wave.run(kind)[:want]
                    for row in found:
                        row["kind"] = kind
                        # One that its cap refused is not told of others.
                        row["beside"] |= kind.endswith(("beside", "strangers"))
                    rows += found
                    want -= len(found)
                    waves += 1
                    print(f"speed {speed}, {kind}: {len(found)} deaths, {want} to go", file=sys.stderr, flush=True)
                    if not found and waves > 3:
                        raise RuntimeError(f"{kind}: nobody dies as planned; see {daemon.dir}")
        finally:
            daemon.end()


def table(rows):
    lines = [f"{'cause':<14} {'deaths':>7} {'beside':>7} {'right':>7} {'wrong':>7} {'unknown':>8}"]
    def line(name, of):
        count = collections.Counter(row["result"] for row in of)
        beside = sum(row["beside"] for row in of)
        lines.append(f"{name:<14} {len(of):>7} {beside:>7} {count['right']:>7} {count['wrong']:>7} "
                     f"{count['unknown']:>8}")
    for cause in CAUSES:
        line(cause, [row for row in rows if row["cause"] == cause])
    line("all", rows)
    for speed in sorted({row["speed"] for row in rows}):
        line(f"at speed {speed}", [row for row in rows if row["speed"] == speed])
    for words in ("numbers", "wanted", "nothing"):
        line(f"says {words}", [row for row in rows if row["words"] == words])
    return "\n".join(lines)


def machine():
    model = "unknown processor"
    try:
        with open("/proc/cpuinfo") as file:
            model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), model)
    except OSError:
        pass
    return f"{os.cpu_count()} cores of {model}, Linux {platform.release()}, load {os.getloadavg()[0]:.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--carma", required=True, help="the binary")
    parser.add_argument("--deaths", type=int, default=1000, help="how many, half at each speed [1000]")
    parser.add_argument("--gpus", type=int, default=16, help="virtual GPUs, each with one trial at a time [16]")
    parser.add_argument("--speeds", default="1,60", help="of the daemons' clocks [1,60]")
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--out", help="where the raw results go, as JSON")
    parser.add_argument("--keep", action="store_true", help="keep the daemons' directories")
    options = parser.parse_args()
    options.carma = os.path.abspath(options.carma)
    speeds = [int(speed) for speed in options.speeds.split(",")]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    version = subprocess.run([options.carma, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    before, started, rows = machine(), time.monotonic(), []
    for speed in speeds:
        campaign(options, speed, options.deaths // len(speeds), rows)
    wrongly = [row for row in rows if row["blamed_wrongly"]]
    unknown = sum(row["result"] == "unknown" for row in rows)
    share = 100 * unknown / max(len(rows), 1)
    wrong = sum(row["result"] == "wrong" for row in rows)
    took = time.monotonic() - started
    print(f"{version}, {date}, seed {options.seed}, virtual GPUs; {before}; {took:.0f} s\n")
    print(table(rows))
    print(f"\nblamed wrongly: {len(wrongly)} (must be 0)\nunknown: {share:.1f} % (must be at most 5)\nother wrong verdicts: "
          f"{wrong - len(wrongly)}")
    for row in [row for row in rows if row["result"] == "wrong"][:10]:
        print(f"  job {row['job']} at speed {row['speed']}, {row['cause']}: {row['verdict']}")
    if options.out:
        report = {"version": 1, "carma": version, "date": date, "seed": options.seed, "machine": before,
                  "took_s": round(took, 1), "gpus": options.gpus, "blamed_wrongly": len(wrongly),
                  "unknown_pct": round(share, 2), "deaths": rows}
        with open(options.out, "w") as file:
            json.dump(report, file, indent=1)
    sys.exit(1 if wrongly or share > 5 or len(rows) < options.deaths * 0.95 else 0)


if __name__ == "__main__":
    main()
