#!/usr/bin/env python3
"""Real PyTorch tasks sharing a real GPU through `carma serve`.

    python3 bench/h200/first_run.py --carma target/release/carma --out results [--part modes|faults]

Everything is asked of carma's command line; nothing else touches the GPU. `--virtual` rehearses the
same on a virtual GPU, without PyTorch. Results: one JSON file a part, which report.py turns into tables.
Give each part a run of its own where time is bounded: `faults` takes about 4 minutes, `modes` about 5.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TRAIN = os.path.join(HERE, "train.py")

# name, model, steps, memory declared (GiB), for --virtual: memory taken, SM, DRAM, seconds of work
CIFAR = ("cifar", "cifar", 1200, 4, 2.0, 0.23, 0.05, 12)
RESNET = ("resnet152", "resnet152", 220, 12, 8.5, 0.57, 0.23, 11)
GPT = ("gpt2", "gpt2", 140, 24, 12.0, 0.60, 0.30, 12)
MIX = [CIFAR, RESNET, CIFAR, GPT, CIFAR, RESNET, CIFAR, GPT]

# With a short window, so that the start-up gate does not eat the machine's time.
WINDOW = '[sampling]\nwindow = "5s"\n'
# The published policies set no hard limits by themselves.
CAPS = WINDOW + "[mps]\ncaps = true\n"


class Carma:
    """A daemon of our own, and its command line. `state`: what an earlier one kept (`stop`), and this one begins with."""

    def __init__(self, options, policy, sharing, config=WINDOW, state=None):
        self.options = options
        self.dir = tempfile.mkdtemp(prefix="carma-")
        self.socket = os.path.join(self.dir, "s")
        text, config = config, os.path.join(self.dir, "carma.toml")
        with open(config, "w") as file:
            file.write(text)
        if state:
            shutil.copytree(state, os.path.join(self.dir, "state"))
        gpus = virtual_gpus(options) if options.virtual else "nvml"
        self.log = open(os.path.join(self.dir, "daemon.log"), "w")
        command = [options.carma, "--socket", self.socket, "serve", "--gpus", gpus, "--config", config]
        command += ["--state", os.path.join(self.dir, "state"), "--policy", policy, "--sharing", sharing]
        # In a session of its own, and SIGTERM like Ctrl-C: what ends the script must not end the daemon before `stop` has cancelled its jobs.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        self.process = subprocess.Popen(command, stderr=self.log, stdout=self.log, start_new_session=True)
        try:
            wait_for(self.answers, 60, "the daemon")
            wait_for(self.reads, 30, "the first reading")
        except BaseException as error:
            tail = self.tail()
            self.stop()
            if isinstance(error, RuntimeError):
                raise RuntimeError(f"{error}; the daemon's log ends with:\n{tail}") from None
            raise

    def answers(self):
        """What it says of its GPUs, or None while it says nothing."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the daemon ended with exit code {self.process.returncode}")
        return self.try_json("gpus") if os.path.exists(self.socket) else None

    def reads(self):
        """Whether its first GPU was read."""
        answer = self.answers()
        return answer is not None and answer["gpus"][0]["status"] == "ok"

    def text(self, *args):
        return subprocess.run(
            [self.options.carma, "--socket", self.socket, *args], capture_output=True, text=True
        ).stdout

    def try_json(self, *args):
        try:
            return json.loads(self.text(*args, "--json"))
        except ValueError:
            return None

    def json(self, *args):
        answer = self.try_json(*args)
        if answer is None:
            raise RuntimeError(f"carma {' '.join(args)} gave no JSON; daemon: {self.tail()}")
        return answer

    def runtime_dir(self):
        """Where the daemon's jobs find their sockets; no verb says it."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self.socket)
            connection.sendall(b"GET /v1/status HTTP/1.1\r\nHost: carma\r\nConnection: close\r\n\r\n")
            answer = connection.makefile("rb").read()
        return json.loads(answer.split(b"\r\n\r\n", 1)[1])["runtime_dir"]

    def tail(self):
        with open(self.log.name) as file:
            return file.read()[-1500:]

    def submit(self, task, *extra, steps=None, gib=None, batch=None, mark=True):
        """Submits a task and returns (id, file of its marks). Without memory declared where that is None.

        Without marks, tasks of a kind have the same command, which is what carma knows them by."""
        name, model, default_steps, declared, taken, sm, dram, work = task
        marks = os.path.join(self.dir, f"marks-{time.time_ns()}")
        declared = declared if gib is None else gib
        command = ["submit", "--parsable", "--name", name]
        command += [] if declared is None else ["--gpu-memory", f"{declared}G"]
        command += ["--"]
        steps = steps or default_steps
        if self.options.virtual:
            work = work * steps / default_steps
            taken = taken * (batch or 32) / 32
            command += [self.options.carma, "virtual-task", f"--memory={taken}G", f"--sm={sm}"]
            command += [f"--dram={dram}", f"--work={work}s", "--startup=3s"]
            command += [f"--fault-after={extra[1]}s"] if "--fault-after" in extra else []
        else:
            command += [sys.executable, TRAIN, "--model", model, "--steps", str(steps)]
            command += ["--marks", marks] if mark else []
            command += ["--batch", str(batch)] if batch else []
            command += extra
        answer = subprocess.run(
            [self.options.carma, "--socket", self.socket, *command], capture_output=True, text=True
        )
        if answer.returncode != 0:
            raise RuntimeError(f"carma submit {name}: {answer.stderr.strip()}")
        return int(answer.stdout), marks

    def show(self, job):
        return self.json("show", str(job))

    def over(self, jobs, seconds, what):
        wait_for(lambda: all(self.show(j)["job"]["ended_ms"] for j in jobs), seconds, what)

    def running(self, job, seconds=60):
        wait_for(lambda: self.show(job)["job"]["state"] == "RUNNING", seconds, f"job {job} to run")

    def stop(self, keep=None):
        """Ends it with its jobs. `keep`: a directory that is to have its state and its log."""
        if self.process.poll() is None:
            for row in (self.try_json("queue") or {"jobs": []})["jobs"]:
                self.text("cancel", str(row["id"]))
            try:
                wait_for(lambda: not self.json("queue")["jobs"], 20, "the jobs to end")
            except RuntimeError as error:
                print(error)
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if keep:
            try:
                shutil.copytree(os.path.join(self.dir, "state"), keep, ignore=passing, dirs_exist_ok=True)
                shutil.copy(self.log.name, keep)
            except OSError as error:
                print(error)
        shutil.rmtree(self.dir, ignore_errors=True)


def passing(at, names):
    """What of a daemon's state the next one makes anew: what it reserves on the disk, what is there while it runs, sockets and pipes."""
    modes = {name: os.lstat(os.path.join(at, name)).st_mode for name in names}
    return [name for name, mode in modes.items() if name in ("reserve", "run") or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))]


def virtual_gpus(options):
    return getattr(options, "virtual_gpus", "virtual:1xH200")


def wait_for(check, seconds, what):
    until = time.time() + seconds
    while True:
        value = check()
        if value:
            return value
        if time.time() > until:
            raise RuntimeError(f"waited {seconds} s in vain for {what}")
        time.sleep(0.2)


def read_marks(path):
    try:
        with open(path) as file:
            return [(float(t), int(s)) for t, s in (line.split() for line in file)]
    except FileNotFoundError:
        return []


def rate(marks, start, end):
    """Steps a second between two times, or None where nothing was recorded."""
    inside = [m for m in marks if start <= m[0] <= end]
    if len(inside) < 2 or inside[-1][0] <= inside[0][0]:
        return None
    return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])


class Sampler(threading.Thread):
    """Asks `carma gpus` twice a second."""

    def __init__(self, carma):
        super().__init__(daemon=True)
        self.carma, self.rows, self.ended = carma, [], threading.Event()
        self.start()

    def run(self):
        while not self.ended.is_set():
            answer = self.carma.try_json("gpus")
            if answer:
                gpu = answer["gpus"][0]
                keys = ["smact", "smocc", "drama", "gpu_util", "power_w", "energy_j", "memory_used_mib"]
                self.rows.append({"t": time.time(), **{k: gpu[k] for k in keys}})
            self.ended.wait(0.5)

    def finish(self):
        self.ended.set()
        self.join()
        return self.rows


def mean(values):
    values = [v for v in values if v is not None]
    return sum(values) / len(values) if values else None


def play_mix(options, policy, sharing):
    """The same eight tasks under one policy and mode."""
    carma = Carma(options, policy, sharing, CAPS if sharing == "mps" else WINDOW)
    try:
        sampler = Sampler(carma)
        started = time.time()
        jobs = [carma.submit(task) for task in MIX]
        carma.over([j for j, _ in jobs], 400, "the mix to end")
        rows = sampler.finish()
        details = [carma.show(j) for j, _ in jobs]
        ended = max(d["job"]["ended_ms"] for d in details) / 1000
        first = min(d["job"]["submitted_ms"] for d in details) / 1000
        attempts = [a for d in details for a in d["attempts"]]
        waits = [(d["attempts"][0]["started_ms"] - d["job"]["submitted_ms"]) / 1000 for d in details]
        rates = [rate(read_marks(marks), 0, 1e12) for _, marks in jobs]
        inside = [r for r in rows if r["t"] <= ended + 1]
        return {
            "policy": policy,
            "sharing": sharing,
            "makespan_s": ended - first,
            "mean_wait_s": mean(waits),
            "mean_run_s": mean(
                [(d["job"]["ended_ms"] - d["job"]["started_ms"]) / 1000 for d in details]
            ),
            "completed": sum(d["job"]["state"] == "COMPLETED" for d in details),
            "out_of_memory": sum(
                a["verdict"] is not None and a["verdict"]["code"].startswith("OutOfMemory") for a in attempts
            ),
            "energy_j": inside[-1]["energy_j"] - inside[0]["energy_j"],
            "rates": [[t[0], r] for t, r in zip(MIX, rates)],
            "smact": mean([r["smact"] for r in inside]),
            "smocc": mean([r["smocc"] for r in inside]),
            "drama": mean([r["drama"] for r in inside]),
            "gpu_util": mean([r["gpu_util"] for r in inside]),
            "power_w": mean([r["power_w"] for r in inside]),
            "peak_mib": [[d["job"]["name"], d["job"]["memory_peak_mib"]] for d in details],
            "how": sorted({a["sharing"] for a in attempts}),
            "states": [[d["job"]["name"], d["job"]["state"], d["job"]["reason"]["text"]] for d in details],
            "started_unix_s": started,
        }
    finally:
        carma.stop()


def part_modes(options):
    runs = []
    for policy, sharing in options.modes:
        for _ in range(options.repeats if policy != "exclusive" else 1):
            runs.append(guarded(play_mix, options, policy, sharing))
            print(json.dumps({k: v for k, v in runs[-1].items() if not isinstance(v, list)}), flush=True)
    return runs


def story(detail):
    """What became of a job, attempt by attempt."""
    return {
        "name": detail["job"]["name"],
        "state": detail["job"]["state"],
        "reason": detail["job"]["reason"]["text"],
        "attempts": [
            {
                "sharing": a["sharing"],
                "cap_mib": a["cap_mib"],
                "started_ms": a["started_ms"],
                "ended_ms": a["ended_ms"],
                "exit_code": a["exit_code"],
                "peak_mib": a["memory_peak_mib"],
                "placed": a["placed"]["text"],
                "verdict": a["verdict"] and a["verdict"]["text"],
                "code": a["verdict"] and a["verdict"]["code"],
            }
            for a in detail["attempts"]
        ],
    }


def neighbours(carma, count):
    jobs = [carma.submit(CIFAR, steps=20000) for _ in range(count)]
    for job, marks in jobs:
        carma.running(job)
        if not carma.options.virtual:
            wait_for(lambda marks=marks: len(read_marks(marks)) >= 3, 90, "a neighbour's first steps")
    time.sleep(8)
    return jobs


def around(jobs, start, end, span=7.0):
    """Neighbours' rates before, between and after two times."""
    table = []
    for _, path in jobs:
        marks = read_marks(path)
        table.append([rate(marks, start - span, start), rate(marks, start, end), rate(marks, end + 1, end + 1 + span)])
    return table


def out_of_memory(options):
    """A job that needs seven times what its owner said, beside two healthy neighbours."""
    # CARMA's own recovery waits for an idle GPU, which this one is not until its neighbours are done.
    carma = Carma(options, "oracle-magm", "mps", CAPS + '[recovery]\nmethod = "graded"\n')
    try:
        healthy = neighbours(carma, 2)
        hungry, _ = carma.submit(RESNET, gib=4, steps=60, batch=128)
        wait_for(lambda: len(carma.show(hungry)["attempts"]) > 1, 120, "the out-of-memory")
        first = carma.show(hungry)["attempts"][0]
        time.sleep(9)
        carma.over([hungry], 180, "the recovery")
        return {
            "hungry": story(carma.show(hungry)),
            "neighbours": [story(carma.show(j)) for j, _ in healthy],
            "rates": around(healthy, first["started_ms"] / 1000, first["ended_ms"] / 1000),
        }
    finally:
        carma.stop()


def fault(options):
    """An illegal address beside two healthy neighbours, all by MPS."""
    carma = Carma(options, "oracle-magm", "mps")
    try:
        healthy = neighbours(carma, 2)
        bad, _ = carma.submit(CIFAR, "--fault-after", "5", steps=20000)
        carma.over([bad], 120, "the fault")
        victims = [j for j, _ in healthy]
        again = lambda: all(len(carma.show(j)["attempts"]) > 1 for j in victims)  # noqa: E731
        try:
            wait_for(again, 60, "the victims to be started again")
        except RuntimeError as error:
            print(error)
        time.sleep(5)
        stories = {"culprit": story(carma.show(bad)), "victims": [story(carma.show(j)) for j in victims]}
        faulted = carma.show(bad)["attempts"][0]["ended_ms"] / 1000
        # The first mark of an attempt is written when its warm-up is over.
        restarts = [[t for t, done in read_marks(path) if t > faulted and done == 0] for _, path in healthy]
        stories["seconds_to_steps_again"] = [r[0] - faulted if r else None for r in restarts]
        return stories | {"log_tails": [carma.text("logs", str(j))[-1500:] for j in [bad, *victims]]}
    finally:
        carma.stop()


def cancel(options):
    """`carma cancel` of a busy MPS client beside another."""
    carma = Carma(options, "oracle-magm", "mps")
    try:
        healthy = neighbours(carma, 2)
        victim = healthy[0][0]
        asked = time.time()
        carma.text("cancel", str(victim))
        carma.over([victim], 60, "the cancelled job to end")
        ended = carma.show(victim)["job"]["ended_ms"] / 1000
        time.sleep(9)
        marks = read_marks(healthy[1][1])
        return {
            "cancelled": story(carma.show(victim)),
            "seconds_to_end": ended - asked,
            "neighbour": story(carma.show(healthy[1][0])),
            "neighbour_rate_before_after": [rate(marks, asked - 7, asked), rate(marks, ended + 1, ended + 8)],
        }
    finally:
        carma.stop()


def strangers(options):
    """A process that carma did not start, and what carma's listings say of it."""
    carma = Carma(options, "oracle-magm", "mps")
    stranger = None
    try:
        healthy = neighbours(carma, 1)
        env = dict(os.environ)
        if options.virtual:
            env["CARMA_VIRTUAL_GPUS"] = os.path.join(carma.runtime_dir(), "virtual-gpus.sock")
            command = [options.carma, "virtual-task", "--memory=40G", "--sm=0.1", "--work=600s"]
        else:
            command = [sys.executable, TRAIN, "--model", "hold", "--gib", "40"]
        stranger = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
        wait_for(lambda: carma.json("gpus")["gpus"][0]["foreign"], 60, "the stranger to be seen")
        time.sleep(8)
        waiting, _ = carma.submit(RESNET, gib=110)
        time.sleep(2)
        return {
            "gpus": carma.text("gpus"),
            "queue": carma.text("queue"),
            "explain": carma.text("explain", str(waiting)),
            "gpus_json": carma.json("gpus"),
            "neighbour": story(carma.show(healthy[0][0])),
        }
    finally:
        if stranger:
            stranger.kill()
            stranger.wait()
        carma.stop()


def guarded(part, options, *args):
    """A part that fails must not take the others with it."""
    began = time.time()
    try:
        result = part(options, *args)
    except Exception as error:  # noqa: BLE001 - whatever it is, it belongs into the result
        result = {"error": f"{type(error).__name__}: {error}"}
        print(f"{part.__name__} failed: {result['error']}", flush=True)
    result["took_s"] = round(time.time() - began, 1)
    return result


def failed(results):
    """Whether one of these results is that of a part that failed."""
    return any("error" in result for result in results)


def play_all(options, name, plays, play, table):
    """Each of these plays (name and argument); writes NAME.json after each, and prints why some failed and the table of the others."""
    os.makedirs(options.out, exist_ok=True)
    result = {"machine": machine(options), "runs": []}
    for what, argument in plays:
        started = time.time()
        result["runs"].append(guarded(play, options, argument))
        print(f"{what}: {time.time() - started:.0f} s", flush=True)
        with open(os.path.join(options.out, f"{name}.json"), "w") as file:
            json.dump(result, file, indent=1)
    print(json.dumps(result["machine"]))
    for run in result["runs"]:
        if "error" in run:
            print(run["error"])
    table([run for run in result["runs"] if "error" not in run])
    if failed(result["runs"]):
        sys.exit(1)


def part_faults(options):
    parts = (out_of_memory, fault, cancel, strangers)
    return {p.__name__: guarded(p, options) for p in parts if options.only in (None, p.__name__)}


def machine(options):
    info = {"date": time.strftime("%Y-%m-%d"), "kernel": platform.release(), "cpus": os.cpu_count()}
    info["carma"] = subprocess.run([options.carma, "--version"], capture_output=True, text=True).stdout.strip()
    if options.virtual:
        return info | {"gpu": f"{virtual_gpus(options)}, a model and not a measurement"}
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    info["gpu"] = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    # Reads all that the tasks import from disk, so that the first task is not slower than the others.
    code = "import torch, torchvision; from transformers import GPT2LMHeadModel; print(torch.__version__)"
    info["torch"] = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()
    return info


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--carma", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--part", choices=["modes", "faults", "all"], default="all")
    parser.add_argument("--modes", default="exclusive,time-slice,mps")
    parser.add_argument("--repeats", type=int, default=1, help="of the shared modes")
    parser.add_argument("--only", help="one of the faults: out_of_memory, fault, cancel, strangers")
    parser.add_argument("--virtual", action="store_true")
    options = parser.parse_args()
    options.carma = os.path.abspath(options.carma)
    known = {
        "exclusive": ("exclusive", "time-slice"),
        "time-slice": ("oracle-magm", "time-slice"),
        "mps": ("oracle-magm", "mps"),
    }
    options.modes = [known[m] for m in options.modes.split(",")]
    os.makedirs(options.out, exist_ok=True)
    info = machine(options)
    print(json.dumps(info), flush=True)
    code = 0
    for name, part in (("modes", part_modes), ("faults", part_faults)):
        if options.part in (name, "all"):
            parts = part(options)
            code = code or int(failed(parts.values() if isinstance(parts, dict) else parts))
            result = {"machine": info, name: parts}
            with open(os.path.join(options.out, f"{name}.json"), "w") as file:
                json.dump(result, file, indent=1)
    import report

    print(report.markdown(options.out))
    return code


if __name__ == "__main__":
    sys.exit(main())
