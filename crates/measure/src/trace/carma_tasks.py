#!/usr/bin/env python3
"""Tasks of `carma bench trace`: training and inference in PyTorch, synthetic inputs, random weights, a fixed number of steps.

    python3 carma_tasks.py --list
    python3 carma_tasks.py resnet50 --steps 500
    python3 carma_tasks.py resnet50 --steps 5 --rehearse    # on the CPU, in tiny shapes
    python3 carma_tasks.py --warm                           # reads from disk what the tasks of CARMA_BENCH_TASKS need

It knows nothing of carma but the file to which it writes how many steps it has done (CARMA_HEARTBEAT), and it prints them, as
training scripts do; servers print the 99th percentile of their latency. Most tasks are those of `carma bench interference`, in the files beside this one. Two use two GPUs: one as
two processes that average their gradients, one as two halves of a model. Nothing is downloaded.
"""

import argparse
import ctypes
import functools
import gc
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time

import heavier_tasks
import interference_tasks
import later_tasks
import new_tasks
from interference_tasks import Scale

TASKS = interference_tasks.TASKS | heavier_tasks.TASKS | new_tasks.TASKS | later_tasks.TASKS
task = functools.partial(interference_tasks.task, into=TASKS)

# Between two looks at what the GPU has done: a loop that reads its loss now and then waits as often.
LOOK_S = 0.25
PRINT_S = 1.0


def language_model(x, layers):
    """The parts of a decoder of words: embedding, layers, head."""
    nn = x.torch.nn
    words, width = x(16000, 100), x(1024, 32)
    layer = functools.partial(
        nn.TransformerEncoderLayer, width, x(16, 2), 4 * width, dropout=0.0, batch_first=True, norm_first=True
    )
    return [nn.Embedding(words, width), *(layer() for _ in range(layers)), nn.Linear(width, words)], words


@task()
def lm_two_processes(x):
    """One process a GPU; gradients are averaged after each step (DistributedDataParallel)."""
    torch = x.torch
    import torch.distributed as dist

    rank = int(os.environ.get("RANK", "0"))
    if rank == 0:
        meet = tempfile.NamedTemporaryFile(prefix="carma-meet-", delete=False).name
        env = os.environ | {"RANK": "1", "CARMA_MEET": meet}
        # One process counts the steps.
        env.pop("CARMA_HEARTBEAT", None)
        subprocess.Popen([sys.executable, *sys.argv], env=env, stdout=subprocess.DEVNULL)
    else:
        meet = os.environ["CARMA_MEET"]
        # The other half of a task that was killed must not stay behind.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    dist.init_process_group(x("nccl", "gloo"), init_method=f"file://{meet}", world_size=2, rank=rank)
    device = x(f"cuda:{rank}", "cpu")
    if not x.tiny:
        torch.cuda.set_device(device)
    parts, words = language_model(x, x(8, 1))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*parts).to(device))
    tokens = torch.randint(0, words, (x(16, 2), x(256, 8)), device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with x.half():
            loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()

    return step


@task()
def lm_two_halves(x):
    """The first half of the layers on one GPU, the second on another; four parts of a batch follow each other through them."""
    torch = x.torch
    nn = torch.nn
    parts, words = language_model(x, x(16, 2))
    near, far = x("cuda:0", "cpu"), x("cuda:1", "cpu")
    half = len(parts) // 2
    first, second = nn.Sequential(*parts[:half]).to(near), nn.Sequential(*parts[half:]).to(far)
    tokens = torch.randint(0, words, (4, x(8, 1), x(256, 8)), device=near)
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], lr=1e-4)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with x.half():
            for part in tokens:
                out = second(first(part).to(far, non_blocking=True))
                nn.functional.cross_entropy(out.flatten(0, 1), part.to(far).flatten()).backward()
        optimizer.step()

    return step


@task()
def out_of_memory(x):
    """Takes three quarters of the GPU's memory a piece at a time: more than a GPU that is shared has for it."""
    torch = x.torch
    if x.tiny:
        return lambda: None
    free, total = torch.cuda.mem_get_info()
    pieces = []

    def step():
        if sum(piece.numel() for piece in pieces) < 0.75 * total:
            pieces.append(torch.empty(total // 64, dtype=torch.uint8, device="cuda").fill_(1))
        time.sleep(0.05)

    return step


@task()
def illegal_address(x):
    """Computes for a while and then writes to an invalid address: a real memory fault on the GPU."""
    torch = x.torch
    if x.tiny:
        return lambda: None
    a = torch.randn(2048, 2048, device="cuda")
    name, code = "wild", 'extern "C" __global__ void wild(unsigned long long where) { *(volatile int *)where = 1; }'
    began = time.monotonic()

    def step():
        torch.mm(a, a)
        if time.monotonic() - began < 5:
            return
        if hasattr(torch.cuda, "_compile_kernel"):
            torch.cuda._compile_kernel(code, name)(grid=(1, 1, 1), block=(1, 1, 1), args=(0x10,))
        else:
            import cupy

            cupy.RawKernel(code, name)((1,), (1,), (cupy.uint64(0x10),))
        torch.cuda.synchronize()

    return step


def warm(names, rehearse=False, most_s=180):
    """Makes one step of each task, so that what it imports and loads lies in the system's memory, and what is compiled
    once is: the first policy that is played must not pay for that. What two GPUs are for, and what fails on purpose, is left
    out."""
    import torch

    # As the tasks have it: the first trial of a convolution compiles for 10 to 18 s (docs/research/h200.md).
    torch.backends.cudnn.benchmark = True
    for module in ("timm", "transformers", "torch.distributed"):
        try:
            importlib.import_module(module)
        except ImportError as error:
            print(error)
    began = time.monotonic()
    for name in names:
        if time.monotonic() - began > most_s:
            print(f"{name} and what comes after it is not warmed up: {most_s} s have passed")
            break
        if name not in TASKS or TASKS[name].build.__module__ == __name__:
            continue
        try:
            step = TASKS[name].build(Scale(rehearse))
            step()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
        # Whatever it is, the task itself will say it.
        except Exception as error:
            print(f"{name}: {error}")
        step = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


class Teller:
    """Tells of steps: the first at once, then now and then, when the GPU has finished them."""

    def __init__(self, torch, steps, latencies=None):
        self.torch, self.steps, self.latencies = torch, steps, latencies
        self.heartbeat = os.environ.get("CARMA_HEARTBEAT")
        self.looked = self.printed = float("-inf")
        self.began, self.quiet = time.monotonic(), os.environ.get("RANK") == "1"

    def __call__(self, done):
        if done < self.steps and time.monotonic() - self.looked < LOOK_S:
            return
        if self.torch.cuda.is_available():
            self.torch.cuda.synchronize()
        now = self.looked = time.monotonic()
        if self.heartbeat:
            with open(self.heartbeat, "w") as file:
                file.write(str(done))
        if now - self.printed >= PRINT_S or done == self.steps:
            self.printed = now
            rate = done / max(now - self.began, 1e-9)
            if self.latencies:
                ordered = sorted(self.latencies)
                self.latencies.clear()
                print(f"p99: {1000 * ordered[len(ordered) * 99 // 100]:.2f} ms")
            if not self.quiet:
                print(f"step {done}/{self.steps} {rate:.1f} it/s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", choices=list(TASKS))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rehearse", action="store_true", help="tiny, on the CPU")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--warm", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if options.list:
        print("\n".join(TASKS))
        return
    if options.warm:
        warm(os.environ.get("CARMA_BENCH_TASKS", "").split(), options.rehearse)
        return
    if not options.task:
        parser.error("which task?")
    import torch

    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    step = TASKS[options.task].build(Scale(options.rehearse))
    # A server has them.
    tell = Teller(torch, options.steps, getattr(step, "latencies", None))
    for done in range(1, options.steps + 1):
        step()
        tell(done)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
