#!/usr/bin/env python3
"""Trains a small network so that every run computes the same numbers, and writes each step's loss bit by bit.

    python3 bench/h200/losses.py --steps 2000 --out losses

`--hold` GiB more are filled with a pattern at the start, changed as the training goes on and summed at the end. `--processes` N do the
same at once, each with a file of its own (`losses.0`, ...); `--averaged` has each on a GPU of its own and their gradients averaged by NCCL. `--across` N divides
the layers among N GPUs. What is asked of the GPU is deterministic (torch.use_deterministic_algorithms).
"""

import argparse
import os
import sys
import tempfile


def train(args, number):
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    width = 2048
    layers = [part for _ in range(4) for part in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Dropout(0.1))]
    layers.append(nn.Linear(width, 10))
    first = number if args.averaged else 0
    torch.cuda.set_device(first)
    model = nn.ModuleList(layer.to(f"cuda:{first + at * args.across // len(layers)}") for at, layer in enumerate(layers))

    def forward(x):
        for at, layer in enumerate(model):
            x = layer(x.to(f"cuda:{first + at * args.across // len(layers)}"))
        return x

    if args.averaged:
        import torch.distributed as dist

        dist.init_process_group("nccl", init_method=f"file://{args.meet}", world_size=args.processes, rank=number)
        # The same from here on, of other inputs.
        torch.manual_seed(number)
        forward = nn.parallel.DistributedDataParallel(nn.Sequential(*model))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    block = torch.full((int(args.hold * 2**28),), 1, dtype=torch.int32, device="cuda")
    with open(f"{args.out}.{number}", "w", buffering=1) as losses:
        for step in range(args.steps):
            inputs = torch.randn(1024, width, device="cuda")
            labels = torch.randint(0, 10, (1024,), device=f"cuda:{first + args.across - 1}")
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(forward(inputs), labels)
            loss.backward()
            optimizer.step()
            if block.numel():
                block[:: 1 << 16] += step
            # Reading it waits for the GPU, so that the file says where the training is.
            losses.write(f"{step} {loss.item().hex()}\n")
            if step % 100 == 0:
                print(f"step {step}/{args.steps}", flush=True)
        weights = sum(parameter.double().sum().cpu() for parameter in model.parameters()).item()
        losses.write(f"end {weights.hex()} {block.sum(dtype=torch.int64).item() if block.numel() else 0}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--hold", type=float, default=0.0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--across", type=int, default=1)
    parser.add_argument("--averaged", action="store_true")
    args = parser.parse_args()
    args.meet = os.path.join(tempfile.mkdtemp(prefix="carma-meet-"), "meet")
    children = []
    for number in range(args.processes - 1):
        child = os.fork()
        if child == 0:
            train(args, number + 1)
            os._exit(0)
        children.append(child)
    train(args, 0)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(max(codes, default=0))


if __name__ == "__main__":
    main()
