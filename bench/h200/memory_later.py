"""A second list of 24 models that are in no other set, for `memory_unseen.py --set later`.

The form of an entry is that of memory_unseen.py. Weights are random, inputs are synthetic.
"""

from memory_unseen import ADAMW, SGD, entry, of_timm, of_torchvision, of_transformers, runs

LATER = {}


def later(name, family, source, kind, runs, size):
    return entry(name, family, source, kind, runs, size, into=LATER)


for name, family, runs_of, size in (
    ("xcit_small_12_p16_224", "xcit", runs(ADAMW, 16, 48, 96), 224),
    ("ese_vovnet39b", "vovnet", runs(SGD, 16, 64, 128), 224),
    ("hiera_tiny_224", "hiera", runs(ADAMW, 16, 48, 96), 224),
    ("inception_next_tiny", "inceptionnext", runs(ADAMW, 16, 64, 128), 224),
    ("levit_256", "levit", runs(ADAMW, 64, 192, 384), 224),
    ("cspdarknet53", "cspnet", runs(SGD, 16, 48, 96), 256),
):
    later(name, family, "timm", "image", runs_of, size)(of_timm(name))

# Its convolutions of the last two stages are dilated.
later("fcn_resnet50", "fcn", "torchvision", "segmentation", runs(SGD, 4, 16, 24), 384)(
    of_torchvision("fcn_resnet50", "segmentation", weights_backbone=None, num_classes=21)
)
# The model makes 800 pixels of 512. Choosing boxes has no kernel for bf16, but one under autocast.
later("fasterrcnn_resnet50_fpn", "faster-rcnn", "torchvision", "detection", runs(SGD, 2, 6, 8, infer_half="bf16-autocast"), 512)(
    of_torchvision("fasterrcnn_resnet50_fpn", "detection", weights_backbone=None, num_classes=91)
)
later("mvit_v2_s", "mvit", "torchvision", "video", runs(ADAMW, 2, 6, 12), 224)(of_torchvision("mvit_v2_s", "video"))
# Coordinates are fp32 whatever the weights are.
later("raft_large", "raft", "torchvision", "flow", runs(ADAMW, 2, 6, 8, infer_half="bf16-autocast"), 384)(
    of_torchvision("raft_large", "optical_flow")
)

later("longformer-base", "longformer", "transformers", "masked", runs(ADAMW, 2, 4, 8, "bf16"), 1024)(
    of_transformers(
        "LongformerForMaskedLM", "LongformerConfig", vocab_size=50265, attention_window=512, max_position_embeddings=4098,
        type_vocab_size=1, pad_token_id=1,
    )
)  # fmt: skip
later("funnel-small", "funnel", "transformers", "masked", runs(ADAMW, 8, 24, 32, "bf16"), 256)(
    of_transformers("FunnelForMaskedLM", "FunnelConfig")
)
later("gpt-neo-125m", "gptneo", "transformers", "causal", runs(ADAMW, 2, 6, 16, "bf16"), 512)(
    of_transformers(
        "GPTNeoForCausalLM", "GPTNeoConfig", hidden_size=768, num_layers=12, num_heads=12,
        attention_types=[[["global", "local"], 6]],
    )
)  # fmt: skip
later("falcon-240m", "falcon", "transformers", "causal", runs(ADAMW, 4, 8, 16, "bf16"), 512)(
    of_transformers("FalconForCausalLM", "FalconConfig", hidden_size=1024, num_hidden_layers=16, num_attention_heads=16)
)
later("stablelm-300m", "stablelm", "transformers", "causal", runs(ADAMW, 2, 6, 16, "bf16"), 512)(
    of_transformers(
        "StableLmForCausalLM", "StableLmConfig", hidden_size=1024, intermediate_size=2816, num_hidden_layers=16,
        num_attention_heads=16, num_key_value_heads=16,
    )
)  # fmt: skip
later("opus-mt", "marian", "transformers", "seq2seq", runs(ADAMW, 8, 24, 48, "bf16"), 256)(
    of_transformers(
        "MarianMTModel", "MarianConfig", vocab_size=58101, pad_token_id=58100, decoder_start_token_id=58100, eos_token_id=0,
        d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8,
        encoder_ffn_dim=2048, decoder_ffn_dim=2048, max_position_embeddings=512, activation_function="swish",
        scale_embedding=True,
    )
)  # fmt: skip
later("s2t-small", "speech2text", "transformers", "filterbank", runs(ADAMW, 16, 48, 96), 1500)(
    of_transformers("Speech2TextForConditionalGeneration", "Speech2TextConfig")
)
later("vit-mae-base", "vit-mae", "transformers", "pixels", runs(ADAMW, 32, 96, 192), 224)(
    of_transformers("ViTMAEForPreTraining", "ViTMAEConfig")
)
later("siglip-base", "siglip", "transformers", "pairs-64", runs(ADAMW, 16, 48, 96), 224)(
    of_transformers("SiglipModel", "SiglipConfig")
)


@later("nmt-lstm", "nmt", "torch", "translation", runs("adam", 48, 160, 256), 60)
def nmt():
    """Luong's translation by LSTMs: four layers on each side, attention over all of the source, no input feeding."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, words=32_000, width=1000, layers=4):
            super().__init__()
            self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
            self.encoder = nn.LSTM(width, width, layers, batch_first=True, dropout=0.2)
            self.decoder = nn.LSTM(width, width, layers, batch_first=True, dropout=0.2)
            self.score = nn.Linear(width, width, bias=False)
            self.join, self.drop, self.head = nn.Linear(2 * width, width), nn.Dropout(0.2), nn.Linear(width, words, bias=False)

        def forward(self, source, target):
            memory, state = self.encoder(self.drop(self.source(source)))
            x, _ = self.decoder(self.drop(self.target(target)), state)
            weights = torch.softmax(torch.bmm(self.score(x), memory.transpose(1, 2)), 2)
            x = torch.tanh(self.join(torch.cat([torch.bmm(weights, memory), x], 2)))
            return self.head(self.drop(x)).flatten(0, 1)

    return Net()


@later("conv-tasnet", "tasnet", "torch", "mixture", runs("adam", 2, 6, 12), 32_000)
def tasnet():
    """Luo's separation of two speakers in four seconds of 8 kHz: depthwise convolutions, dilated 1 to 128, three times."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width, inner, dilation):
            super().__init__()
            self.first = nn.Sequential(nn.Conv1d(width, inner, 1), nn.PReLU(), nn.GroupNorm(1, inner))
            self.depth = nn.Conv1d(inner, inner, 3, padding=dilation, dilation=dilation, groups=inner)
            self.then = nn.Sequential(nn.PReLU(), nn.GroupNorm(1, inner))
            self.rest, self.skip = nn.Conv1d(inner, width, 1), nn.Conv1d(inner, width, 1)

        def forward(self, x):
            h = self.then(self.depth(self.first(x)))
            return x + self.rest(h), self.skip(h)

    class Net(nn.Module):
        def __init__(self, filters=512, length=16, width=128, inner=512, blocks=8, repeats=3, speakers=2):
            super().__init__()
            self.speakers = speakers
            self.encode = nn.Conv1d(1, filters, length, length // 2, bias=False)
            self.before = nn.Sequential(nn.GroupNorm(1, filters), nn.Conv1d(filters, width, 1))
            self.blocks = nn.ModuleList(Block(width, inner, 2**at) for _ in range(repeats) for at in range(blocks))
            self.mask = nn.Sequential(nn.PReLU(), nn.Conv1d(width, speakers * filters, 1), nn.Sigmoid())
            self.decode = nn.ConvTranspose1d(filters, 1, length, length // 2, bias=False)

        def forward(self, wave):
            mixed = self.encode(wave)
            x, skipped = self.before(mixed), 0
            for block in self.blocks:
                x, skip = block(x)
                skipped = skipped + skip
            masks = self.mask(skipped).unflatten(1, (self.speakers, -1))
            apart = (masks * mixed.unsqueeze(1)).flatten(0, 1)
            return self.decode(apart).reshape(wave.size(0), self.speakers, -1)

    return Net()


@later("vq-vae", "vq-vae", "torch", "rebuild", runs("adam", 16, 64, 128), 256)
def vqvae():
    """Van den Oord's autoencoder with 512 codes: a quarter of the image's side, two residual blocks on each side."""
    from torch import nn
    from torch.nn import functional as F

    class Residual(nn.Module):
        def __init__(self, width, inner):
            super().__init__()
            self.layers = nn.Sequential(nn.ReLU(), nn.Conv2d(width, inner, 3, padding=1), nn.ReLU(), nn.Conv2d(inner, width, 1))

        def forward(self, x):
            return x + self.layers(x)

    class Net(nn.Module):
        def __init__(self, width=256, inner=256, codes=512, size=64):
            super().__init__()
            self.encode = nn.Sequential(
                nn.Conv2d(3, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 4, 2, 1),
                Residual(width, inner), Residual(width, inner), nn.ReLU(), nn.Conv2d(width, size, 1),
            )  # fmt: skip
            self.codes = nn.Embedding(codes, size)
            self.decode = nn.Sequential(
                nn.Conv2d(size, width, 3, padding=1), Residual(width, inner), Residual(width, inner), nn.ReLU(),
                nn.ConvTranspose2d(width, width, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1),
            )  # fmt: skip

        def forward(self, images):
            z = self.encode(images).permute(0, 2, 3, 1)
            flat, codes = z.flatten(0, 2), self.codes.weight
            far = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ codes.T + codes.pow(2).sum(1)
            found = self.codes(far.argmin(1)).view_as(z)
            more = F.mse_loss(found, z.detach()) + 0.25 * F.mse_loss(z, found.detach())
            return self.decode((z + (found - z).detach()).permute(0, 3, 1, 2)), more

    return Net()


@later("unet3d", "unet3d", "torch", "volume", runs(SGD, 1, 3, 4), 96)
def unet3d():
    """A 3-D U-Net as nnU-Net sets it up for four MRI channels: instance norm, strided convolutions, 32 to 320 channels."""
    import torch
    from torch import nn

    def double(inputs, outputs, stride=1):
        layers = []
        for i, s in ((inputs, stride), (outputs, 1)):
            layers += [nn.Conv3d(i, outputs, 3, s, 1), nn.InstanceNorm3d(outputs, affine=True), nn.LeakyReLU(0.01, inplace=True)]
        return nn.Sequential(*layers)

    class UNet(nn.Module):
        def __init__(self, widths=(32, 64, 128, 256, 320), inputs=4, classes=4):
            super().__init__()
            self.down = nn.ModuleList(double(i, o, 2 if i != inputs else 1) for i, o in zip((inputs, *widths), widths))
            self.up = nn.ModuleList(nn.ConvTranspose3d(i, o, 2, 2) for i, o in zip(widths[:0:-1], widths[-2::-1]))
            self.join = nn.ModuleList(double(2 * o, o) for o in widths[-2::-1])
            self.head = nn.Conv3d(widths[0], classes, 1)

        def forward(self, x):
            kept = []
            for block in self.down:
                x = block(x)
                kept.append(x)
            kept.pop()
            for up, join in zip(self.up, self.join):
                x = join(torch.cat([kept.pop(), up(x)], 1))
            return self.head(x)

    return UNet()


@later("pointnet", "pointnet", "torch", "points", runs("adam", 32, 96, 192), 2048)
def pointnet():
    """Qi's classification of point clouds: two learned transforms, convolutions of one point, the largest of all points."""
    import torch
    from torch import nn

    def points(*widths):
        layers = []
        for i, o in zip(widths, widths[1:]):
            layers += [nn.Conv1d(i, o, 1), nn.BatchNorm1d(o), nn.ReLU()]
        return nn.Sequential(*layers)

    def dense(*widths):
        layers = []
        for i, o in zip(widths, widths[1:]):
            layers += [nn.Linear(i, o), nn.BatchNorm1d(o), nn.ReLU()]
        return nn.Sequential(*layers)

    class Transform(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.size = size
            self.points, self.dense, self.last = points(size, 64, 128, 1024), dense(1024, 512, 256), nn.Linear(256, size * size)

        def forward(self, x):
            matrix = self.last(self.dense(self.points(x).max(2).values)).unflatten(1, (self.size, self.size))
            matrix = matrix + torch.eye(self.size, device=x.device, dtype=matrix.dtype)
            return torch.bmm(x.transpose(1, 2), matrix.to(x.dtype)).transpose(1, 2)

    class Net(nn.Module):
        def __init__(self, classes=40):
            super().__init__()
            self.first, self.second = Transform(3), Transform(64)
            self.low, self.high = points(3, 64, 64), points(64, 64, 128, 1024)
            self.head = nn.Sequential(dense(1024, 512, 256), nn.Dropout(0.3), nn.Linear(256, classes))

        def forward(self, x):
            x = self.second(self.low(self.first(x)))
            return self.head(self.high(x).max(2).values)

    return Net()
