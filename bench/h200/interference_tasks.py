#!/usr/bin/env python3
"""Real tasks for `carma bench interference`: training and inference, synthetic inputs, random weights.

    python3 interference_tasks.py --list
    python3 interference_tasks.py resnet50                # runs for ever; under carma it is started and paused
    python3 interference_tasks.py resnet50 --rehearse     # on the CPU, in tiny shapes: numbers mean nothing

One step is one batch: an optimizer step of training, one answer of inference, one token of decoding. Inference
waits for each answer; training has two steps in flight, as loops have that read their loss now and then. Inputs
are on the GPU already, except those of `loader`. Nothing is downloaded. Needs PyTorch, timm and transformers.
"""

import argparse
import collections
import os
import sys
import time

Task = collections.namedtuple("Task", "build ahead warm")
TASKS = {}


def task(ahead=2, warm=0, into=TASKS):
    """Registers a function that returns a function which does one step. ahead: steps in flight, 0 for inference,
    None where the step itself waits for the GPU. warm: steps that are unlike the later ones, e.g. the first answer of
    a decoder, whose shapes are all new.
    """

    def add(build):
        into[build.__name__] = Task(build, ahead, warm)
        return build

    return add


class Scale:
    """Where and how large: full size on the GPU, or tiny on the CPU."""

    def __init__(self, tiny):
        import torch

        self.torch, self.tiny = torch, tiny
        self.device = "cpu" if tiny else "cuda"

    def __call__(self, full, tiny):
        return tiny if self.tiny else full

    def half(self):
        """bfloat16 where the GPU has tensor cores for it."""
        return self.torch.autocast(self.device, dtype=self.torch.bfloat16)


def classifier(x, name, batch, size, mixed, channels_last=False, read=False, lr=0.01, **options):
    """Training of an image classifier of timm's; `read`: it reads its loss, and so waits for the GPU."""
    import timm

    torch = x.torch
    model = timm.create_model(name, pretrained=False, num_classes=100, **options).to(x.device)
    images = torch.randn(batch, 3, size, size, device=x.device)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 100, (batch,), device=x.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(x.device, dtype=torch.bfloat16, enabled=mixed):
            loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        if read:
            loss.item()

    return step


@task()
def resnet18_cifar(x):
    return classifier(x, "resnet18", x(32, 2), 32, mixed=False)


@task()
def resnet50(x):
    return classifier(x, x("resnet50", "resnet10t"), x(64, 2), x(224, 64), mixed=True, channels_last=True)


@task()
def efficientnet_b0(x):
    return classifier(x, x("efficientnet_b0", "mobilenetv3_small_050"), x(64, 2), x(224, 64), mixed=True)


@task()
def vit_b16(x):
    name = x("vit_base_patch16_224", "vit_tiny_patch16_224")
    return classifier(x, name, x(64, 2), x(224, 64), mixed=True, img_size=x(224, 64))


@task(ahead=0)
def convnext_infer(x):
    import timm

    torch = x.torch
    dtype = x(torch.float16, torch.float32)
    model = timm.create_model(x("convnext_tiny", "convnext_atto"), pretrained=False).to(x.device, dtype).eval()
    images = torch.randn(x(32, 2), 3, x(224, 64), x(224, 64), device=x.device, dtype=dtype)

    def step():
        with torch.inference_mode():
            model(images)

    return step


def bert_config(x):
    from transformers import BertConfig

    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    return BertConfig(**x({}, small))


@task()
def bert_train(x):
    from transformers import BertForSequenceClassification

    torch = x.torch
    config = bert_config(x)
    model = BertForSequenceClassification(config).to(x.device).train()
    tokens = torch.randint(0, config.vocab_size, (x(32, 2), 128), device=x.device)
    labels = torch.randint(0, 2, (tokens.shape[0],), device=x.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=not x.tiny)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with x.half():
            loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        optimizer.step()

    return step


@task(ahead=0)
def bert_infer(x):
    from transformers import BertModel

    torch = x.torch
    config = bert_config(x)
    model = BertModel(config).to(x.device, x(torch.float16, torch.float32)).eval()
    tokens = torch.randint(0, config.vocab_size, (1, 128), device=x.device)

    def step():
        with torch.inference_mode():
            model(input_ids=tokens)

    return step


def gpt2(x, dtype):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(**x({}, {"n_embd": 64, "n_layer": 2, "n_head": 2}))
    return config, GPT2LMHeadModel(config).to(x.device, dtype)


@task()
def gpt2_train(x):
    torch = x.torch
    config, model = gpt2(x, torch.float32)
    tokens = torch.randint(0, config.vocab_size, (x(8, 1), x(512, 32)), device=x.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not x.tiny)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with x.half():
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()

    return step


def decoder(x, model, vocabulary, batch, prompt, longest):
    """One token a step; a new prompt after the longest answer."""
    torch = x.torch
    model.eval()
    prompts = torch.randint(0, vocabulary, (batch, prompt), device=x.device)
    state = {"cache": None, "tokens": prompts, "length": longest}

    def step():
        with torch.inference_mode():
            if state["length"] >= longest:
                state.update(cache=None, tokens=prompts, length=0)
            out = model(input_ids=state["tokens"], past_key_values=state["cache"], use_cache=True)
            state["cache"] = out.past_key_values
            state["tokens"] = out.logits[:, -1:].argmax(-1)
            state["length"] += 1

    return step


@task(ahead=0, warm=130)
def gpt2_decode(x):
    config, model = gpt2(x, x(x.torch.float16, x.torch.float32))
    return decoder(x, model, config.vocab_size, 1, 32, 128)


@task(ahead=0, warm=258)
def llama_decode(x):
    """A Llama of 0.9 billion parameters, 16 requests at a time: every token reads all weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch = x.torch
    full = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 18}
    full |= {"num_attention_heads": 32, "num_key_value_heads": 4}
    tiny = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    tiny |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=x(32000, 500), **x(full, tiny))
    torch.set_default_dtype(x(torch.bfloat16, torch.float32))
    with torch.device(x.device):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return decoder(x, model, config.vocab_size, x(16, 2), 128, 256)


@task()
def mlp_tabular(x):
    torch = x.torch
    nn = torch.nn
    width = x(256, 16)
    layers = [nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)]
    model = nn.Sequential(*layers).to(x.device)
    rows = torch.randn(x(1024, 16), 64, device=x.device)
    labels = torch.randint(0, 2, (rows.shape[0],), device=x.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad(set_to_none=True)
        criterion(model(rows), labels).backward()
        optimizer.step()

    return step


@task()
def lstm(x):
    """A word-level language model: 2 layers of 650, 70 words."""
    torch = x.torch
    nn = torch.nn
    words, width = x(10000, 100), x(650, 16)
    embed, rnn = nn.Embedding(words, width).to(x.device), nn.LSTM(width, width, 2).to(x.device)
    head = nn.Linear(width, words).to(x.device)
    tokens = torch.randint(0, words, (x(70, 8), x(64, 2)), device=x.device)
    parameters = [p for part in (embed, rnn, head) for p in part.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    criterion = nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad(set_to_none=True)
        hidden, _ = rnn(embed(tokens))
        criterion(head(hidden).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()

    return step


@task()
def gnn(x):
    """Two rounds of messages along the edges of a random graph: gathers and scatters."""
    torch = x.torch
    nn = torch.nn
    nodes, edges, width = x(100_000, 100), x(1_000_000, 500), x(128, 8)
    source, target = (torch.randint(0, nodes, (edges,), device=x.device) for _ in range(2))
    features = torch.randn(nodes, width, device=x.device)
    labels = torch.randint(0, 10, (nodes,), device=x.device)
    layers = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 10)]).to(x.device)
    optimizer = torch.optim.Adam(layers.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad(set_to_none=True)
        hidden = features
        for layer in layers[:2]:
            messages = torch.zeros_like(hidden).index_add(0, target, hidden[source])
            hidden = torch.relu(layer(hidden + messages))
        criterion(layers[2](hidden), labels).backward()
        optimizer.step()

    return step


@task(ahead=0)
def dlrm_infer(x):
    """26 tables of embeddings, 20 of each summed, then a small network: reads from all over the memory."""
    torch = x.torch
    nn = torch.nn
    tables, rows, width, batch = 26, x(1_000_000, 100), 64, x(8192, 8)
    dtype = x(torch.float16, torch.float32)
    bags = [nn.EmbeddingBag(rows, width, mode="sum", device=x.device, dtype=dtype) for _ in range(tables)]
    picks = [torch.randint(0, rows, (batch, 20), device=x.device) for _ in range(tables)]
    top = nn.Sequential(nn.Linear(tables * width, 512), nn.ReLU(), nn.Linear(512, 1)).to(x.device, dtype)

    def step():
        with torch.inference_mode():
            top(torch.cat([bag(pick) for bag, pick in zip(bags, picks)], dim=1))

    return step


def unet(torch, width):
    """A small U-Net as diffusion models have: residual blocks, attention at the lowest resolution."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, into, out):
            super().__init__()
            self.a = nn.Sequential(nn.GroupNorm(8, into), nn.SiLU(), nn.Conv2d(into, out, 3, padding=1))
            self.b = nn.Sequential(nn.GroupNorm(8, out), nn.SiLU(), nn.Conv2d(out, out, 3, padding=1))
            self.skip = nn.Conv2d(into, out, 1)

        def forward(self, h):
            return self.skip(h) + self.b(self.a(h))

    class Unet(nn.Module):
        def __init__(self):
            super().__init__()
            w = width
            self.into, self.out = nn.Conv2d(4, w, 3, padding=1), nn.Conv2d(w, 4, 3, padding=1)
            self.down = nn.ModuleList([Block(w, w), Block(w, 2 * w), Block(2 * w, 4 * w)])
            self.attention = nn.MultiheadAttention(4 * w, 8, batch_first=True)
            self.up = nn.ModuleList([Block(8 * w, 2 * w), Block(4 * w, w), Block(2 * w, w)])

        def forward(self, h):
            h, kept = self.into(h), []
            for block in self.down:
                h = block(h)
                kept.append(h)
                h = nn.functional.avg_pool2d(h, 2)
            n, c, *size = h.shape
            flat = h.flatten(2).transpose(1, 2)
            h = (flat + self.attention(flat, flat, flat, need_weights=False)[0]).transpose(1, 2).reshape(n, c, *size)
            for block in self.up:
                h = nn.functional.interpolate(h, scale_factor=2)
                h = block(torch.cat([h, kept.pop()], dim=1))
            return self.out(h)

    return Unet()


@task(ahead=0)
def unet_infer(x):
    torch = x.torch
    dtype = x(torch.float16, torch.float32)
    model = unet(torch, x(192, 8)).to(x.device, dtype).eval()
    noise = torch.randn(x(8, 1), 4, x(64, 16), x(64, 16), device=x.device, dtype=dtype)

    def step():
        with torch.inference_mode():
            model(noise)

    return step


@task()
def loader(x):
    """Host work and copies: each batch is picked, flipped and scaled by one core, copied, then trained on briefly."""
    torch = x.torch
    nn = torch.nn
    torch.set_num_threads(1)
    batch, size = x(64, 2), x(224, 32)
    pool = torch.randint(0, 255, (256, 3, size, size), dtype=torch.uint8)
    pinned = torch.empty(batch, 3, size, size, pin_memory=not x.tiny)
    conv = nn.Conv2d(3, 32, 7, stride=2)
    model = nn.Sequential(conv, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).to(x.device)
    labels = torch.randint(0, 10, (batch,), device=x.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()

    def step():
        picked = pool[torch.randint(0, len(pool), (batch,))].flip(-1)
        torch.mul(picked, 1 / 255, out=pinned)
        # Not before the last copy has left the buffer, which a blocking copy makes sure of.
        images = pinned.to(x.device)
        optimizer.zero_grad(set_to_none=True)
        criterion(model(images), labels).backward()
        optimizer.step()

    return step


@task()
def gemm(x):
    """Four products of 8192 x 8192 a step. Random data: on zeros they draw less power."""
    torch = x.torch
    n = x(8192, 64)
    a, b = (torch.randn(n, n, device=x.device).to(torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)

    def step():
        for _ in range(4):
            torch.mm(a, b, out=out)

    return step


def main(tasks=TASKS, about=__doc__):
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", choices=list(tasks))
    parser.add_argument("--rehearse", action="store_true", help="tiny, on the CPU")
    parser.add_argument("--steps", type=int, help="end after so many; without carma's helper they are timed")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        print("\n".join(tasks))
        return
    if not options.task:
        parser.error("which task?")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch

    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    chosen = tasks[options.task]
    step = chosen.build(Scale(options.rehearse))
    for _ in range(0 if options.rehearse else chosen.warm):
        step()
    try:
        import carma_bench
    except ImportError:
        pace = None
    else:
        waited = {"done": lambda: lambda: None} if chosen.ahead is None else {}
        pace = carma_bench.Pace(ahead=chosen.ahead or 0, **waited)
    heartbeat = os.environ.get("CARMA_HEARTBEAT")
    done, began = 0, time.monotonic()
    while options.steps is None or done < options.steps:
        step()
        done += 1
        if pace:
            pace.step()
        elif heartbeat:
            # Under carma profile: a step counts when the GPU has finished it, as under carma bench interference.
            if done % 8 == 0 or not chosen.ahead:
                torch.cuda.synchronize() if torch.cuda.is_available() else None
            open(heartbeat, "w").write(str(done))
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    took = time.monotonic() - began
    print(f"{options.task}: {done} steps in {took:.2f} s, {done / took:.1f} it/s", file=sys.stderr)


if __name__ == "__main__":
    main()
