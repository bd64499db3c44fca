#!/usr/bin/env python3
"""A training task as a user would write it: PyTorch, synthetic data that is already on the GPU.

It knows nothing of carma. With --marks FILE it appends "time step" lines, from which throughput over
time can be computed afterwards.
"""

import argparse
import os
import sys
import time


MODELS = ["cifar", "resnet152", "gpt2", "mobilenet", "vit", "bert", "lstm"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=[*MODELS, "hold", "grow", "serve"], required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--gib", type=float, default=0.0, help="hold, grow: memory to allocate")
    parser.add_argument("--to-gib", type=float, default=0.0, help="grow: memory at the end")
    parser.add_argument("--at", type=float, default=0.0, help="grow: seconds of work until more is taken")
    parser.add_argument("--rate", type=float, default=1.0, help="grow: GiB a second that are taken then")
    parser.add_argument("--rest", type=float, default=5.0, help="grow: seconds of work with all of it; serve: of all")
    parser.add_argument("--every", type=float, default=25.0, help="serve: milliseconds between two requests")
    parser.add_argument("--fault-after", type=float, help="seconds of training, then an illegal address")
    parser.add_argument("--marks", help="file for the time of each step, twice a second at most")
    return parser.parse_args()


def make_step(torch, args):
    """Returns a function that runs one optimizer step."""
    from torch import nn

    device = "cuda"
    if args.model == "gpt2":
        from transformers import GPT2Config, GPT2LMHeadModel

        model = GPT2LMHeadModel(GPT2Config(n_positions=512)).to(device)
        tokens = torch.randint(0, 50257, (8, 512), device=device)

        def loss():
            return model(input_ids=tokens, labels=tokens).loss
    elif args.model == "bert":
        from transformers import BertConfig, BertForMaskedLM

        model = BertForMaskedLM(BertConfig()).to(device)
        tokens = torch.randint(0, 30522, (args.batch, 128), device=device)

        def loss():
            return model(input_ids=tokens, labels=tokens).loss
    elif args.model == "lstm":
        layers, head = nn.LSTM(512, 1024, num_layers=2, batch_first=True), nn.Linear(1024, 1000)
        model = nn.ModuleList([layers, head]).to(device)
        values = torch.randn(args.batch, 128, 512, device=device)
        labels = torch.randint(0, 1000, (args.batch * 128,), device=device)
        criterion = nn.CrossEntropyLoss()

        def loss():
            return criterion(head(layers(values)[0]).flatten(0, 1), labels)
    else:
        from torchvision import models
        from torchvision.models.resnet import BasicBlock, ResNet

        build, size = {
            # A small residual network on 32 px images: bound by kernel launches, not by the GPU.
            "cifar": (lambda: ResNet(BasicBlock, [3, 3, 3, 3], num_classes=100), 32),
            "resnet152": (models.resnet152, 224),
            "mobilenet": (models.mobilenet_v3_large, 224),
            "vit": (models.vit_b_16, 224),
        }[args.model]
        model = build().to(device)
        images = torch.randn(args.batch, 3, size, size, device=device)
        labels = torch.randint(0, 100, (args.batch,), device=device)
        criterion = nn.CrossEntropyLoss()

        def loss():
            return criterion(model(images), labels)

    if args.model in ("gpt2", "bert", "vit"):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        optimizer.step()

    return step


def illegal_address(torch):
    """Writes to an address that is nobody's: a real memory fault on the GPU."""
    import cupy

    kernel = cupy.RawKernel(
        'extern "C" __global__ void wild(unsigned long long where) { *(volatile int *)where = 1; }', "wild"
    )
    kernel((1,), (1,), (cupy.uint64(0x10),))
    torch.cuda.synchronize()


def hold(torch, gib):
    """Takes memory and keeps it, until it is told to end."""
    block = torch.empty(int(gib * 2**30), dtype=torch.uint8, device="cuda")
    block.fill_(1)
    print(f"holding {gib} GiB", flush=True)
    time.sleep(3600)


def grow(torch, args):
    """Works with some memory, then takes more, an eighth of a GiB at a time, and works on with all of it."""
    values = torch.randn(4096, 4096, device="cuda")
    piece = 1 / 8

    def take(gib):
        return torch.empty(int(gib * 2**30), dtype=torch.uint8, device="cuda").fill_(1)

    blocks, held, steps = [take(args.gib)], args.gib, 0
    started = grown = time.time()
    while held < args.to_gib or time.time() < grown + args.rest:
        torch.mm(values, values)
        torch.cuda.synchronize()
        steps += 1
        now = time.time()
        if steps % 200 == 0:
            print(f"step {steps} {held:.1f} GiB", flush=True)
        wanted = min(args.to_gib, args.gib + args.rate * (now - started - args.at))
        while held + piece <= wanted or held < wanted == args.to_gib:
            blocks.append(take(piece))
            held, grown = held + piece, now
    print(f"done, {held:.1f} GiB held at most", file=sys.stderr)


def serve(torch, args):
    """Answers requests as they come, one sentence each, and prints how long each took from when it came."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig()).to("cuda").half().eval()
    tokens = torch.randint(0, 30522, (1, 128), device="cuda")
    marks = open(args.marks, "a", buffering=1) if args.marks else None
    with torch.inference_mode():
        for _ in range(20):
            model(input_ids=tokens)
        torch.cuda.synchronize()
        started = time.time()
        every, asked = args.every / 1000, 0
        while asked * every < args.rest:
            came = started + asked * every
            time.sleep(max(0.0, came - time.time()))
            model(input_ids=tokens)
            torch.cuda.synchronize()
            took = (time.time() - came) * 1000
            print(f"latency {took:.3f} ms", flush=True)
            if marks:
                marks.write(f"{time.time():.3f} {took:.3f}\n")
            asked += 1


def main():
    args = arguments()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch

    if args.model == "hold":
        hold(torch, args.gib)
        return
    if args.model == "grow":
        grow(torch, args)
        return
    if args.model == "serve":
        serve(torch, args)
        return
    step = make_step(torch, args)
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    marks = open(args.marks, "a", buffering=1) if args.marks else None
    started = marked = time.time()
    if marks:
        marks.write(f"{started:.3f} 0\n")
    for done in range(1, args.steps + 1):
        step()
        if done % 5 and done != args.steps:
            continue
        torch.cuda.synchronize()
        now = time.time()
        if now - marked >= 0.5 or done == args.steps:
            marked = now
            print(f"step {done}/{args.steps} {done / (now - started):.1f} it/s", flush=True)
            if marks:
                marks.write(f"{now:.3f} {done}\n")
        if args.fault_after is not None and now - started > args.fault_after:
            illegal_address(torch)
    print(f"done, {torch.cuda.max_memory_reserved() / 2**30:.2f} GiB reserved at most", file=sys.stderr)


if __name__ == "__main__":
    main()
