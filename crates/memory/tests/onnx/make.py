"""Exports the models of this folder with torch.onnx, without their weights.

    python make.py [FOLDER]

Made with PyTorch 2.11.0, torchvision 0.26, transformers 5.23, onnx 1.23. `eval` and `train` are by the
exporter of today (open batch), `old` is by the TorchScript exporter (fixed batch of 2). The entries
below are also what `carma trace-model --entry make:NAME` traced for the numbers in onnx_models.rs.
"""

import sys

import onnx
import torch
import torchvision
import transformers


def resnet18():
    return torchvision.models.resnet18()


def vgg11():
    return torchvision.models.vgg11()


def bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(num_hidden_layers=2))


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=2, use_cache=False))


def small(path):
    """Weights go, their dimensions stay; so do small constants, which shapes are made of."""
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        if onnx.external_data_helper.uses_external_data(tensor) or len(tensor.raw_data) > 256:
            for field in ("raw_data", "external_data", "data_location"):
                tensor.ClearField(field)
    for item in [*model.graph.node, *model.graph.value_info, *model.graph.initializer]:
        for field in ("metadata_props", "doc_string"):
            item.ClearField(field)
    del model.graph.value_info[:]
    onnx.save(model, path)


def main(folder):
    image, ids = torch.zeros(2, 3, 224, 224), torch.zeros(2, 128, dtype=torch.long)
    batch = torch.export.Dim("batch", min=1, max=4096)
    for entry, sample, kinds in (
        (resnet18, image, ("eval", "old")),
        (vgg11, image, ("train",)),
        (bert, ids, ("train",)),
        (gpt2, ids, ("eval",)),
    ):
        for kind in kinds:
            path = "%s/%s.%s.onnx" % (folder, entry.__name__, kind)
            model = entry().train(kind != "eval")
            # Biases that are still zero would be taken out as constants.
            for parameter in model.parameters():
                torch.nn.init.normal_(parameter, std=0.02)
            if kind == "old":
                options = dict(
                    dynamo=False, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False
                )
            else:
                options = dict(dynamo=True, dynamic_shapes=({0: batch},), external_data=True)
            torch.onnx.export(model, (sample,), path, input_names=["x"], **options)
            small(path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".")
