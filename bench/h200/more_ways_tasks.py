#!/usr/bin/env python3
"""More programs as people write them, for `carma bench trace --tasks more_ways_tasks.toml`: none needs anything of carma.

    python3 more_ways_tasks.py ipc --steps 500

As ways_tasks.py, with what those do not have: tensors shared between processes, memory by the driver's virtual addresses and by a
stream-ordered pool, a server that takes a share of the whole GPU, trials in processes of their own, pauses, checkpoints, a program that
executes itself anew, optimizer states in the host's memory, an end in the middle of kernels. Inputs are synthetic, weights random,
nothing is downloaded. Python's dependencies are PyTorch, transformers, Triton and CuPy.
"""

import argparse
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from ways_tasks import decoder, small_cnn, tell_steps, train_small_cnn, train_step

WAYS = {}


def way(function):
    WAYS[function.__name__] = function
    return function


def produce(queue, steps, taken):
    """The other process of `ipc`: makes batches on the GPU, and passes their handles."""
    import torch

    for _ in range(steps):
        queue.put(torch.randn(256, 3, 32, 32, device="cuda"))
    taken.wait()  # what is shared must live until it was used


@way
def ipc(steps):
    """Batches that another process makes on the GPU, shared without a copy (CUDA IPC)."""
    import torch
    import torch.multiprocessing as several

    spawn = several.get_context("spawn")
    queue, taken = spawn.Queue(8), spawn.Event()
    producer = spawn.Process(target=produce, args=(queue, steps, taken))
    producer.start()
    model = small_cnn().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    targets = torch.randint(10, (256,), device="cuda")
    for step in range(1, steps + 1):
        inputs = queue.get()
        loss = train_step(model, optimizer, inputs, targets)
        del inputs
        if step % 50 == 0:
            print(f"Step {step}/{steps}: loss {loss.item():.4f}", flush=True)
    torch.cuda.synchronize()
    taken.set()
    producer.join()
    sys.exit(producer.exitcode)


@way
def expandable(steps):
    """Sequences of many lengths, with segments that grow in place (the driver's virtual addresses)."""
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    import torch

    model = decoder().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step in range(1, steps + 1):
        length = 64 + step * 97 % 448
        tokens = torch.randint(8000, (8, length), device="cuda")
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(f"step={step} length={length} loss={loss.item():.3f}", flush=True)


@way
def of_total(steps):
    """A server of a language model that takes 45 % of the whole GPU for keys and values at its start, whatever is free."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).cuda().half().eval()
    total = torch.cuda.get_device_properties(0).total_memory
    room = int(0.45 * total) - torch.cuda.memory_reserved()
    cache = torch.zeros(room, dtype=torch.uint8, device="cuda")
    print(f"cache of {cache.numel() >> 20} MiB", flush=True)
    prompt = torch.randint(50000, (8, 32), device="cuda")
    for request in range(steps):
        began = time.monotonic()
        model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=64, min_new_tokens=64, do_sample=True, pad_token_id=0)
        print(f"request {request}: latency {1000 * (time.monotonic() - began):.0f} ms", flush=True)


@way
def trials(steps):
    """A search: four trials in processes of their own, two at a time."""
    left = [[sys.executable, __file__, "trial", "--steps", str(steps // 4)] for _ in range(4)]
    running = []
    done = 0
    while left or running:
        while left and len(running) < 2:
            running.append(subprocess.Popen(left.pop()))
        ended = running.pop(0)
        if ended.wait():
            sys.exit(f"a trial ended with {ended.returncode}")
        done += 1
        print(f"Trial {done}/4 finished", flush=True)


@way
def trial(steps):
    """One trial of `trials`: the plain loop."""
    train_small_cnn(steps, tell=lambda step, loss: None)


@way
def notebook(steps):
    """A person at a notebook: a second of work, three of thought; memory stays."""
    import torch

    kept = []
    for cell in range(1, max(1, steps // 300) + 1):
        kept.append(train_small_cnn(300, batch=512))
        torch.cuda.synchronize()
        print(f"Out[{cell}]: done", flush=True)
        time.sleep(3)


@way
def checkpoints(steps):
    """Saves on SIGUSR1 and every 500 steps where carma says (else in its own folder), and goes on from there."""
    import torch

    folder = Path(os.environ.get("CARMA_CHECKPOINT_DIR", "."))
    # Copies of one command may share a working folder.
    file = folder / ("last.pt" if "CARMA_CHECKPOINT_DIR" in os.environ else f"last-{os.getpid()}.pt")
    model = small_cnn().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    first = 1
    if file.exists():
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"] + 1
        print(f"goes on from step {saved['step']}", flush=True)
    asked = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: asked.set())
    inputs, targets = torch.randn(256, 3, 32, 32, device="cuda"), torch.randint(10, (256,), device="cuda")
    for step in range(first, steps + 1):
        loss = train_step(model, optimizer, inputs, targets)
        if step % 50 == 0:
            print(f"Step {step}/{steps}: loss {loss.item():.4f}", flush=True)
        if step % 500 == 0 or asked.is_set():
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, file.with_suffix(".new"))
            file.with_suffix(".new").replace(file)
            if asked.is_set():
                sys.exit(0)
    file.unlink(missing_ok=True)


@way
def executes_anew(steps):
    """A launcher that prepares and then becomes the program (`exec`), after it has looked for GPUs itself."""
    if "MORE_WAYS_INNER" not in os.environ:
        import torch

        print(f"{torch.cuda.device_count()} GPUs, {torch.cuda.get_device_name(0)}", flush=True)
        torch.zeros(1, device="cuda")
        os.environ["MORE_WAYS_INNER"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    train_small_cnn(steps, tell=tell_steps(steps))


@way
def monitored(steps):
    """Chooses GPU 0 by itself, and asks nvidia-smi for its use once a second."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    over = threading.Event()

    def ask():
        query = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader"]
        while not over.wait(1):
            answer = subprocess.run(query, capture_output=True, text=True, check=False)
            print(f"gpu: {answer.stdout.strip() or answer.stderr.strip()}", flush=True)

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        train_small_cnn(steps, tell=tell_steps(steps))
    finally:
        over.set()
        asker.join()


@way
def offload(steps):
    """Weights of a large model that live in the host's pinned memory and come to the GPU layer by layer (4 GiB a pass)."""
    import torch

    layers = [torch.randn(8192, 8192, dtype=torch.bfloat16).pin_memory() for _ in range(32)]
    print(f"{sum(layer.nbytes for layer in layers) >> 20} MiB pinned", flush=True)
    buffers = [torch.empty_like(layers[0], device="cuda") for _ in range(2)]
    stream = torch.cuda.Stream()
    values = torch.randn(256, 8192, dtype=torch.bfloat16, device="cuda")
    for step in range(1, steps + 1):
        for index, layer in enumerate(layers):
            buffer = buffers[index % 2]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                buffer.copy_(layer, non_blocking=True)
            torch.cuda.current_stream().wait_stream(stream)
            values = torch.nn.functional.layer_norm(values @ buffer, (8192,))
        print(f"{step}/{steps} passes, mean {values.mean().item():.4f}", flush=True)


@way
def triton(steps):
    """A Triton kernel with several configurations to choose from."""
    import torch

    from more_ways_kernel import softmax_rows

    rows, columns = 16384, 4096
    values = torch.randn(rows, columns, device="cuda")
    out = torch.empty_like(values)
    for step in range(1, steps + 1):
        softmax_rows[(rows,)](values, out, columns, BLOCK=columns)
        values, out = out, values
        if step % 500 == 0:
            print(f"{step}/{steps} {values[0].sum().item():.3f}", flush=True)


@way
def fraction(steps):
    """Holds itself to a tenth of the GPU, and halves its batch when that is too much."""
    import torch

    torch.cuda.set_per_process_memory_fraction(0.1)
    batch = 65536
    while True:
        try:
            train_small_cnn(2, batch=batch)
            break
        except torch.cuda.OutOfMemoryError:
            print(f"CUDA out of memory with batch {batch}; half of it then", flush=True)
            torch.cuda.empty_cache()
            batch //= 2
    train_small_cnn(max(2, steps * 256 // batch), batch=batch, tell=lambda step, loss: print(f"Step {step}: loss {loss:.4f}", flush=True))


def play(seed):
    """One game of `games`: the CPU alone."""
    value = seed
    for _ in range(20000):
        value = (value * 1103515245 + 12345) % 2147483648
    return value / 2147483648


@way
def games(steps):
    """Games in four forked processes on the CPU, a small network that learns from them on the GPU."""
    with multiprocessing.get_context("fork").Pool(4) as pool:
        import torch

        model = torch.nn.Sequential(torch.nn.Linear(1, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1)).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for update in range(1, steps + 1):
            seen = torch.tensor(pool.map(play, range(64)), device="cuda")[:, None]
            for _ in range(10):
                optimizer.zero_grad(set_to_none=True)
                model(seen).square().mean().backward()
                optimizer.step()
            if update % 10 == 0:
                print(f"update {update} of {steps}", flush=True)


@way
def abrupt(steps):
    """Ends by `_exit` while a thread of its own still launches kernels."""
    import torch

    matrix = torch.randn(4096, 4096, device="cuda")

    def forever():
        out = torch.empty_like(matrix)
        while True:
            torch.mm(matrix, matrix, out=out)
            torch.cuda.current_stream().synchronize()

    threading.Thread(target=forever, daemon=True).start()
    train_small_cnn(steps, tell=tell_steps(steps))
    sys.stdout.flush()
    os._exit(0)


@way
def cupy(steps):
    """CuPy with its own pool of memory: no PyTorch."""
    import cupy as cp

    values = cp.random.standard_normal((8192, 8192), dtype=cp.float32)
    weights = cp.random.standard_normal((8192, 8192), dtype=cp.float32) / 90
    for step in range(1, steps + 1):
        values = cp.tanh(values @ weights)
        if step % 20 == 0:
            print(f"{step}/{steps} {float(values.std()):.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    WAYS[options.way](options.steps)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
