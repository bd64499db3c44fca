#!/usr/bin/env python3
"""What tasks do to each other on one GPU: progress, activity, power and clocks, alone and together.

    python3 bench/h200/collocation.py --modes time-slice,mps --budget-s 560    # $OUT/collocation.json
    python3 bench/h200/collocation.py --curves --modes '' --budget-s 300       # $OUT/curves.json

Eight kinds of task stay resident, one process each (and a second one of three kinds). The driver lets
some of them run for a few seconds at a time from a common start: each alone, each pair, some triples and
quadruples. A worker counts the steps that the GPU completed; the driver reads NVML over the same seconds.
`--curves` measures tasks alone under MPS with CUDA_MPS_ACTIVE_THREAD_PERCENTAGE.

The result is rewritten after every window, so whatever ends the run leaves what was measured. Nothing is
downloaded (random weights, synthetic data) and no setting of the GPU is changed. `--fake` rehearses the
driver without PyTorch or a GPU: its numbers mean nothing.
"""

import argparse
import atexit
import collections
import contextlib
import ctypes
import fcntl
import itertools
import json
import os
import platform
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

DEVICE = "cuda"
WARM_S = 0.5
BURST_S = 0.15  # computing, then as long asleep: several cycles have to fit into a window
TURN_S = 40.0  # a worker that hangs in its warm-up must not keep the others for ever
MATMUL = 8192
BURST_MATMUL, BURST_PRODUCTS = 4096, 56  # fp32: about 2.7 ms each on an H200


# ---------------------------------------------------------------------------------------------- tasks

Task = collections.namedtuple("Task", "what batch precision ahead build fake_ms")
# ahead: steps that may be in flight. 0: the task waits for each, as a request for inference does.


def vision(name, **options):
    try:
        from torchvision import models

        return getattr(models, name)(weights=None, **options)
    except ImportError:
        import timm

        name = {"vit_b_16": "vit_base_patch16_224"}.get(name, name)
        return timm.create_model(name, pretrained=False, **options)


def image_training(torch, device, model, batch, size, classes):
    model = model.to(device)
    images = torch.randn(batch, 3, size, size, device=device)
    labels = torch.randint(0, classes, (batch,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad(set_to_none=True)
        criterion(model(images), labels).backward()
        optimizer.step()

    return step


def small_cnn(torch, device, batch):
    return image_training(torch, device, vision("resnet18", num_classes=100), batch, 32, 100)


def resnet50(torch, device, batch):
    return image_training(torch, device, vision("resnet50"), batch, 224, 1000)


def elementwise(torch, device, batch):
    """Layer norms, GELUs and residual sums over large activations: bound by DRAM."""
    from torch.nn import functional

    norms = torch.nn.ModuleList([torch.nn.LayerNorm(1024) for _ in range(8)]).to(device)
    data = torch.randn(batch, 512, 1024, device=device)
    optimizer = torch.optim.SGD(norms.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad(set_to_none=True)
        hidden = data
        for norm in norms:
            hidden = hidden + functional.gelu(norm(hidden))
        hidden.mean().backward()
        optimizer.step()

    return step


def bert(torch, device, batch):
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig()
    model = BertForMaskedLM(config).to(device=device, dtype=torch.bfloat16).train()
    tokens = torch.randint(0, config.vocab_size, (batch, 512), device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()

    return step


def matmul(torch, device, batch):
    # Random data: on zeros the same product draws less power.
    a, b = (torch.randn(MATMUL, MATMUL, device=device).to(torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)

    def step():
        for _ in range(batch):
            torch.mm(a, b, out=out)

    return step


def vit_infer(torch, device, batch):
    model = vision("vit_b_16").to(device=device, dtype=torch.bfloat16).eval()
    images = torch.randn(batch, 3, 224, 224, device=device, dtype=torch.bfloat16)

    def step():
        with torch.inference_mode():
            model(images)

    return step


def loader(torch, device, batch):
    nn = torch.nn
    host = torch.rand(batch, 3, 224, 224)
    host = host.pin_memory() if device.startswith("cuda") else host
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    ).to(device)
    labels = torch.randint(0, 10, (batch,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()

    def step():
        images = host.to(device, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        criterion(model(images), labels).backward()
        optimizer.step()

    return step


def bursty(torch, device, batch):
    a, b = (torch.randn(BURST_MATMUL, BURST_MATMUL, device=device) for _ in range(2))
    out = torch.empty_like(a)

    def step():
        for _ in range(BURST_PRODUCTS):
            torch.mm(a, b, out=out)
        torch.cuda.synchronize()
        time.sleep(BURST_S)

    return step


TASKS = {
    "small_cnn": Task("ResNet18 on 32 px images, training: bound by launches", 32, "fp32", 2, small_cnn, 8),
    "resnet50": Task("ResNet50 on 224 px images, training", 64, "fp32 (convolutions TF32)", 2, resnet50, 70),
    "elementwise": Task(
        "8 x (layer norm, GELU, sum) on BATCHx512x1024, forward and backward: DRAM", 128, "fp32", 2, elementwise, 20
    ),
    "bert": Task("BERT-base, masked LM, 512 tokens, training: tensor cores", 32, "bf16", 2, bert, 60),
    "matmul": Task("BATCH products of 8192x8192 a step: power", 8, "bf16", 2, matmul, 12),
    "vit_infer": Task("ViT-B/16, inference, waits for each answer: bound by launches", 1, "bf16", 0, vit_infer, 4),
    "loader": Task("154 MB from pinned host memory a step, then a tiny CNN: PCIe", 256, "fp32", 2, loader, 6),
    "bursty": Task("56 products of 4096x4096 (0.15 s alone), then 0.15 s asleep", 1, "fp32", 0, bursty, 300),
}
TWINS = ["small_cnn", "resnet50", "bert"]  # these have a second process, to be paired with themselves
CURVES = ["resnet50", "bert", "small_cnn"]


# --------------------------------------------------------------------------------------------- worker


def rate_of(times, begin, warm, seconds):
    """(steps, elapsed, short) between the first completion after the warm-up and the last in time."""
    inside = [n for n, t in enumerate(times) if begin + warm <= t <= begin + seconds]
    if len(inside) >= 2:
        return inside[-1] - inside[0], times[inside[-1]] - times[inside[0]], False
    # Steps too long for the window: all that there is, the one that ended late included.
    if len(times) >= 2:
        return len(times) - 1, times[-1] - times[0], True
    return len(times), (times[0] - begin) if times else seconds, True


def run_window(step, completed, ahead, order):
    """Steps from t0 to t0 + seconds; `completed` starts a step's completion and returns the wait for it."""
    begin, seconds = order["t0"], order["seconds"]
    while time.monotonic() < begin:
        time.sleep(min(0.001, max(0.0, begin - time.monotonic())))
    times, flying = [], collections.deque()

    def land():
        flying.popleft()()
        times.append(time.monotonic())

    while time.monotonic() < begin + seconds:
        step()
        flying.append(completed())
        while len(flying) > ahead:
            land()
    while flying:
        land()
    steps, elapsed, short = rate_of(times, begin, order["warm"], seconds)
    return {"steps": steps, "elapsed": elapsed, "short": short}


class TorchSide:
    def __init__(self, task, say):
        import torch

        versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
        say("imports", **versions)
        torch.backends.cudnn.benchmark = True
        torch.zeros(1, device=DEVICE)
        torch.cuda.synchronize()
        say("context")
        self.torch, self.ahead = torch, task.ahead
        self.step = task.build(torch, DEVICE, task.batch)
        torch.cuda.synchronize()
        say("model", reserved_mib=self.reserved())

    def reserved(self):
        return self.torch.cuda.memory_reserved() // 2**20

    def warm_up(self, say):
        self.step()
        self.torch.cuda.synchronize()
        say("first_step", reserved_mib=self.reserved())
        until, done = time.monotonic() + 0.4, 0
        while done < 3 or (time.monotonic() < until and done < 50):
            self.step()
            self.torch.cuda.synchronize()
            done += 1

    def completed(self):
        event = self.torch.cuda.Event()
        event.record()
        return event.synchronize

    def window(self, order):
        answer = run_window(self.step, self.completed, self.ahead, order)
        self.torch.cuda.synchronize()
        return answer


class FakeSide:
    def __init__(self, task, say):
        say("imports", torch="none", cuda="none")
        time.sleep(0.1)
        say("context")
        self.task, self.factor, self.runs = task, 1.0, 0
        say("model", reserved_mib=100)

    def warm_up(self, say):
        self.misbehave()
        time.sleep(0.02)
        say("first_step", reserved_mib=200)

    def reserved(self):
        return 300

    def misbehave(self):
        """FAKE_FAULT: die@N or hang@N, at the Nth window (0: at start)."""
        what, _, at = os.environ.get("FAKE_FAULT", "").partition("@")
        if what and int(at) == self.runs:
            if what == "die":
                print("a fake worker dies, as it was told", file=sys.stderr, flush=True)
                os._exit(3)
            time.sleep(3600)
        self.runs += 1

    def window(self, order):
        self.misbehave()
        k = order["k"]
        factor = k if order["mode"] == "time-slice" else max(1.0, 0.4 * k)
        step = lambda: time.sleep(self.task.fake_ms / 1000 * factor)  # noqa: E731
        return run_window(step, lambda: lambda: None, self.task.ahead, order)


def die_with_parent(parent):
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, int(signal.SIGTERM), 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit(1)


def lock_now(file):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False


def worker(options):
    # What libraries print goes to stderr; the pipe to the driver is ours alone.
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(options.parent)

    def say(stage, **more):
        pipe.write(json.dumps({"stage": stage, "t": time.monotonic(), **more}) + "\n")

    say("python")
    task = TASKS[options.worker]
    side = (FakeSide if options.fake else TorchSide)(task, say)
    # One at a time: cudnn.benchmark must not choose its algorithms by how busy the others keep the GPU.
    with open(options.lock, "w") as lock:
        waited = time.monotonic()
        while not lock_now(lock) and time.monotonic() < waited + TURN_S:
            time.sleep(0.02)
        say("turn", waited_s=time.monotonic() - waited)
        side.warm_up(say)
    say("ready", reserved_mib=side.reserved())
    for line in sys.stdin:
        order = json.loads(line)
        if order["cmd"] == "quit":
            break
        say("done", **side.window(order))


# ----------------------------------------------------------------------------------------------- NVML


class GpmInfo(ctypes.Structure):
    _fields_ = [("short", ctypes.c_char_p), ("long", ctypes.c_char_p), ("unit", ctypes.c_char_p)]


class GpmMetric(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint), ("answer", ctypes.c_uint), ("value", ctypes.c_double), ("info", GpmInfo)]


class GpmGet(ctypes.Structure):
    # The array's length differs between releases; only `count` entries are touched.
    _fields_ = [
        ("version", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("first", ctypes.c_void_p),
        ("second", ctypes.c_void_p),
        ("metrics", GpmMetric * 400),
    ]


class FieldValue(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("type", ctypes.c_uint),
        ("answer", ctypes.c_uint),
        ("value", ctypes.c_ulonglong),
    ]


class Memory(ctypes.Structure):
    _fields_ = [(n, ctypes.c_ulonglong) for n in ("total", "free", "used")]


class MemoryV2(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint)]
    _fields_ += [(n, ctypes.c_ulonglong) for n in ("total", "reserved", "free", "used")]


class ProcessInfo(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class NvmlError(Exception):
    pass


SHARES = {"gract": 1, "smact": 2, "smocc": 3, "tensor": 5, "dram": 10, "fp64": 11, "fp32": 12, "fp16": 13}
TRAFFIC = {"pcie_tx_mib_s": 20, "pcie_rx_mib_s": 21}
POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT; nvmlDeviceGetPowerUsage is a mean over the last second
POWER_CAP = 0x4  # nvmlClocksEventReasonSwPowerCap


class Nvml:
    """What is read of the GPU. A reading that the driver refuses is None, and noted once."""

    def __init__(self, path, index):
        self.notes, self.source = {}, None
        places = [path] if path else ["libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1"]
        for place in places:
            with contextlib.suppress(OSError):
                self.lib = ctypes.CDLL(place)
                break
        else:
            raise NvmlError(f"no NVML at {places}")
        self.call("nvmlInit_v2")
        self.device = ctypes.c_void_p()
        self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(self.device))
        self.samples = self.maybe("GPM", self.open_gpm)

    def call(self, name, *args):
        try:
            function = getattr(self.lib, name)
        except AttributeError:
            raise NvmlError(f"{name}: not in this library") from None
        code = function(*args)
        if code != 0:
            raise NvmlError(f"{name}: error {code}")

    def maybe(self, what, read, *args):
        try:
            return read(*args)
        except NvmlError as error:
            self.notes.setdefault(what, str(error))
            return None

    def number(self, name, *args, kind=ctypes.c_uint):
        out = kind()
        self.call(name, self.device, *args, ctypes.byref(out))
        return out.value

    def text(self, name, *args):
        out = ctypes.create_string_buffer(96)
        self.call(name, *args, out, ctypes.c_uint(len(out)))
        return out.value.decode(errors="replace")

    def open_gpm(self):
        samples = [ctypes.c_void_p(), ctypes.c_void_p()]
        for sample in samples:
            self.call("nvmlGpmSampleAlloc", ctypes.byref(sample))
        self.call("nvmlGpmSampleGet", self.device, samples[0])
        return samples

    def sample(self, which):
        if self.samples:
            self.maybe("GPM sample", self.call, "nvmlGpmSampleGet", self.device, self.samples[which])

    def activity(self):
        """Between the two samples: shares 0..1, traffic in MiB/s."""
        names = {**SHARES, **TRAFFIC}
        found = dict.fromkeys(names)
        if not self.samples:
            return found
        get = GpmGet(version=1, count=len(names), first=self.samples[0], second=self.samples[1])
        for at, number in enumerate(names.values()):
            get.metrics[at].id = number
        try:
            self.call("nvmlGpmMetricsGet", ctypes.byref(get))
        except NvmlError as error:
            self.notes.setdefault("GPM metrics", str(error))
            return found
        for metric, name in zip(get.metrics, names):
            if metric.answer == 0 and metric.value == metric.value:
                found[name] = round(metric.value / (100 if name in SHARES else 1), 5)
            else:
                self.notes.setdefault(f"GPM {name}", f"error {metric.answer}")
        return found

    def energy_j(self):
        name = "nvmlDeviceGetTotalEnergyConsumption"
        value = self.maybe("energy", lambda: self.number(name, kind=ctypes.c_ulonglong))
        return None if value is None else value / 1000

    def power_instant(self):
        field = FieldValue(id=POWER_INSTANT)
        self.call("nvmlDeviceGetFieldValues", self.device, ctypes.c_int(1), ctypes.byref(field))
        if field.answer != 0:
            raise NvmlError(f"field {POWER_INSTANT}: error {field.answer}")
        # Milliwatts in an unsigned int: the low half of the union.
        return (field.value & 0xFFFFFFFF) / 1000

    def power_w(self):
        if self.source != "mean of the last second":
            value = self.maybe("instant power", self.power_instant)
            if value is not None:
                self.source = "instant"
                return value
            self.source = "mean of the last second"
        value = self.maybe("power", self.number, "nvmlDeviceGetPowerUsage")
        return None if value is None else value / 1000

    def sm_clock_mhz(self):
        return self.maybe("SM clock", self.number, "nvmlDeviceGetClockInfo", ctypes.c_uint(1))

    def power_capped(self):
        name = "nvmlDeviceGetCurrentClocksThrottleReasons"
        value = self.maybe("clock reasons", lambda: self.number(name, kind=ctypes.c_ulonglong))
        return None if value is None else float(bool(value & POWER_CAP))

    def memory_mib(self):
        def newer():
            out = MemoryV2(version=ctypes.sizeof(MemoryV2) | 2 << 24)
            self.call("nvmlDeviceGetMemoryInfo_v2", self.device, ctypes.byref(out))
            return out.used // 2**20

        return self.maybe("memory", newer)

    def processes(self):
        """MiB by process id. MPS clients are in this list too."""

        def read():
            count, infos = ctypes.c_uint(256), (ProcessInfo * 256)()
            name = "nvmlDeviceGetComputeRunningProcesses_v3"
            self.call(name, self.device, ctypes.byref(count), infos)
            known = [p for p in infos[: count.value] if p.used < 2**63]
            return {p.pid: p.used // 2**20 for p in known}

        return self.maybe("processes", read) or {}

    def machine(self):
        out = Memory()
        self.maybe("total memory", self.call, "nvmlDeviceGetMemoryInfo", self.device, ctypes.byref(out))
        limit = self.maybe("power limit", self.number, "nvmlDeviceGetEnforcedPowerLimit")
        return {
            "gpu": self.maybe("name", self.text, "nvmlDeviceGetName", self.device),
            "driver": self.maybe("driver", self.text, "nvmlSystemGetDriverVersion"),
            "memory_total_mib": out.total // 2**20,
            "power_limit_w": limit and limit / 1000,
            "sm_clock_max_mhz": self.maybe("max clock", self.number, "nvmlDeviceGetMaxClockInfo", ctypes.c_uint(1)),
        }


class FakeNvml:
    def __init__(self):
        self.notes, self.source, self.began = {}, "fake", time.monotonic()

    def sample(self, which):
        pass

    def activity(self):
        return {**dict.fromkeys(SHARES, 0.5), **dict.fromkeys(TRAFFIC, 10.0)}

    def energy_j(self):
        return 300.0 * (time.monotonic() - self.began)

    def power_w(self):
        return 300.0

    def sm_clock_mhz(self):
        return 1980

    def power_capped(self):
        return 0.0

    def memory_mib(self):
        return 1000

    def processes(self):
        return {}

    def machine(self):
        return {"gpu": "fake, not a measurement", "driver": None, "memory_total_mib": 143771}


# --------------------------------------------------------------------------------------------- driver


class Stop(BaseException):
    """A signal, or time is up: write down what there is, clean up, go."""


class Died(Exception):
    pass


LIVING = []  # every worker whose process has not been waited for, and every MPS daemon


class Worker:
    """A resident process and the pipes to it."""

    def __init__(self, name, number, env, options, folder, lock):
        self.name, self.number, self.alive = name, number, True
        self.stages, self.ramp, self.reserved, self.versions = {}, [], {}, {}
        self.waited = None
        self.errors = os.path.join(folder, f"{name}-{number}-{time.monotonic_ns()}.err")
        self.inbox = queue.Queue()
        command = [sys.executable, os.path.abspath(__file__), "--worker", name, "--lock", lock]
        command += ["--parent", str(os.getpid())] + (["--fake"] if options.fake else [])
        with open(self.errors, "w") as errors:
            self.spawned = time.monotonic()
            self.process = subprocess.Popen(
                command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        LIVING.append(self)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        with contextlib.suppress(ValueError, OSError):
            for line in self.process.stdout:
                with contextlib.suppress(ValueError):
                    self.inbox.put(json.loads(line))
        self.inbox.put(None)

    def order(self, **what):
        try:
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()
        except (OSError, ValueError):
            pass  # its end will be noticed where its answer is awaited

    def note(self, message):
        """Notes a stage of the start."""
        stage = message["stage"]
        self.stages[stage] = round(message["t"] - self.spawned, 3)
        if "reserved_mib" in message:
            self.reserved[stage] = message["reserved_mib"]
        if "waited_s" in message:
            self.waited = round(message["waited_s"], 3)
        if "torch" in message:
            self.versions = {k: message[k] for k in ("torch", "cuda")}

    def answer(self, deadline):
        """The next message; Died when there will be none in time."""
        try:
            message = self.inbox.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise Died("no answer in time") from None
        if message is None:
            raise Died("ended")
        return message

    def tail(self):
        try:
            with open(self.errors, errors="replace") as file:
                return file.read()[-1500:]
        except OSError:
            return ""

    def end(self, polite=8.0):
        """Asks, then terminates, then kills; waits in any case."""
        self.alive = False
        if self not in LIVING:
            return
        self.order(cmd="quit")
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        for seconds, act in ((polite, self.process.terminate), (4.0, self.process.kill), (10.0, None)):
            try:
                self.process.wait(timeout=seconds)
                break
            except subprocess.TimeoutExpired:
                if act:
                    act()
        LIVING.remove(self)

    def startup(self):
        """Times since exec, and memory by NVML at those times (the ramp has every change seen)."""

        def at(seconds):
            later = [mib for t, mib in self.ramp if t >= seconds]
            return later[0] if later else (self.ramp[-1][1] if self.ramp else None)

        return {
            "seconds": self.stages,
            "waited_for_turn_s": self.waited,
            "memory_mib": {s: at(t) for s, t in self.stages.items() if s not in ("python", "imports", "turn")},
            "reserved_mib": self.reserved,
            "ramp": compact(self.ramp),
        }


def compact(ramp):
    """Only the points where the memory changes."""
    kept = []
    for t, mib in ramp:
        if not kept or mib != kept[-1][1]:
            kept.append([round(t, 2), mib])
    return kept


def end_all(workers, polite=8.0):
    threads = [threading.Thread(target=w.end, args=(polite,)) for w in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Mps:
    """A control daemon of our own, with its own folders."""

    def __init__(self, control):
        self.control, self.folder = control, tempfile.mkdtemp(prefix="mps-", dir="/tmp")
        self.env = {}
        for key in ("PIPE", "LOG"):
            path = os.path.join(self.folder, key.lower())
            os.mkdir(path)
            self.env[f"CUDA_MPS_{key}_DIRECTORY"] = path
        self.pid, self.servers = None, []
        LIVING.append(self)
        output = os.path.join(self.folder, "start.out")
        with open(output, "w") as file:
            # Into a file: the daemon may keep our pipe open.
            code = subprocess.run(
                [control, "-d"],
                env={**os.environ, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                timeout=20,
            ).returncode
        with open(output, errors="replace") as file:
            said = file.read().strip()
        if code != 0:
            raise RuntimeError(f"{control} -d ended with {code}: {said}")
        with contextlib.suppress(OSError, ValueError):
            with open(os.path.join(self.folder, "pipe", "nvidia-cuda-mps-control.pid")) as file:
                self.pid = int(file.read())

    def ask(self, command):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            return subprocess.run(
                [self.control], env={**os.environ, **self.env}, input=command + "\n", text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=12,
            ).stdout  # fmt: skip
        return ""

    def log_tail(self):
        tails = []
        for name in ("control.log", "server.log"):
            with contextlib.suppress(OSError):
                with open(os.path.join(self.folder, "log", name), errors="replace") as file:
                    tails.append(f"{name}: {file.read()[-1200:]}")
        return "\n".join(tails)

    def end(self, polite=8.0):
        if self not in LIVING:
            return
        self.servers = [int(w) for w in self.ask("get_server_list").split() if w.isdigit()]
        self.ask("quit")
        until = time.monotonic() + polite
        pids = [p for p in [self.pid, *self.servers] if p]
        while time.monotonic() < until and any(is_mps(p) for p in pids):
            time.sleep(0.1)
        for pid in filter(is_mps, pids):
            print(f"MPS process {pid} did not quit: killing it", file=sys.stderr)
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        LIVING.remove(self)
        shutil.rmtree(self.folder, ignore_errors=True)


def is_mps(pid):
    """Whether a process id (still) is one of MPS's processes, and not a zombie."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"nvidia-cuda-mps" in file.read()
    except OSError:
        return False


def covering(names, k, count):
    """`count` groups of k in which tasks and pairs occur as evenly as can be: greedy, always the same."""
    singles, pairs, chosen = collections.Counter(), collections.Counter(), []
    left = list(itertools.combinations(names, k))
    while left and len(chosen) < count:
        best = min(
            left,
            key=lambda g: (sum(pairs[p] for p in itertools.combinations(g, 2)), sum(singles[t] ** 2 for t in g)),
        )
        left.remove(best)
        chosen.append(list(best))
        singles.update(best)
        pairs.update(itertools.combinations(best, 2))
    return chosen


def plan(names, options):
    """Windows of one mode in order: (kind, tasks, repeat, seconds). The repeats of the solos are spread."""
    solo = lambda r: [("solo", [n], r, options.solo_s) for n in names]  # noqa: E731
    groups = lambda kind, found: [(kind, g, 0, options.group_s) for g in found]  # noqa: E731
    pairs = [list(p) for p in itertools.combinations(names, 2)]
    twins = [[n, n] for n in TWINS if n in names]
    windows = [("idle", [], 0, 2.0)] + solo(0) + groups("pair", pairs) + solo(1) + groups("self", twins)
    windows += groups("triple", covering(names, 3, 16)) + groups("quadruple", covering(names, 4, 8)) + solo(2)
    return windows


def mean(values):
    values = [v for v in values if v is not None]
    return sum(values) / len(values) if values else None


def rounded(value, digits):
    return None if value is None else round(value, digits)


class Driver:
    def __init__(self, options):
        self.options = options
        self.began = time.monotonic()
        self.deadline = self.began + options.budget_s
        self.folder = tempfile.mkdtemp(prefix="collocation-", dir="/tmp")
        self.nvml = FakeNvml() if options.fake and not options.nvml else Nvml(options.nvml, 0)
        self.names = options.tasks
        self.faults = dict(f.split("=") for f in options.fault)
        self.path = os.path.join(options.out, options.name)
        machine = {**self.nvml.machine(), "cpus": os.cpu_count(), "kernel": platform.release()}
        self.result = {
            "date": time.strftime("%Y-%m-%d"),
            "machine": {**machine, "python": platform.python_version(), "cuda": None, "torch": None},
            "tasks": {
                n: {"what": t.what, "batch": t.batch, "precision": t.precision, "startup": {}, "memory_mib": None}
                for n, t in TASKS.items()
                if n in self.names
            },
            "warm_s": WARM_S,
            "groups": [],
            "curves": [],
            "failures": [],
            "incomplete": "still running",
        }
        self.lacks, self.stopped = [], False

    # -- the result

    def write(self):
        self.result["machine"].update(power_source=self.nvml.source, not_read=self.nvml.notes)
        self.result["seconds"] = round(time.monotonic() - self.began, 1)
        with open(self.path + ".new", "w") as file:
            json.dump(self.result, file, indent=None, separators=(", ", ": "))
        os.replace(self.path + ".new", self.path)

    def say(self, text):
        print(f"[{time.monotonic() - self.began:6.1f} s] {text}", flush=True)

    def lack(self, what):
        self.say(f"incomplete: {what}")
        self.lacks.append(what)

    def drop(self, worker, mode, during, why):
        """Reports a worker that failed and does without it."""
        if why == "ended":
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(timeout=5)
        worker.end(polite=0.0 if why != "ended" else 5.0)
        failure = {"mode": mode, "task": worker.name, "instance": worker.number, "during": during, "why": why}
        failure |= {"exit": worker.process.returncode, "stderr_tail": worker.tail()}
        self.result["failures"].append(failure)
        self.say(f"{mode}: {worker.name}#{worker.number} failed during {during}: {why}, exit {failure['exit']}")
        print("    " + "\n    ".join(worker.tail().strip().splitlines()[-12:]), flush=True)
        self.write()

    # -- workers

    def environment(self, mps, percent=None):
        env = dict(os.environ)
        for key in [k for k in env if k.startswith("CUDA_MPS_")]:
            del env[key]
        env.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", PYTHONUNBUFFERED="1")
        env.update(OMP_NUM_THREADS="2", MKL_NUM_THREADS="2", CUDA_DEVICE_ORDER="PCI_BUS_ID")
        if mps:
            env.update(mps.env)
        else:
            # A daemon that someone left at the usual place is not ours to use.
            env["CUDA_MPS_PIPE_DIRECTORY"] = os.path.join(self.folder, "no-mps")
        if percent is not None:
            env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(percent)
        return env

    def start(self, mode, wanted, deadline):
        """Starts (name, number, environment) together; returns the workers that became ready."""
        lock = os.path.join(self.folder, "lock")
        workers = []
        for name, number, env in wanted:
            fault = self.faults.get(f"{mode}/{name}#{number}")
            env = {**env, "FAKE_FAULT": fault} if fault else env
            workers.append(Worker(name, number, env, self.options, self.folder, lock))
        waiting = list(workers)
        deadline = min(deadline, time.monotonic() + self.options.start_s)
        while waiting:
            seen = self.nvml.processes()
            now = time.monotonic()
            for worker in workers:
                if worker.process.pid in seen:
                    worker.ramp.append((now - worker.spawned, seen[worker.process.pid]))
            for worker in list(waiting):
                try:
                    while True:
                        message = worker.answer(0.0 if worker.inbox.empty() else now + 1)
                        worker.note(message)
                        if message["stage"] == "ready":
                            waiting.remove(worker)
                            break
                except Died as died:
                    if str(died) == "ended" or now > deadline:
                        waiting.remove(worker)
                        self.drop(worker, mode, "start", str(died))
            time.sleep(0.1)
        ready = [w for w in workers if w.alive]
        seen = self.nvml.processes()
        for worker in ready:
            if worker.process.pid in seen:
                worker.ramp.append((time.monotonic() - worker.spawned, seen[worker.process.pid]))
            self.result["machine"].update(worker.versions)
        return ready

    def window(self, mode, members, seconds, warm=WARM_S):
        """One window: the readings over it, and each member's rate in order, or None where one failed."""
        begin = time.monotonic() + 0.06
        for worker in members:
            worker.order(cmd="run", t0=begin, warm=warm, seconds=seconds, k=len(members), mode=mode)
        nvml = self.nvml
        time.sleep(max(0.0, begin + warm - time.monotonic()))
        nvml.sample(0)
        energy, opened = nvml.energy_j(), time.monotonic()
        readings = []
        while time.monotonic() < begin + seconds - 0.05:
            readings.append((nvml.power_w(), nvml.sm_clock_mhz(), nvml.power_capped()))
            time.sleep(max(0.0, min(opened + 0.05 * len(readings), begin + seconds) - time.monotonic()))
        time.sleep(max(0.0, begin + seconds - time.monotonic()))
        nvml.sample(1)
        ended, closed = nvml.energy_j(), time.monotonic()
        answers, failed = [], False
        for worker in members:
            try:
                answers.append(worker.answer(min(begin + seconds + self.options.answer_s, self.deadline + 5)))
            except Died as died:
                failed = True
                self.drop(worker, mode, "+".join(w.name for w in members), str(died))
        if failed:
            return None
        activity = nvml.activity()
        memory = nvml.processes()
        power, clock, capped = ([r[n] for r in readings] for n in range(3))
        row = {"seconds": round(closed - opened, 3)}
        row["rates"] = [round(a["steps"] / a["elapsed"], 4) if a["elapsed"] > 0 else None for a in answers]
        row["steps"] = [a["steps"] for a in answers]
        row["short"] = [a["short"] for a in answers]
        row |= activity
        row["power_w"] = rounded(mean(power), 1)
        row["energy_j"] = rounded(ended - energy, 2) if None not in (ended, energy) else None
        row["sm_clock_mhz"] = rounded(mean(clock), 1)
        row["power_capped"] = rounded(mean(capped), 3)
        known = [memory.get(w.process.pid) for w in members]
        row["memory_mib"] = sum(known) if None not in known else None
        row["gpu_memory_used_mib"] = nvml.memory_mib()
        return row

    # -- the parts

    def sharing(self, mode, deadline):
        """Everything under one mode, until `deadline`."""
        self.say(f"{mode}: starting")
        mps = Mps(self.options.mps_control) if mode == "mps" and self.options.mps_control else None
        workers = []
        try:
            env = self.environment(mps)
            wanted = [(n, 0, env) for n in self.names] + [(n, 1, env) for n in TWINS if n in self.names]
            workers = self.start(mode, wanted, deadline - 10)
            for worker in workers:
                if worker.number == 0:
                    task = self.result["tasks"][worker.name]
                    task["startup"][mode] = worker.startup()
                    task["memory_mib"] = task["memory_mib"] or (worker.ramp[-1][1] if worker.ramp else None)
            slowest = max((w.stages["ready"] for w in workers), default=0.0)
            self.say(f"{mode}: {len(workers)} of {len(wanted)} workers ready, the slowest after {slowest:.1f} s")
            self.write()
            # Thrown away: first uses of code paths, and a worker that cannot share shows itself.
            if workers and time.monotonic() + 4 < deadline:
                self.window(mode, [w for w in workers if w.alive], 1.0, warm=0.2)
            self.windows(mode, workers, deadline)
            if mps and self.result["failures"]:
                self.result["mps_log_tail"] = mps.log_tail()
        finally:
            end_all(workers)
            if mps:
                mps.end()
            self.say(f"{mode}: ended")

    def windows(self, mode, workers, deadline):
        todo = plan(self.names, self.options)
        overhead, done, skipped = 0.4, 0, []
        for at, (kind, tasks, repeat, seconds) in enumerate(todo):
            left = deadline - time.monotonic()
            ahead = todo[at:]
            # All windows shrink alike where the time is short; under 0.6 of their length some are left out.
            fit = (left - len(ahead) * overhead) / sum(w[3] for w in ahead)
            seconds *= min(1.0, max(0.6, fit))
            if left < seconds + overhead:
                self.lack(f"{mode}: {len(ahead)} of {len(todo)} windows not measured, the time was over")
                return
            row = None
            for _ in range(2):  # once more, should one have failed whose twin lives
                members = []
                for name in tasks:
                    members += [w for w in workers if w.name == name and w.alive and w not in members][:1]
                started = time.monotonic()
                if len(members) == len(tasks) and started + seconds < deadline:
                    row = self.window(mode, members, seconds)
                if row is not None:
                    break
            if row is None:
                skipped.append("+".join(tasks))
                continue
            self.result["groups"].append({"mode": mode, "kind": kind, "tasks": tasks, "repeat": repeat, **row})
            self.write()
            done += 1
            overhead += (time.monotonic() - started - seconds - overhead) / min(done + 1, 10)
        if skipped:
            self.lack(f"{mode}: {len(skipped)} windows without a worker that failed: {', '.join(skipped)}")

    def curves(self, deadline):
        """Tasks alone under MPS with a share of the threads: a process for each share, four at a time."""
        mode = "curves"
        percents = list(self.options.percents)
        if "mps" not in self.options.modes:
            percents.append(100)
        todo = [(t, p) for p in percents for t in CURVES if t in self.names]
        mps = Mps(self.options.mps_control) if self.options.mps_control else None
        workers, batch_s = [], 60.0
        try:
            while todo:
                if time.monotonic() + batch_s > deadline:
                    self.lack(f"curves: not measured, the time was over: {todo}")
                    return
                batch, todo = todo[:4], todo[4:]
                started = time.monotonic()
                wanted = [(t, p, self.environment(mps, p if p < 100 else None)) for t, p in batch]
                workers = self.start(mode, wanted, deadline - 5)
                for worker in workers:
                    self.result["tasks"][worker.name]["startup"][f"mps {worker.number} %"] = worker.startup()
                    row = self.window("mps", [worker], self.options.curve_s)
                    if row:
                        row["rate"] = row.pop("rates")[0]
                        row["steps"], row["short"] = row["steps"][0], row["short"][0]
                        self.result["curves"].append({"task": worker.name, "percent": worker.number, **row})
                        self.write()
                end_all(workers)
                batch_s = time.monotonic() - started + 5
                self.say(f"curves: {batch} in {batch_s - 5:.1f} s")
            for task in CURVES:
                # The whole GPU: measured among the groups.
                rates = [
                    g["rates"][0] for g in self.result["groups"] if (g["mode"], g["tasks"]) == ("mps", [task])
                ]
                if rates and 100 not in percents:
                    self.result["curves"].append({"task": task, "percent": 100, "rate": mean(rates), "from": "groups"})
        finally:
            end_all(workers)
            if mps:
                mps.end()

    def part(self, name, run, *args):
        """A part that fails must not take the others with it."""
        try:
            run(*args)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs into the result
            self.lack(f"{name}: {type(error).__name__}: {error}")

    def all(self):
        reserve = self.options.reserve_s
        try:
            parts = [(m, 1.0) for m in self.options.modes] + [("curves", 0.5)] * self.options.curves
            while parts:
                (name, weight), now = parts[0], time.monotonic()
                # Each part's share of what is left, less the time to end its processes.
                share = (self.deadline - now) * weight / sum(w for _, w in parts)
                if name == "curves":
                    self.part(name, self.curves, now + share - reserve)
                else:
                    self.part(name, self.sharing, name, now + share - reserve)
                parts.pop(0)
            if self.result["failures"]:
                failed = {f"{f['mode']}/{f['task']}#{f['instance']}" for f in self.result["failures"]}
                self.lack(f"workers failed: {', '.join(sorted(failed))}")
        except Stop as stop:
            self.stopped = True
            self.lack(str(stop))
        finally:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            clean_up()
            self.result["incomplete"] = "; ".join(self.lacks) or None
            self.write()
            shutil.rmtree(self.folder, ignore_errors=True)


def clean_up():
    """Ends whatever still lives: workers first, since MPS waits for its clients."""
    end_all([x for x in LIVING if isinstance(x, Worker)], polite=2.0)
    for daemon in list(LIVING):
        daemon.end(polite=4.0)


# ---------------------------------------------------------------------------------------------- table


def table(rows):
    widths = [max(len(r[n]) for r in rows) for n in range(len(rows[0]))]
    for row in rows:
        print("  ".join(c.ljust(w) if n < 2 else c.rjust(w) for n, (c, w) in enumerate(zip(row, widths))))


def show(result):
    def cell(value, digits=2):
        return "-" if value is None else f"{value:.{digits}f}"

    columns = ["gract", "smact", "smocc", "dram", "tensor"]
    solos = collections.defaultdict(list)
    for group in result["groups"]:
        if len(group["tasks"]) < 2:
            solos[group["mode"], (group["tasks"] or ["(idle)"])[0]].append(group)
    rows = [["mode", "alone", "steps/s", "spread %", *columns, "PCIe tx", "PCIe rx", "W", "MHz", "MiB"]]
    base = {}
    for (mode, task), found in solos.items():
        rates = [g["rates"][0] for g in found if g["rates"]]
        rate = base[mode, task] = mean(rates)
        spread = (max(rates) - min(rates)) / rate * 100 if rate else None
        average = lambda key: mean([g[key] for g in found])  # noqa: E731, B023
        row = [mode, task, cell(rate), cell(spread, 1), *[cell(average(c)) for c in columns]]
        row += [cell(average(c), 0) for c in (*TRAFFIC, "power_w", "sm_clock_mhz", "memory_mib")]
        rows.append(row)
    if solos:
        table(rows)
    progress = collections.defaultdict(list)
    for group in result["groups"]:
        alone = [(r, base.get((group["mode"], t))) for r, t in zip(group["rates"], group["tasks"])]
        shares = [r / b for r, b in alone if b and r is not None]
        if group["kind"] != "solo" and shares and len(shares) == len(group["tasks"]):
            progress[group["mode"], group["kind"]].append((sum(shares), group["power_w"], group["sm_clock_mhz"]))
    rows = [["mode", "groups", "count", "mean total progress", "min", "max", "W", "MHz"]]
    for (mode, kind), found in progress.items():
        totals = [f[0] for f in found]
        row = [mode, kind, str(len(found)), cell(mean(totals)), cell(min(totals)), cell(max(totals))]
        rows.append([*row, cell(mean([f[1] for f in found]), 0), cell(mean([f[2] for f in found]), 0)])
    if progress:
        print()
        table(rows)
    if result["curves"]:
        print()
        percents = sorted({c["percent"] for c in result["curves"]})
        rates = {(c["task"], c["percent"]): c["rate"] for c in result["curves"]}
        rows = [["MPS threads", "steps/s at", *[f"{p} %" for p in percents]]]
        rows += [[t, "", *[cell(rates.get((t, p))) for p in percents]] for t in CURVES]
        table(rows)
    print(f"\n{result['seconds']} s; incomplete: {result['incomplete']}", flush=True)


def words(text):
    return [w for w in text.split(",") if w]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--name", help="file in --out; collocation.json, or curves.json for curves alone")
    parser.add_argument("--modes", type=words, default=["time-slice", "mps"])
    parser.add_argument("--curves", action="store_true", help="MPS thread percentages too")
    parser.add_argument("--tasks", type=words, default=list(TASKS))
    parser.add_argument("--percents", type=lambda t: [int(w) for w in words(t)], default=[10, 25, 50, 75])
    parser.add_argument("--budget-s", type=float, default=560.0, help="for everything, the start included")
    parser.add_argument("--reserve-s", type=float, default=6.0, help="of each part, to end its processes")
    parser.add_argument("--solo-s", type=float, default=4.0, help="shrinks to 0.6 of it to fit the budget")
    parser.add_argument("--group-s", type=float, default=3.5, help="likewise")
    parser.add_argument("--curve-s", type=float, default=2.0)
    parser.add_argument("--start-s", type=float, default=150.0, help="a worker that is not ready by then is dropped")
    parser.add_argument("--answer-s", type=float, default=20.0, help="likewise after a window")
    parser.add_argument("--nvml", help="the library's path; with --fake none is read unless named")
    parser.add_argument("--mps-control", help="nvidia-cuda-mps-control; with --fake none is started unless named")
    parser.add_argument("--fake", action="store_true", help="no PyTorch, no GPU: rehearses the driver")
    parser.add_argument(
        "--fault", action="append", default=[], metavar="MODE/TASK#N=die@W", help="--fake: die or hang at window W"
    )
    parser.add_argument("--worker", choices=list(TASKS), help=argparse.SUPPRESS)
    parser.add_argument("--lock", help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return
    unknown = (set(options.tasks) - set(TASKS)) | (set(options.modes) - {"time-slice", "mps"})
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if not options.modes and not options.curves:
        parser.error("neither modes nor curves")
    options.name = options.name or ("collocation.json" if options.modes else "curves.json")
    if not options.fake and not options.mps_control:
        options.mps_control = "nvidia-cuda-mps-control"
    os.makedirs(options.out, exist_ok=True)

    def stop(number, _frame):
        raise Stop(f"ended by signal {number}")

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    atexit.register(clean_up)
    driver = Driver(options)
    driver.all()
    show(driver.result)
    # Some measurements are better than none: only nothing at all is a failure.
    measured = driver.result["groups"] or driver.result["curves"]
    sys.exit(0 if measured and not driver.stopped else 1)


if __name__ == "__main__":
    main()
