#!/usr/bin/env python3
"""What the end of a job of two processes does to its neighbours under MPS.

    python3 bench/h200/peers.py --out results

A training of two processes, one a GPU, that average their gradients (NCCL), and on each of the two GPUs a neighbour that is no part of it: all
clients of one MPS server. The training ends in one of several ways, and the neighbours are looked at for the next seconds. carma is not asked: what
is measured is the driver. `one` is the same with a training of one process on both GPUs. About eight minutes on two GPUs; `--rehearse` plays it on the CPU.
Writes peers.json.

    python3 bench/h200/peers.py --out results --cases address,kill,terminate,memory --beside same,other,none

`--beside` has neighbours on both GPUs that are clients of the `same` server, of another one (`other`: a control daemon of their own, as those of another user
have with carma), and of `none` (time-sliced): does a fault cross from one server to another?
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import traceback

import torch
import torch.distributed as dist

# Name, number of processes, what ends it.
CASES = {
    "memory": "the first process meets its memory limit and exits; the second is killed with it (as by PR_SET_PDEATHSIG)",
    "memory-left": "the first process meets its memory limit and exits; the second is left waiting for it",
    "term": "SIGTERM to both at once",
    "kill": "SIGKILL to both at once",
    "kill-second": "SIGKILL to the second alone",
    "stop-kill": "SIGSTOP to both, .3 s later SIGKILL to both",
    "stop-terminate": "SIGSTOP to both, both ended through the control daemon (terminate_client), SIGKILL to both",
    "terminate": "both ended through the control daemon, the first one first, then SIGKILL to both",
    "terminate-second": "both ended through the control daemon, the second one first, then SIGKILL to both",
    "memory-terminate": "the first process meets its memory limit and exits; the second is ended through the control daemon, then SIGKILL",
    "no-peers": "as `memory`, but the processes exchange through host memory (NCCL_P2P_DISABLE=1)",
    "one": "SIGKILL to a training of one process on both GPUs",
    "address": "one process, the halves of a model on two GPUs, writes to an invalid address on the first",
}
# Whose clients the neighbours are.
BESIDE = {"same": "the training's server", "other": "a server of another control daemon", "none": "no server (time-sliced)"}
LIMIT_GIB = 8
START_S = 90
WATCH_S = 5


def child(run, log, env):
    """A process of its own that has PyTorch read already. Ends as an interpreter does."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    out = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(env)
    try:
        run()
    except BaseException:  # noqa: BLE001: whatever it was, it is what is measured
        traceback.print_exc()
        sys.exit(1)
    sys.exit(0)


def beat(path):
    with open(path, "w") as file:
        file.write(str(time.time()))


def neighbour(gpu, path, rehearse):
    device = "cpu" if rehearse else f"cuda:{gpu}"
    size = 64 if rehearse else 2048
    a = torch.randn(size, size, device=device)
    while True:
        for _ in range(20):
            a = torch.tanh(a @ a)
        a.sum().item()
        beat(path)
        if rehearse:
            time.sleep(0.05)


def rank_of(rank, meet, path, runs_out, rehearse):
    """One process of two."""
    if not rehearse:
        torch.cuda.set_device(rank)
    dist.init_process_group("gloo" if rehearse else "nccl", init_method=f"file://{meet}", world_size=2, rank=rank)
    device = "cpu" if rehearse else f"cuda:{rank}"
    width = 32 if rehearse else 2048
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(8))).to(device)
    model = torch.nn.parallel.DistributedDataParallel(model)
    rows = torch.randn(256, width, device=device)
    kept = []
    at = 0
    while True:
        model(rows).square().mean().backward()
        at += 1
        if at % 5 == 0:
            if not rehearse:
                torch.cuda.synchronize()
            beat(path)
        if runs_out and rank == 0 and at > 200:
            if rehearse:
                raise MemoryError("rehearsed")
            kept.append(torch.ones(64 << 20, device=device))


def illegal_address():
    code = 'extern "C" __global__ void wild(unsigned long long where) { *(volatile int *)where = 1; }'
    torch.cuda._compile_kernel(code, "wild")(grid=(1, 1, 1), block=(1, 1, 1), args=(0x10,))
    torch.cuda.synchronize()


def both(path, faults_after, rehearse):
    """One process, the halves of a model on two GPUs. `faults_after`: seconds until it writes to an invalid address."""
    near, far = ("cpu", "cpu") if rehearse else ("cuda:0", "cuda:1")
    width = 32 if rehearse else 2048
    first = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(8))).to(near)
    second = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(8))).to(far)
    rows = torch.randn(256, width, device=near)
    began = time.time()
    while True:
        if faults_after and time.time() - began > faults_after:
            if rehearse:
                raise RuntimeError("CUDA error: rehearsed")
            illegal_address()
        loss = second(first(rows).to(far, non_blocking=True)).square().mean()
        loss.backward()
        loss.item()
        beat(path)


def told_at(path):
    try:
        with open(path) as file:
            return float(file.read() or 0)
    except OSError:
        return 0.0


def ended(pid):
    """Exit status of a child that is over: a code, or minus a signal."""
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def end(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def last_error(log):
    with open(log, errors="replace") as file:
        lines = [line.strip() for line in file if "Error" in line or "error" in line]
    return lines[0][:160] if lines else ""


def named(key):
    gpu, of = key
    return f"{gpu}" if of == "same" else f"{gpu} ({of})"


class Bench:
    def __init__(self, options, work):
        self.options = options
        self.work = work
        self.env = self.server("same")
        # By GPU and by whose client it is.
        self.neighbours = {}
        self.count = 0

    def server(self, of):
        return {"CUDA_MPS_PIPE_DIRECTORY": f"{self.work}/{of}-pipe", "CUDA_MPS_LOG_DIRECTORY": f"{self.work}/{of}-log"}

    def file(self, name):
        self.count += 1
        return f"{self.work}/{self.count}-{name}"

    def start_neighbours(self):
        for key in [(gpu, of) for gpu in (0, 1) for of in self.options.beside]:
            if key in self.neighbours:
                continue
            path, log = self.file("beat"), self.file("log")
            # Without a control daemon behind its pipe a process is no client.
            pid = child(lambda key=key: neighbour(key[0], path, self.options.rehearse), log, self.server(key[1]))
            self.neighbours[key] = (pid, path, log)
        for key, (pid, path, log) in list(self.neighbours.items()):
            self.until_told(path, 0.0, [(pid, log)], f"the neighbour {named(key)}")

    def until_told(self, path, since, children, what):
        over = time.time() + START_S
        while told_at(path) <= since:
            for pid, log in children:
                code = ended(pid)
                if code is not None:
                    raise SystemExit(f"{what} ended ({code}) before it began: {last_error(log)}")
            if time.time() > over:
                raise SystemExit(f"{what} has not begun within {START_S} s")
            time.sleep(0.05)

    def control(self, line):
        """What the control daemon answers."""
        if self.options.rehearse:
            return ""
        try:
            done = subprocess.run(["nvidia-cuda-mps-control"], input=f"{line}\n", capture_output=True, text=True, env=os.environ | self.env, timeout=10, check=False)
        except subprocess.TimeoutExpired:
            return "no answer within 10 s"
        return (done.stdout + done.stderr).strip()

    def terminate(self, pids):
        server = self.control("get_server_list")
        for pid in pids:
            began = time.time()
            answer = self.control(f"terminate_client {server} {pid}")
            print(f"terminate_client {server} {pid}: {answer or 'done'}, {time.time() - began:.2f} s", flush=True)

    def trial(self, case):
        rehearse = self.options.rehearse
        self.start_neighbours()
        ranks = 1 if case in ("one", "address") else 2
        faults_after = 2 if case == "address" else None
        meet, path = self.file("meet"), self.file("beat")
        limits = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={LIMIT_GIB}G,1={LIMIT_GIB}G"}
        if case == "no-peers":
            limits["NCCL_P2P_DISABLE"] = "1"
        runs_out = case.startswith("memory") or case == "no-peers"
        training = []
        for rank in range(ranks):
            log = self.file(f"rank{rank}")
            run = (lambda: both(path, faults_after, rehearse)) if ranks == 1 else (lambda rank=rank: rank_of(rank, meet, path, runs_out, rehearse))
            training.append((child(run, log, self.env | limits), log))
        self.until_told(path, 0.0, training, case)
        if faults_after:
            # It ends by itself.
            over = time.time() + START_S
            while ended(training[0][0]) is None and time.time() < over:
                time.sleep(0.01)
        elif runs_out:
            over = time.time() + START_S
            codes = {}
            while 0 not in codes and time.time() < over:
                code = ended(training[0][0])
                if code is not None:
                    codes[0] = code
                time.sleep(0.01)
            if case == "memory-terminate":
                time.sleep(1)
                self.terminate([training[1][0]])
            if case != "memory-left":
                os.killpg(training[1][0], signal.SIGKILL)
        else:
            time.sleep(2)
            pids = [pid for pid, _ in training]
            if case.startswith("stop"):
                for pid in pids:
                    os.killpg(pid, signal.SIGSTOP)
                time.sleep(0.3)
            if "terminate" in case:
                self.terminate(pids[::-1] if case == "terminate-second" else pids)
            for pid in pids[1:] if case == "kill-second" else pids:
                os.killpg(pid, signal.SIGTERM if case == "term" else signal.SIGKILL)
        at = time.time()
        died = {}
        while time.time() < at + WATCH_S and len(died) < len(self.neighbours):
            for key, (pid, _, log) in self.neighbours.items():
                if key not in died:
                    code = ended(pid)
                    if code is not None:
                        died[key] = {"code": code, "after_s": round(time.time() - at, 2), "error": last_error(log)}
            time.sleep(0.02)
        stuck = [key for key, (_, path, _) in self.neighbours.items() if key not in died and time.time() - told_at(path) > 3]
        for pid, _ in training:
            end(pid)
        for key in [*died, *stuck]:
            end(self.neighbours.pop(key)[0])
        # The server takes no client for some seconds after a fault, and what is left of the training may be one.
        time.sleep(5)
        late = [key for key, (pid, _, _) in self.neighbours.items() if ended(pid) is not None]
        for key in late:
            self.neighbours.pop(key)
        errors = [last_error(log) for _, log in training]
        died = {named(key): what for key, what in sorted(died.items())}
        stuck, late = [named(key) for key in stuck], [named(key) for key in late]
        row = {"case": case, "died": died, "stuck": stuck, "late": late, "errors": errors}
        said = f"neighbours on GPU {', '.join(died)} died" if died else "no neighbour died"
        if stuck:
            said += f", stuck on GPU {', '.join(stuck)}"
        print(f"{case}: {said}", flush=True)
        return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="results")
    parser.add_argument("--cases", default=",".join(CASES), help="of: " + ", ".join(CASES))
    parser.add_argument("--beside", default="same", help="of: " + ", ".join(BESIDE))
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--budget", type=float, default=520, help="seconds after which no trial begins")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, without MPS")
    options = parser.parse_args()
    options.beside = options.beside.split(",")
    for given, known in ((options.cases.split(","), CASES), (options.beside, BESIDE)):
        unknown = [name for name in given if name not in known]
        if unknown:
            parser.error(f"unknown {unknown[0]}; there are {', '.join(known)}")
    os.makedirs(options.out, exist_ok=True)
    work = tempfile.mkdtemp(prefix="carma-peers-")
    bench = Bench(options, work)
    machine = {"date": time.strftime("%Y-%m-%d"), "kernel": platform.release(), "torch": torch.__version__}
    if not options.rehearse:
        for of in {"same", *options.beside} - {"none"}:
            for folder in bench.server(of).values():
                os.mkdir(folder)
            subprocess.run(["nvidia-cuda-mps-control", "-d"], env=os.environ | bench.server(of), check=True)
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        machine["gpus"] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
        # Children can only use CUDA if this process never does.
        machine["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
        assert not torch.cuda.is_initialized()
    began = time.time()
    rows = []
    for repeat in range(options.repeats):
        for case in options.cases.split(","):
            if time.time() - began > options.budget:
                print(f"the budget of {options.budget:.0f} s is spent: no {case}, {repeat + 1}")
                continue
            rows.append(bench.trial(case) | {"repeat": repeat + 1})
            with open(os.path.join(options.out, "peers.json"), "w") as file:
                json.dump({"machine": machine, "cases": CASES, "rows": rows}, file, indent=1)
    for pid, _, _ in bench.neighbours.values():
        end(pid)
    if not options.rehearse:
        for of in {"same", *options.beside} - {"none"}:
            subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, env=os.environ | bench.server(of), check=False)
    print(f"\n{'CASE':17} {'BESIDE':6} TRIALS  A NEIGHBOUR DIED  BOTH DIED  STUCK")
    for case in options.cases.split(","):
        for of in options.beside:
            trials = [row for row in rows if row["case"] == case]
            names = {named((gpu, of)) for gpu in (0, 1)}
            died = [len(names & row["died"].keys()) for row in trials]
            stuck = sum(bool(names & set(row["stuck"])) for row in trials)
            print(f"{case:17} {of:6} {len(trials):6}  {sum(map(bool, died)):16}  {died.count(2):9}  {stuck:5}")


if __name__ == "__main__":
    main()
