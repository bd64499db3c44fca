#!/usr/bin/env python3
"""What the end of a job of two processes does to its neighbours under MPS.

    python3 bench/h200/peers.py --out results

A training of two processes, one a GPU, that average their gradients (NCCL), and on each of the two GPUs a neighbour that is no part of it: all
clients of one MPS server. The training ends in one of several ways, and the neighbours are looked at for the next seconds. carma is not asked: what
is measured is the driver. `one` is the same with a training of one process on both GPUs. About eight minutes on two GPUs; `--rehearse` plays it on the CPU.
Writes peers.json.
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
}
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


def both(path, rehearse):
    """One process, the halves of a model on two GPUs."""
    near, far = ("cpu", "cpu") if rehearse else ("cuda:0", "cuda:1")
    width = 32 if rehearse else 2048
    first = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(8))).to(near)
    second = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(8))).to(far)
    rows = torch.randn(256, width, device=near)
    while True:
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


class Bench:
    def __init__(self, options, work):
        self.options = options
        self.work = work
        self.env = {"CUDA_MPS_PIPE_DIRECTORY": f"{work}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{work}/log"}
        self.neighbours = {}
        self.count = 0

    def file(self, name):
        self.count += 1
        return f"{self.work}/{self.count}-{name}"

    def start_neighbours(self):
        for gpu in (0, 1):
            if gpu in self.neighbours:
                continue
            path, log = self.file("beat"), self.file("log")
            pid = child(lambda: neighbour(gpu, path, self.options.rehearse), log, self.env)
            self.neighbours[gpu] = (pid, path, log)
        for gpu, (pid, path, log) in list(self.neighbours.items()):
            self.until_told(path, 0.0, [(pid, log)], f"the neighbour on GPU {gpu}")

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
        ranks = 1 if case == "one" else 2
        meet, path = self.file("meet"), self.file("beat")
        limits = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={LIMIT_GIB}G,1={LIMIT_GIB}G"}
        if case == "no-peers":
            limits["NCCL_P2P_DISABLE"] = "1"
        runs_out = case.startswith("memory") or case == "no-peers"
        training = []
        for rank in range(ranks):
            log = self.file(f"rank{rank}")
            run = (lambda: both(path, rehearse)) if ranks == 1 else (lambda rank=rank: rank_of(rank, meet, path, runs_out, rehearse))
            training.append((child(run, log, self.env | limits), log))
        self.until_told(path, 0.0, training, case)
        if runs_out:
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
        while time.time() < at + WATCH_S and len(died) < 2:
            for gpu, (pid, _, log) in self.neighbours.items():
                if gpu not in died:
                    code = ended(pid)
                    if code is not None:
                        died[gpu] = {"code": code, "after_s": round(time.time() - at, 2), "error": last_error(log)}
            time.sleep(0.02)
        stuck = [gpu for gpu, (_, path, _) in self.neighbours.items() if gpu not in died and time.time() - told_at(path) > 3]
        for pid, _ in training:
            end(pid)
        for gpu in [*died, *stuck]:
            end(self.neighbours.pop(gpu)[0])
        # The server takes no client for some seconds after a fault, and what is left of the training may be one.
        time.sleep(5)
        late = [gpu for gpu, (pid, _, _) in self.neighbours.items() if ended(pid) is not None]
        for gpu in late:
            self.neighbours.pop(gpu)
        errors = [last_error(log) for _, log in training]
        row = {"case": case, "died": {str(gpu): what for gpu, what in died.items()}, "stuck": stuck, "late": late, "errors": errors}
        said = f"neighbours on GPU {', '.join(map(str, sorted(died)))} died" if died else "no neighbour died"
        print(f"{case}: {said}{f', stuck on GPU {stuck}' if stuck else ''}", flush=True)
        return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="results")
    parser.add_argument("--cases", default=",".join(CASES), help="of: " + ", ".join(CASES))
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--budget", type=float, default=520, help="seconds after which no trial begins")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, without MPS")
    options = parser.parse_args()
    unknown = [case for case in options.cases.split(",") if case not in CASES]
    if unknown:
        parser.error(f"unknown case {unknown[0]}; there are {', '.join(CASES)}")
    os.makedirs(options.out, exist_ok=True)
    work = tempfile.mkdtemp(prefix="carma-peers-")
    bench = Bench(options, work)
    machine = {"date": time.strftime("%Y-%m-%d"), "kernel": platform.release(), "torch": torch.__version__}
    if not options.rehearse:
        for folder in ("pipe", "log"):
            os.mkdir(f"{work}/{folder}")
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=os.environ | bench.env, check=True)
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
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, env=os.environ | bench.env, check=False)
    print(f"\n{'CASE':17} TRIALS  A NEIGHBOUR DIED  BOTH DIED  STUCK")
    for case in options.cases.split(","):
        of = [row for row in rows if row["case"] == case]
        print(f"{case:17} {len(of):6}  {sum(bool(row['died']) for row in of):16}  {sum(len(row['died']) == 2 for row in of):9}  {sum(bool(row['stuck']) for row in of):5}")


if __name__ == "__main__":
    main()
