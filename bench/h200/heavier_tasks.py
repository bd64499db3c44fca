#!/usr/bin/env python3
"""Eleven heavier tasks for `carma bench interference`, to learn from: networks that keep most of an H200 busy.

    python3 heavier_tasks.py --list
    python3 heavier_tasks.py --groups               # the sets, one a line; always the same ones
    python3 heavier_tasks.py vit_l16                # runs for ever; under carma it is started and paused
    python3 heavier_tasks.py vit_l16 --rehearse     # on the CPU, in tiny shapes: numbers mean nothing

Synthetic inputs, random weights; nothing is downloaded. Ten of the seventeen tasks of interference_tasks.py run beside
them. HEAVIER_TASKS_DATA.md says what each task is. Needs PyTorch, timm and transformers.
"""

import functools
import itertools
import random
import sys

import interference_tasks
from interference_tasks import classifier, unet

TASKS = {}
task = functools.partial(interference_tasks.task, into=TASKS)
# The step itself waits, because it reads its loss.
waiting = functools.partial(task, ahead=None)

# Of interference_tasks.py, as neighbours.
NEIGHBOURS = (
    "resnet50 bert_infer gpt2_decode llama_decode mlp_tabular lstm gnn dlrm_infer loader gemm".split()
)
# Members of a set, and how many such sets; beside these all pairs of two heavier tasks.
GROUPS = {2: 25, 3: 45, 4: 45, 5: 10, 6: 10, 7: 10, 8: 10}


def trained(model, loss_of, optimizer, read=False):
    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        if read:
            loss.item()

    return step


@waiting()
def resnet101(x):
    return classifier(x, x("resnet101", "resnet10t"), x(64, 2), x(224, 64), mixed=False, read=True)


@task()
def vit_l16(x):
    name = x("vit_large_patch16_224", "vit_tiny_patch16_224")
    return classifier(x, name, x(32, 2), x(224, 64), mixed=True, img_size=x(224, 64))


@task()
def convnext_train(x):
    return classifier(x, x("convnext_small", "convnext_atto"), x(48, 2), x(224, 64), mixed=True, channels_last=True)


@task()
def densenet121(x):
    return classifier(x, x("densenet121", "resnet10t"), x(48, 2), x(224, 64), mixed=False)


@waiting()
def vgg16(x):
    return classifier(x, x("vgg16", "resnet10t"), x(48, 2), x(224, 64), mixed=False, read=True)


def bert(x, batch, length, mixed, read, **full):
    from transformers import BertConfig, BertForSequenceClassification

    torch = x.torch
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    config = BertConfig(**x(full, small))
    model = BertForSequenceClassification(config).to(x.device).train()
    tokens = torch.randint(0, config.vocab_size, (x(batch, 2), x(length, 16)), device=x.device)
    labels = torch.randint(0, 2, (tokens.shape[0],), device=x.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=not x.tiny)

    def loss_of(model):
        with torch.autocast(x.device, dtype=torch.bfloat16, enabled=mixed):
            return model(input_ids=tokens, labels=labels).loss

    return trained(model, loss_of, optimizer, read)


@waiting()
def bert_large(x):
    full = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    return bert(x, 16, 256, mixed=True, read=True, **full)


@task()
def bert_fp32(x):
    """Products of matrices in plain fp32: the FP32 pipes, not the tensor cores."""
    return bert(x, 16, 128, mixed=False, read=False)


@task()
def gpt2_medium(x):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch = x.torch
    config = GPT2Config(**x({"n_embd": 1024, "n_layer": 24, "n_head": 16}, {"n_embd": 64, "n_layer": 2, "n_head": 2}))
    model = GPT2LMHeadModel(config).to(x.device)
    tokens = torch.randint(0, config.vocab_size, (x(4, 1), x(1024, 32)), device=x.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not x.tiny)

    def loss_of(model):
        with x.half():
            return model(input_ids=tokens, labels=tokens).loss

    return trained(model, loss_of, optimizer)


@task()
def unet_train(x):
    torch = x.torch
    model = unet(torch, x(160, 8)).to(x.device)
    noise = torch.randn(x(8, 1), 4, x(64, 16), x(64, 16), device=x.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    return trained(model, lambda model: (model(noise) - noise).square().mean(), optimizer)


@task(ahead=0)
def llama_prefill(x):
    """First tokens of prompts of 512 by a Llama of 0.9 billion parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch = x.torch
    full = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 18}
    full |= {"num_attention_heads": 32, "num_key_value_heads": 4}
    tiny = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    tiny |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=x(32000, 500), **x(full, tiny))
    torch.set_default_dtype(x(torch.bfloat16, torch.float32))
    with torch.device(x.device):
        model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    prompts = torch.randint(0, config.vocab_size, (x(8, 1), x(512, 16)), device=x.device)

    def step():
        with torch.inference_mode():
            model(input_ids=prompts, use_cache=False, logits_to_keep=1)

    return step


@task(ahead=0)
def video_infer(x):
    """Four stages of 3-D convolutions over 16 frames of 112 px, fp16."""
    torch = x.torch
    nn = torch.nn
    dtype = x(torch.float16, torch.float32)
    widths = x([3, 64, 128, 256, 512], [3, 4, 8])
    stages = [
        nn.Sequential(nn.Conv3d(a, b, 3, stride=2, padding=1), nn.ReLU(), nn.Conv3d(b, b, 3, padding=1), nn.ReLU())
        for a, b in zip(widths, widths[1:])
    ]
    model = nn.Sequential(*stages, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(widths[-1], 400))
    model = model.to(x.device, dtype).eval()
    clips = torch.randn(x(8, 1), 3, x(16, 4), x(112, 16), x(112, 16), device=x.device, dtype=dtype)

    def step():
        with torch.inference_mode():
            model(clips)

    return step


def groups():
    """All pairs of heavier tasks, and random sets of them and their neighbours, none twice, the heavier ones twice as often;
    always the same ones."""
    dice = random.Random(2027)
    names = [*TASKS, *NEIGHBOURS]
    chosen = [list(pair) for pair in itertools.combinations(TASKS, 2)]
    for size, count in GROUPS.items():
        # The chance of a neighbour is half of a heavier task's: its turns count double.
        turns = dict.fromkeys(names, 0.0)
        before = len(chosen)
        while len(chosen) < before + count:
            order = sorted(names, key=lambda name: (turns[name], dice.random()))
            group = sorted(dice.sample(order[: size + 3], size), key=names.index)
            if group in chosen or (size == 2 and group[0] in TASKS and group[1] in TASKS):
                turns[order[0]] += 0.5
                continue
            chosen.append(group)
            for name in group:
                turns[name] += 1 if name in TASKS else 2
    return chosen


if __name__ == "__main__":
    if sys.argv[1:] == ["--groups"]:
        print("\n".join(",".join(group) for group in groups()))
    else:
        interference_tasks.main(TASKS, __doc__)
