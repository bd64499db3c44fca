#!/usr/bin/env python3
"""Twenty-four models that are in no other set: memory and activity of training and inference on a real GPU.

    python3 memory_unseen.py --list
    python3 memory_unseen.py --plan                            # the rows, as CSV
    python3 memory_unseen.py --rehearse                        # every row on the CPU with tiny batches: does it run?
    python3 memory_unseen.py --measure -o OUT.jsonl            # needs a GPU
    python3 memory_unseen.py --measure --set later -o OUT.jsonl   # the second list, memory_later.py
    python3 memory_unseen.py --measure --set known -o OUT.jsonl   # rows of memory_models.py: to develop on
    python3 memory_unseen.py --texts -o OUT.jsonl.gz           # summaries and configurations, on the CPU
    python3 memory_unseen.py --traces FOLDER                   # by carma's tracer, on the CPU

Every row runs in a process of its own, forked from one that has the libraries loaded and never touched the GPU. First
steps until the allocator's reserved memory has been the same for `STEADY` steps, several processes beside each other; then
each process alone steps for a window, in which the GPU is read by NVML's GPM. Weights are random, inputs are synthetic.
"""

import argparse
import collections
import contextlib
import csv
import gc
import gzip
import io
import json
import os
import select
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
STEADY, LEAST, MOST = 4, 8, 24  # steps: unchanged for, at least, at most
WARM_S = 0.5  # before a window
MIB = 2**20

# kind: what a batch is, see `batch_of`. runs: (mode, precision, optimizer, batch).
Entry = collections.namedtuple("Entry", "family source kind make runs size")
UNSEEN = {}


def runs(optimizer, small, large, infer, half="bf16-autocast", half_batch=None, infer_half="bf16"):
    return (
        ("train", "fp32", optimizer, small),
        ("train", "fp32", optimizer, large),
        ("train", half, "adamw" if optimizer != "adamw" else "adam-fused", half_batch or large),
        ("infer", "fp32", "", infer),
        ("infer", infer_half, "", infer),
    )


def entry(name, family, source, kind, runs, size=None, into=UNSEEN):
    def register(make):
        into[name] = Entry(family, source, kind, make, runs, size)
        return make

    return register


def of_timm(name):
    def make():
        import timm

        return timm.create_model(name, pretrained=False)

    return make


def of_torchvision(name, part="", **options):
    def make():
        from torchvision import models

        return getattr(getattr(models, part) if part else models, name)(weights=None, **options)

    return make


def of_transformers(model, config, **options):
    def make():
        import transformers

        settings = getattr(transformers, config)(**options)
        return getattr(transformers, model)(settings)

    return make


SGD, ADAMW = "sgd-momentum", "adamw"
for name, family, runs_of, size in (
    ("dm_nfnet_f0", "nfnet", runs(SGD, 16, 48, 96), 192),
    ("res2net50_26w_4s", "res2net", runs(SGD, 16, 64, 128), 224),
    ("pvt_v2_b2", "pvt", runs(ADAMW, 16, 48, 96), 224),
    ("focalnet_tiny_srf", "focalnet", runs(ADAMW, 16, 48, 96), 224),
    ("dla60", "dla", runs(SGD, 16, 64, 160), 224),
):
    entry(name, family, "timm", "image", runs_of, size)(of_timm(name))

entry("wide_resnet50_2", "wide-resnet", "torchvision", "image", runs(SGD, 16, 64, 128), 224)(of_torchvision("wide_resnet50_2"))
entry("deeplabv3_mobilenet", "deeplab", "torchvision", "segmentation", runs(SGD, 8, 24, 32), 384)(
    of_torchvision("deeplabv3_mobilenet_v3_large", "segmentation", weights_backbone=None, num_classes=21)
)
entry("ssdlite320", "ssd", "torchvision", "detection", runs(SGD, 8, 24, 32), 320)(
    of_torchvision("ssdlite320_mobilenet_v3_large", "detection", weights_backbone=None, num_classes=91)
)
entry("r2plus1d_18", "r2plus1d", "torchvision", "video", runs(SGD, 4, 12, 24), 112)(of_torchvision("r2plus1d_18", "video"))

entry("albert-base", "albert", "transformers", "masked", runs(ADAMW, 8, 24, 32, "bf16"), 256)(
    of_transformers("AlbertForMaskedLM", "AlbertConfig", hidden_size=768, num_attention_heads=12, intermediate_size=3072)
)
entry("deberta-v3-small", "deberta", "transformers", "masked", runs(ADAMW, 8, 24, 32, "bf16"), 256)(
    of_transformers(
        "DebertaV2ForMaskedLM", "DebertaV2Config", vocab_size=128100, hidden_size=768, num_hidden_layers=6,
        num_attention_heads=12, intermediate_size=3072, max_position_embeddings=512, type_vocab_size=0,
        relative_attention=True, position_buckets=256, norm_rel_ebd="layer_norm", share_att_key=True,
        pos_att_type=["p2c", "c2p"], position_biased_input=False,
    )
)  # fmt: skip
entry("phi-350m", "phi", "transformers", "causal", runs(ADAMW, 4, 8, 16, "bf16"), 512)(
    of_transformers(
        "PhiForCausalLM", "PhiConfig", vocab_size=51200, hidden_size=1024, intermediate_size=4096, num_hidden_layers=20,
        num_attention_heads=16, max_position_embeddings=2048,
    )
)  # fmt: skip
entry("olmo2-300m", "olmo", "transformers", "causal", runs(ADAMW, 4, 8, 16, "bf16"), 512)(
    of_transformers(
        "Olmo2ForCausalLM", "Olmo2Config", vocab_size=100352, hidden_size=1024, intermediate_size=4096,
        num_hidden_layers=12, num_attention_heads=16, max_position_embeddings=4096,
    )
)  # fmt: skip
entry("bloom-300m", "bloom", "transformers", "causal", runs(ADAMW, 2, 6, 8, "bf16"), 512)(
    of_transformers("BloomForCausalLM", "BloomConfig", vocab_size=250880, hidden_size=768, n_layer=12, n_head=12)
)
entry("pegasus-small", "pegasus", "transformers", "seq2seq", runs(ADAMW, 8, 16, 32, "bf16"), 256)(
    of_transformers(
        "PegasusForConditionalGeneration", "PegasusConfig", vocab_size=96103, d_model=512, encoder_layers=8,
        decoder_layers=8, encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=2048,
        decoder_ffn_dim=2048, max_position_embeddings=512,
    )
)  # fmt: skip
entry("mixtral-tiny", "mixtral", "transformers", "causal", runs(ADAMW, 4, 8, 16, "bf16"), 512)(
    of_transformers(
        "MixtralForCausalLM", "MixtralConfig", vocab_size=32000, hidden_size=512, intermediate_size=1536,
        num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4, num_local_experts=8, num_experts_per_tok=2,
        max_position_embeddings=2048,
    )
)  # fmt: skip
entry("wav2vec2-base", "wav2vec2", "transformers", "speech", runs(ADAMW, 2, 6, 12), 160_000)(
    of_transformers("Wav2Vec2ForCTC", "Wav2Vec2Config", apply_spec_augment=False, layerdrop=0.0, ctc_zero_infinity=True)
)
entry("clip-vit-b32", "clip", "transformers", "pairs", runs(ADAMW, 32, 96, 256), 224)(of_transformers("CLIPModel", "CLIPConfig"))


@entry("unet", "unet", "torch", "segmentation", runs("adam", 4, 12, 24), 256)
def unet():
    """Ronneberger's U-Net with batch norm, 64 to 1024 channels."""
    import torch
    from torch import nn

    def double(inputs, outputs):
        layers = []
        for i in (inputs, outputs):
            layers += [nn.Conv2d(i, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers)

    class UNet(nn.Module):
        def __init__(self, widths=(64, 128, 256, 512, 1024), classes=21):
            super().__init__()
            self.down = nn.ModuleList(double(i, o) for i, o in zip((3, *widths), widths))
            self.up = nn.ModuleList(nn.ConvTranspose2d(i, o, 2, 2) for i, o in zip(widths[:0:-1], widths[-2::-1]))
            self.join = nn.ModuleList(double(i, o) for i, o in zip(widths[:0:-1], widths[-2::-1]))
            self.pool, self.head = nn.MaxPool2d(2), nn.Conv2d(widths[0], classes, 1)

        def forward(self, x):
            kept = []
            for at, block in enumerate(self.down):
                x = block(self.pool(x) if at else x)
                kept.append(x)
            kept.pop()
            for up, join in zip(self.up, self.join):
                x = join(torch.cat([kept.pop(), up(x)], 1))
            return self.head(x)

    return UNet()


@entry("ddpm-unet", "ddpm", "torch", "diffusion", runs(ADAMW, 16, 64, 128), 32)
def ddpm():
    """Ho's denoising network for images of 32 pixels: residual blocks with time embedding, attention at 16."""
    import math

    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self, i, o, time):
            super().__init__()
            self.norm1, self.conv1 = nn.GroupNorm(32, i), nn.Conv2d(i, o, 3, padding=1)
            self.time = nn.Linear(time, o)
            self.norm2, self.drop, self.conv2 = nn.GroupNorm(32, o), nn.Dropout(0.1), nn.Conv2d(o, o, 3, padding=1)
            self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

        def forward(self, x, t):
            h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
            return self.skip(x) + self.conv2(self.drop(F.silu(self.norm2(h))))

    class Attention(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.norm, self.qkv, self.out = nn.GroupNorm(32, c), nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)

        def forward(self, x):
            n, c, h, w = x.shape
            q, k, v = self.qkv(self.norm(x)).reshape(n, 3, 4, c // 4, h * w).transpose(3, 4).unbind(1)
            return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(n, c, h, w))

    class Net(nn.Module):
        def __init__(self, c=128, factors=(1, 2, 2, 2), blocks=2, attention_at=1):
            super().__init__()
            self.c, time = c, 4 * c
            self.time = nn.Sequential(nn.Linear(c, time), nn.SiLU(), nn.Linear(time, time))
            self.first = nn.Conv2d(3, c, 3, padding=1)
            self.down, self.up, widths, now = nn.ModuleList(), nn.ModuleList(), [c], c
            for level, factor in enumerate(factors):
                for _ in range(blocks):
                    self.down.append(nn.ModuleList([Block(now, c * factor, time), *([Attention(c * factor)] if level == attention_at else [])]))
                    now = c * factor
                    widths.append(now)
                if level + 1 < len(factors):
                    self.down.append(nn.ModuleList([nn.Conv2d(now, now, 3, 2, 1)]))
                    widths.append(now)
            self.middle = nn.ModuleList([Block(now, now, time), Attention(now), Block(now, now, time)])
            for level, factor in reversed(list(enumerate(factors))):
                for at in range(blocks + 1):
                    parts = [Block(now + widths.pop(), c * factor, time)]
                    now = c * factor
                    if level == attention_at:
                        parts.append(Attention(now))
                    if level and at == blocks:
                        parts += [nn.Upsample(scale_factor=2), nn.Conv2d(now, now, 3, padding=1)]
                    self.up.append(nn.ModuleList(parts))
            self.norm, self.last = nn.GroupNorm(32, now), nn.Conv2d(now, 3, 3, padding=1)

        def forward(self, x, step):
            half = self.c // 2
            at = step.float()[:, None] * torch.exp(-math.log(10000) / half * torch.arange(half, device=x.device))
            t = self.time(torch.cat([at.sin(), at.cos()], 1).to(x.dtype))
            x = self.first(x)
            kept = [x]
            for parts in self.down:
                for part in parts:
                    x = part(x, t) if isinstance(part, Block) else part(x)
                kept.append(x)
            for part in self.middle:
                x = part(x, t) if isinstance(part, Block) else part(x)
            for parts in self.up:
                x = torch.cat([x, kept.pop()], 1)
                for part in parts:
                    x = part(x, t) if isinstance(part, Block) else part(x)
            return self.last(F.silu(self.norm(x)))

    return Net()


@entry("deepspeech2", "deepspeech", "torch", "spectrum", runs(SGD, 8, 24, 32), 800)
def deepspeech():
    """Two convolutions over a spectrum, five bidirectional GRUs of 800, CTC."""
    from torch import nn

    class Net(nn.Module):
        def __init__(self, mels=160, hidden=800, labels=29):
            super().__init__()
            self.conv = nn.Sequential(
                nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5), bias=False), nn.BatchNorm2d(32), nn.Hardtanh(0, 20, True),
                nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5), bias=False), nn.BatchNorm2d(32), nn.Hardtanh(0, 20, True),
            )  # fmt: skip
            self.rnn = nn.GRU(32 * mels // 4, hidden, 5, batch_first=True, bidirectional=True)
            self.head = nn.Sequential(nn.LayerNorm(2 * hidden), nn.Linear(2 * hidden, labels))

        def forward(self, x):
            x = self.conv(x).flatten(1, 2).transpose(1, 2)
            return self.head(self.rnn(x)[0])

    return Net()


@entry("gin", "gin", "torch", "graph", runs("adam", 100_000, 300_000, 400_000), 64)
def gin():
    """Graph isomorphism network on one graph of `batch` edges (a tenth as many nodes): sums over neighbours."""
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self, i, o):
            super().__init__()
            self.eps = nn.Parameter(torch.zeros(1))
            self.mlp = nn.Sequential(nn.Linear(i, o), nn.BatchNorm1d(o), nn.ReLU(), nn.Linear(o, o))

        def forward(self, x, edges):
            summed = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
            return torch.relu(self.mlp((1 + self.eps) * x + summed))

    class Net(nn.Module):
        def __init__(self, inputs=64, hidden=256, classes=40, layers=4):
            super().__init__()
            self.layers = nn.ModuleList(Layer(inputs if at == 0 else hidden, hidden) for at in range(layers))
            self.head = nn.Linear(hidden, classes)

        def forward(self, x, edges):
            for layer in self.layers:
                x = layer(x, edges)
            return self.head(x)

    return Net()


@entry("dcn-v2", "dcn", "torch", "click", runs("adam", 4096, 16384, 32768, "bf16"), 26)
def dcn():
    """Recommendation: 26 tables of 100,000 rows of 32, three cross layers of full rank beside a deep part."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, fields=26, rows=100_000, width=32, dense=13):
            super().__init__()
            self.tables = nn.Embedding(fields * rows, width)
            self.register_buffer("offsets", torch.arange(fields) * rows)
            size = fields * width + dense
            self.cross = nn.ModuleList(nn.Linear(size, size) for _ in range(3))
            self.deep = nn.Sequential(nn.Linear(size, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU())
            self.head = nn.Linear(size + 512, 1)

        def forward(self, numbers, ids):
            first = x = torch.cat([numbers, self.tables(ids + self.offsets).flatten(1)], 1)
            for layer in self.cross:
                x = first * layer(x) + x
            return self.head(torch.cat([x, self.deep(first)], 1)).squeeze(1)

    return Net()


@entry("sasrec", "sasrec", "torch", "items", runs("adam", 128, 384, 512, "bf16"), 200)
def sasrec():
    """Recommendation: the next of 50,000 items after 200, by a causal transformer; all items are scored."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, items=50_000, width=128, layers=2, heads=2, length=200):
            super().__init__()
            self.items, self.places = nn.Embedding(items, width), nn.Embedding(length, width)
            self.drop = nn.Dropout(0.2)
            layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.2, batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
            self.register_buffer("mask", torch.ones(length, length).triu(1).bool())

        def forward(self, ids):
            x = self.drop(self.items(ids) + self.places.weight)
            x = self.layers(x, mask=self.mask)[:, -1]
            return x @ self.items.weight.T

    return Net()


# ------------------------------------------------------------------------------------------ batches, losses


def batch_of(kind, size, device, dtype, count, mode):
    """The inputs of a model and what its loss needs, on the device."""
    import torch

    def real(*shape):
        return torch.randn(*shape, device=device, dtype=dtype)

    def whole(most, *shape):
        return torch.randint(0, most, shape, device=device)

    if kind == "image":
        return (real(count, 3, size, size),), whole(1000, count)
    if kind == "segmentation":
        return (real(count, 3, size, size),), whole(21, count, size, size)
    if kind == "video":
        return (real(count, 3, 16, size, size),), whole(400, count)
    if kind == "detection":
        images = [real(3, size, size) for _ in range(count)]
        if mode == "infer":
            return (images,), None
        corner = torch.rand(count, 8, 2, device=device) * size / 2
        boxes = torch.cat([corner, corner + size / 3], 2)
        return (images, [{"boxes": b, "labels": whole(90, 8) + 1} for b in boxes]), None
    if kind in ("masked", "causal"):
        ids = whole(1000, count, size)
        return {"input_ids": ids, **({} if mode == "infer" else {"labels": whole(1000, count, size)})}, None
    if kind == "seq2seq":
        ids, more = whole(1000, count, size), whole(1000, count, size // 2)
        return {"input_ids": ids, ("decoder_input_ids" if mode == "infer" else "labels"): more}, None
    if kind == "speech":
        return {"input_values": real(count, size), **({} if mode == "infer" else {"labels": whole(30, count, 40) + 1})}, None
    if kind in ("pairs", "pairs-64"):
        words = 77 if kind == "pairs" else 64
        batch = {"input_ids": whole(1000, count, words), "pixel_values": real(count, 3, size, size)}
        return ({**batch, "return_loss": True} if mode == "train" else batch), None
    if kind == "diffusion":
        return (real(count, 3, size, size), whole(1000, count)), real(count, 3, size, size)
    if kind == "spectrum":
        return (real(count, 1, 160, size),), whole(28, count, 60) + 1
    if kind == "graph":
        nodes = count // 10
        return (real(nodes, size), whole(nodes, 2, count)), whole(40, nodes)
    if kind == "click":
        return (real(count, 13), whole(100_000, count, size)), torch.rand(count, device=device).round().to(dtype or torch.float32)
    if kind == "items":
        return (whole(50_000, count, size),), whole(50_000, count)
    if kind == "flow":
        return (real(count, 3, size, size), real(count, 3, size, size)), real(count, 2, size, size)
    if kind == "filterbank":
        ids = {"decoder_input_ids" if mode == "infer" else "labels": whole(1000, count, 60)}
        return {"input_features": real(count, size, 80), **ids}, None
    if kind == "pixels":
        return {"pixel_values": real(count, 3, size, size)}, None
    if kind == "translation":
        return (whole(1000, count, size), whole(1000, count, size)), whole(1000, count * size)
    if kind == "mixture":
        return (real(count, 1, size),), real(count, 2, size)
    if kind == "rebuild":
        images = real(count, 3, size, size)
        return (images,), images
    if kind == "volume":
        return (real(count, 4, size, size, size),), whole(4, count, size, size, size)
    if kind == "points":
        return (real(count, 3, size),), whole(40, count)
    raise ValueError(kind)


def loss_of(kind, out, target):
    import torch
    from torch.nn import functional as F

    if kind == "detection":
        return sum(out.values())
    if target is None:
        return out.loss
    if kind == "segmentation":
        return F.cross_entropy(out["out"] if isinstance(out, dict) else out, target)
    if kind == "diffusion":
        return F.mse_loss(out, target)
    if kind == "click":
        return F.binary_cross_entropy_with_logits(out, target)
    if kind == "spectrum":
        lengths = torch.full((out.size(0),), out.size(1), dtype=torch.long)
        return F.ctc_loss(out.float().log_softmax(2).transpose(0, 1), target, lengths, torch.full_like(lengths, 60), zero_infinity=True)
    if kind == "flow":
        # Each refinement counts, later ones more.
        return sum(0.8 ** (len(out) - 1 - at) * (flow - target).abs().mean() for at, flow in enumerate(out))
    if kind == "mixture":
        # The signal's share of each speaker against the rest, in decibels.
        along = (out * target).sum(2, keepdim=True) / target.pow(2).sum(2, keepdim=True) * target
        return -10 * torch.log10(along.pow(2).sum(2) / ((out - along).pow(2).sum(2) + 1e-8) + 1e-8).mean()
    if kind == "rebuild":
        image, more = out
        return F.mse_loss(image, target) + more
    return F.cross_entropy(out, target)


def forward_of(model, inputs):
    return model(**inputs) if isinstance(inputs, dict) else model(*inputs)


# --------------------------------------------------------------------------------------------------- rows


def models_of(which):
    """The models of a set that is listed here or in memory_later.py; nothing for `known`."""
    if which == "later":
        from memory_later import LATER

        return LATER
    return UNSEEN if which == "unseen" else {}


def plan(which):
    """The rows of a set. Those of `known` are of memory_models.py: to develop on."""
    if which != "known":
        for name, e in models_of(which).items():
            for at, (mode, precision, optimizer, batch) in enumerate(e.runs, 1):
                # Length and size of a sample belong to the model.
                yield dict(id=f"{name}-{at}", set=which, model=name, model_family=e.family, source=e.source, kind=e.kind, mode=mode,
                           precision=precision, optimizer=optimizer, batch_size=batch, seq_len=e.size)  # fmt: skip
        return
    import memory_models as known

    for name, e in known.MODELS.items():
        image = e.kind == "image"
        length = "" if image else min(256, e.size)
        for at, (mode, precision, optimizer) in enumerate((
            ("train", "fp32" if image else "bf16", "sgd-momentum" if image else "adamw"),
            ("infer", "fp32", ""), ("infer", "bf16", ""),
        ), 1):  # fmt: skip
            batch = (e.batches[0] if mode == "train" else e.batches[1]) if image else 8
            yield dict(id=f"{name}-k{at}", set=which, model=name, model_family=e.family, source=e.source, kind=e.kind, mode=mode,
                       precision=precision, optimizer=optimizer, batch_size=batch, seq_len=length)  # fmt: skip


class Case:
    """A row's model and what is done with it, on any device."""

    def __init__(self, row, fast=True):
        import memory_models as known

        self.row, mode = row, row["mode"]
        if row["set"] != "known":
            e = models_of(row["set"])[row["model"]]
            with known.uninitialised() if fast else contextlib.nullcontext():
                self.model = e.make()
            config = getattr(self.model, "config", None)
            if config is not None and hasattr(config, "use_cache"):
                # As the Trainer of transformers 5 does; a cache of keys and values is of use in inference alone.
                config.use_cache = mode == "infer"
            self.batch = lambda device, dtype: batch_of(e.kind, e.size, device, dtype, int(row["batch_size"]), mode)
            self.forward = lambda batch: forward_of(self.model, batch[0])
            self.loss = lambda out, batch: loss_of(e.kind, out, batch[1])
        else:
            factory, make, _ = known.build(row["model"], "sdpa", mode, fast=fast)
            e = known.MODELS[row["model"]]
            self.model = factory()
            length = int(row["seq_len"] or 0) or None
            self.batch = lambda device, dtype: make(device, int(row["batch_size"]), dtype, length)
            self.forward = lambda batch: known.forward_of(e, mode)(self.model, batch)
            self.loss = known.loss_of(e)

    def load(self, torch, device):
        self.device, self.dtype = device, torch.bfloat16 if self.row["precision"] == "bf16" else torch.float32
        if self.dtype != torch.float32:
            self.model.to(self.dtype)
        self.model.to(device)
        with torch.no_grad():
            # What was made in a hurry is not initialised.
            for p in self.model.parameters():
                if p.is_floating_point():
                    p.uniform_(-0.02, 0.02)
        self.model.train(self.row["mode"] == "train")
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        made = {
            "sgd-momentum": lambda: torch.optim.SGD(parameters, lr=1e-4, momentum=0.9),
            "adam": lambda: torch.optim.Adam(parameters, lr=1e-5),
            "adamw": lambda: torch.optim.AdamW(parameters, lr=1e-5),
            "adam-fused": lambda: torch.optim.AdamW(parameters, lr=1e-5, fused=device != "cpu"),
        }
        self.optimizer = made[self.row["optimizer"]]() if self.row["mode"] == "train" else None

    def steps(self, torch, going_on):
        """The loop of an ordinary script: `batch` is let go before the next one is made; `out` and `value` live until they
        are assigned anew."""
        autocast = self.row["precision"].endswith("-autocast")
        batch = out = value = None
        while going_on():
            batch = None
            batch = self.batch(self.device, self.dtype)
            if self.optimizer is None:
                with torch.inference_mode(), torch.autocast(self.device, torch.bfloat16, enabled=autocast):
                    out = self.forward(batch)
                continue
            self.optimizer.zero_grad(set_to_none=True)
            with torch.autocast(self.device, torch.bfloat16, enabled=autocast):
                out = self.forward(batch)
                value = self.loss(out, batch)
            value.backward()
            self.optimizer.step()


# ---------------------------------------------------------------------------------------------- measuring


class Gpu:
    """Memory of this process and activity of the whole GPU, by NVML."""

    METRICS = {"gract": 1, "smact": 2, "smocc": 3, "tensor": 5, "dram": 10, "fp64": 11, "fp32": 12, "fp16": 13}

    def __init__(self):
        import pynvml as nvml

        self.nvml = nvml
        nvml.nvmlInit()
        self.device = nvml.nvmlDeviceGetHandleByIndex(0)

    def used(self):
        """MiB of this process; None where the driver does not say."""
        with open("/proc/self/status") as status:
            ids = next({int(n) for n in line.split()[1:]} for line in status if line.startswith("NSpid:"))
        for process in self.nvml.nvmlDeviceGetComputeRunningProcesses(self.device):
            if process.pid in ids and process.usedGpuMemory is not None:
                return process.usedGpuMemory / MIB
        return None

    def activity(self, work):
        """What the GPU did while `work()` ran: shares, watts."""
        nvml, samples = self.nvml, [self.nvml.nvmlGpmSampleAlloc() for _ in range(2)]
        nvml.nvmlGpmSampleGet(self.device, samples[0])
        energy, began = nvml.nvmlDeviceGetTotalEnergyConsumption(self.device), time.monotonic()
        work()
        nvml.nvmlGpmSampleGet(self.device, samples[1])
        energy, seconds = nvml.nvmlDeviceGetTotalEnergyConsumption(self.device) - energy, time.monotonic() - began
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(self.METRICS)
        asked.sample1, asked.sample2 = samples
        for at, number in enumerate(self.METRICS.values()):
            asked.metrics[at].metricId = number
        nvml.nvmlGpmMetricsGet(asked)
        found = {}
        for at, name in enumerate(self.METRICS):
            metric = asked.metrics[at]
            found[name] = round(metric.value / 100, 4) if metric.nvmlReturn == 0 else None
        for sample in samples:
            nvml.nvmlGpmSampleFree(sample)
        return {**found, "power_w": round(energy / 1000 / seconds, 1), "window_s": round(seconds, 3)}


def measured(row, window_s, ready, go):
    """One row, in the process that was forked for it. `ready(answer)` says that memory is known; `go()` waits for the
    turn to be alone on the GPU."""
    import torch

    answer = {}
    torch.manual_seed(1)
    gpu = Gpu()
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    answer["start_mib"] = gpu.used()
    case = Case(row)
    answer["params"] = sum(p.numel() for p in case.model.parameters())
    case.load(torch, "cuda")
    answer["model_mib"] = round(torch.cuda.memory_allocated() / MIB, 3)
    torch.cuda.reset_peak_memory_stats()
    history = []

    def reading():
        torch.cuda.synchronize()
        cuda, used = torch.cuda, gpu.used()
        reserved = cuda.max_memory_reserved() / MIB
        return {
            "allocated_mib": round(cuda.max_memory_allocated() / MIB, 3), "reserved_mib": reserved, "process_mib": used,
            "context_mib": None if used is None else used - cuda.memory_reserved() / MIB, "steps": max(len(history) - 1, 0),
            "steps_mib": " ".join(f"{n:g}" for n in history[1:]),
            "alloc_retries": cuda.memory_stats().get("num_alloc_retries", 0),
        }  # fmt: skip

    def until_steady():
        history.append(torch.cuda.memory_reserved() / MIB)
        done = len(history) - 1
        return done < LEAST or done < MOST and len(set(history[-STEADY:])) > 1

    def window():
        """Warm, then a window; its steps and seconds."""
        until, count = time.monotonic() + WARM_S, [0]

        def warm():
            torch.cuda.synchronize()
            return time.monotonic() < until

        case.steps(torch, warm)
        until_end = [None]

        def timed():
            # Two steps are in flight, as in a loop that does not read its loss.
            events.append(torch.cuda.Event())
            events[-1].record()
            if len(events) > 2:
                events.pop(0).synchronize()
            until_end[0] = until_end[0] or time.monotonic() + window_s
            if time.monotonic() >= until_end[0] and count[0] > 0:
                return False
            count[0] += 1
            return True

        events = []

        def work():
            case.steps(torch, timed)
            torch.cuda.synchronize()

        found = gpu.activity(work)
        return {**found, "window_steps": count[0], "step_ms": round(1000 * found["window_s"] / count[0], 3)}

    try:
        case.steps(torch, until_steady)
        answer.update(reading(), status="SUCCESSFUL")
    except torch.OutOfMemoryError as error:
        answer.update(reading(), status="OOM", reason=str(error).split("\n")[0][:200])
    ready(answer)
    go()
    if answer["status"] == "SUCCESSFUL":
        answer.update(window())
        # Whether a long run takes more than the first steps.
        later = reading()
        answer.update(later_reserved_mib=later["reserved_mib"], later_process_mib=later["process_mib"])
    return answer


class Child:
    """A forked process that measures a row: says when its memory is known, and waits for its turn."""

    def __init__(self, row, window_s):
        self.row, self.last = row, None
        (self.read, write), (wait, self.turn) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.read)
            os.close(self.turn)
            pipe, answer = os.fdopen(write, "w", buffering=1), {"status": "FAILED", "reason": "the process died"}
            try:
                answer = measured(row, window_s, lambda a: pipe.write(json.dumps(a) + "\n"), lambda: os.read(wait, 1))
            except Exception as error:  # noqa: BLE001: whatever a row does, the next one gets its turn
                answer = {"status": "FAILED", "reason": f"{type(error).__name__}: {error}".split("\n")[0][:300]}
            pipe.write(json.dumps(answer) + "\n")
            pipe.flush()
            os._exit(0)
        os.close(write)
        os.close(wait)
        self.lines = os.fdopen(self.read)

    def hear(self, seconds):
        """The next line, or nothing if none comes."""
        if not select.select([self.lines], [], [], max(seconds, 0))[0]:
            return None
        line = self.lines.readline()
        if line:
            self.last = json.loads(line)
        return line or None

    def finish(self, seconds):
        with contextlib.suppress(OSError):
            os.write(self.turn, b"g")
        os.close(self.turn)
        if self.last is None or self.last.get("status") == "SUCCESSFUL":
            self.hear(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        self.lines.close()
        return {**self.row, **(self.last or {"status": "FAILED", "reason": "no answer in time"})}


def warm_up(which):
    """Imports everything once, for the forks."""
    import timm  # noqa: F401
    import torch
    import torch._dynamo  # noqa: F401
    import torchvision  # noqa: F401
    import transformers

    import memory_models

    memory_models.warm()
    torch.set_num_threads(1)
    for e in models_of(which).values():
        for cell in e.make.__closure__ or ():
            if e.source == "transformers" and isinstance(cell.cell_contents, str):
                getattr(transformers, cell.cell_contents)
    gc.collect()
    gc.freeze()


def measure(rows, path, beside, window_s, budget_s):
    warm_up(rows[0]["set"])
    began = time.monotonic()
    with open(path, "a") as file:
        for at in range(0, len(rows), beside):
            if time.monotonic() - began > budget_s:
                print(f"out of time after {at} of {len(rows)} rows", flush=True)
                return
            children = [Child(row, window_s) for row in rows[at : at + beside]]
            until = time.monotonic() + 60
            for child in children:
                child.hear(until - time.monotonic())
            for child in children:
                answer = child.finish(20)
                file.write(json.dumps(answer) + "\n")
                file.flush()
                bad = "" if answer["status"] == "SUCCESSFUL" else f" {answer['status']}: {answer.get('reason')}"
                print(f"{time.monotonic() - began:6.1f} s {answer['id']}{bad}", flush=True)


# ----------------------------------------------------------------------- without a GPU: rehearsal, texts, traces


def rehearse(rows):
    import torch

    warm_up(rows[0]["set"])
    failed = 0
    for row in rows:
        small = {"graph": 1000, "click": 8}.get(row["kind"], 2)
        count = [0]

        def twice():
            count[0] += 1
            return count[0] <= 2

        try:
            case = Case({**row, "batch_size": small, "precision": row["precision"]})
            case.load(torch, "cpu")
            case.steps(torch, twice)
            print("ok", row["id"], flush=True)
        except Exception as error:  # noqa: BLE001
            failed += 1
            print("FAILED", row["id"], f"{type(error).__name__}: {error}".split("\n")[0][:300], flush=True)
    return 1 if failed else 0


def texts(path, which, only):
    """Summaries by torchinfo at depths 2, 3 and 6 and by torchsummary, and config.json of transformers. Lines as in
    memory_texts.py, with `batch`: how many samples the summary's shapes are of."""
    import memory_texts
    import torch
    import torchinfo
    import torchsummary

    with gzip.GzipFile(path, "wb", mtime=0) as file:
        for name, e in models_of(which).items():
            if only not in name:
                continue
            done, failed = [], []
            count = 1000 if e.kind == "graph" else 2
            row = dict(model=name, set=which, mode="infer", precision="fp32", optimizer="", batch_size=count)

            def inputs():
                return batch_of(e.kind, e.size, "cpu", torch.float32, count, "infer")[0]

            def info(depth):
                data = inputs()
                data = data if isinstance(data, dict) else list(data)
                return str(torchinfo.summary(Case(row).model.eval(), input_data=data, verbose=0, depth=depth))

            ways = {f"torchinfo-{depth}": (lambda depth=depth: info(depth)) for depth in (2, 3, 6)}
            if e.kind in ("image", "segmentation", "video"):
                shape = tuple(batch_of(e.kind, e.size, "cpu", torch.float32, 2, "infer")[0][0].shape[1:])
                ways["torchsummary"] = lambda: memory_texts.printed(
                    torchsummary.summary, Case(row).model.eval(), shape, device="cpu"
                )
            if e.source == "transformers":
                ways["config"] = lambda: Case(row).model.config.to_json_string()
            for dialect, text in ways.items():
                try:
                    line = {"model": name, "dialect": dialect, "batch": count, "text": text()}
                except Exception as error:  # noqa: BLE001: another dialect may still work, and the list goes on
                    failed.append(f"{dialect} failed: {type(error).__name__}: {error}"[:160])
                    continue
                file.write((json.dumps(line) + "\n").encode())
                done.append(dialect)
            print(f"{name}: {', '.join(done)}", *failed, sep="; ", flush=True)


def traces(rows, folder, jobs):
    """One log a row, by carma's tracer: FOLDER/ID.trace.gz. Rows that have one are left alone."""
    sys.path.insert(0, os.path.join(ROOT, "crates", "memory", "src", "trace", "python"))
    import carma_trace as tracer
    import torch

    torch.set_num_threads(1)
    os.makedirs(folder, exist_ok=True)
    tracer.install(argparse.Namespace(gpu="NVIDIA H200", capability="9.0", total_mib=143771, gpus=1))
    running, failed = {}, []

    def trace(row, path):
        options = argparse.Namespace(out=path + ".part.gz", gpu="H200", timeout=300)
        count = [0]

        def going_on():
            # Training is stopped by the tracer, once it has seen enough.
            count[0] += 1
            return row["mode"] == "train" or count[0] <= 4

        def body():
            case = Case(row)
            case.load(torch, "cuda")
            case.steps(torch, going_on)

        code = tracer.recorded(options, row["id"], body)
        os.rename(options.out, path) if code == 0 else os.remove(options.out)
        return code

    def wait():
        pid, status = os.wait()
        name = running.pop(pid)
        if status:
            failed.append(name)
        print("failed" if status else "ok", name, flush=True)

    for row in rows:
        path = os.path.join(folder, row["id"] + ".trace.gz")
        if os.path.exists(path):
            continue
        while len(running) >= jobs:
            wait()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = trace(row, path)
            except BaseException as error:  # noqa: BLE001
                print(row["id"], f"{type(error).__name__}: {error}"[:300], file=sys.stderr)
            finally:
                sys.stderr.flush()
                os._exit(code)
        running[pid] = row["id"]
    while running:
        wait()
    print(f"{len(failed)} failed: {' '.join(failed)}")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for word in ("--list", "--plan", "--rehearse", "--measure", "--texts"):
        parser.add_argument(word, action="store_true")
    parser.add_argument("--traces", metavar="FOLDER")
    parser.add_argument("--set", choices=["unseen", "later", "known"], default="unseen")
    parser.add_argument("--only", default="", help="rows (with --texts: models) whose name contains this")
    parser.add_argument("--first", default="", help="digits: rows of these numbers first, as 431")
    parser.add_argument("--beside", type=int, default=12, help="processes beside each other while memory is read")
    parser.add_argument("--window-s", type=float, default=2.0, help="of activity")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--budget-s", type=float, default=1e9)
    parser.add_argument("-o", "--output", default="-")
    options = parser.parse_args()
    sys.path.insert(0, HERE)
    rows = [row for row in plan(options.set) if options.only in row["id"]]
    if options.first:
        rows.sort(key=lambda row: options.first.index(row["id"][-1]) if row["id"][-1] in options.first else len(options.first))
    if options.list:
        for name, e in models_of(options.set).items():
            print(f"{name:24}{e.source:14}{e.family:14}{e.kind:14}{e.size}")
    if options.plan:
        out = io.StringIO()
        writer = csv.DictWriter(out, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        print(out.getvalue(), end="")
    if options.rehearse:
        return rehearse(rows)
    if options.measure:
        measure(rows, options.output, options.beside, options.window_s, options.budget_s)
    if options.texts:
        texts(options.output, options.set, options.only)
    if options.traces:
        return traces(rows, options.traces, options.jobs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
