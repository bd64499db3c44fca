#!/usr/bin/env python3
"""What the driver's checkpoint calls do with trainings on two GPUs: one process on both, and one process a GPU under NCCL.

    python3 bench/h200/suspend_several.py --out results

carma is not asked; what is measured is the driver. `one-gpu` is a training on one GPU, for comparison. Each case is a training of losses.py that is suspended twice (locked, checkpointed, restored and unlocked;
with `swapped` it comes back with its two GPUs exchanged), and whose losses are compared with those of the same training undisturbed, bit by bit. Two GPUs,
about three minutes. `--rehearse` has no driver and no PyTorch: it shows that the script runs. Writes suspend-several.json.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
LOCK_MS = 8000
PATIENCE_S = 120
# A call that has not come back by then never does.
CALL_S = 25
# Name, arguments of losses.py, environment, GPUs exchanged, locks at once.
CASES = {
    "one-gpu": ([], {}, False, False),
    "one-process": (["--across", "2"], {}, False, False),
    "swapped": (["--across", "2"], {}, True, False),
    "nccl": (["--processes", "2", "--averaged"], {}, False, False),
    "nccl-at-once": (["--processes", "2", "--averaged"], {}, False, True),
    "nccl-no-peers": (["--processes", "2", "--averaged"], {"NCCL_P2P_DISABLE": "1", "NCCL_CUMEM_ENABLE": "0"}, False, True),
}


class LockArgs(ctypes.Structure):
    _fields_ = [("timeout_ms", ctypes.c_uint), ("reserved0", ctypes.c_uint), ("reserved1", ctypes.c_uint64 * 7)]


class NoArgs(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_uint64 * 8)]


class GpuPair(ctypes.Structure):
    _fields_ = [("old", ctypes.c_ubyte * 16), ("new", ctypes.c_ubyte * 16)]


class RestoreArgs(ctypes.Structure):
    _fields_ = [
        ("pairs", ctypes.POINTER(GpuPair)),
        ("count", ctypes.c_uint),
        ("reserved", ctypes.c_ubyte * (52 - ctypes.sizeof(ctypes.c_void_p))),
        ("reserved1", ctypes.c_uint64),
    ]


class Driver:
    """libcuda's calls; each returns the driver's code and what it took."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        code = self.cuda.cuInit(0)
        if code:
            raise SystemExit(f"cuInit: {code}")
        self.uuids = []
        for at in range(2):
            device, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
            if self.cuda.cuDeviceGet(ctypes.byref(device), at) or self.cuda.cuDeviceGetUuid_v2(uuid, device):
                raise SystemExit("two GPUs are needed")
            self.uuids.append(uuid)

    def timed(self, call, pid, args):
        began, code = time.time(), []
        thread = threading.Thread(target=lambda: code.append(call(pid, ctypes.byref(args))), daemon=True)
        thread.start()
        thread.join(CALL_S)
        return {"code": code[0] if code else "no answer", "s": round(time.time() - began, 3)}

    def lock(self, pid):
        return self.timed(self.cuda.cuCheckpointProcessLock, pid, LockArgs(timeout_ms=LOCK_MS))

    def checkpoint(self, pid):
        return self.timed(self.cuda.cuCheckpointProcessCheckpoint, pid, NoArgs())

    def restore(self, pid, swapped):
        args = RestoreArgs()
        if swapped:
            pairs = (GpuPair * 2)(GpuPair(self.uuids[0], self.uuids[1]), GpuPair(self.uuids[1], self.uuids[0]))
            args.pairs, args.count = pairs, 2
        return self.timed(self.cuda.cuCheckpointProcessRestore, pid, args)

    def unlock(self, pid):
        return self.timed(self.cuda.cuCheckpointProcessUnlock, pid, NoArgs())


class Nothing:
    """Stands for the driver in a rehearsal."""

    def lock(self, _):
        return {"code": 0, "s": 0.0}

    checkpoint = unlock = lock

    def restore(self, _, _swapped):
        return {"code": 0, "s": 0.0}


class Training:
    def __init__(self, options, work, name, arguments, env):
        self.out = os.path.join(work, name)
        self.log = open(f"{self.out}.log", "w+")
        command = [sys.executable, os.path.join(HERE, "losses.py"), "--steps", str(options.steps), "--out", self.out, "--hold", str(options.hold), *arguments]
        if options.rehearse:
            code = f"import time; out = open({self.out + '.0'!r}, 'w', buffering=1)\nfor step in range({options.steps}):\n    out.write(f'{{step}} 1\\n')\n    time.sleep(.001)"
            command = [sys.executable, "-c", code]
        self.files = 2 if "--averaged" in arguments and not options.rehearse else 1
        self.steps = options.steps
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=os.environ | env, start_new_session=True)

    def losses(self):
        rows = []
        for number in range(self.files):
            try:
                with open(f"{self.out}.{number}") as file:
                    rows.append(file.read().splitlines())
            except FileNotFoundError:
                rows.append([])
        return rows

    def done(self):
        return min(map(len, self.losses()))

    def reach(self, steps, patience_s=PATIENCE_S):
        over = time.time() + patience_s
        while self.done() < steps and self.process.poll() is None and time.time() < over:
            time.sleep(0.05)
        return self.done() >= steps

    def pids(self):
        """Its processes that use a GPU, the first one first."""
        pid = self.process.pid
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            children = [int(child) for child in file.read().split()]
        return [pid, *children] if self.files == 2 else [pid]

    def end(self):
        try:
            os.killpg(self.process.pid, 9)
        except ProcessLookupError:
            pass
        self.process.wait()

    def error(self):
        self.log.seek(0)
        lines = [line.strip() for line in self.log if "error" in line.lower()]
        return lines[-1][:200] if lines else ""


def memory():
    """MiB in use of each GPU."""
    try:
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return [int(line) for line in subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()]
    except (OSError, subprocess.CalledProcessError):
        return []


def all_of(pids, call, at_once):
    answers = {}
    if at_once:
        threads = [threading.Thread(target=lambda pid=pid: answers.update({pid: call(pid)})) for pid in pids]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        for pid in pids:
            answers[pid] = call(pid)
            if answers[pid]["code"]:
                break
    return list(answers.values()), all(answer["code"] == 0 for answer in answers.values()) and len(answers) == len(pids)


def suspend(driver, training, swapped, at_once):
    """Suspends it, waits, and brings it back; or says how far it came."""
    pids, told = training.pids(), {"memory_before": memory()}
    told["lock"], locked = all_of(pids, driver.lock, at_once)
    if not locked:
        # Those that are locked go on.
        told["unlock"], _ = all_of([pid for pid, answer in zip(pids, told["lock"]) if answer["code"] == 0], driver.unlock, at_once)
        return told, "not locked"
    told["checkpoint"], done = all_of(pids, driver.checkpoint, False)
    if not done:
        good = [pid for pid, answer in zip(pids, told["checkpoint"]) if answer["code"] == 0]
        told["restore"], _ = all_of(good, lambda pid: driver.restore(pid, False), False)
        told["unlock"], _ = all_of(pids, driver.unlock, False)
        return told, "not checkpointed"
    told["memory_suspended"] = memory()
    time.sleep(1)
    told["restore"], done = all_of(pids, lambda pid: driver.restore(pid, swapped), False)
    if not done:
        return told, "not restored"
    told["unlock"], done = all_of(pids, driver.unlock, False)
    return told, "done" if done else "not unlocked"


def first_difference(one, other):
    for file, (a, b) in enumerate(zip(one, other)):
        for at, (x, y) in enumerate(zip(a, b)):
            if x != y:
                return f"rank {file}, step {at}: {x} and {y}"
    return None if [len(a) for a in one] == [len(b) for b in other] else "one is shorter"


def play(driver, options, work, case, plain):
    arguments, env, swapped, at_once = CASES[case]
    key = json.dumps([arguments, env])
    if key not in plain:
        training = Training(options, work, f"{case}-plain", arguments, env)
        training.process.wait(PATIENCE_S)
        plain[key] = training.losses()
        if training.process.returncode:
            return {"case": case, "result": f"undisturbed it ended ({training.process.returncode}): {training.error()}", "rounds": []}
    training = Training(options, work, case, arguments, env)
    rounds, result = [], "done"
    for share in (0.3, 0.6):
        if not training.reach(options.steps * share):
            result = f"it ended or stood still: {training.error()}"
            break
        told, result = suspend(driver, training, swapped, at_once)
        before = training.done()
        went_on = training.reach(min(before + 20, options.steps), 15)
        rounds.append(told | {"result": result, "went_on": went_on})
        if not went_on:
            result += ", and it did not go on"
            break
    if training.process.poll() is None and rounds and rounds[-1]["went_on"] and training.reach(options.steps):
        training.process.wait(PATIENCE_S)
    code = training.process.poll()
    differs = first_difference(plain[key], training.losses())
    training.end()
    return {"case": case, "result": result, "exit": code, "same_losses": differs is None, "differs": differs, "error": training.error(), "rounds": rounds}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="results")
    parser.add_argument("--cases", default=",".join(CASES), help="of: " + ", ".join(CASES))
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--hold", type=float, default=4, help="GiB that are filled with a pattern")
    parser.add_argument("--budget", type=float, default=540, help="seconds after which no case begins")
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    unknown = [case for case in options.cases.split(",") if case not in CASES]
    if unknown:
        parser.error(f"unknown case {unknown[0]}; there are {', '.join(CASES)}")
    os.makedirs(options.out, exist_ok=True)
    work = tempfile.mkdtemp(prefix="carma-several-")
    machine = {"date": time.strftime("%Y-%m-%d")}
    driver = Nothing()
    if not options.rehearse:
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        machine["gpus"] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
        driver = Driver()
    began, rows, plain = time.time(), [], {}
    for case in options.cases.split(","):
        if time.time() - began > options.budget:
            print(f"the budget of {options.budget:.0f} s is spent: no {case}")
            continue
        rows.append(play(driver, options, work, case, plain))
        with open(os.path.join(options.out, "suspend-several.json"), "w") as file:
            json.dump({"machine": machine, "lock_ms": LOCK_MS, "rows": rows}, file, indent=1)
        print(json.dumps(rows[-1]), flush=True)
    print(f"\n{'CASE':14} {'LOCK s':>14} {'CHECKPOINT s':>14} {'RESTORE s':>14} SAME LOSSES  RESULT")
    for row in rows:
        def took(what):
            return " ".join(f"{answer['s']:.2f}" + (f"({answer['code']})" if answer["code"] else "") for each in row["rounds"][:1] for answer in each.get(what, [])) or "-"
        print(f"{row['case']:14} {took('lock'):>14} {took('checkpoint'):>14} {took('restore'):>14} {'yes' if row.get('same_losses') else 'no':11}  {row['result']}")


if __name__ == "__main__":
    main()
