#!/usr/bin/env python3
"""Real models whose memory is measured: torchvision, timm and transformers, with random weights.

    python3 memory_models.py --list
    python3 memory_models.py --plan -o memory-models-plan.csv      # the runs, for `carma lab dataset measure --models`

`build(name)` returns a factory of the model (on the CPU, weights uninitialised with `fast`), a maker of batches and
the loss; it needs nothing but the libraries and works on any device. `case(row)` is what the measuring worker asks for.
"""

import argparse
import collections
import contextlib
import csv
import gc
import sys

Model = collections.namedtuple("Model", "source family kind make size batches")
# kind: image, masked, causal, seq2seq. size: pixels of an image's side, or the longest sequence. batches: small to large.
MODELS = {}


def vision(name, family, batches=(16, 64, 128), size=224, **options):
    def make(attention):
        from torchvision import models

        return getattr(models, name)(weights=None, **options)

    MODELS[name] = Model("torchvision", family, "image", make, size, batches)


def timm(name, family, batches=(16, 48, 96), size=224):
    def make(attention):
        import timm as library

        return library.create_model(name, pretrained=False)

    MODELS[name] = Model("timm", family, "image", make, size, batches)


def language(name, family, kind, model, config, size=1024, **options):
    def make(attention):
        import transformers

        settings = getattr(transformers, config)(**options)
        settings._attn_implementation = attention
        return getattr(transformers, model)(settings)

    MODELS[name] = Model("transformers", family, kind, make, size, None)


vision("resnet18", "resnet", (32, 128, 256))
vision("resnet50", "resnet")
vision("resnet101", "resnet", (8, 32, 96))
vision("resnext50_32x4d", "resnext", (8, 32, 96))
vision("vgg16", "vgg")
vision("mobilenet_v2", "mobilenet")
vision("mobilenet_v3_large", "mobilenet", (32, 128, 256))
vision("efficientnet_b0", "efficientnet")
vision("efficientnet_b3", "efficientnet", (8, 32, 64), 300)
vision("densenet121", "densenet")
vision("inception_v3", "inception", (16, 32, 128), 299, init_weights=False)
vision("googlenet", "inception", (32, 64, 256), init_weights=False)
vision("regnet_y_8gf", "regnet", (8, 32, 96))
vision("convnext_tiny", "convnext")
vision("swin_t", "swin", (8, 32, 96))
vision("vit_b_16", "vit", (8, 32, 96))
vision("shufflenet_v2_x1_0", "shufflenet", (32, 128, 512))
vision("squeezenet1_1", "squeezenet", (32, 128, 512))
vision("mnasnet1_0", "mnasnet", (16, 64, 192))
timm("xception41", "xception", (8, 32, 64), 299)
timm("mixer_b16_224", "mixer")
timm("deit_small_patch16_224", "vit", (16, 64, 192))
timm("beit_base_patch16_224", "vit")
timm("coatnet_0_rw_224", "coatnet")
timm("maxvit_tiny_tf_224", "maxvit", (8, 24, 48))
timm("edgenext_small", "edgenext", (16, 64, 128))
timm("tf_efficientnetv2_s", "efficientnet", (8, 32, 64), 300)
timm("mobilevit_s", "mobilevit", (16, 48, 96), 256)
timm("repvgg_b0", "repvgg", (16, 64, 128))
timm("cait_xxs24_224", "cait")
timm("ghostnet_100", "ghostnet", (32, 128, 256))
timm("hrnet_w18", "hrnet")
timm("convmixer_768_32", "convmixer", (4, 16, 32))

language("bert-base", "bert", "masked", "BertForMaskedLM", "BertConfig", 512)
language(
    "bert-large", "bert", "masked", "BertForMaskedLM", "BertConfig", 512,
    hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
)  # fmt: skip
language("distilbert", "bert", "masked", "DistilBertForMaskedLM", "DistilBertConfig", 512)
language(
    "roberta-base", "bert", "masked", "RobertaForMaskedLM", "RobertaConfig", 512,
    vocab_size=50265, max_position_embeddings=514, type_vocab_size=1,
)  # fmt: skip
language("gpt2", "gpt2", "causal", "GPT2LMHeadModel", "GPT2Config")
language("gpt2-medium", "gpt2", "causal", "GPT2LMHeadModel", "GPT2Config", n_embd=1024, n_layer=24, n_head=16)
language("gpt2-large", "gpt2", "causal", "GPT2LMHeadModel", "GPT2Config", n_embd=1280, n_layer=36, n_head=20)
language("opt-125m", "opt", "causal", "OPTForCausalLM", "OPTConfig")
language(
    "opt-350m", "opt", "causal", "OPTForCausalLM", "OPTConfig", hidden_size=1024, num_hidden_layers=24,
    num_attention_heads=16, ffn_dim=4096, word_embed_proj_dim=512, do_layer_norm_before=False,
)  # fmt: skip
language(
    "pythia-160m", "gptneox", "causal", "GPTNeoXForCausalLM", "GPTNeoXConfig", vocab_size=50304, hidden_size=768,
    num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072,
)  # fmt: skip
language(
    "llama-160m", "llama", "causal", "LlamaForCausalLM", "LlamaConfig", vocab_size=32000, hidden_size=768,
    num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072,
)  # fmt: skip
language(
    "smollm-135m", "llama", "causal", "LlamaForCausalLM", "LlamaConfig", vocab_size=49152, hidden_size=576,
    num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, intermediate_size=1536, tie_word_embeddings=True,
)  # fmt: skip
language(
    "tinyllama-1.1b", "llama", "causal", "LlamaForCausalLM", "LlamaConfig", vocab_size=32000, hidden_size=2048,
    num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4, intermediate_size=5632,
)  # fmt: skip
language(
    "qwen2-0.5b", "qwen", "causal", "Qwen2ForCausalLM", "Qwen2Config", vocab_size=151936, hidden_size=896,
    num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2, intermediate_size=4864,
    tie_word_embeddings=True, max_position_embeddings=4096,
)  # fmt: skip
language(
    "qwen3-0.6b", "qwen", "causal", "Qwen3ForCausalLM", "Qwen3Config", vocab_size=151936, hidden_size=1024,
    num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128, intermediate_size=3072,
    tie_word_embeddings=True, max_position_embeddings=4096,
)  # fmt: skip
language(
    "mistral-300m", "mistral", "causal", "MistralForCausalLM", "MistralConfig", vocab_size=32000, hidden_size=1024,
    num_hidden_layers=16, num_attention_heads=16, num_key_value_heads=4, intermediate_size=3584,
    max_position_embeddings=4096,
)  # fmt: skip
language(
    "gemma-270m", "gemma", "causal", "GemmaForCausalLM", "GemmaConfig", vocab_size=262144, hidden_size=640,
    num_hidden_layers=18, num_attention_heads=4, num_key_value_heads=1, head_dim=256, intermediate_size=2048,
    max_position_embeddings=4096,
)  # fmt: skip
language(
    "t5-small", "t5", "seq2seq", "T5ForConditionalGeneration", "T5Config", 512,
    decoder_start_token_id=0, pad_token_id=0,
)  # fmt: skip
language(
    "t5-base", "t5", "seq2seq", "T5ForConditionalGeneration", "T5Config", 512,
    d_model=768, d_ff=3072, num_layers=12, num_heads=12, decoder_start_token_id=0, pad_token_id=0,
)  # fmt: skip
language(
    "bart-base", "bart", "seq2seq", "BartForConditionalGeneration", "BartConfig", d_model=768, encoder_layers=6,
    decoder_layers=6, encoder_attention_heads=12, decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072,
)  # fmt: skip


def vit_of_transformers(attention):
    import transformers

    settings = transformers.ViTConfig(num_labels=1000)
    settings._attn_implementation = attention
    return transformers.ViTForImageClassification(settings)


MODELS["vit-base"] = Model("transformers", "vit", "image", vit_of_transformers, 224, (8, 32, 96))

# Modules that get an adapter, by family: what PEFT takes by default, written out.
ADAPTED = {
    "bert": ["query", "value"],
    "gpt2": ["c_attn"],
    "opt": ["q_proj", "v_proj"],
    "gptneox": ["query_key_value"],
    "llama": ["q_proj", "v_proj"],
    "qwen": ["q_proj", "v_proj"],
    "mistral": ["q_proj", "v_proj"],
    "gemma": ["q_proj", "v_proj"],
    "t5": ["q", "v"],
    "bart": ["q_proj", "v_proj"],
    "vit": ["query", "value"],
}
# DistilBERT's attention has other names than BERT's; so has the ViT of recent transformers.
ADAPTED_MODEL = {"distilbert": ["q_lin", "v_lin"]}


@contextlib.contextmanager
def uninitialised():
    """Weights keep what memory held: random numbers for a billion weights take longer than the measurement."""
    import torch

    names = ("normal_", "uniform_", "erfinv_", "clamp_", "mul_", "trunc_normal_")
    names = [n for n in names[:3] if hasattr(torch.Tensor, n)]
    kept = {name: getattr(torch.Tensor, name) for name in names}
    try:
        for name in names:
            setattr(torch.Tensor, name, lambda self, *_, **__: self)
        yield
    finally:
        for name, method in kept.items():
            setattr(torch.Tensor, name, method)


def build(name, attention="sdpa", mode="train", gradient_checkpointing=False, lora_rank=0, fast=False):
    """(factory, make_batch, loss) of a model: factory() -> module on the CPU; make_batch(device, size, dtype,
    seq_len) -> batch; loss(model, batch) -> scalar."""
    entry = MODELS[name]

    def factory():
        with uninitialised() if fast else contextlib.nullcontext():
            model = entry.make(attention)
        if entry.source == "transformers" and entry.kind != "image":
            # As the Trainer of transformers 5 does; a cache of keys and values is of use in inference alone.
            model.config.use_cache = mode == "infer"
        if gradient_checkpointing:
            model.gradient_checkpointing_enable()
        if lora_rank:
            import peft

            targets = ADAPTED_MODEL.get(name) or ADAPTED[entry.family]
            model = peft.get_peft_model(model, peft.LoraConfig(r=lora_rank, target_modules=targets))
        return model.train(mode == "train")

    def make_batch(device, size, dtype=None, seq_len=None):
        import torch

        if entry.kind == "image":
            images = torch.randn(size, 3, entry.size, entry.size, device=device, dtype=dtype)
            return images, torch.randint(0, 1000, (size,), device=device)
        vocab = 1000  # any token that all vocabularies have
        tokens = torch.randint(0, vocab, (size, seq_len or entry.size), device=device)
        if mode == "infer" and entry.kind == "seq2seq":
            return tokens, tokens[:, : tokens.shape[1]]
        return tokens, torch.randint(0, vocab, tokens.shape, device=device)

    def loss(model, batch):
        return loss_of(entry)(forward_of(entry, mode)(model, batch), batch)

    return factory, make_batch, loss


def forward_of(entry, mode):
    def image(model, batch):
        return model(batch[0])

    def text(model, batch):
        if mode == "infer":
            if entry.kind == "seq2seq":
                return model(input_ids=batch[0], decoder_input_ids=batch[1])
            return model(input_ids=batch[0])
        return model(input_ids=batch[0], labels=batch[1])

    return image if entry.kind == "image" else text


def loss_of(entry):
    def image(out, batch):
        from torch.nn import functional

        parts = [out.logits, *(getattr(out, n, None) for n in ("aux_logits", "aux_logits1", "aux_logits2"))] if (
            hasattr(out, "logits")
        ) else [out]  # fmt: skip
        # Inception's auxiliary heads count a third, as in its paper.
        weights = [1.0, 0.3, 0.3, 0.3]
        terms = [w * functional.cross_entropy(p, batch[1]) for w, p in zip(weights, parts) if p is not None]
        return sum(terms[1:], terms[0])

    return image if entry.kind == "image" else lambda out, batch: out.loss


def case(row):
    """What the worker asks for: model, batch, forward and loss of a row."""
    from families import Case, flag, number

    mode = row.get("mode") or "train"
    entry = MODELS[row["model"]]
    factory, make_batch, _ = build(
        row["model"],
        row.get("attention") or "sdpa",
        mode,
        flag(row, "gradient_checkpointing"),
        number(row, "lora_rank"),
        fast=True,
    )
    length = number(row, "seq_len") or None
    return Case(
        factory(),
        lambda device, size, dtype: make_batch(device, size, dtype, length),
        forward_of(entry, mode),
        loss_of(entry),
    )


def warm():
    """Imports everything, for processes that will be forked."""
    import timm as _  # noqa: F401
    import torchvision as _  # noqa: F401
    import transformers

    for name in ("Bert", "DistilBert", "Roberta", "OPT", "GPTNeoX", "Llama", "Qwen2", "Qwen3", "Mistral", "Gemma", "T5"):
        getattr(transformers, f"{name}Model")
    getattr(transformers, "GPT2Model"), getattr(transformers, "BartModel"), getattr(transformers, "ViTModel")


# ----------------------------------------------------------------------------------------------- runs

COLUMNS = (
    "id family model source model_family mode batch_size seq_len optimizer precision attention gradient_checkpointing "
    "lora_rank channels_last cudnn_benchmark cap_mib predicted_mib"
).split()

IMAGE_RUNS = [  # which batch, mode, precision, optimizer, more
    (0, "train", "fp32", "sgd-momentum", {}),
    (1, "train", "fp32", "sgd-momentum", {}),
    (2, "train", "fp32", "adamw", {}),
    (1, "train", "bf16-autocast", "sgd-momentum", {}),
    (2, "train", "bf16-autocast", "adamw", {}),
    (0, "train", "bf16-autocast", "adam-fused", {}),
    (1, "train", "bf16", "adamw", {}),
    (1, "infer", "fp32", "", {}),
    (2, "infer", "bf16-autocast", "", {}),
    (1, "train", "fp32", "sgd-momentum", {"cudnn_benchmark": "true"}),
    (2, "train", "bf16-autocast", "adamw", {"channels_last": "true"}),
]
CONVOLUTIONAL = ("resnet", "resnext", "vgg", "mobilenet", "efficientnet", "densenet", "inception", "regnet", "convnext",
                 "shufflenet", "squeezenet", "mnasnet", "xception", "coatnet", "edgenext", "mobilevit", "repvgg",
                 "ghostnet", "hrnet", "convmixer")  # fmt: skip
CHANNELS_LAST = ("resnet50", "resnet18", "vgg16", "mobilenet_v2", "efficientnet_b0", "convnext_tiny", "densenet121",
                 "inception_v3", "regnet_y_8gf", "repvgg_b0", "tf_efficientnetv2_s", "xception41")  # fmt: skip
LANGUAGE_RUNS = [  # batch, sequence, mode, precision, optimizer, more
    (8, 128, "train", "fp32", "adamw", {}),
    (4, 512, "train", "fp32", "adamw", {}),
    (16, 128, "train", "fp32", "sgd-momentum", {}),
    (8, 512, "train", "bf16-autocast", "adamw", {}),
    (16, 256, "train", "bf16-autocast", "adam-fused", {}),
    (2, 1024, "train", "bf16-autocast", "adamw", {}),
    (32, 128, "train", "bf16", "adamw", {}),
    (8, 512, "train", "bf16", "adam-fused", {}),
    (4, 512, "train", "bf16-autocast", "adamw", {"attention": "eager"}),
    (8, 512, "train", "bf16-autocast", "adamw", {"gradient_checkpointing": "true"}),
    (8, 512, "train", "bf16", "adamw", {"lora_rank": "16"}),
    (8, 512, "infer", "fp32", "", {}),
    (32, 256, "infer", "bf16", "", {}),
]


def plan():
    for name, entry in MODELS.items():
        runs = []
        if entry.kind == "image":
            for at, mode, precision, optimizer, more in IMAGE_RUNS:
                if "cudnn_benchmark" in more and entry.family not in CONVOLUTIONAL:
                    continue
                if "channels_last" in more and name not in CHANNELS_LAST:
                    continue
                runs.append((entry.batches[at], "", mode, precision, optimizer, more))
        else:
            runs = [(b, min(s, entry.size), *rest) for b, s, *rest in LANGUAGE_RUNS]
            runs = [r for at, r in enumerate(runs) if r not in runs[:at]]
        for at, (batch, length, mode, precision, optimizer, more) in enumerate(runs, 1):
            row = dict.fromkeys(COLUMNS, "")
            row.update(
                id=f"{name}-{at:02}", family="model", model=name, source=entry.source, model_family=entry.family, mode=mode,
                batch_size=batch, seq_len=length, optimizer=optimizer, precision=precision, cap_mib=100_000,
                attention="sdpa" if entry.source == "transformers" else "", **{},
            )  # fmt: skip
            row.update(more)
            yield row


@contextlib.contextmanager
def all_true():
    """Tensors without numbers, asked whether all of a mask is set, say yes."""
    import torch

    kept = torch.Tensor.__bool__
    torch.Tensor.__bool__ = lambda self: True if self.is_meta else kept(self)
    try:
        yield
    finally:
        torch.Tensor.__bool__ = kept


def saved_bytes(name, row, device):
    """Bytes that autograd keeps for one sample in fp32, beside the parameters; and the parameters."""
    import torch

    factory, make_batch, loss = build(
        name, row["attention"] or "sdpa", "train", row["gradient_checkpointing"] == "true", 0, fast=True
    )
    model = factory().to(device)
    own = {p.untyped_storage()._cdata for p in model.parameters()}
    kept, count = {}, sum(p.numel() for p in model.parameters())

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t), all_true():
        loss(model, make_batch(device, 2, None, int(row["seq_len"] or 0) or None))
    return sum(s.nbytes() for s in kept.values()) / 2, count


def predicted(name, row, cache):
    """Crude: it decides which runs go beside each other."""
    # Without a GPU the fused attention keeps its matrix: short sequences, scaled, come nearer.
    length = row["seq_len"] if row["attention"] == "eager" or not row["seq_len"] else 128
    key = (name, length, row["attention"], row["gradient_checkpointing"])
    row = {**row, "seq_len": length, "scale": int(row["seq_len"] or 1) / int(length or 1)}
    if key not in cache:
        gc.collect()
        try:
            cache[key] = saved_bytes(name, row, "meta")
        except (RuntimeError, NotImplementedError, ValueError):  # it wants to look at numbers
            cache[key] = saved_bytes(name, row, "cpu")
        print(name, *key[1:], *cache[key], file=sys.stderr)
    saved, params = cache[key]
    numbers = {"": 1, "sgd-momentum": 3, "adam-fused": 4, "adamw": 5}[row["optimizer"]]
    size = 2 if row["precision"] == "bf16" else 4
    narrow = {"fp32": 1.0, "bf16-autocast": 0.7, "bf16": 0.55}[row["precision"]]
    share = narrow * (0.25 if row["mode"] == "infer" else 1.25)
    return 800 + (params * size * numbers + saved * share * row["batch_size"] * row["scale"]) / 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("-o", "--output")
    options = parser.parse_args()
    if options.list:
        for name, entry in MODELS.items():
            print(f"{name:26}{entry.source:14}{entry.family:14}{entry.kind:9}{entry.size}")
    if options.plan:
        rows, cache = list(plan()), {}
        with open(options.output, "w", newline="") if options.output else sys.stdout as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            for row in rows:
                row["predicted_mib"] = round(predicted(row["model"], row, cache))
                writer.writerow(row)
                file.flush()


if __name__ == "__main__":
    main()
