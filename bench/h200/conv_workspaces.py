#!/usr/bin/env python3
"""What cuDNN takes beside its tensors for single convolutions on a real GPU, forward and backward.

    python3 conv_workspaces.py --geometries GEOMETRIES.json                   # without a GPU
    python3 conv_workspaces.py -o conv-workspaces.csv --models GEOMETRIES.json [--workers 14] [--seconds 100]

Those of the vision models of memory_models.py, or with `--set unseen` of memory_unseen.py, and random ones; with `--wide` random
ones with dilation, volumes, long signals and large images more often. For each the most bytes that were asked of PyTorch's
allocator during the operator, less its outputs: forward, gradient of the input, gradient of the weight.
"""

import argparse
import json
import os
import random
import sys
import time

import workspaces

HERE = os.path.dirname(os.path.abspath(__file__))
COLUMNS = "source dtype layout transposed n c k input kernel stride padding dilation groups forward_b dgrad_b wgrad_b error".split()


def of_models():
    """Convolutions of the models, at the middle batch: geometries, each once."""
    import memory_models as models
    import torch

    found = {}
    for name, entry in models.MODELS.items():
        if entry.kind != "image":
            continue
        factory, make_batch, _ = models.build(name, "sdpa", "infer", fast=True)
        model, hooks = factory(), []

        def note(module, inputs, name=name, batch=entry.batches[1]):
            x = inputs[0]
            key = (batch, x.size(1), module.out_channels, tuple(x.shape[2:]), module.kernel_size, module.stride,
                   module.padding if not isinstance(module.padding, str) else module.padding, module.dilation, module.groups)  # fmt: skip
            found.setdefault((False, *key), name)

        for module in model.modules():
            if isinstance(module, torch.nn.Conv2d):
                hooks.append(module.register_forward_pre_hook(note))
        with torch.inference_mode():
            model(make_batch("cpu", 1)[0])
    return [(source, *key) for key, source in found.items() if not isinstance(key[7], str)]


def of_unseen():
    """Convolutions of the 24 models at each of their batches, from one sample: geometries, each once."""
    import memory_unseen as unseen
    import torch

    found = {}
    for name, entry in unseen.UNSEEN.items():
        if entry.kind not in ("image", "segmentation", "detection", "video", "diffusion", "spectrum", "speech", "pairs"):
            continue
        model, count, hooks = entry.make().eval(), 1, []

        def note(module, inputs, name=name, entry=entry):
            x = inputs[0]
            transposed = isinstance(module, torch.nn.modules.conv._ConvTransposeNd)
            for batch in {run[3] for run in entry.runs}:
                key = (transposed, batch * x.size(0) // count, x.size(1), module.out_channels, tuple(x.shape[2:]), module.kernel_size,
                       module.stride, module.padding, module.dilation, module.groups)  # fmt: skip
                found.setdefault(key, name)

        for module in model.modules():
            if isinstance(module, torch.nn.modules.conv._ConvNd):
                hooks.append(module.register_forward_pre_hook(note))
        with torch.inference_mode():
            unseen.forward_of(model, unseen.batch_of(entry.kind, entry.size, "cpu", torch.float32, count, "infer")[0])
    return [(source, *key) for key, source in found.items() if not isinstance(key[7], str)]


def read(path):
    with open(path) as file:
        return [tuple(tuple(part) if isinstance(part, list) else part for part in conv) for conv in json.load(file)]


def drawn(count, seed, wide=False):
    rng = random.Random(seed)
    widths = [1, 3, 4, 8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024]
    sides = [4, 7, 8, 10, 14, 16, 20, 28, 32, 40, 56, 64, 96, 112, 128, 160, 224, 256]
    if wide:
        yield from drawn_wide(count, rng, widths)
        return
    while count:
        dims = rng.choices([2, 1, 3], [0.8, 0.1, 0.1])[0]
        transposed = dims == 2 and rng.random() < 0.1
        n = rng.choice([1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128])
        c, k = rng.choice(widths), rng.choice(widths)
        kernel = (rng.choices([1, 3, 5, 7, 11], [0.2, 0.5, 0.12, 0.12, 0.06])[0],) * dims
        if dims == 2 and rng.random() < 0.1:
            kernel = rng.choice([(1, 3), (3, 1), (1, 7), (7, 1), (1, 5), (41, 11)])
        stride = (rng.choices([1, 2, 4], [0.7, 0.25, 0.05])[0],) * dims
        dilation = (rng.choices([1, 2, 4], [0.9, 0.07, 0.03])[0],) * dims
        padding = tuple(d * (s - 1) // 2 if rng.random() < 0.9 else 0 for d, s in zip(dilation, kernel))
        groups = 1
        if rng.random() < 0.2:
            groups = rng.choice([c, c, 2, 4, 8, 32])
            k = c if groups == c else k
        if c % groups or k % groups:
            continue
        size = tuple(rng.choice(sides) for _ in range(1)) * dims
        if dims == 1:
            size = (rng.choice([64, 128, 400, 1000, 4000, 16000, 64000]),)
        if dims == 3:
            size = (rng.choice([8, 16]), *(rng.choice([14, 28, 56, 112]),) * 2)
        numbers = n * c
        for s in size:
            numbers *= s
        if numbers * max(1, k / c / stride[0] ** dims) > 1.5e8 or any(s + 2 * p < d * (q - 1) + 1 for s, p, d, q in zip(size, padding, dilation, kernel)):
            continue
        count -= 1
        yield ("random", transposed, n, c, k, size, kernel, stride, padding, dilation, groups)


def drawn_wide(count, rng, widths):
    while count:
        dims = rng.choices([2, 1, 3], [0.65, 0.17, 0.18])[0]
        transposed = rng.random() < 0.12
        n = rng.choice([1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 256])
        c, k = rng.choice([*widths, 26, 52, 100, 208, 960, 2048]), rng.choice([*widths, 26, 52, 100, 208, 960, 2048])
        kernel = (rng.choices([1, 2, 3, 4, 5, 7, 11], [0.12, 0.05, 0.5, 0.05, 0.12, 0.12, 0.04])[0],) * dims
        if dims == 3 and rng.random() < 0.4:
            kernel = rng.choice([(1, 3, 3), (3, 1, 1), (1, 7, 7)])
        if dims == 2 and rng.random() < 0.1:
            kernel = rng.choice([(1, 3), (3, 1), (1, 7), (7, 1), (41, 11), (21, 11), (16, 16), (14, 14)])
        # Patches do not overlap; transposed ones mostly double the sides.
        strides = [max(kernel)] if max(kernel) > 11 else rng.choices([1, 2, 4], [0.2, 0.7, 0.1] if transposed else [0.75, 0.2, 0.05])
        stride = tuple(min(strides[0], max(q, 1)) for q in kernel)
        dilation = (rng.choices([1, 2, 4, 6, 12, 24, 36], [0.7, 0.1, 0.06, 0.04, 0.04, 0.03, 0.03])[0] if not transposed else 1,) * dims
        padding = tuple(d * (s - 1) // 2 if max(strides) <= 11 and rng.random() < 0.92 else 0 for d, s in zip(dilation, kernel))
        groups = 1
        if rng.random() < 0.15:
            groups = rng.choice([c, c, 2, 4, 8, 16, 32])
            k = c if groups == c else k
        if c % groups or k % groups:
            continue
        size = (rng.choice([4, 7, 8, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 512]),) * dims
        if dims == 1:
            size = (rng.choice([64, 128, 400, 800, 1000, 3200, 4000, 8000, 16000, 32000, 64000, 160000]),)
        if dims == 3:
            size = (rng.choice([4, 8, 16, 32]), *(rng.choice([7, 14, 16, 28, 32, 56, 64, 112]),) * 2)
        numbers = n * c
        for s in size:
            numbers *= s
        grows = k / c
        for s in stride:
            grows *= s if transposed else 1 / s
        if max(numbers, numbers * grows) > 2.5e8 or numbers < 1e5 or any(s + 2 * p < d * (q - 1) + 1 for s, p, d, q in zip(size, padding, dilation, kernel)):
            continue
        count -= 1
        yield ("wide", transposed, n, c, k, size, kernel, stride, padding, dilation, groups)


def measure(conv, dtype, layout):
    import torch

    _, transposed, n, c, k, size, kernel, stride, padding, dilation, groups = conv
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    x = torch.randn(n, c, *size, device="cuda", dtype=kind)
    w = torch.randn(*((c, k // groups) if transposed else (k, c // groups)), *kernel, device="cuda", dtype=kind)
    if layout == "last":
        x, w = (t.contiguous(memory_format=torch.channels_last) for t in (x, w))
    rest = [list(stride), list(padding), list(dilation), transposed, [0] * len(size), groups]

    with torch.no_grad():
        y, forward = workspaces.beside(lambda: torch.ops.aten.convolution(x, w, None, *rest))
        grad = torch.randn_like(y)
        backward = torch.ops.aten.convolution_backward
        _, dgrad = workspaces.beside(lambda: backward(grad, x, w, None, *rest, [True, False, False]))
        _, wgrad = workspaces.beside(lambda: backward(grad, x, w, None, *rest, [False, True, False]))
    return forward, dgrad, wgrad


def asked(conv, dtype, layout):
    source, transposed, n, c, k, *geometry, groups = conv
    return [source, dtype, layout, int(transposed), n, c, k, *("x".join(map(str, part)) for part in geometry), groups]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output")
    parser.add_argument("--geometries", help="writes those of the models, which takes a minute on the CPU")
    parser.add_argument("--models", help="what --geometries wrote")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--count", type=int, default=1600)
    parser.add_argument("--set", choices=["known", "unseen"], default="known", help="whose convolutions --geometries writes")
    parser.add_argument("--wide", action="store_true")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    if options.geometries:
        sys.path.insert(0, HERE)
        with open(options.geometries, "w") as file:
            json.dump(of_models() if options.set == "known" else of_unseen(), file)
        return
    convs = read(options.models) + list(drawn(options.count, 2 if options.wide else 1, options.wide))
    jobs = [(conv, dtype, "first") for conv in convs for dtype in ("fp32", "bf16")]
    jobs += [(conv, dtype, "last") for conv in convs if len(conv[5]) == 2 for dtype in ("fp32", "bf16")]
    random.Random(2).shuffle(jobs)
    workspaces.measured(jobs, asked, measure, COLUMNS, options.output, options.workers, until)


if __name__ == "__main__":
    main()
