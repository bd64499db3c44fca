#!/usr/bin/env python3
"""What cuDNN takes beside its tensors for single recurrent layers on a real GPU, forward and backward.

    python3 recurrent_workspaces.py -o recurrent-workspaces.csv [--workers 14] [--seconds 60]

Random LSTMs, GRUs and plain recurrent layers of PyTorch. In training `reserve_b` is what the forward pass keeps for the
backward pass beside output and last states; `forward_b`, `infer_b` and `backward_b` are the most bytes asked of PyTorch's
allocator during a pass, less what it leaves; `weights_b` are the weights.
"""

import argparse
import random
import time

import workspaces

COLUMNS = "dtype cell layers directions inputs hidden batch length batch_first weights_b reserve_b forward_b infer_b backward_b error".split()


def drawn(count, seed):
    rng = random.Random(seed)
    while count:
        layers, directions = rng.choice([1, 1, 2, 3, 4, 5]), rng.choice([1, 2])
        inputs, hidden = (rng.choice([32, 64, 100, 128, 200, 256, 320, 400, 512, 650, 800, 1024, 1280, 1500]) for _ in range(2))
        batch, length = rng.choice([1, 2, 4, 8, 16, 20, 32, 64, 128, 256]), rng.choice([10, 20, 35, 50, 100, 128, 200, 256, 400, 800])
        if batch * length * max(inputs, hidden * directions) > 3e7 or batch * length * hidden * directions * layers > 8e7:
            continue
        count -= 1
        cell = rng.choices(["lstm", "gru", "rnn"], [0.45, 0.4, 0.15])[0]
        yield rng.choice(["fp32", "bf16", "autocast"]), cell, layers, directions, inputs, hidden, batch, length, rng.random() < 0.6


def measure(dtype, cell, layers, directions, inputs, hidden, batch, length, batch_first):
    import torch

    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}[cell]
    half = torch.bfloat16 if dtype == "bf16" else torch.float32
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    module = kind(inputs, hidden, layers, batch_first=batch_first, bidirectional=directions == 2).to("cuda", half)
    weights = torch.cuda.memory_stats()["requested_bytes.all.current"] - before
    x = torch.randn(*((batch, length) if batch_first else (length, batch)), inputs, device="cuda", dtype=half)
    x.requires_grad_()

    with torch.autocast("cuda", torch.bfloat16, enabled=dtype == "autocast"):
        with torch.inference_mode():
            module.eval()
            _, _, infer = workspaces.beside_and_kept(lambda: module(x))
        module.train()
        (out, states), kept, forward = workspaces.beside_and_kept(lambda: module(x))
    states = states if isinstance(states, tuple) else (states,)
    reserve = kept - sum(t.numel() * t.element_size() for t in (out, *states))
    grad = torch.randn_like(out)
    for t in (x, *module.parameters()):
        t.grad = torch.zeros_like(t)
    _, _, backward = workspaces.beside_and_kept(lambda: out.backward(grad))
    return weights, reserve, forward, infer, backward


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--count", type=int, default=2000)
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    jobs = list(drawn(options.count, 1))
    asked = lambda *job: [*job[:-1], int(job[-1])]
    workspaces.measured(jobs, asked, measure, COLUMNS, options.output, options.workers, until)


if __name__ == "__main__":
    main()
