#!/usr/bin/env python3
"""Printed summaries of the models of bench/h200/memory_models.py, as users print them.

    python3 bench/memory/summaries.py [-o bench/h200/results/summaries] [NAME ...]

NAME.torchinfo.txt is what `torchinfo.summary(model, ...)` prints by default (three levels, evaluation mode);
NAME.torchsummary.txt that of torchsummary, for image models with which it works; NAME.repr.txt is `print(model)`, for
language models. Batch 2 (language models: 128 tokens). Needs torch, torchvision, timm, transformers, torchinfo,
torchsummary; no GPU. Language models are built without their weights.
"""

import argparse
import contextlib
import io
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "h200"))
TOKENS = 128


def printed(function):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        function()
    return out.getvalue()


def texts(name, entry):
    import torch
    import torchinfo
    import torchsummary

    if entry.kind == "image":
        model = entry.make("sdpa")
        size = (3, entry.size, entry.size)
        yield "torchinfo", lambda: torchinfo.summary(model, input_size=(2, *size), device="cpu", verbose=1)
        yield "torchsummary", lambda: torchsummary.summary(model.train(), size, device="cpu")
        return
    with torch.device("meta"):
        model = entry.make("sdpa")
    ids = torch.zeros(2, TOKENS, dtype=torch.long, device="meta")
    inputs = {"input_ids": ids, **({"decoder_input_ids": ids} if entry.kind == "seq2seq" else {})}
    model.config.use_cache = False
    yield "torchinfo", lambda: torchinfo.summary(model, input_data=inputs, device="meta", verbose=1)
    yield "repr", lambda: print(model)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", default=os.path.join(HERE, "..", "h200", "results", "summaries"))
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    from memory_models import MODELS

    os.makedirs(options.out, exist_ok=True)
    for name in options.names or MODELS:
        for tool, show in texts(name, MODELS[name]):
            try:
                text = printed(show)
            except Exception as error:  # these tools fail on some models; the others are of use
                print("%s: %s: %s" % (name, tool, str(error).splitlines()[0][:120]), file=sys.stderr)
                continue
            with open(os.path.join(options.out, "%s.%s.txt" % (name, tool)), "w") as file:
                file.write(text)


if __name__ == "__main__":
    main()
