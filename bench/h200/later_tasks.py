#!/usr/bin/env python3
"""Twelve more tasks for `carma bench interference`: a second test set, none of them in one of the other sets.

    python3 later_tasks.py --list
    python3 later_tasks.py --groups                  # the sets of 3, 4 and 6 to 8, one a line; always the same ones
    python3 later_tasks.py mixer_train               # runs for ever; under carma it is started and paused
    python3 later_tasks.py mixer_train --rehearse    # on the CPU, in tiny shapes: numbers mean nothing

Synthetic inputs, random weights. A step is an optimizer step, one answer, one token of each of 16 translations or, of
the server, one request answered. LATER_TASKS_DATA.md says what each task is. Nothing is downloaded. Needs PyTorch,
NumPy, SciPy, timm and transformers.
"""

import copy
import functools
import math
import sys

import interference_tasks
import new_tasks
from interference_tasks import classifier
from new_tasks import adamw, perceptron, served, trained

TASKS = {}
task = functools.partial(interference_tasks.task, into=TASKS)
# The step itself waits, e.g. because it reads its loss.
waiting = functools.partial(task, ahead=None)

# Members of a set, and how many such sets; beside these all pairs.
GROUPS = {3: 30, 4: 30, 6: 7, 7: 7, 8: 6}
SEED = 2028


# -------------------------------------------------------------------------------------------------- control


class Balls:
    """Games of 84 x 84 pixels on the CPU: a ball falls, a paddle is to be under it. Their last frames are kept."""

    MOVES, SIZE, PADDLE = 3, 84, 12

    def __init__(self, numpy, games, slots):
        self.numpy, self.dice = numpy, numpy.random.default_rng(0)
        self.frames = numpy.zeros((slots, games, self.SIZE, self.SIZE), numpy.uint8)
        self.moves = numpy.zeros((slots, games), numpy.int64)
        self.rewards, self.ends = (numpy.zeros((slots, games), numpy.float32) for _ in range(2))
        self.ball = self.dice.integers(2, self.SIZE - 4, (2, games))
        self.speed = self.dice.integers(-2, 3, games)
        self.paddle = self.dice.integers(0, self.SIZE - self.PADDLE, games)
        self.slots, self.games, self.played = slots, games, 0
        for _ in range(slots):
            self.play(self.dice.integers(0, self.MOVES, games))

    def play(self, moves):
        """What was chosen for the frame before this one, and what came of it."""
        at = self.played % self.slots
        self.moves[at - 1] = moves
        self.paddle = (self.paddle + 4 * (moves - 1)).clip(0, self.SIZE - self.PADDLE)
        across, down = self.ball
        across += self.speed
        self.speed[(across < 2) | (across > self.SIZE - 4)] *= -1
        across.clip(0, self.SIZE - 3, out=across)
        down += 3
        ended = down > self.SIZE - 5
        caught = ended & (abs(across - self.paddle - self.PADDLE // 2) < self.PADDLE // 2)
        self.rewards[at - 1] = caught * 2.0 - ended
        self.ends[at - 1] = ended
        down[ended] = 2
        across[ended] = self.dice.integers(2, self.SIZE - 4, ended.sum())
        frame = self.frames[at]
        frame[:] = 0
        for game in range(self.games):
            frame[game, down[game] : down[game] + 3, across[game] : across[game] + 3] = 255
            frame[game, -3:, self.paddle[game] : self.paddle[game] + self.PADDLE] = 255
        self.played += 1

    def seen(self):
        """The last four frames of each game."""
        last = self.numpy.arange(self.played - 4, self.played) % self.slots
        return self.frames[last].swapaxes(0, 1)

    def remembered(self, batch):
        """Five frames in a row of some moments, what was chosen at the fourth, and what came of it."""
        back = self.dice.integers(2, self.slots - 4, batch)
        at, game = self.played - back, self.dice.integers(0, self.games, batch)
        frames = self.frames[(at[:, None] + self.numpy.arange(-3, 2)) % self.slots, game[:, None]]
        at %= self.slots
        return frames, self.moves[at, game], self.rewards[at, game], self.ends[at, game]


@waiting()
def dqn_train(x):
    """Four moves of each of 16 games, each chosen on the GPU, then one update from remembered frames: a step."""
    import numpy

    torch = x.torch
    nn = torch.nn
    batch, w = x(128, 4), x(32, 2)
    games = Balls(numpy, x(16, 2), x(1024, 32))
    layers = [nn.Conv2d(4, w, 8, 4), nn.ReLU(), nn.Conv2d(w, 2 * w, 4, 2), nn.ReLU(), nn.Conv2d(2 * w, 2 * w, 3)]
    head = [nn.ReLU(), nn.Flatten(), nn.Linear(98 * w, x(512, 8)), nn.ReLU(), nn.Linear(x(512, 8), games.MOVES)]
    net = nn.Sequential(*layers, *head).to(x.device)
    target = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    state = {"steps": 0}

    def pixels(frames):
        return torch.from_numpy(frames).to(x.device).float() / 255

    def step():
        for _ in range(4):
            with torch.no_grad():
                best = net(pixels(games.seen())).argmax(1).cpu().numpy()
            explore = games.dice.random(games.games) < 0.05
            games.play(numpy.where(explore, games.dice.integers(0, games.MOVES, games.games), best))
        frames, *rest = games.remembered(batch)
        frames = pixels(frames)
        move, reward, end = (torch.from_numpy(part).to(x.device) for part in rest)
        with torch.no_grad():
            then = net(frames[:, 1:]).argmax(1, keepdim=True)
            worth = reward + 0.99 * (1 - end) * target(frames[:, 1:]).gather(1, then).squeeze(1)
        loss = nn.functional.smooth_l1_loss(net(frames[:, :4]).gather(1, move[:, None]).squeeze(1), worth)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        state["steps"] += 1
        if state["steps"] % 250 == 0:
            target.load_state_dict(net.state_dict())
        return loss.item()

    return step


class Chain:
    """Six joints that hang from each other, on the CPU; each is turned by a motor. All that happened is kept."""

    JOINTS, SEEN, LONGEST = 6, 18, 500

    def __init__(self, numpy, slots):
        self.numpy, self.dice = numpy, numpy.random.default_rng(0)
        self.before, self.after = (numpy.zeros((slots, self.SEEN), numpy.float32) for _ in range(2))
        self.turns = numpy.zeros((slots, self.JOINTS), numpy.float32)
        self.rewards = numpy.zeros((slots, 1), numpy.float32)
        self.slots, self.moves = slots, 0
        self.begin()
        for _ in range(slots):
            self.move(self.dice.uniform(-1, 1, self.JOINTS))

    def begin(self):
        self.angle, self.speed = (self.dice.uniform(-0.1, 0.1, self.JOINTS) for _ in range(2))

    def seen(self):
        return self.numpy.concatenate([self.numpy.sin(self.angle), self.numpy.cos(self.angle), self.speed])

    def move(self, turn):
        at = self.moves % self.slots
        self.before[at], self.turns[at] = self.seen(), turn
        bend = self.numpy.diff(self.angle, prepend=0.0)
        pull = 4 * turn - 8 * bend - 0.2 * self.speed - 2 * self.numpy.sin(self.angle)
        pull[:-1] += 8 * bend[1:]
        self.speed = self.speed + 0.02 * pull
        self.angle = self.angle + 0.02 * self.speed
        self.after[at], self.rewards[at] = self.seen(), self.speed[-1] - 0.1 * (turn**2).sum()
        self.moves += 1
        if self.moves % self.LONGEST == 0:
            self.begin()

    def remembered(self, batch):
        at = self.dice.integers(0, self.slots, batch)
        return self.before[at], self.turns[at], self.rewards[at], self.after[at]


# The next step waits for this one, since it asks for a move.
@task(ahead=1)
def sac_train(x):
    """Soft actor-critic: one move, chosen on the GPU, then one update of two critics, the actor and the temperature."""
    import numpy

    torch = x.torch
    nn = torch.nn
    width, batch = x(256, 8), x(256, 8)
    chain = Chain(numpy, x(100_000, 64))
    actor = perceptron(torch, chain.SEEN, width, width, 2 * chain.JOINTS).to(x.device)
    critics = [perceptron(torch, chain.SEEN + chain.JOINTS, width, width, 1).to(x.device) for _ in range(2)]
    targets = [copy.deepcopy(critic) for critic in critics]
    weights = [p for critic in critics for p in critic.parameters()]
    copies = [p for target in targets for p in target.parameters()]
    temperature = torch.zeros(1, device=x.device, requires_grad=True)
    of_actor = torch.optim.Adam(actor.parameters(), lr=3e-4)
    of_critics = torch.optim.Adam(weights, lr=3e-4)
    of_temperature = torch.optim.Adam([temperature], lr=3e-4)

    def chosen(seen):
        """A move and the logarithm of its density."""
        mean, spread = actor(seen).chunk(2, dim=-1)
        normal = torch.distributions.Normal(mean, spread.clamp(-5, 2).exp(), validate_args=False)
        raw = normal.rsample()
        move = raw.tanh()
        return move, (normal.log_prob(raw) - (1 - move.square() + 1e-6).log()).sum(-1, keepdim=True)

    def worth(of, seen, move):
        both = torch.cat([seen, move], dim=-1)
        return [critic(both) for critic in of]

    def learn(optimizer, loss):
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    def step():
        with torch.no_grad():
            now = torch.from_numpy(chain.seen().astype(numpy.float32)).to(x.device)
            chain.move(chosen(now)[0].cpu().numpy())
        before, move, reward, after = (torch.from_numpy(part).to(x.device) for part in chain.remembered(batch))
        with torch.no_grad():
            next_move, density = chosen(after)
            least = torch.minimum(*worth(targets, after, next_move))
            aim = reward + 0.99 * (least - temperature.exp() * density)
        learn(of_critics, sum(nn.functional.mse_loss(value, aim) for value in worth(critics, before, move)))
        new_move, density = chosen(before)
        least = torch.minimum(*worth(critics, before, new_move))
        learn(of_actor, (temperature.exp().detach() * density - least).mean())
        learn(of_temperature, -(temperature.exp() * (density.detach() - chain.JOINTS)).mean())
        with torch.no_grad():
            for kept, weight in zip(copies, weights):
                kept.lerp_(weight, 0.005)

    return step


# ---------------------------------------------------------------------------------------------------- graph


@task()
def sage_minibatch(x):
    """GraphSAGE: ten neighbours of each of 1024 nodes and five of each of those are drawn, and their features
    gathered, on the CPU; then they are copied and trained on.
    """
    torch = x.torch
    nn = torch.nn
    torch.set_num_threads(1)
    nodes, degree, features, width, classes = x(400_000, 200), 15, x(100, 8), x(256, 8), 47
    batch, fan = x(1024, 8), (10, 5)
    first = torch.cat([torch.zeros(1, dtype=torch.int64), torch.randint(1, 2 * degree, (nodes,)).cumsum(0)])
    neighbours = torch.randint(0, nodes, (int(first[-1]),))
    known = torch.randn(nodes, features)
    labels = torch.randint(0, classes, (nodes,))
    widths = [features, width, classes]
    own, others = (nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:])).to(x.device) for _ in range(2))
    pinned = torch.empty(batch * (1 + fan[0]) * (1 + fan[1]), features, pin_memory=not x.tiny)
    optimizer = torch.optim.Adam([*own.parameters(), *others.parameters()], lr=1e-3)
    criterion = nn.CrossEntropyLoss()

    def drawn(of, count):
        begin = first[of]
        each = first[of + 1] - begin
        picks = begin[:, None] + (torch.rand(len(of), count) * each[:, None]).long()
        return neighbours[picks].flatten()

    def step():
        seeds = torch.randint(0, nodes, (batch,))
        near = drawn(seeds, fan[0])
        far = drawn(torch.cat([seeds, near]), fan[1])
        torch.index_select(known, 0, torch.cat([seeds, near, far]), out=pinned)
        # A blocking copy: the next step writes to the same buffer.
        wanted = pinned.to(x.device)
        target = labels[seeds].to(x.device)
        inner, outer = wanted.split([batch + len(near), len(far)])
        mean = outer.unflatten(0, (len(inner), fan[1])).mean(1)
        hidden = torch.relu(own[0](inner) + others[0](mean))
        inner, outer = hidden.split([batch, len(near)])
        out = own[1](inner) + others[1](outer.unflatten(0, (batch, fan[0])).mean(1))
        optimizer.zero_grad(set_to_none=True)
        criterion(out, target).backward()
        optimizer.step()

    return step


# --------------------------------------------------------------------------------------------------- images


@waiting()
def mobilenet_train(x):
    name = x("mobilenetv3_large_100", "mobilenetv3_small_050")
    return classifier(x, name, x(96, 2), x(224, 64), mixed=False, read=True)


@task()
def mixer_train(x):
    name = x("mixer_b16_224", "mixer_s32_224")
    return classifier(x, name, x(64, 2), x(224, 64), mixed=True, img_size=x(224, 64))


def corners(boxes):
    """Left, top, right and bottom of boxes given by center and size."""
    center, size = boxes.chunk(2, dim=-1)
    low, high = center - size / 2, center + size / 2
    return (*low.unbind(-1), *high.unbind(-1))


def overlap(torch, one, two):
    """Generalised intersection over union of pairs of boxes, given by center and size."""
    (a, b, c, d), (e, f, g, h) = corners(one), corners(two)
    shared = (torch.minimum(c, g) - torch.maximum(a, e)).clamp(min=0)
    shared = shared * (torch.minimum(d, h) - torch.maximum(b, f)).clamp(min=0)
    union = (c - a) * (d - b) + (g - e) * (h - f) - shared
    around = (torch.maximum(c, g) - torch.minimum(a, e)) * (torch.maximum(d, h) - torch.minimum(b, f))
    return shared / union - (around - union) / around


def detector(torch, backbone, channels, width, heads, depth, queries, classes):
    """DETR: a convolutional network, a transformer, and boxes and classes after each layer of its decoder."""
    nn = torch.nn

    class Detr(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone, self.into = backbone, nn.Conv2d(channels, width, 1)
            self.place = nn.LazyConv2d(width, 1)
            self.queries = nn.Embedding(queries, width)
            encoder = nn.TransformerEncoderLayer(width, heads, 8 * width, batch_first=True)
            decoder = nn.TransformerDecoderLayer(width, heads, 8 * width, batch_first=True)
            self.encoder = nn.TransformerEncoder(encoder, depth)
            self.decoder = nn.ModuleList(copy.deepcopy(decoder) for _ in range(depth))
            self.label, self.box = nn.Linear(width, classes + 1), perceptron(torch, width, width, width, 4)

        def forward(self, images):
            seen = self.into(self.backbone(images)[-1])
            # Where a pixel is, as waves of its row and column.
            down, across = (torch.linspace(0, 1, n, device=seen.device) for n in seen.shape[-2:])
            angles = torch.stack(torch.meshgrid(down, across, indexing="ij")) * math.pi
            waves = torch.cat([wave for n in range(6) for wave in ((angles * 2**n).sin(), (angles * 2**n).cos())])
            memory = self.encoder((seen + self.place(waves[None])).flatten(2).transpose(1, 2))
            asked = self.queries.weight.expand(len(images), -1, -1)
            out = []
            for layer in self.decoder:
                asked = layer(asked, memory)
                out.append((self.label(asked), self.box(asked).sigmoid()))
            return out

    return Detr()


@waiting()
def detr_train(x):
    """After each layer of the decoder the CPU matches guesses with objects: the GPU waits within a step."""
    import timm
    from scipy.optimize import linear_sum_assignment

    torch = x.torch
    nn = torch.nn
    batch, size, classes = x(16, 2), x(512, 64), 80
    name = x("resnet18", "resnet10t")
    backbone = timm.create_model(name, pretrained=False, features_only=True, out_indices=(4,))
    channels = backbone.feature_info.channels()[-1]
    model = detector(torch, backbone, channels, x(256, 16), x(8, 2), x(3, 2), x(100, 15), classes).to(x.device)
    images = torch.randn(batch, 3, size, size, device=x.device)
    counts = torch.randint(3, 13, (batch,)).tolist()
    objects = sum(counts)
    labels = torch.randint(0, classes, (objects,), device=x.device)
    boxes = torch.rand(objects, 4, device=x.device) * 0.4 + 0.3
    weight = torch.ones(classes + 1, device=x.device)
    weight[-1] = 0.1
    with torch.no_grad():
        model(images)
    optimizer = adamw(x, model)

    def matched(scores, guesses):
        """Images, guesses and objects that belong together."""
        with torch.no_grad():
            cost = (guesses[:, :, None] - boxes).abs().sum(-1) * 5 - scores.softmax(-1)[..., labels]
            cost = (cost - 2 * overlap(torch, guesses[:, :, None], boxes)).nan_to_num().cpu()
        rows = []
        for image, part in enumerate(cost.split(counts, dim=-1)):
            guess, found = linear_sum_assignment(part[image].numpy())
            begin = sum(counts[:image])
            rows += [(image, g, begin + o) for g, o in zip(guess, found)]
        return torch.tensor(rows).to(x.device).unbind(1)

    def loss_of():
        total = 0.0
        for scores, guesses in model(images):
            image, guess, found = matched(scores, guesses)
            wanted = torch.full(scores.shape[:2], classes, device=x.device)
            wanted[image, guess] = labels[found]
            total = total + nn.functional.cross_entropy(scores.transpose(1, 2), wanted, weight)
            near, true = guesses[image, guess], boxes[found]
            total = total + 5 * (near - true).abs().sum() / objects
            total = total + 2 * (1 - overlap(torch, near, true)).sum() / objects
        return total

    return trained(torch, loss_of, [optimizer], read=True)


@waiting()
def resnet34_serve(x):
    """Images of 224 px; those that wait are answered together, up to 16."""
    import timm

    torch = x.torch
    # Others start meanwhile, and would have a part in which kernels are found fast.
    torch.backends.cudnn.benchmark = False
    dtype = x(torch.float16, torch.float32)
    model = timm.create_model(x("resnet34", "resnet10t"), pretrained=False).to(x.device, dtype).eval()

    def batch_of(n):
        return torch.randn(n, 3, x(224, 64), x(224, 64), device=x.device, dtype=dtype)

    return served(x, x(300, 40), x(16, 4), batch_of, model)


# ------------------------------------------------------------------------------------- language and sequences


@task()
def pythia_train(x):
    """Pythia of 160 million parameters: GPT-NeoX, attention and feed-forward side by side."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    torch = x.torch
    full = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
    tiny = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = GPTNeoXConfig(vocab_size=x(50304, 200), **x(full, tiny))
    model = GPTNeoXForCausalLM(config).to(x.device).train()
    tokens = torch.randint(0, config.vocab_size, (x(16, 2), x(512, 16)), device=x.device)

    def loss_of():
        with x.half():
            return model(input_ids=tokens, labels=tokens, use_cache=False).loss

    return trained(torch, loss_of, [adamw(x, model)])


@waiting(warm=66)
def marian_translate(x):
    """Answers of 64 tokens to 16 sentences of 64; a step is one token of each, drawn on the CPU from the 50 best."""
    import numpy
    from transformers import MarianConfig, MarianMTModel
    from transformers.modeling_outputs import BaseModelOutput

    torch = x.torch
    names = ("d_model", "encoder_ffn_dim", "decoder_ffn_dim", "encoder_layers", "decoder_layers")
    names += ("encoder_attention_heads", "decoder_attention_heads")
    sizes = dict(zip(names, x((512, 2048, 2048, 6, 6, 8, 8), (32, 64, 64, 1, 1, 2, 2))))
    words = x(58101, 200)
    special = {"pad_token_id": words - 1, "decoder_start_token_id": words - 1, "decoder_vocab_size": words}
    config = MarianConfig(vocab_size=words, **special, **sizes)
    model = MarianMTModel(config).to(x.device, x(torch.float16, torch.float32)).eval()
    batch, longest = x(16, 2), x(64, 8)
    source = torch.randint(0, words - 1, (batch, longest), device=x.device)
    dice = numpy.random.default_rng(0)
    state = {"length": longest}

    def step():
        with torch.inference_mode():
            if state["length"] >= longest:
                read = model.get_encoder()(input_ids=source).last_hidden_state
                begin = torch.full((batch, 1), words - 1, device=x.device)
                state.update(read=BaseModelOutput(last_hidden_state=read), cache=None, tokens=begin, length=0)
            out = model(
                encoder_outputs=state["read"],
                decoder_input_ids=state["tokens"],
                past_key_values=state["cache"],
                use_cache=True,
            )
            best, which = out.logits[:, -1].float().topk(50)
            best, which = best.cpu().numpy(), which.cpu().numpy()
            # The largest after adding such noise is a draw by probability.
            drawn = (best + dice.gumbel(size=best.shape)).argmax(1)
            tokens = numpy.take_along_axis(which, drawn[:, None], 1)
            state.update(cache=out.past_key_values, tokens=torch.from_numpy(tokens).to(x.device))
            state["length"] += 1

    return step


def state_space(torch, width, states):
    """S4D: each channel is convolved, by Fourier transforms, with a sum of decaying waves."""
    nn = torch.nn

    class StateSpace(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.step = nn.Parameter(torch.empty(width, 1).uniform_(math.log(0.001), math.log(0.1)))
            self.decay = nn.Parameter(torch.full((width, states), math.log(0.5)))
            self.wave = nn.Parameter(math.pi * torch.arange(states).repeat(width, 1))
            self.mix = nn.Parameter(torch.randn(width, states, 2))
            self.direct = nn.Parameter(torch.randn(width, 1))
            self.out = nn.Conv1d(width, 2 * width, 1)

        def forward(self, h):
            u = self.norm(h).transpose(1, 2)
            length = u.shape[-1]
            rate = torch.complex(-self.decay.exp(), self.wave)
            turn = rate * self.step.exp()
            mix = torch.view_as_complex(self.mix) * (turn.exp() - 1) / rate
            powers = (turn[..., None] * torch.arange(length, device=h.device)).exp()
            kernel = 2 * (mix[:, None] @ powers).real.squeeze(1)
            both = torch.fft.rfft(u, n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
            y = torch.fft.irfft(both, n=2 * length)[..., :length] + u * self.direct
            return h + nn.functional.glu(self.out(nn.functional.gelu(y)), dim=1).transpose(1, 2)

    return StateSpace()


@task()
def s4d_train(x):
    """Classes of sequences of 2048 values by six layers of state spaces, in fp32 and complex numbers."""
    torch = x.torch
    nn = torch.nn
    batch, length, width = x(32, 2), x(2048, 32), x(256, 8)
    layers = [state_space(torch, width, x(32, 4)) for _ in range(x(6, 1))]
    model = nn.Sequential(nn.Linear(1, width), *layers, nn.LayerNorm(width)).to(x.device)
    head = nn.Linear(width, 10).to(x.device)
    values = torch.randn(batch, length, 1, device=x.device)
    labels = torch.randint(0, 10, (batch,), device=x.device)
    criterion = nn.CrossEntropyLoss()
    optimizer = adamw(x, nn.ModuleList([model, head]))
    return trained(torch, lambda: criterion(head(model(values).mean(1)), labels), [optimizer])


# --------------------------------------------------------------------------------------------------- speech


def vocoder(torch, width, mels):
    """HiFi-GAN's generator, V1: four transposed convolutions, after each of them blocks of three kernels."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, channels, kernel):
            super().__init__()

            def conv(apart):
                return nn.Conv1d(channels, channels, kernel, dilation=apart, padding=apart * (kernel // 2))

            self.rounds = nn.ModuleList(
                nn.Sequential(nn.LeakyReLU(0.1), conv(apart), nn.LeakyReLU(0.1), conv(1)) for apart in (1, 3, 5)
            )

        def forward(self, h):
            for part in self.rounds:
                h = h + part(h)
            return h

    class Stage(nn.Module):
        def __init__(self, channels, rate):
            super().__init__()
            self.up = nn.ConvTranspose1d(channels, channels // 2, 2 * rate, rate, rate // 2)
            self.blocks = nn.ModuleList(Block(channels // 2, kernel) for kernel in (3, 7, 11))

        def forward(self, h):
            h = self.up(nn.functional.leaky_relu(h, 0.1))
            return sum(block(h) for block in self.blocks) / 3

    stages = [Stage(width >> n, rate) for n, rate in enumerate((8, 8, 2, 2))]
    last = [nn.LeakyReLU(), nn.Conv1d(width >> 4, 1, 7, padding=3), nn.Tanh()]
    return nn.Sequential(nn.Conv1d(mels, width, 7, padding=3), *stages, *last)


@task(ahead=0)
def vocoder_infer(x):
    """Sound of 2.3 s (22 kHz) from mels, eight at a time."""
    torch = x.torch
    dtype = x(torch.float16, torch.float32)
    model = vocoder(torch, x(512, 16), 80).to(x.device, dtype).eval()
    mels = torch.randn(x(8, 1), 80, x(200, 8), device=x.device, dtype=dtype)

    def step():
        with torch.inference_mode():
            model(mels)

    return step


# ------------------------------------------------------------------------------------------- recommendation


@task()
def deepfm_train(x):
    """39 fields in one table of two million rows: products of all pairs by factorisation, beside three wide layers."""
    torch = x.torch
    nn = torch.nn
    fields, rows, width, batch = 39, x(2_000_000, 400), x(16, 4), x(16384, 8)
    vectors, alone = nn.Embedding(rows, width), nn.Embedding(rows, 1)
    deep = perceptron(torch, fields * width, *x((400, 400, 400), (8, 8)), 1)
    model = nn.ModuleList([vectors, alone, deep]).to(x.device)
    picks = torch.randint(0, rows, (batch, fields), device=x.device)
    clicked = torch.randint(0, 2, (batch,), device=x.device).float()
    criterion = nn.BCEWithLogitsLoss()

    def loss_of():
        v = vectors(picks)
        pairs = (v.sum(1).square() - v.square().sum(1)).sum(1) / 2
        return criterion(alone(picks).sum((1, 2)) + pairs + deep(v.flatten(1)).squeeze(1), clicked)

    return trained(torch, loss_of, [torch.optim.Adam(model.parameters(), lr=1e-3, fused=not x.tiny)])


if __name__ == "__main__":
    if sys.argv[1:] == ["--groups"]:
        print("\n".join(",".join(group) for group in new_tasks.groups(TASKS, GROUPS, SEED)))
    else:
        interference_tasks.main(TASKS, __doc__)
