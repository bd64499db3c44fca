"""The tasks of the CARMA campaign (A100-40GB, September 2025) as functions for the tracer.

Record them all, on any machine with torch, torchvision, timm and transformers, no GPU needed:
    python bench/memory/campaign.py > specs.json
    python crates/memory/src/trace/python/carma_trace.py --spec specs.json -o bench/h200/results/traces/campaign
What the scripts print (torchsummary's table) needs a forward pass of two images first. What they train is read off the campaign's summaries: `resnet50_cifar100.py` trains efficientnet_b0,
Inception gets images of 299 x 299, CIFAR ones 32 x 32.
"""

import json
import os

IMAGENET = {
    "vgg": ("torchvision", "vgg16", 224),
    "resnet50": ("torchvision", "resnet50", 224),
    "Xception": ("timm", "legacy_xception", 224),
    "mobilenet": ("torchvision", "mobilenet_v2", 224),
    "efficientNet": ("torchvision", "efficientnet_b0", 224),
    "Inception": ("timm", "inception_v3", 299),
}
CIFAR = {
    "efficientNet_cifar100": ("torchvision", "efficientnet_b0", 32),
    "mobilenet_cifar100": ("torchvision", "mobilenet_v3_small", 32),
    "resnet18_cifar100": ("torchvision", "resnet18", 32),
    "resnet34_cifar100": ("torchvision", "resnet34", 32),
}


def cnn(library, name, size, classes, summary):
    import torch

    if library == "timm":
        import timm

        model = timm.create_model(name, num_classes=classes)
    else:
        import torchvision

        model = getattr(torchvision.models, name)(num_classes=classes)
    if summary:
        model.cuda()(torch.zeros(2, 3, size, size).cuda())
    batch = torch.zeros(1, 3, size, size), torch.zeros(1, dtype=torch.long)
    return model, batch, torch.nn.CrossEntropyLoss()


def language(kind, vocab, layers, hidden, heads, length, gpus):
    import torch
    import transformers

    if kind == "bert":
        config = transformers.BertConfig(
            vocab_size=vocab, num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads,
            intermediate_size=4 * hidden,
        )
        model = transformers.BertForMaskedLM(config)
    else:
        config = transformers.GPT2Config(vocab_size=vocab, n_layer=layers, n_embd=hidden, n_head=heads)
        model = transformers.GPT2LMHeadModel(config)
    if gpus > 1:
        model = torch.nn.DataParallel(model.cuda())
    ids = torch.zeros(1, length, dtype=torch.long)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    return model, batch


def specs():
    entry = os.path.relpath(__file__) + ":"
    for group, classes in ((IMAGENET, 1000), (CIFAR, 100)):
        for name, (library, model, size) in group.items():
            for batch in (32, 64, 128):
                yield {
                    "name": "%s-%d" % (name, batch), "entry": entry + "cnn", "batch_size": batch,
                    "arguments": {
                        "library": library, "name": model, "size": size, "classes": classes, "summary": group is IMAGENET,
                    },
                    "optimizer": "adam", "gpu": "A100-40GB", "capability": "8.0", "total_mib": 40960,
                }
    for name, batch, arguments in (
        ("BERT_base", 32, ("bert", 28996, 12, 768, 12, 512, 1)),
        ("BERT_large", 8, ("bert", 28996, 24, 1024, 16, 512, 1)),
        ("gpt2_large", 8, ("gpt2", 50257, 36, 1280, 20, 512, 2)),
    ):
        keys = ("kind", "vocab", "layers", "hidden", "heads", "length", "gpus")
        yield {
            "name": "%s-%d" % (name, batch), "entry": entry + "language", "batch_size": batch,
            "arguments": dict(zip(keys, arguments)), "optimizer": "adamw", "gpus": arguments[-1],
            "gpu": "A100-40GB", "capability": "8.0", "total_mib": 40960,
        }


if __name__ == "__main__":
    print(json.dumps(list(specs()), indent=1))
