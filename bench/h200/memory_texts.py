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


def tree(model):
    """What modelsummary prints with `show_hierarchical`. Its own function also runs the model, in a way that most
    language models refuse, and for no other purpose than the three lines at the end."""
    from modelsummary.hierarchicalsummary import hierarchicalsummary

    hierarchicalsummary(model)
    params = {True: 0, False: 0}
    for p in model.parameters():
        params[p.requires_grad] += p.numel()
    print("=" * 71)
    print(f"Total params: {sum(params.values()):,}")
    print(f"Trainable params: {params[True]:,}")
    print(f"Non-trainable params: {params[False]:,}")
    print("-" * 71)


def texts(name):
    """Pairs of a dialect and a function that returns the text."""
    import torchinfo
    import torchsummary

    entry = list_of.MODELS[name]
    factory, make_batch, _ = list_of.build(name, "sdpa", "train", False, 0, fast=True)

    def model():
        # A new one for each: a library that fails leaves its hooks behind.
        return factory().eval()

    if entry.source == "transformers":
        inputs, _ = make_batch("cpu", BATCH) if entry.kind == "image" else make_batch("cpu", BATCH, None, 128)
        named = {"pixel_values" if entry.kind == "image" else "input_ids": inputs}
        if entry.kind == "seq2seq":
            named["decoder_input_ids"] = inputs
        yield "config", lambda: model().config.to_json_string()
        yield "torchinfo", lambda: str(torchinfo.summary(model(), input_data=named, verbose=0, depth=6))
        yield "modelsummary", lambda: printed(tree, model())
    else:
        shape = (BATCH, 3, entry.size, entry.size)
        yield "torchsummary", lambda: printed(torchsummary.summary, model(), shape[1:], device="cpu")
        yield "torchinfo", lambda: str(torchinfo.summary(model(), shape, verbose=0, depth=6))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("models", nargs="*", help="names; all of the list when there are none")
    options = parser.parse_args()
    with gzip.GzipFile(options.output, "wb", mtime=0) as file:
        for name in options.models or list_of.MODELS:
            done, failed = [], []
            for dialect, text in texts(name):
                try:
                    line = {"model": name, "dialect": dialect, "text": text()}
                except Exception as error:  # noqa: BLE001: another dialect may still work, and the list goes on
                    failed.append(f"{dialect} failed: {type(error).__name__}: {error}"[:200])
                    continue
                file.write((json.dumps(line) + "\n").encode())
                done.append(dialect)
            print(f"{name}: {', '.join(done)}", *failed, sep="; ", file=sys.stderr)


if __name__ == "__main__":
    main()
