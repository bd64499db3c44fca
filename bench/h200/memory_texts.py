#!/usr/bin/env python3
"""What is known of the real models before they run: printed summaries, and config.json of transformers.

    python3 memory_texts.py -o results/memory-texts.jsonl.gz

One line a text: {"model", "dialect", "text"}; dialect: torchsummary, torchinfo, modelsummary (its hierarchical form,
as in the seeds) or config. Runs on the CPU; needs torchsummary, torchinfo, modelsummary beside the models' libraries.
"""

import argparse
import contextlib
import gzip
import io
import json
import sys

import memory_models as list_of

BATCH = 2


def printed(function, *args, **kwargs):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        function(*args, **kwargs)
    return out.getvalue()


def texts(name):
    import modelsummary
    import torch
    import torchinfo
    import torchsummary

    entry = list_of.MODELS[name]
    factory, make_batch, _ = list_of.build(name, "sdpa", "train", False, 0, fast=True)
    model = factory().eval()
    if entry.source == "transformers":
        yield "config", model.config.to_json_string()
        yield "modelsummary", printed(modelsummary.summary, model, show_hierarchical=True)
        tokens, _ = make_batch("cpu", BATCH, None, 128) if entry.kind != "image" else make_batch("cpu", BATCH)
        inputs = {"pixel_values" if entry.kind == "image" else "input_ids": tokens}
        if entry.kind == "seq2seq":
            inputs["decoder_input_ids"] = tokens
        yield "torchinfo", str(torchinfo.summary(model, input_data=inputs, verbose=0, depth=6))
    else:
        # Its inputs are two samples whatever the batch is called.
        yield "torchsummary", printed(torchsummary.summary, model, (3, entry.size, entry.size), device="cpu")
        yield "torchinfo", str(torchinfo.summary(model, (BATCH, 3, entry.size, entry.size), verbose=0, depth=6))
    torch.manual_seed(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("models", nargs="*", help="names; all of the list when there are none")
    options = parser.parse_args()
    with gzip.GzipFile(options.output, "wb", mtime=0) as file:
        for name in options.models or list_of.MODELS:
            lines, failed = 0, []
            steps = texts(name)
            while True:
                try:
                    dialect, text = next(steps)
                except StopIteration:
                    break
                except Exception as error:  # noqa: BLE001: another dialect may still work, and the list goes on
                    failed.append(f"{type(error).__name__}: {error}"[:200])
                    break
                file.write((json.dumps({"model": name, "dialect": dialect, "text": text}) + "\n").encode())
                lines += 1
            print(f"{name}: {lines} texts", *failed, file=sys.stderr)


if __name__ == "__main__":
    main()
