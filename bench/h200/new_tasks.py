#!/usr/bin/env python3
"""Sixteen more tasks for `carma bench interference`: the test set, none of them among those of interference_tasks.py.

    python3 new_tasks.py --list
    python3 new_tasks.py --groups                # the sets of 3, 4 and 6 to 8, one a line; always the same ones
    python3 new_tasks.py swin_train              # runs for ever; under carma it is started and paused
    python3 new_tasks.py swin_train --rehearse   # on the CPU, in tiny shapes: numbers mean nothing

Synthetic inputs, random weights. A step is an optimizer step, one answer, one denoising step of a batch of images, or,
of the two servers, one request answered: requests arrive by a Poisson process, the same one in each window.
NEW_TASKS_DATA.md says what each task is. Nothing is downloaded. Needs PyTorch, NumPy, timm and transformers.
"""

import collections
import functools
import random
import sys
import time

import interference_tasks
from interference_tasks import classifier

TASKS = {}
task = functools.partial(interference_tasks.task, into=TASKS)
# The step itself waits, e.g. because it reads its loss.
waiting = functools.partial(task, ahead=None)

# Members of a set, and how many such sets.
GROUPS = {3: 40, 4: 40, 6: 7, 7: 7, 8: 6}


def trained(torch, loss_of, optimizers, read=False):
    """A step of training; `read`: it reads its loss, and so waits for the GPU."""

    def step():
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss = loss_of()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        if read:
            loss.item()

    return step


def adamw(x, model, lr=1e-4):
    return x.torch.optim.AdamW(model.parameters(), lr=lr, fused=not x.tiny)


def perceptron(torch, *widths):
    nn = torch.nn
    layers = [part for a, b in zip(widths, widths[1:]) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


# ------------------------------------------------------------------------------------------ recommendation


@waiting()
def dlrm_train(x):
    """26 tables with 4 rows summed of each, products of all pairs, sparse gradients."""
    torch = x.torch
    nn = torch.nn
    tables, rows, width, batch = 26, x(1_000_000, 50), x(64, 8), x(4096, 8)
    bags = [nn.EmbeddingBag(rows, width, mode="sum", sparse=True, device=x.device) for _ in range(tables)]
    picks = [torch.randint(0, rows, (batch, 4), device=x.device) for _ in range(tables)]
    dense = torch.randn(batch, 13, device=x.device)
    labels = torch.randint(0, 2, (batch,), device=x.device).float()
    one, two = torch.triu_indices(tables + 1, tables + 1, 1, device=x.device)
    bottom = perceptron(torch, 13, x(512, 16), x(256, 16), width).to(x.device)
    top = perceptron(torch, width + len(one), x(1024, 16), x(512, 16), 1).to(x.device)
    parameters = [p for part in (*bags, bottom, top) for p in part.parameters()]
    criterion = nn.BCEWithLogitsLoss()

    def loss_of():
        low = bottom(dense)
        vectors = torch.stack([low, *(bag(pick) for bag, pick in zip(bags, picks))], dim=1)
        products = (vectors @ vectors.transpose(1, 2))[:, one, two]
        return criterion(top(torch.cat([low, products], dim=1)).squeeze(1), labels)

    return trained(torch, loss_of, [torch.optim.SGD(parameters, lr=0.01)], read=True)


@task()
def two_tower(x):
    """Users with 20 past items each and items, scored against all items of the batch."""
    torch = x.torch
    nn = torch.nn
    rows, width, batch = x(500_000, 100), x(64, 8), x(4096, 8)
    users, items = nn.Embedding(rows, width), nn.EmbeddingBag(rows, width, mode="mean")
    left, right = (perceptron(torch, n, x(1024, 16), x(512, 16), x(128, 8)) for n in (2 * width, width))
    model = nn.ModuleList([users, items, left, right]).to(x.device)
    user, item = (torch.randint(0, rows, (batch,), device=x.device) for _ in range(2))
    past = torch.randint(0, rows, (batch, 20), device=x.device)
    labels = torch.arange(batch, device=x.device)
    criterion = nn.CrossEntropyLoss()

    def loss_of():
        u = left(torch.cat([users(user), items(past)], dim=1))
        i = right(items(item[:, None]))
        return criterion(nn.functional.normalize(u, dim=1) @ nn.functional.normalize(i, dim=1).T / 0.07, labels)

    return trained(torch, loss_of, [torch.optim.Adam(model.parameters(), lr=1e-3, fused=not x.tiny)])


# -------------------------------------------------------------------------------------------------- speech


def conformer(torch, width, depth, heads, kernel):
    """Half a feed-forward, attention, convolution, half a feed-forward; time is shortened fourfold first."""
    nn = torch.nn

    class Convolution(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.into = nn.LayerNorm(width), nn.Conv1d(width, 2 * width, 1)
            self.depthwise = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
            self.rest = nn.Sequential(nn.BatchNorm1d(width), nn.SiLU(), nn.Conv1d(width, width, 1))

        def forward(self, h):
            h = nn.functional.glu(self.into(self.norm(h).transpose(1, 2)), dim=1)
            return self.rest(self.depthwise(h)).transpose(1, 2)

    def feed_forward():
        up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        return nn.Sequential(nn.LayerNorm(width), up, nn.SiLU(), down)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.convolution = feed_forward(), feed_forward(), Convolution()
            self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

        def forward(self, h):
            h = h + 0.5 * self.first(h)
            n = self.norm(h)
            h = h + self.attention(n, n, n, need_weights=False)[0]
            h = h + self.convolution(h)
            return self.last(h + 0.5 * self.second(h))

    class Conformer(nn.Module):
        def __init__(self, mels, letters):
            super().__init__()
            self.shorten = nn.Sequential(nn.Conv2d(1, 32, 3, 2), nn.ReLU(), nn.Conv2d(32, 32, 3, 2), nn.ReLU())
            self.into = nn.LazyLinear(width)
            self.blocks = nn.Sequential(*(Block() for _ in range(depth)))
            self.out = nn.Linear(width, letters)

        def forward(self, mels):
            h = self.shorten(mels[:, None])
            return self.out(self.blocks(self.into(h.transpose(1, 2).flatten(2))))

    return Conformer


@task()
def conformer_train(x):
    """Letters from 12 s of speech, by CTC."""
    torch = x.torch
    batch, frames, letters = x(32, 2), x(1200, 60), x(1000, 20)
    model = conformer(torch, x(512, 16), x(12, 1), x(8, 2), x(31, 3))(80, letters).to(x.device)
    mels = torch.randn(batch, frames, 80, device=x.device)
    text = torch.randint(1, letters, (batch, x(60, 5)), device=x.device)
    with torch.no_grad():
        long = model(mels).shape[1]
    lengths, said = torch.full((batch,), long), torch.full((batch,), text.shape[1])

    def loss_of():
        with x.half():
            out = model(mels)
        spoken = out.float().log_softmax(-1).transpose(0, 1)
        return torch.nn.functional.ctc_loss(spoken, text, lengths, said)

    return trained(torch, loss_of, [adamw(x, model)])


class Requests:
    """One step is one request answered, of those that arrive by a Poisson process. Each window begins with an empty
    queue and sees the same arrivals, so that chance does not make one window busier than another.
    """

    # carma lets a task wait longer than this between two windows; between two steps nothing else happens.
    PAUSE_S = 0.015

    def __init__(self, per_s, most, answer):
        self.per_s, self.most, self.answer = per_s, most, answer
        self.seen, self.answered = float("-inf"), 0
        # Of the last requests, from arrival to answer, seconds.
        self.latencies = collections.deque(maxlen=4096)

    def __call__(self):
        if time.monotonic() - self.seen > self.PAUSE_S:
            self.random, self.due, self.answered = random.Random(1), time.monotonic(), 0
            self.due += self.random.expovariate(self.per_s)
        if self.answered == 0:
            time.sleep(max(0.0, self.due - time.monotonic()))
            now, came = max(self.due, time.monotonic()), []
            while self.due <= now and self.answered < self.most:
                self.answered += 1
                came.append(self.due)
                self.due += self.random.expovariate(self.per_s)
            self.answer(self.answered)
            answered = time.monotonic()
            self.latencies.extend(answered - at for at in came)
        self.answered -= 1
        self.seen = time.monotonic()


def served(x, per_s, most, batch_of, model):
    """Requests answered by a model, several at a time; batches are filled up to powers of two."""
    torch = x.torch
    inputs = {2**n: batch_of(2**n) for n in range(most.bit_length())}

    def answer(n):
        with torch.inference_mode():
            model(inputs[1 << (n - 1).bit_length()])
        if not x.tiny:
            torch.cuda.synchronize()

    for size in inputs:
        answer(size)
    return Requests(per_s, most, answer)


@waiting()
def whisper_serve(x):
    """Whisper's encoder, small; 30 s of speech a request, one at a time."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    torch = x.torch
    dtype = x(torch.float16, torch.float32)
    full = {"d_model": 768, "encoder_layers": 12, "encoder_attention_heads": 12, "encoder_ffn_dim": 3072}
    tiny = {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 64}
    model = WhisperEncoder(WhisperConfig(**x(full, tiny))).to(x.device, dtype).eval()

    def batch_of(n):
        return torch.randn(n, 80, 3000, device=x.device, dtype=dtype)

    return served(x, x(120, 20), 1, batch_of, model)


# ----------------------------------------------------------------------------------------------- diffusion


def dit(torch, width, depth, heads, size):
    """A diffusion transformer on latents of 4 x size x size, patches of 2: norms are shifted by time and class."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
            self.shift = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

        def forward(self, h, c):
            a, b, gate, d, e, other = self.shift(c)[:, None].chunk(6, dim=-1)
            n = self.norms[0](h) * (1 + a) + b
            q, k, v = self.qkv(n).unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
            h = h + gate * self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            return h + other * self.mlp(self.norms[1](h) * (1 + d) + e)

    class Dit(nn.Module):
        def __init__(self):
            super().__init__()
            self.into, self.out = nn.Conv2d(4, width, 2, 2), nn.Linear(width, 16)
            self.place = nn.Parameter(torch.zeros(1, (size // 2) ** 2, width))
            self.time, self.label = perceptron(torch, 64, width, width), nn.Embedding(1000, width)
            self.blocks = nn.ModuleList(Block() for _ in range(depth))
            self.norm = nn.LayerNorm(width)

        def forward(self, latents, t, labels):
            angle = t[:, None] * torch.exp(torch.linspace(0, -9, 32, device=t.device))
            waves = torch.cat([angle.sin(), angle.cos()], dim=1).to(latents.dtype)
            c = self.time(waves) + self.label(labels)
            h = self.into(latents).flatten(2).transpose(1, 2) + self.place
            for block in self.blocks:
                h = block(h, c)
            return nn.functional.pixel_shuffle(self.out(self.norm(h)).transpose(1, 2).unflatten(2, (size // 2,) * 2), 2)

    return Dit()


@task()
def dit_train(x):
    torch = x.torch
    batch, size = x(32, 2), x(32, 8)
    model = dit(torch, x(768, 32), x(12, 1), x(12, 2), size).to(x.device)
    latents = torch.randn(batch, 4, size, size, device=x.device)
    labels = torch.randint(0, 1000, (batch,), device=x.device)

    def loss_of():
        noise, t = torch.randn_like(latents), torch.rand(batch, device=x.device)
        mixed = (1 - t)[:, None, None, None] * latents + t[:, None, None, None] * noise
        with x.half():
            out = model(mixed, t * 1000, labels)
        return torch.nn.functional.mse_loss(out.float(), noise - latents)

    return trained(torch, loss_of, [adamw(x, model)])


@task()
def dit_sample(x):
    """Four images in 20 steps, with guidance: each step goes through the model with and without the class."""
    torch = x.torch
    images, size, steps = x(4, 1), x(64, 8), 20
    dtype = x(torch.float16, torch.float32)
    model = dit(torch, x(384, 32), x(12, 1), x(6, 2), size).to(x.device, dtype).eval()
    labels = torch.cat([torch.randint(0, 999, (images,)), torch.full((images,), 999)]).to(x.device)
    state = {"left": 0}

    def step():
        with torch.inference_mode():
            if state["left"] == 0:
                state["latents"] = torch.randn(images, 4, size, size, device=x.device, dtype=dtype)
                state["left"] = steps
            t = torch.full((2 * images,), 1000 * state["left"] / steps, device=x.device)
            seen, blind = model(state["latents"].repeat(2, 1, 1, 1), t, labels).chunk(2)
            state["latents"] = state["latents"] - (blind + 4 * (seen - blind)) / steps
            state["left"] -= 1
            if state["left"] == 0:
                state["latents"].cpu()

    return step


# --------------------------------------------------------------------------------------------------- graph


@waiting()
def gat_train(x):
    """Two layers of attention along the edges: a softmax over the edges that lead to a node."""
    torch = x.torch
    nn = torch.nn
    nodes, edges, heads, width = x(50_000, 100), x(500_000, 500), x(4, 2), x(32, 4)
    source, target = (torch.randint(0, nodes, (edges,), device=x.device) for _ in range(2))
    features = torch.randn(nodes, heads * width, device=x.device)
    labels = torch.randint(0, 10, (nodes,), device=x.device)
    layers = nn.ModuleList(nn.Linear(heads * width, heads * width) for _ in range(2))
    asks = nn.ParameterList(nn.Parameter(torch.randn(2, heads, width) / width) for _ in layers)
    model = nn.ModuleList([layers, asks, nn.Linear(heads * width, 10)]).to(x.device)
    criterion = nn.CrossEntropyLoss()

    def loss_of():
        h = features
        for layer, (from_, to) in zip(layers, asks):
            z = layer(h).unflatten(1, (heads, width))
            score = nn.functional.leaky_relu((z * from_).sum(-1)[source] + (z * to).sum(-1)[target], 0.2)
            index = target[:, None].expand_as(score)
            most = torch.full((nodes, heads), float("-inf"), device=x.device)
            most = most.scatter_reduce(0, index, score.detach(), "amax")
            weight = (score - most[target]).exp()
            total = torch.zeros(nodes, heads, device=x.device).index_add(0, target, weight)
            messages = z[source] * (weight / total[target])[..., None]
            h = nn.functional.elu(torch.zeros_like(z).index_add(0, target, messages)).flatten(1)
        return criterion(model[2](h), labels)

    return trained(torch, loss_of, [torch.optim.Adam(model.parameters(), lr=1e-3)], read=True)


# -------------------------------------------------------------------------------------------------- images


@waiting()
def regnet_train(x):
    return classifier(x, x("regnety_032", "regnetx_002"), x(80, 2), x(224, 64), mixed=False, read=True)


@task()
def swin_train(x):
    tiny = {"img_size": 56, "embed_dim": 16, "depths": (1, 1), "num_heads": (2, 4)}
    return classifier(x, "swin_tiny_patch4_window7_224", x(96, 2), x(224, 56), mixed=True, **x({}, tiny))


@task()
def segformer_train(x):
    """Street scenes of 512 x 512, 19 classes."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    torch = x.torch
    batch, size = x(8, 2), x(512, 64)
    full = {"hidden_sizes": [64, 128, 320, 512], "decoder_hidden_size": 256}
    tiny = {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 1, 1]}
    model = SegformerForSemanticSegmentation(SegformerConfig(num_labels=19, **x(full, tiny))).to(x.device).train()
    images = torch.randn(batch, 3, size, size, device=x.device)
    labels = torch.randint(0, 19, (batch, size, size), device=x.device)

    def loss_of():
        with x.half():
            return model(pixel_values=images, labels=labels).loss

    return trained(torch, loss_of, [adamw(x, model)])


@waiting()
def dcgan_train(x):
    """Generator and discriminator on 64 px, both losses read at each step."""
    torch = x.torch
    nn = torch.nn
    width, batch = x(64, 4), x(128, 4)

    def up(into, out, stride, padding, last):
        return [nn.ConvTranspose2d(into, out, 4, stride, padding, bias=False), *last]

    def down(into, out, stride, padding, last):
        return [nn.Conv2d(into, out, 4, stride, padding, bias=False), *last]

    def inner(channels, activation):
        return [nn.BatchNorm2d(channels), activation]

    w, relu, leaky = width, nn.ReLU(True), nn.LeakyReLU(0.2, True)
    sizes = [(100, 8 * w, 1, 0), (8 * w, 4 * w, 2, 1), (4 * w, 2 * w, 2, 1), (2 * w, w, 2, 1)]
    generator = [part for size in sizes for part in up(*size, inner(size[1], relu))]
    generator = nn.Sequential(*generator, *up(w, 3, 2, 1, [nn.Tanh()])).to(x.device)
    sizes = [(w, 2 * w, 2, 1), (2 * w, 4 * w, 2, 1), (4 * w, 8 * w, 2, 1)]
    critic = [part for size in sizes for part in down(*size, inner(size[1], leaky))]
    critic = nn.Sequential(*down(3, w, 2, 1, [leaky]), *critic, *down(8 * w, 1, 1, 0, [nn.Flatten(0)])).to(x.device)
    optimizers = [torch.optim.Adam(m.parameters(), lr=2e-4, betas=(0.5, 0.999)) for m in (critic, generator)]
    real = torch.randn(batch, 3, 64, 64, device=x.device)
    yes, no = torch.ones(batch, device=x.device), torch.zeros(batch, device=x.device)
    criterion = nn.BCEWithLogitsLoss()

    def step():
        fake = generator(torch.randn(batch, 100, 1, 1, device=x.device))
        optimizers[0].zero_grad(set_to_none=True)
        loss = criterion(critic(real), yes) + criterion(critic(fake.detach()), no)
        loss.backward()
        optimizers[0].step()
        optimizers[1].zero_grad(set_to_none=True)
        other = criterion(critic(fake), yes)
        other.backward()
        optimizers[1].step()
        return loss.item(), other.item()

    return step


# ------------------------------------------------------------------------------------------------ language


@waiting()
def t5_train(x):
    from transformers import T5Config, T5ForConditionalGeneration

    torch = x.torch
    tiny = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 2, "vocab_size": 200}
    config = T5Config(decoder_start_token_id=0, **x({}, tiny))
    model = T5ForConditionalGeneration(config).to(x.device).train()
    source = torch.randint(0, config.vocab_size, (x(64, 2), x(256, 16)), device=x.device)
    target = torch.randint(0, config.vocab_size, (x(64, 2), x(64, 8)), device=x.device)

    def loss_of():
        with x.half():
            return model(input_ids=source, labels=target).loss

    return trained(torch, loss_of, [adamw(x, model)], read=True)


@waiting()
def distilbert_serve(x):
    """128 tokens a request; whatever has arrived is answered together, up to 32."""
    from transformers import DistilBertConfig, DistilBertModel

    torch = x.torch
    tiny = {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 64}
    config = DistilBertConfig(**x({}, tiny))
    model = DistilBertModel(config).to(x.device, x(torch.float16, torch.float32)).eval()

    def batch_of(n):
        return torch.randint(0, config.vocab_size, (n, x(128, 16)), device=x.device)

    return served(x, x(400, 40), x(32, 4), batch_of, model)


@task(ahead=0)
def qwen_prefill(x):
    """A Qwen 2 of half a billion parameters reads prompts; a step is the first token of each."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch = x.torch
    full = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "vocab_size": 151_936}
    full |= {"num_attention_heads": 14, "num_key_value_heads": 2}
    tiny = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 200}
    tiny |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen2Config(**x(full, tiny))
    torch.set_default_dtype(x(torch.bfloat16, torch.float32))
    with torch.device(x.device):
        model = Qwen2ForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    prompts = torch.randint(0, config.vocab_size, (x(8, 1), x(1024, 16)), device=x.device)

    def step():
        with torch.inference_mode():
            model(input_ids=prompts, use_cache=True, logits_to_keep=1)

    return step


# -------------------------------------------------------------------------------------------- small and odd


@task()
def patch_series(x):
    """Forecasts of 7 series from patches of 16 values, by a small transformer: bound by launches."""
    torch = x.torch
    nn = torch.nn
    width, patches, ahead = x(128, 8), x(42, 5), 96
    series = torch.randn(x(32, 2) * 7, patches, 16, device=x.device)
    truth = torch.randn(len(series), ahead, device=x.device)
    layer = nn.TransformerEncoderLayer(width, x(16, 2), 2 * width, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 3)
    model = nn.Sequential(nn.Linear(16, width), encoder, nn.Flatten(), nn.Linear(patches * width, ahead)).to(x.device)
    criterion = nn.MSELoss()
    return trained(torch, lambda: criterion(model(series), truth), [torch.optim.Adam(model.parameters(), lr=1e-4)])


@waiting()
def ppo_train(x):
    """256 carts with poles on the CPU, 16 moves chosen on the GPU, then 8 small steps of training: one step of ours."""
    import numpy

    torch = x.torch
    nn = torch.nn
    carts, moves, parts = x(256, 4), x(16, 2), 4
    policy, value = (perceptron(torch, 4, 64, 64, out).to(x.device) for out in (2, 1))
    parameters = [*policy.parameters(), *value.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-4)
    dice = numpy.random.default_rng(0)
    state = dice.uniform(-0.05, 0.05, (carts, 4)).astype(numpy.float32)

    def move(action):
        """The cart and pole of Barto, Sutton and Anderson (1983); one that falls begins anew."""
        place, speed, angle, turn = state.T
        push = numpy.where(action == 1, 10.0, -10.0)
        sin, cos = numpy.sin(angle), numpy.cos(angle)
        pull = (push + 0.05 * turn**2 * sin) / 1.1
        swing = (9.8 * sin - cos * pull) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        change = numpy.stack([speed, pull - 0.05 * swing * cos / 1.1, turn, swing], axis=1)
        state[:] = state + 0.02 * change
        fallen = (abs(state[:, 0]) > 2.4) | (abs(state[:, 2]) > 0.21)
        state[fallen] = dice.uniform(-0.05, 0.05, (fallen.sum(), 4))
        return fallen

    def step():
        seen, chosen, fell = [], [], []
        with torch.no_grad():
            for _ in range(moves):
                now = torch.from_numpy(state.copy()).to(x.device)
                action = torch.distributions.Categorical(logits=policy(now)).sample()
                seen.append(now)
                chosen.append(action)
                fell.append(move(action.cpu().numpy()))
            seen, chosen = torch.cat(seen), torch.cat(chosen)
            alive = 1 - torch.from_numpy(numpy.stack(fell)).to(x.device).float()
            worth = value(seen).view(moves, carts)
            gains = torch.empty_like(worth)
            later = worth[-1]
            for at in reversed(range(moves)):
                later = alive[at] * (1 + 0.99 * later)
                gains[at] = later
            advantage = (gains - worth).flatten()
            before = torch.distributions.Categorical(logits=policy(seen)).log_prob(chosen)
        for _ in range(2):
            for part in torch.randperm(len(seen), device=x.device).chunk(parts):
                choice = torch.distributions.Categorical(logits=policy(seen[part]))
                ratio = (choice.log_prob(chosen[part]) - before[part]).exp()
                least = torch.minimum(ratio * advantage[part], ratio.clamp(0.8, 1.2) * advantage[part])
                error = (value(seen[part]).squeeze(1) - gains.flatten()[part]).square()
                loss = (0.5 * error - least - 0.01 * choice.entropy()).mean()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()
        return loss.item()

    return step


# ---------------------------------------------------------------------------------------------------- sets


def groups(tasks=TASKS, counts=GROUPS, seed=2026):
    """Random sets, none twice, each task about equally often among those of one size; always the same ones."""
    dice = random.Random(seed)
    chosen = []
    for size, count in counts.items():
        often = dict.fromkeys(tasks, 0)
        while sum(len(group) == size for group in chosen) < count:
            # Of those that were drawn least often; two more than needed, so that not always the same ones meet.
            order = sorted(tasks, key=lambda name: (often[name], dice.random()))
            group = sorted(dice.sample(order[: size + 2], size), key=list(tasks).index)
            if group not in chosen:
                chosen.append(group)
                for name in group:
                    often[name] += 1
    return chosen


if __name__ == "__main__":
    if sys.argv[1:] == ["--groups"]:
        print("\n".join(",".join(group) for group in groups()))
    else:
        interference_tasks.main(TASKS, __doc__)
