#!/usr/bin/env python3
"""Programs as people write them, for `carma bench trace --tasks ways_tasks.toml`: none knows anything of carma.

    python3 ways_tasks.py compiled --steps 500

The other tasks here differ in what they compute; these differ in how they run: compiled, in CUDA graphs, with loaders, in several
processes, by launchers, behind shells, silent or printing in several forms, looking for the largest batch that fits, taking most of what
is free at once, growing, leaving a process behind. Inputs are synthetic, weights random, nothing is downloaded. Python's dependencies are
PyTorch, timm and transformers.
"""

import argparse
import itertools
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time

WAYS = {}


def way(function):
    WAYS[function.__name__] = function
    return function


def small_cnn(channels=64):
    """A CNN for 32 px images."""
    from torch import nn

    layers, width = [], 3
    for factor in (1, 2, 4):
        layers += [nn.Conv2d(width, factor * channels, 3, padding=1), nn.BatchNorm2d(factor * channels), nn.ReLU(), nn.MaxPool2d(2)]
        width = factor * channels
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * 16, 10))


def decoder(width=512, layers=6, words=8000):
    """A decoder of words without its embedding's weights shared."""
    from torch import nn

    block = [nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True) for _ in range(layers)]
    return nn.Sequential(nn.Embedding(words, width), *block, nn.Linear(width, words))


def train_step(model, optimizer, inputs, targets):
    import torch

    optimizer.zero_grad(set_to_none=True)
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss


def train_small_cnn(steps, batch=256, tell=lambda step, loss: None):
    """The plain loop that several ways share."""
    import torch

    model = small_cnn().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs, targets = torch.randn(batch, 3, 32, 32, device="cuda"), torch.randint(10, (batch,), device="cuda")
    for step in range(1, steps + 1):
        loss = train_step(model, optimizer, inputs, targets)
        if step % 50 == 0 or step == steps:
            tell(step, loss.item())
    return model


def tell_steps(steps):
    return lambda step, loss: print(f"Step {step}/{steps}: loss {loss:.4f}", flush=True)


@way
def compiled(steps):
    """`torch.compile`: a pool of compiler processes, nothing on the GPU for a while, then fused kernels."""
    import torch

    model = decoder().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(8000, (16, 256), device="cuda")

    @torch.compile
    def loss_of(tokens):
        with torch.autocast("cuda", torch.bfloat16):
            return torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    for step in range(1, steps + 1):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(tokens)
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"iter {step}: loss {loss.item():.4f}, {torch.cuda.max_memory_allocated() >> 20} MiB", flush=True)


@way
def graphs(steps):
    """A training step captured as a CUDA graph, and replayed."""
    import torch
    from torch import nn

    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(1024, 1024), nn.ReLU()))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(512, 1024, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    for done in range(1, steps + 1):
        graph.replay()
        if done % 1000 == 0:
            print(f"[{done:>6}/{steps}] loss={loss.item():.5f}", flush=True)


class RandomImages:
    """A data set whose images are made by the loader's workers."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        import torch

        return torch.randn(3, 224, 224), index % 1000


@way
def loaders(steps):
    """Four worker processes make the batches; a tqdm bar an epoch, an evaluation after each."""
    import timm
    import torch
    from tqdm import tqdm

    model = timm.create_model("resnet18").cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    each = max(1, steps // 3)
    train, test = (
        torch.utils.data.DataLoader(RandomImages(64 * count), 64, num_workers=4, pin_memory=True, persistent_workers=True)
        for count in (each, max(1, each // 4))
    )
    for epoch in range(3):
        model.train()
        for inputs, targets in tqdm(train, desc=f"Epoch {epoch + 1}/3"):
            with torch.autocast("cuda", torch.bfloat16):
                train_step(model, optimizer, inputs.cuda(non_blocking=True), targets.cuda(non_blocking=True))
        model.eval()
        with torch.no_grad():
            right = sum((model(inputs.cuda()).argmax(1).cpu() == targets).sum().item() for inputs, targets in tqdm(test, desc="eval"))
        print(f"epoch {epoch + 1}: {right} right", flush=True)


@way
def trainer(steps):
    """transformers' Trainer: its own bar, logs, evaluations and checkpoints."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    class Texts(torch.utils.data.Dataset):
        def __init__(self, count):
            self.count = count

        def __len__(self):
            return self.count

        def __getitem__(self, index):
            return {"input_ids": torch.full((128,), index % 1000), "labels": index % 2}

    model = BertForSequenceClassification(BertConfig(num_hidden_layers=6, hidden_size=512, num_attention_heads=8, intermediate_size=2048))
    with tempfile.TemporaryDirectory() as out:
        options = TrainingArguments(
            out, max_steps=steps, per_device_train_batch_size=32, logging_steps=50, eval_strategy="steps", eval_steps=max(1, steps // 3),
            save_steps=max(1, steps // 2), save_total_limit=1, bf16=True, report_to=[],
        )  # fmt: skip
        Trainer(model, options, train_dataset=Texts(32 * steps), eval_dataset=Texts(2000)).train()


@way
def scaler(steps):
    """fp16 with a gradient scaler and gradients gathered over two batches; a JSON line by `logging` now and then."""
    import timm
    import torch

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    model = timm.create_model("resnet50").cuda()
    optimizer, scale = torch.optim.SGD(model.parameters(), lr=0.01), torch.amp.GradScaler("cuda")
    inputs, targets = torch.randn(32, 3, 224, 224, device="cuda"), torch.randint(1000, (32,), device="cuda")
    for step in range(1, steps + 1):
        for _ in range(2):
            with torch.autocast("cuda", torch.float16):
                loss = torch.nn.functional.cross_entropy(model(inputs), targets) / 2
            scale.scale(loss).backward()
        scale.step(optimizer)
        scale.update()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0:
            logging.info(json.dumps({"global_step": step, "loss": loss.item()}))


def act(queue, steps):
    """The other process of `actors`: runs a network of its own on the same GPU."""
    import torch

    model = small_cnn(32).cuda()
    inputs = torch.randn(64, 3, 32, 32, device="cuda")
    with torch.no_grad():
        for _ in range(steps):
            queue.put(model(inputs).cpu().numpy())


@way
def actors(steps):
    """Two processes on one GPU, started by `spawn`: one acts, one learns from what it sends."""
    import torch
    import torch.multiprocessing as several

    spawn = several.get_context("spawn")
    queue = spawn.Queue(16)
    actor = spawn.Process(target=act, args=(queue, steps))
    actor.start()
    model = torch.nn.Sequential(torch.nn.Linear(10, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 10)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(1, steps + 1):
        seen = torch.from_numpy(queue.get()).cuda()
        optimizer.zero_grad(set_to_none=True)
        model(seen).square().mean().backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"update {step} of {steps}", flush=True)
    actor.join()
    sys.exit(actor.exitcode)


@way
def plain(steps):
    """The plain loop; the way is what is around it (a shell, a launcher, a file)."""
    train_small_cnn(steps, tell=tell_steps(steps))


@way
def prepare(steps):
    """What comes before a training, on the CPU alone."""
    until = time.time() + 3
    while time.time() < until:
        sum(range(100000))
    print(f"prepared {steps} records", flush=True)


@way
def evaluate(steps):
    """What comes after a training: forward passes over larger batches."""
    import torch

    model = small_cnn().cuda().eval()
    inputs = torch.randn(1024, 3, 32, 32, device="cuda")
    with torch.no_grad():
        for _ in range(steps):
            model(inputs)
    torch.cuda.synchronize()
    print("accuracy 0.1", flush=True)


@way
def finder(steps):
    """Doubles the batch until memory is out, goes on with the last that fitted; its work is a number of images, 16 a step."""
    import timm
    import torch

    model = timm.create_model("resnet18").cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def one(batch):
        inputs, targets = torch.randn(batch, 3, 224, 224, device="cuda"), torch.randint(1000, (batch,), device="cuda")
        return train_step(model, optimizer, inputs, targets).item()

    batch = 16
    while batch < 4096:
        try:
            one(2 * batch)
        except torch.cuda.OutOfMemoryError as error:
            print(f"batch {2 * batch} does not fit: {error}", flush=True)
            optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            break
        batch *= 2
    print(f"batch {batch} it is", flush=True)
    left = 16 * steps
    while left > 0:
        one(min(batch, left))
        left -= batch
        print(f"{16 * steps - max(0, left)}/{16 * steps} images", flush=True)


@way
def generate(steps):
    """Texts of a language model, a request after another, its keys and values growing; says how long each took."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).cuda().half().eval()
    prompt = torch.randint(50000, (4, 64), device="cuda")
    for request in range(steps):
        began = time.monotonic()
        model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=128, min_new_tokens=128, do_sample=True, pad_token_id=0)
        print(f"request {request}: latency {1000 * (time.monotonic() - began):.0f} ms", flush=True)


@way
def preallocate(steps):
    """Takes three quarters of what is free at its start, as some frameworks do, and computes in a corner of it."""
    import torch

    free, total = torch.cuda.mem_get_info()
    pool = torch.empty(int(0.75 * free), dtype=torch.uint8, device="cuda").fill_(1)
    print(f"{free >> 20} of {total >> 20} MiB free, took {pool.numel() >> 20}", flush=True)
    train_small_cnn(steps, tell=tell_steps(steps))


@way
def distributed(steps):
    """One process under `torchrun`, DistributedDataParallel and NCCL."""
    import torch
    import torch.distributed

    torch.distributed.init_process_group("nccl")
    model = torch.nn.parallel.DistributedDataParallel(small_cnn().cuda(), device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, targets = torch.randn(256, 3, 32, 32, device="cuda"), torch.randint(10, (256,), device="cuda")
    for step in range(1, steps + 1):
        loss = train_step(model, optimizer, inputs, targets)
        if step % 100 == 0:
            print(f"rank 0 step={step} loss={loss.item():.3f}", flush=True)
    torch.distributed.destroy_process_group()


@way
def growing(steps):
    """A replay memory on the GPU: 16 MiB more a step."""
    import torch

    kept = []

    def keep(step, loss):
        tell_steps(steps)(step, loss)
        kept.append(torch.randn(50 * 4 << 20, device="cuda"))

    train_small_cnn(steps, tell=keep)


@way
def threads(steps):
    """Two threads infer on streams of their own."""
    import timm
    import torch

    models = [timm.create_model(name).cuda().eval() for name in ("resnet18", "mobilenetv3_large_100")]
    count, lock = itertools.count(1), threading.Lock()

    def infer(model):
        inputs = torch.randn(8, 3, 224, 224, device="cuda")
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(steps // 2):
                model(inputs).argmax(1).tolist()
                with lock:
                    done = next(count)
                if done % 100 == 0:
                    print(f"{done} batches", flush=True)

    both = [threading.Thread(target=infer, args=(model,)) for model in models]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()


@way
def late(steps):
    """Ten seconds on the CPU before it touches the GPU."""
    until = time.time() + 10
    while time.time() < until:
        sum(range(100000))
    plain(steps)


@way
def lingers(steps):
    """Leaves a process behind, in a session of its own, that keeps 2 GiB of the GPU for a minute."""
    hold = "import torch, time; kept = torch.ones(512 << 20, device='cuda'); time.sleep(60)"
    subprocess.Popen([sys.executable, "-c", hold], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    plain(steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    WAYS[options.way](options.steps)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
