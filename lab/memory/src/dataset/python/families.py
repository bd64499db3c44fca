"""The models of the three families, made from a row of the data set.

`build(row)` returns a `Case`: a model on `meta` (shapes, no memory), a maker of batches, and the loss. What the
columns mean is in docs/research/datasets.md. Cells are strings, as in the CSV file; an empty cell is the default.
"""

import collections
import re

Case = collections.namedtuple("Case", "model batch forward loss")
# batch(device, size, dtype) -> what the loader gives; forward(model, batch) -> outputs; loss(outputs, batch) -> scalar.


def number(row, key, default=0):
    cell = row.get(key) or ""
    return int(cell) if cell else default


def share(row, key):
    return float(row.get(key) or 0)


def flag(row, key):
    cell = (row.get(key) or "false").lower()
    if cell not in ("true", "false"):
        raise ValueError(f"{key}: `{cell}` is neither true nor false")
    return cell == "true"


def activation(nn, name, inplace=False):
    if name == "SwiGLU":  # part of the block, not a module of its own
        return nn.SiLU()
    return nn.ReLU(inplace=inplace) if name == "ReLU" else getattr(nn, name)()


def build(row):
    import torch

    with torch.device("meta"):
        return {"mlp": mlp, "cnn": cnn, "transformer": transformer}[row["family"]](torch, row)


def classes_batch(torch, shape, classes):
    def batch(device, size, dtype):
        return (
            torch.randn(size, *shape, device=device, dtype=dtype),
            torch.randint(0, classes, (size,), device=device),
        )

    return batch


def classify(torch):
    criterion = torch.nn.CrossEntropyLoss()
    return lambda out, batch: criterion(out, batch[1])


def first(model, batch):
    return model(batch[0])


# ------------------------------------------------------------------------------------------------ MLP


def mlp(torch, row):
    nn = torch.nn
    inputs, outputs, dropout = number(row, "inputs"), number(row, "outputs"), share(row, "dropout")
    layers, width = [], inputs
    for after in map(int, row["widths"].split("-")):
        layers.append(nn.Linear(width, after))
        if flag(row, "batch_norm"):
            layers.append(nn.BatchNorm1d(after))
        layers.append(activation(nn, row["activation"], flag(row, "inplace")))
        if dropout:
            layers.append(nn.Dropout(dropout))
        width = after
    layers.append(nn.Linear(width, outputs))
    return Case(
        nn.Sequential(*layers),
        classes_batch(torch, (inputs,), outputs),
        first,
        classify(torch),
    )


# ------------------------------------------------------------------------------------------------ CNN

BLOCK = re.compile(r"([crdspt])(\d*)(?:k(\d+))?(?:s(\d+))?$")


def cnn(torch, row):
    """Blocks, joined by `-`: `c64k3s1` convolution, `r64s2` residual block, `d32` dense block (concatenates),
    `s64k3s1` depthwise and pointwise convolution, `t64` transition of a dense net, `p` max pooling by 2."""
    nn = torch.nn
    normed, dropout = flag(row, "batch_norm"), share(row, "dropout")
    size, channels = number(row, "image"), number(row, "in_channels", 3)
    classes, inplace = number(row, "classes"), flag(row, "inplace")
    shape = (channels, size, size)

    def act():
        return activation(nn, row["activation"], inplace)

    def norm(width):
        return [nn.BatchNorm2d(width)] if normed else []

    def conv(ins, outs, kernel=3, stride=1, groups=1):
        return nn.Conv2d(ins, outs, kernel, stride, kernel // 2, groups=groups, bias=not normed)

    class Residual(nn.Module):
        def __init__(self, ins, outs, stride):
            super().__init__()
            self.body = nn.Sequential(
                conv(ins, outs, 3, stride), *norm(outs), act(), conv(outs, outs), *norm(outs)
            )
            keeps = ins == outs and stride == 1
            self.skip = nn.Identity() if keeps else nn.Sequential(conv(ins, outs, 1, stride), *norm(outs))
            self.act = act()

        def forward(self, x):
            return self.act(self.body(x) + self.skip(x))

    class Dense(nn.Module):
        def __init__(self, ins, grows):
            super().__init__()
            self.body = nn.Sequential(*norm(ins), act_safe(), conv(ins, grows))

        def forward(self, x):
            return torch.cat([x, self.body(x)], 1)

    def act_safe():
        # Before anything else has copied the input, an activation in place would overwrite what is concatenated.
        return activation(nn, row["activation"], inplace and normed)

    layers = []
    for word in row["blocks"].split("-"):
        match = BLOCK.match(word)
        if not match:
            raise ValueError(f"blocks: `{word}` is no block")
        kind, outs = match[1], int(match[2] or 0)
        kernel, stride = int(match[3] or 3), int(match[4] or 1)
        if kind == "p":
            layers.append(nn.MaxPool2d(2))
            continue
        if kind == "c":
            layers += [conv(channels, outs, kernel, stride), *norm(outs), act()]
        elif kind == "s":
            layers += [conv(channels, channels, kernel, stride, channels), *norm(channels), act()]
            layers += [conv(channels, outs, 1), *norm(outs), act()]
        elif kind == "r":
            layers.append(Residual(channels, outs, stride))
        elif kind == "t":
            layers += [conv(channels, outs, 1), nn.AvgPool2d(2)]
        else:
            layers.append(Dense(channels, outs))
            outs += channels
        channels = outs
        if dropout and kind in "cs":
            layers.append(nn.Dropout(dropout))
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    for hidden in filter(None, (row.get("head") or "").split("-")):
        layers += [nn.Linear(channels, int(hidden)), act()] + ([nn.Dropout(dropout)] if dropout else [])
        channels = int(hidden)
    layers.append(nn.Linear(channels, classes))
    return Case(
        nn.Sequential(*layers),
        classes_batch(torch, shape, classes),
        first,
        classify(torch),
    )


# ---------------------------------------------------------------------------------------- Transformer


def transformer(torch, row):
    nn = torch.nn
    functional = nn.functional
    vocab, length, wide = number(row, "vocab"), number(row, "seq_len"), number(row, "embedding")
    heads, layers, inner = number(row, "heads"), number(row, "layers"), number(row, "ff")
    kv_heads, dropout = number(row, "kv_heads") or heads, share(row, "dropout")
    arch, eager = row["arch"], row.get("attention") == "eager"
    classes, pre = number(row, "classes"), flag(row, "norm_first")
    checkpointing = flag(row, "gradient_checkpointing")
    head_size = wide // heads

    class RMSNorm(nn.Module):
        """As in the Llama of transformers: computed in fp32, written with elementary operations."""

        def __init__(self, width):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x):
            y = x.float()
            y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
            return self.weight * y.to(x.dtype)

    modern = arch == "llama"
    make_norm = RMSNorm if modern else nn.LayerNorm

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query = nn.Linear(wide, heads * head_size, bias=not modern)
            self.key = nn.Linear(wide, kv_heads * head_size, bias=not modern)
            self.value = nn.Linear(wide, kv_heads * head_size, bias=not modern)
            self.out = nn.Linear(heads * head_size, wide, bias=not modern)
            self.drop = nn.Dropout(dropout)

        def forward(self, x):
            size = x.shape[0]

            def split(y, count):
                return y.view(size, -1, count, head_size).transpose(1, 2)

            q, k, v = split(self.query(x), heads), split(self.key(x), kv_heads), split(self.value(x), kv_heads)
            if kv_heads != heads:
                k, v = (y.repeat_interleave(heads // kv_heads, 1) for y in (k, v))
            causal = arch in ("decoder", "llama")
            if eager:
                scores = torch.matmul(q, k.transpose(2, 3)) * head_size**-0.5
                if causal:
                    mask = torch.full((x.shape[1], x.shape[1]), float("-inf"), device=x.device, dtype=x.dtype).triu(1)
                    scores = scores + mask
                y = torch.matmul(self.drop(functional.softmax(scores, -1, dtype=torch.float32).to(q.dtype)), v)
            else:
                y = functional.scaled_dot_product_attention(
                    q, k, v, dropout_p=dropout if self.training else 0.0, is_causal=causal
                )
            return self.out(y.transpose(1, 2).reshape(size, -1, wide))

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.up = nn.Linear(wide, inner, bias=False), nn.Linear(wide, inner, bias=False)
            self.down, self.act = nn.Linear(inner, wide, bias=False), nn.SiLU()

        def forward(self, x):
            return self.down(self.act(self.gate(x)) * self.up(x))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = make_norm(wide), make_norm(wide)
            self.attention = Attention()
            self.mlp = (
                Gated()
                if modern
                else nn.Sequential(nn.Linear(wide, inner), activation(nn, row["activation"]), nn.Linear(inner, wide))
            )
            self.drop = nn.Dropout(dropout)

        def forward(self, x):
            if pre:
                x = x + self.drop(self.attention(self.norm1(x)))
                return x + self.drop(self.mlp(self.norm2(x)))
            x = self.norm1(x + self.drop(self.attention(x)))
            return self.norm2(x + self.drop(self.mlp(x)))

    def torch_layer(kind):
        return kind(
            wide,
            heads,
            inner,
            dropout,
            activation=functional.gelu if row["activation"] == "GELU" else functional.relu,
            batch_first=True,
            norm_first=pre,
        )

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(vocab, wide)
            self.positions = None if modern else nn.Embedding(length, wide)
            self.drop = nn.Dropout(dropout)
            if arch == "encoder":
                self.blocks = nn.ModuleList(torch_layer(nn.TransformerEncoderLayer) for _ in range(layers))
            elif arch == "encoder-decoder":
                self.blocks = nn.ModuleList(torch_layer(nn.TransformerEncoderLayer) for _ in range(layers))
                self.answers = nn.ModuleList(torch_layer(nn.TransformerDecoderLayer) for _ in range(layers))
            else:
                self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm = make_norm(wide)
            self.head = nn.Linear(wide, classes or vocab, bias=bool(classes))
            if flag(row, "tied"):
                self.head.weight = self.tokens.weight

        def embed(self, tokens):
            x = self.tokens(tokens)
            if self.positions is not None:
                x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
            return self.drop(x)

        def forward(self, tokens):
            x = self.embed(tokens)
            for block in self.blocks:
                if checkpointing and self.training:
                    from torch.utils.checkpoint import checkpoint

                    x = checkpoint(block, x, use_reentrant=False)
                else:
                    x = block(x)
            if arch == "encoder-decoder":
                memory, x = x, self.embed(tokens)
                mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], tokens.device, x.dtype)
                for block in self.answers:
                    x = block(x, memory, tgt_mask=mask, tgt_is_causal=True)
            x = self.norm(x)
            return self.head(x.mean(1) if classes else x)

    criterion = nn.CrossEntropyLoss()

    def batch(device, size, dtype):
        tokens = torch.randint(0, vocab, (size, length), device=device)
        if classes:
            return tokens, torch.randint(0, classes, (size,), device=device)
        return tokens, torch.randint(0, vocab, (size, length), device=device)

    def loss(out, batch):
        return criterion(out, batch[1]) if classes else criterion(out.view(-1, out.shape[-1]), batch[1].view(-1))

    return Case(Model(), batch, first, loss)
