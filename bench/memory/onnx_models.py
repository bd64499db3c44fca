#!/usr/bin/env python3
"""Exports some models of memory_models.py to ONNX, without their weights: what DNNMem's way is fed with.

    python bench/memory/onnx_models.py -o FOLDER        # FOLDER/MODEL.onnx

As a user would for training: batch norm and dropout stay. On the CPU; needs onnx beside the models' libraries.
"""

import argparse
import os
import sys
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
MODELS = (
    "resnet50 vgg16 mobilenet_v2 densenet121 efficientnet_b0 squeezenet1_1 mnasnet1_0 resnext50_32x4d regnet_y_8gf "
    "shufflenet_v2_x1_0 repvgg_b0 xception41 bert-base gpt2"
).split()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", required=True)
    options = parser.parse_args()
    sys.path[:0] = [os.path.join(ROOT, "bench", "h200"), os.path.join(ROOT, "crates", "memory", "tests", "onnx")]
    import make
    import memory_models as models
    import torch

    warnings.simplefilter("ignore")
    os.makedirs(options.output, exist_ok=True)
    for name in MODELS:
        path = os.path.join(options.output, name + ".onnx")
        if os.path.exists(path):
            continue
        entry = models.MODELS[name]
        factory, make_batch, _ = models.build(name, "sdpa", "train", fast=True)
        model = factory().train()
        with torch.no_grad():
            # Weights that are still alike would be taken out as constants.
            for parameter in model.parameters():
                parameter.normal_(std=0.02)
        sample = make_batch("cpu", 2)[0] if entry.kind == "image" else make_batch("cpu", 2, None, 128)[0]
        try:
            torch.onnx.export(
                model, (sample,), path, input_names=["x"], dynamo=False, training=torch.onnx.TrainingMode.TRAINING,
                do_constant_folding=False,
            )  # fmt: skip
            make.small(path)
            print(name, flush=True)
        except Exception as error:  # noqa: BLE001: the list goes on
            print(f"{name} failed: {type(error).__name__}: {error}"[:200], file=sys.stderr, flush=True)
            if os.path.exists(path):
                os.remove(path)


if __name__ == "__main__":
    main()
