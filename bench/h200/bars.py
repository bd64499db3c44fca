#!/usr/bin/env python3
"""Programs that print bars as people write them, with a limit on their slowdown, beside a neighbour that is light and then heavy.

    python3 bench/h200/bars.py --carma target/release/carma --out results

`loop` has two bars an epoch without names, training and validation, and one of a preparation before; `trainer` is the Hugging Face Trainer
with evaluations; `keras` prints what Keras prints where the length is not known at first, around steps of PyTorch. Each is alone on one GPU
until carma knows how fast it goes. Then a neighbour comes of which carma has seen that it does little; it does little for 45 s, and then computes
without a pause until it is sent back. No window may be beyond the limit while it is light, and it has to go when it is heavy. Data are
synthetic. About two minutes a program. `--virtual` rehearses on a virtual GPU, whose model says how long a step takes; `trainer` wants PyTorch even then.
Writes bars.json.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

from first_run import Carma, play_all, wait_for
from latency import change, profile, submit

CONFIG = '[sampling]\nwindow = "5s"\n[jobs]\nslowdown-window = "5s"\n'
SLOWDOWN = "1.6"
# Seconds: the preparation of `loop`, and passes of training and validation of each.
PREPARATION_S = 8
TRAIN_S = {"loop": 15, "trainer": 10, "keras": 15}
VALIDATION_S = {"loop": 10, "trainer": 5, "keras": 3}


# --- the programs, each a process that knows nothing of carma ----------------------------------


class Ticks:
    """In place of a GPU's work with --virtual: waits for the steps of a virtual task, ten a second when alone."""

    def __init__(self, carma):
        self.file, self.done = os.path.join(tempfile.mkdtemp(), "count"), 0
        task = [carma, "virtual-task", "--memory=6G", "--sm=0.9", "--dram=0.4", "--startup=1s", "--work=999s", "--progress=file"]
        subprocess.Popen(task, env=os.environ | {"CARMA_HEARTBEAT": self.file}, stdout=subprocess.DEVNULL)

    def wait(self, ticks=1):
        # Steps that the virtual task made between two calls are dropped, but for one, which it may be ahead by.
        self.done = max(self.done, self.count() - 1) + ticks
        while self.count() < self.done:
            time.sleep(0.01)

    def count(self):
        try:
            with open(self.file) as file:
                return int(re.findall(r"\d+", file.read())[0])
        except (FileNotFoundError, IndexError):
            return 0


def steps(virtual):
    """Functions that train and validate for one step: a Transformer of 100 M parameters."""
    if virtual:
        ticks = Ticks(virtual)
        return ticks.wait, lambda: ticks.wait(4)
    import torch

    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).cuda().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.randn(256, 256, 1024, device="cuda", dtype=torch.bfloat16)

    def train():
        loss = model(x[:64]).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    @torch.no_grad()
    def validate():
        return sum(model(x).float().square().mean().item() for _ in range(4))

    return train, validate


def steps_in(seconds, step):
    """How many of these steps take so long."""
    for _ in range(3):
        step()
    began, done = time.time(), 0
    while time.time() < began + 1:
        step()
        done += 1
    return max(int(done * seconds / (time.time() - began)), 8)


def loop(virtual):
    from tqdm import tqdm

    train, validate = steps(virtual)
    training, validation = steps_in(TRAIN_S["loop"], train), steps_in(VALIDATION_S["loop"], validate)
    for _ in tqdm(range(PREPARATION_S * 400)):
        time.sleep(1 / 400)
    for epoch in range(99):
        print(f"epoch {epoch}", flush=True)
        for _ in tqdm(range(training)):
            train()
        for _ in tqdm(range(validation)):
            validate()


def trainer(virtual):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    small = {"n_layer": 1, "n_embd": 16, "n_head": 2} if virtual else {"n_layer": 8, "n_embd": 768, "n_head": 12}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=8192, n_positions=256, bos_token_id=0, eos_token_id=0, **small))
    batch = 1 if virtual else 64
    if virtual:
        ticks = Ticks(virtual)
        model.register_forward_pre_hook(lambda *_: ticks.wait())
    else:
        model.cuda()
    tokens = torch.randint(8192, (batch, 256), device=model.device)

    def train():
        with torch.autocast(model.device.type, torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        model.zero_grad()
        return loss.item()

    @torch.no_grad()
    def validate():
        with torch.autocast(model.device.type, torch.bfloat16):
            return model(input_ids=tokens, labels=tokens).loss.item()

    training, validation = steps_in(TRAIN_S["trainer"], train), steps_in(VALIDATION_S["trainer"], validate)

    class Tokens(torch.utils.data.Dataset):
        def __init__(self, length):
            self.length = length

        def __len__(self):
            return self.length

        def __getitem__(self, at):
            row = torch.randint(8192, (256,), generator=torch.Generator().manual_seed(at))
            return {"input_ids": row, "labels": row}

    how = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        max_steps=40 * training,
        per_device_train_batch_size=batch,
        per_device_eval_batch_size=batch,
        eval_strategy="steps",
        eval_steps=training,
        logging_steps=training,
        save_strategy="no",
        report_to="none",
        prediction_loss_only=True,
        bf16=not virtual,
        use_cpu=bool(virtual),
    )
    Trainer(model, how, train_dataset=Tokens(40 * training * batch), eval_dataset=Tokens(validation * batch)).train()


def keras(virtual):
    """As Keras prints to a file: a line at most every .05 s, and validation without a bar."""
    train, validate = steps(virtual)
    training, validation = steps_in(TRAIN_S["keras"], train), steps_in(VALIDATION_S["keras"], validate)
    length = None
    for epoch in range(1, 100):
        print(f"Epoch {epoch}/99", flush=True)
        began = printed = time.time()
        for step in range(1, training + 1):
            train()
            now = time.time()
            if step == training:
                length = training
            elif now < printed + 0.05:
                continue
            printed = now
            each = f"{(now - began) / step * 1000:.0f}ms/step - loss: 0.1234"
            if length is None:
                text = f"{step:7}/Unknown \x1b[1m{now - began:.0f}s\x1b[0m {each}"
            else:
                done = 20 * step // length
                bar = f"\x1b[32m{'━' * done}\x1b[0m\x1b[37m{'━' * (20 - done)}\x1b[0m"
                text = f"\x1b[1m{step}/{length}\x1b[0m {bar} \x1b[1m{(length - step) * (now - began) / step:.0f}s\x1b[0m {each}"
            print(f"\n{text}", end="", flush=True)
        for _ in range(validation):
            validate()
        print(" - val_loss: 0.1234", flush=True)


# --- what is looked at -------------------------------------------------------------------------


def submit_neighbour(carma, *more):
    options = carma.options
    command = [sys.executable, os.path.abspath(__file__), "--neighbour", "--light", options.light]
    if options.virtual:
        task = f"{options.carma} virtual-task --memory=3G --startup=0s"
        command = ["sh", "-c", f"echo phase 0; {task} --sm=0.03 --work={options.light}s; echo phase 1; {task} --sm=1 --work=999s"]
    return submit(carma, "neighbour", command, "--gpu-memory", "4G", *more)


def bar(path):
    """What the last bar of a log says: how many are done, and of how many; 0: it does not say."""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - 600))
        found = re.findall(r"(\d+)/(\d+|Unknown)\b", re.sub(r"\x1b\[\d*m", "", file.read().decode(errors="replace")))
    return (int(found[-1][0]), int(found[-1][1].replace("Unknown", "0"))) if found else None


def has_begun(carma, job, log):
    if carma.show(job)["job"]["ended_ms"]:
        raise RuntimeError(f"it ended: {carma.text('logs', str(job))[-1500:]}")
    return os.path.exists(log) and bar(log)


def look(carma, job, beside, began):
    """`when`: alone, placed (it starts up), light, heavy, after."""
    shown, other = carma.show(job), beside and carma.show(beside)
    when = "alone"
    if other:
        phases = re.findall(r"^phase (\d+)", carma.text("logs", str(beside)), re.M)
        when = ["light", "heavy"][int(phases[-1])] if phases else "placed"
        when = when if other["job"]["state"] == "RUNNING" else "after" if over(other) else "waits"
    gpu = carma.json("gpus")["gpus"][0]
    return {
        "t": round(time.time() - began, 2),
        "when": when,
        "bar": bar(shown["log"]),
        "printed": os.path.getsize(shown["log"]),
        "rate": shown.get("rate"),
        "kept": shown["job"].get("limit_kept"),
        "reason": other and other["job"]["reason"]["text"],
        "smact": gpu["smact"],
    }


def over(shown):
    """Whether an attempt of a job has ended, or it was suspended."""
    return shown["job"]["state"] == "SUSPENDED" or any(a["verdict"] or a["ended_ms"] for a in shown["attempts"])


def know_neighbour(options, keep):
    carma = Carma(options, "adaptive", "mps", CONFIG)
    try:
        profile(carma, submit_neighbour(carma, "--exclusive"), "the neighbour")
        return {"known": carma.json("predict", "1")}
    finally:
        carma.stop(keep)


def play(options, program):
    keep = os.path.join(options.keep, program)
    if program == "neighbour":
        return know_neighbour(options, keep)
    if time.time() > options.began + options.budget - options.alone - options.light - 45:
        raise RuntimeError("no time is left for it")
    carma = Carma(options, "adaptive", "mps", CONFIG, os.path.join(options.keep, "neighbour"))
    try:
        command = [sys.executable, os.path.abspath(__file__), "--program", program]
        command += ["--on", options.carma] if options.virtual else []
        job = submit(carma, program, command, "--gpu-memory", "24G", "--max-slowdown", SLOWDOWN)
        carma.running(job)
        log = carma.show(job)["log"]
        wait_for(lambda: has_begun(carma, job, log), 90, "its first step")
        began, beside, light_at, heavy_at, left_at, looks = time.time(), None, None, None, None, []
        until = began + options.alone + 90
        while time.time() < min(until, options.began + options.budget):
            time.sleep(0.5)
            looks.append(look(carma, job, beside, began))
            now, when = time.time(), looks[-1]["when"]
            if beside is None and now >= began + options.alone and (looks[-1]["rate"] or {}).get("alone_per_s"):
                beside = submit_neighbour(carma)
                until = now + 30
            elif when == "light" and light_at is None:
                light_at = now
                until = now + options.light + options.heavy + 30
            elif when == "heavy" and heavy_at is None:
                heavy_at = now
                until = now + options.heavy
            elif when == "after" and left_at is None:
                left_at = now
                until = now + options.after
        result = {
            "program": program,
            "windows": windows(looks),
            "own": own_rates(looks),
            "shown": carma.show(job),
            "explained": carma.text("explain", str(job)),
            "printed": carma.text("logs", str(job))[-3000:],
            "log": [line for line in open(carma.log.name).read().splitlines() if "job" in line],
            "looks": looks,
        }
        if beside:
            result |= {"neighbour": carma.show(beside), "explained_neighbour": carma.text("explain", str(beside))}
        return result
    finally:
        carma.stop(keep)


def windows(looks):
    """The looks at which carma had measured another window."""
    found, last = [], None
    for look in looks:
        now = (look["rate"] or {}).get("progress")
        if now is not None and now != last:
            found.append({key: look[key] for key in ("t", "when", "bar", "rate", "kept")})
        last = now
    return found


def own_rates(looks):
    """By bar and by what the neighbour did, what the program counted a second, by its own log: {length: {when: per second}}."""
    sums = {}
    for a, b in zip(looks, looks[1:]):
        if a["bar"] and b["bar"] and a["when"] == b["when"] and a["bar"][1] == b["bar"][1] and b["bar"][0] > a["bar"][0]:
            counted = sums.setdefault(a["bar"][1], {}).setdefault(a["when"], [0, 0])
            counted[0] += b["bar"][0] - a["bar"][0]
            counted[1] += b["t"] - a["t"]
    return {length: {when: round(n / s, 2) for when, (n, s) in by.items()} for length, by in sums.items()}


def spent(looks, when):
    """Seconds that it was so."""
    return sum(b["t"] - a["t"] for a, b in zip(looks, looks[1:]) if b["when"] == when)


def table(runs):
    for run in runs:
        if "windows" not in run:
            print(json.dumps(run))
            continue
        looks = run["looks"]
        print(f"\n{run['program']}")
        known = [look["rate"] for look in looks if look["when"] == "alone" and look["rate"]]
        for rate in {rate["alone_per_s"]: rate for rate in known if rate["alone_per_s"]}.values():
            print(f"  rate alone {rate['alone_per_s']:.3f} {rate['unit']}/s, by {rate['source']}")
        for window in run["windows"]:
            rate = window["rate"]
            per_s = f"{rate['per_s']:.3f} {rate['unit']}/s" if rate["per_s"] else "nothing counted"
            print(
                f"  {window['t']:6.1f} s {window['when']:6} progress {rate['progress']:.3f}: {per_s} of {rate['alone_per_s']:.3f}; "
                f"its bar {window['bar']}; {window['kept']}"
            )
        for when in ("alone", "light", "heavy", "after"):
            own = {length: by[when] for length, by in run["own"].items() if when in by}
            smact = [look["smact"] for look in looks if look["when"] == when and look["smact"] is not None]
            busy = f"{sum(smact) / len(smact):.2f}" if smact else "-"
            print(f"  {when:6} {spent(looks, when):5.1f} s, SMACT {busy}, its own counts a second by length of bar: {own}")
        light = [look["kept"] for look in looks if look["when"] == "light" and look["kept"]]
        print(f"  while light: {light[-1] if light else 'no window'}; in the end: {looks[-1]['kept']}")
        for attempt in run.get("neighbour", {"attempts": []})["attempts"]:
            print(f"  neighbour placed: {attempt['placed']['text']}")
            if attempt["verdict"]:
                print(f"  neighbour left: {attempt['verdict']['text']}")
        print(f"  neighbour in the end: {looks[-1]['when']}, {looks[-1]['reason']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--carma")
    parser.add_argument("--out")
    parser.add_argument("--virtual", action="store_true")
    parser.add_argument("--only", default="loop,trainer,keras")
    parser.add_argument("--budget", type=float, default=3600, help="seconds for all")
    parser.add_argument("--keep", help="where the daemons' states and logs are to go; else they are thrown away")
    parser.add_argument("--alone", type=float, default=35, help="seconds since its first step before the neighbour is submitted")
    parser.add_argument("--light", type=float, default=45, help="seconds that the neighbour is light")
    parser.add_argument("--heavy", type=float, default=60, help="seconds at most after that")
    parser.add_argument("--after", type=float, default=12, help="seconds after the neighbour was sent away")
    parser.add_argument("--look", type=float, default=90, help="seconds alone at most, until carma knows the neighbour")
    parser.add_argument("--program", choices=["loop", "trainer", "keras"], help=argparse.SUPPRESS)
    parser.add_argument("--neighbour", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--on", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.program:
        {"loop": loop, "trainer": trainer, "keras": keras}[options.program](options.on)
        return
    if options.neighbour:
        change([(options.light, 512), (999, 8192)])
        return
    if options.carma is None or options.out is None:
        parser.error("--carma and --out are required")
    options.carma, options.began = os.path.abspath(options.carma), time.time()
    with tempfile.TemporaryDirectory() as folder:
        options.keep = options.keep or folder
        play_all(options, "bars", [(name, name) for name in ["neighbour", *options.only.split(",")]], play, table)


if __name__ == "__main__":
    main()
