"""Records what a PyTorch program would allocate on a GPU, without a GPU.

Tensors of "cuda" live on PyTorch's `meta` device: shapes, types and lifetimes, no numbers. A dispatch
mode sees every operator below autograd; each new storage is an allocation, its end a free. What CUDA
kernels do differently from meta ones (fused dropout, attention, autocast, cuDNN's recurrent layers) is
put in their place. Small integers and scalars keep their numbers, so that masks, lengths and
`loss.item()` answer as they would; what nobody can know is answered plausibly, and the log says so.

    carma_trace.py run   [-o LOG] [options] -- SCRIPT ARGS | -m MODULE ARGS
    carma_trace.py entry [-o LOG] [options] MODULE:FUNCTION
    carma_trace.py --spec SPECS.json -o FOLDER

The log: one event a line; lines that begin with `{` are JSON.
    {"format":"carma-trace","version":2,...}    first line: versions and platform
    a BYTES      a storage comes into being
    f N          the storage that came into being N allocations ago (0: the last) is let go of
    w THREAD     first matrix product on a thread: 0 forward, 1 backward (a cuBLAS workspace)
    v PASS WIDTH LAST TRANSPOSED GROUPS STRIDE DILATION INPUT WEIGHT OUTPUT     a convolution runs, f forward, d and w for
                 the gradients of input and weight; bytes of a number, whether channels are last; sizes as 8,3,224,224
    e            torch.cuda.empty_cache()          m NAME   a point in the run
    {"end":{...}}                                last line: what ran, what is doubtful, why it stopped
Works with PyTorch 2.1 and newer, Python 3.8 and newer; needs nothing else.
"""

import os

# No GPU is touched, nothing compiled, no run recorded on a server. Before torch is imported.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["PYTORCH_JIT"] = "0"
os.environ["TORCHDYNAMO_DISABLE"] = "1"
for _name in ("WANDB_MODE", "COMET_MODE"):
    os.environ[_name] = "disabled"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


import argparse
import contextlib
import importlib
import json
import platform
import runpy
import signal
import sys
import time
import traceback
import types
import weakref

try:
    import torch
except ImportError as _error:
    sys.exit("carma: %s has no PyTorch: %s" % (sys.executable, _error))
import torch.nn.functional as F
import torch.utils.checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from carma_trace_cuda import count_model, fake_cuda, fake_parallel, fake_tensor_methods, note_compilers
from carma_trace_kernels import fake_kernels
from carma_trace_processes import fake_processes, join
from carma_trace_record import LOG, NOW, Record, Stop, Tensor, foreign, learn_references, map_tensors, patch
from carma_trace_saves import KEPT, fake_saving

BATCHES = 3  # of a data loader, and least iterations
STEADY = 3  # iterations at whose ends as much is reserved, and then it is enough
MOST_ITERATIONS = 12  # enough in any case
NOISE = 64 << 10  # bytes by which tensors may take more with each iteration: a list of losses grows
MOST_BATCHES = 512  # of a data loader whose program steps rarely (accumulated gradients)


class Run:
    """What the program did so far, and when it is enough."""

    def __init__(self):
        self.steps, self.backwards, self.loaders, self.stopped = 0, 0, 0, False
        # How often all that is trained was trained. A program may have an optimizer for each parameter, or one that steps
        # rarely, as a generator's beside its critic's.
        self.iterations = 0
        self.by_optimizer = weakref.WeakKeyDictionary()  # steps of each
        self.reserved, self.live = [], []  # at the end of each iteration

    def rising(self):
        """Whether tensors take more with each iteration, be it within what is reserved."""
        last = self.live[-STEADY:]
        return all(after >= before + NOISE for before, after in zip(last, last[1:]))

    def seen_enough(self):
        last = self.reserved[-STEADY:]
        steady = len(last) == STEADY and len(set(last)) == 1 and not self.rising()
        return self.iterations >= BATCHES and (steady or self.iterations >= MOST_ITERATIONS)

    def stepped(self, optimizer, *_):
        self.steps += 1
        self.by_optimizer[optimizer] = self.by_optimizer.get(optimizer, 0) + 1
        if self.steps == 1:
            count_model()
        LOG.write("m forward")
        counts = list(self.by_optimizer.values())
        self.iterations = max(self.iterations, min(counts), max(counts) // 5)
        if self.iterations > len(self.reserved):
            self.reserved.append(LOG.most_reserved)
            self.live.append(LOG.live)
        # A program without a loader has no next epoch at which to stop.
        if not self.loaders and self.seen_enough():
            self.enough()

    def enough(self):
        self.stopped = True
        count_model()
        raise Stop

    def before_backward(self):
        self.backwards += 1
        LOG.write("m backward")


RUN = Run()


def cut(original):
    """An epoch's batches until memory is steady, or three where nothing is trained; and the partial one at its end."""
    def batches(loader):
        if RUN.iterations >= BATCHES and getattr(loader, "_carma_done", False) and (
            RUN.seen_enough() or not RUN.rising()
        ):
            RUN.enough()
        RUN.loaders += 1
        backwards, count = RUN.backwards, 0
        size, _ = batch_of(loader)
        if size and size not in LOG.end["batch_sizes"]:
            LOG.end["batch_sizes"].append(size)
        try:
            for batch in original(loader):
                count += 1
                LOG.write("m batch")
                yield batch
                training = trains(size, backwards)
                if count >= BATCHES and (not training or RUN.seen_enough() or count >= MOST_BATCHES):
                    break
        finally:
            trains(size, backwards)  # also where the program leaves its loop
        last = partial_batch(loader, count)
        if last is not None:
            LOG.write("m batch")
            yield last
        loader.__dict__["_carma_done"] = True
    return batches


def trains(size, before):
    """Whether a backward pass came since a loader began; its batch is noted then: others only evaluate."""
    training = RUN.backwards > before
    if training and size and size not in LOG.end["train_batch_sizes"]:
        LOG.end["train_batch_sizes"].append(size)
    return training


def batch_of(loader):
    """Samples of a batch, and whether a smaller one at the end is dropped."""
    batches = getattr(loader, "batch_sampler", None)
    size = getattr(loader, "batch_size", None) or getattr(batches, "batch_size", None)
    return size, getattr(loader, "drop_last", False) or getattr(batches, "drop_last", False)


def partial_batch(loader, count):
    """The smaller batch with which an epoch ends, made of the first samples."""
    size, dropped = batch_of(loader)
    try:
        total = len(loader.dataset)
        if dropped or total % size == 0 or count * size >= total:
            return None
        return loader.collate_fn([loader.dataset[i] for i in range(total % size)])
    except Exception:  # a data set that only streams
        return None


def fake_loader():
    loader = torch.utils.data.DataLoader
    made = loader.__init__

    def init(self, dataset, *args, **kwargs):
        if len(args) > 4:
            args = args[:4] + (0,) + args[5:]
        kwargs.update({k: v for k, v in dict(
            num_workers=0, pin_memory=False, persistent_workers=False, prefetch_factor=None,
            multiprocessing_context=None, timeout=0).items() if k in kwargs})
        kwargs.pop("pin_memory_device", None)
        made(self, dataset, *args, **kwargs)

    loader.__init__ = init
    loader.__iter__ = cut(loader.__iter__)


def hook_training():
    from torch.optim import optimizer
    optimizer.register_optimizer_step_pre_hook(lambda *_: LOG.write("m step"))
    optimizer.register_optimizer_step_post_hook(RUN.stepped)

    def backward(original):
        def run(*args, **kwargs):
            RUN.before_backward()
            return original(*args, **kwargs)
        return run

    patch(torch.autograd, "backward", backward)


def without_dynamo(*owners):
    """PyTorch wraps these so that torch.compile leaves them alone; importing that takes seconds."""
    for owner in owners:
        for f in list(vars(owner).values()):
            if getattr(getattr(f, "__code__", None), "co_filename", "").endswith("_compile.py"):
                f.__wrapped__.__dynamo_disable = f.__wrapped__


def watch_models():
    """Notes the class of the largest model that is moved."""
    sizes = {"": 0}

    def applied(original):
        def apply(self, *args, **kwargs):
            size = sum(p.numel() for p in self.parameters())
            if size > max(sizes.values()):
                sizes[type(self).__name__] = size
                LOG.end["model"] = type(self).__name__
            return original(self, *args, **kwargs)
        return apply

    patch(torch.nn.Module, "to", applied)
    patch(torch.nn.Module, "cuda", applied)

    def applying(original):
        def apply(self, *args, **kwargs):
            NOW.applying += 1
            try:
                return original(self, *args, **kwargs)
            finally:
                NOW.applying -= 1
        return apply

    patch(torch.nn.Module, "_apply", applying)


def install(options):
    learn_references()
    without_dynamo(Record, TorchDispatchMode, torch.optim.Optimizer, torch.utils.checkpoint, torch.autograd.function)
    fake_cuda(options)
    fake_tensor_methods()
    fake_kernels()
    fake_loader()
    hook_training()
    fake_saving(getattr(options, "notes", None))
    fake_processes(KEPT[0])
    watch_models()
    note_compilers()
    fake_parallel()


TOLD = ("batch_size", "seq_len", "samples", "shape", "optimizer", "precision", "mode", "channels_last", "gpus")


def header(options, what, command):
    return {
        "format": "carma-trace", "version": 2, "ids": "counted", "torch": torch.__version__, "python": platform.python_version(),
        "device": "meta", "gpu": options.gpu, "what": what,
        "options": {k: v for k, v in vars(options).items() if k in TOLD and v},
        "arguments": json.loads(os.environ.get("CARMA_TRACE_ARGUMENTS", "{}")), "command": list(command),
        "edition": options.edition,
    }


def why(error):
    """What failed, in the words of the error, and the user's line."""
    line = None
    for frame in traceback.extract_tb(error.__traceback__):
        if not foreign(frame.filename):
            line = "%s:%s" % (os.path.basename(frame.filename), frame.lineno)
    text = "%s: %s" % (type(error).__name__, str(error).strip().split("\n")[0][:200] or "no message")
    return "%s at %s" % (text, line) if line else text


def recorded(options, what, body, command=()):
    """Runs `body` under the mode and closes the log; returns the exit code."""
    KEPT[0].here.busy = True  # the log is none of the program's files
    LOG.open(options.out, header(options, what, command))
    KEPT[0].here.busy = False
    began, status, reason, code = time.time(), "complete", None, 0

    reasons = {signal.SIGTERM: "ended", signal.SIGINT: "interrupted", signal.SIGALRM: "stopped at the time limit"}

    def ended(number, _frame):
        LOG.asked_to_stop(reasons[number])

    for number in reasons:
        signal.signal(number, ended)
    # More than once: the program may have taken the first for an error of its own.
    signal.setitimer(signal.ITIMER_REAL, options.timeout, 5)
    try:
        try:
            with Record():
                body()
        finally:
            LOG.busy = True  # the end is written, whatever else is asked
    except Stop:
        pass
    except SystemExit as leave:
        if leave.code not in (None, 0):
            status, reason = "failed", "the program left with exit code %s" % leave.code
    except BaseException as error:
        if RUN.stopped or LOG.stop:
            pass  # what the program says to being stopped
        elif RUN.iterations >= BATCHES:
            # All of a training loop has been seen.
            LOG.doubt("after %d optimizer steps: %s" % (RUN.steps, why(error)))
        else:
            status, reason = "failed", why(error)
            traceback.print_exc()
    signal.setitimer(signal.ITIMER_REAL, 0)
    if LOG.stop:
        status, reason = "partial", "%s after %d s and %d optimizer steps" % (LOG.stop, time.time() - began, RUN.steps)
    if status == "complete" and LOG.next == 0:
        status, reason = "failed", "the program put nothing on a GPU"
        if LOG.elsewhere[0]:
            reason += " in its first process, and others are not traced"
    if "parameters" not in LOG.end:
        count_model()
    LOG.close(
        status=status, reason=reason, steps=RUN.iterations, backwards=RUN.backwards,
        cudnn_benchmark=bool(torch.backends.cudnn.benchmark), allocated=LOG.peak,
    )
    if status == "failed":
        # carma tells the reason.
        code = 1
    return code


def run_script(options, words):
    def body():
        if words[0] == "-m":
            sys.argv = words[1:]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
            runpy.run_path(words[0], run_name="__main__")
        join()
    return recorded(options, " ".join(words), body, list(words))


# --- a model, a batch, an optimizer: no script ------------------------------------------------------

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "sgd-momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "adam-fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-3),
}


def resized(value, size):
    """The sample with another number of rows."""
    grow = lambda t: t[:1].expand(size, *t.shape[1:]).clone() if t.dim() and size else t
    return map_tensors(value, grow)


def call(model, batch):
    if isinstance(batch, dict):
        return model(**batch)
    if isinstance(batch, (list, tuple)):
        return model(*batch)
    return model(batch)


def default_loss(out):
    """The model's own loss, cross entropy over classes, or the mean."""
    loss = out.get("loss") if isinstance(out, dict) else getattr(out, "loss", None)
    if loss is not None:
        return loss.mean() if loss.dim() else loss  # nn.DataParallel gathers one of each GPU
    if isinstance(out, dict) and all(isinstance(v, Tensor) and v.dim() == 0 for v in out.values()):
        return sum(out.values())
    if not isinstance(out, Tensor):
        parts = [v for v in (out.values() if isinstance(out, dict) else out) if isinstance(v, Tensor)]
        out = parts[0]
    if out.dim() >= 2 and out.is_floating_point():
        target = torch.zeros(out.shape[:1] + out.shape[2:], dtype=torch.long, device=out.device)
        return F.cross_entropy(out, target)
    return out.float().mean()


def guess_batch(model, options):
    """A batch for a model that came alone."""
    size = options.batch_size or 1
    config = getattr(model, "config", None)
    if options.shape:
        return torch.zeros([size] + [int(n) for n in options.shape.split(",")])
    if getattr(config, "vocab_size", None):
        ids = torch.zeros(size, options.seq_len or 128, dtype=torch.long)
        return {"input_ids": ids, "labels": ids} if options.mode == "train" else {"input_ids": ids}
    pretrained = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None) or {}
    return torch.zeros([size] + list(pretrained.get("input_size", (3, 224, 224))))


def train(model, batch, loss, optimizer, options):
    """Steps until memory is steady, with variables re-assigned as scripts do; four without training."""
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}
    autocast = {"bf16-autocast": torch.bfloat16, "fp16-autocast": torch.float16}.get(options.precision)
    model = model.to("cuda")
    if options.precision in half:
        model = model.to(half[options.precision])
    if options.channels_last:
        model = model.to(memory_format=torch.channels_last)
    count_model()
    LOG.end["batch_sizes"] = [options.batch_size] if options.batch_size else []
    context = torch.autocast("cuda", dtype=autocast) if autocast else contextlib.nullcontext()
    training = options.mode == "train"
    model.train(training)
    if training and optimizer is None:
        optimizer = OPTIMIZERS[options.optimizer]([p for p in model.parameters() if p.requires_grad])
    scaler = torch.cuda.amp.GradScaler() if options.precision == "fp16-autocast" and training else None

    def prepare(value):
        value = map_tensors(value, lambda t: t.to("cuda"))
        if options.precision in half:
            value = map_tensors(value, lambda t: t.to(half[options.precision]) if t.is_floating_point() else t)
        if options.channels_last:
            value = map_tensors(value, lambda t: t.to(memory_format=torch.channels_last) if t.dim() == 4 else t)
        return value

    out = result = inputs = None
    sizes = [None] * (MOST_ITERATIONS if training else BATCHES + 1)
    if options.samples and options.batch_size and options.samples % options.batch_size:
        # An epoch ends with a smaller batch, and another begins.
        sizes[BATCHES:BATCHES] = [options.samples % options.batch_size]
    for size in sizes:
        if training and RUN.seen_enough():
            break
        LOG.write("m forward")
        inputs = prepare(resized(batch, size) if size else batch)
        if not training:
            with torch.no_grad(), context:
                out = call(model, inputs[0] if loss else inputs)
            continue
        optimizer.zero_grad()
        with context:
            out = call(model, inputs[0] if loss else inputs)
            result = loss(out, inputs[1]) if loss else default_loss(out)
        if scaler:
            scaler.scale(result).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            result.backward()
            optimizer.step()


def run_entry(options, entry):
    def body():
        RUN.loaders = 1  # `train` itself says when it is enough
        sys.path.insert(0, os.getcwd())
        module, _, name = entry.partition(":")
        if module.endswith(".py"):
            scope = types.SimpleNamespace(**runpy.run_path(module, run_name="carma_entry"))
        else:
            scope = importlib.import_module(module)
        arguments = json.loads(os.environ.get("CARMA_TRACE_ARGUMENTS", "{}"))
        made = getattr(scope, name)(**arguments)
        parts = list(made) if isinstance(made, tuple) else [made]
        model, batch, loss, optimizer = (parts + [None] * 4)[:4]
        batch = guess_batch(model, options) if batch is None else resized(batch, options.batch_size)
        train(model, batch, loss, optimizer, options)
    return recorded(options, entry, body)


def main():
    parser = argparse.ArgumentParser(prog="carma_trace.py", description=__doc__.split("\n")[0])
    parser.add_argument("command", nargs="?", choices=["run", "entry"], default="run")
    parser.add_argument("-o", "--out", default="-", help="log; .gz is compressed; -: standard output")
    parser.add_argument("--spec", help="JSON list of {name, entry, arguments, batch_size, ...}; --out is a folder")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--seq-len", type=int)
    parser.add_argument("--samples", type=int, help="of the data set: an epoch may end with a smaller batch")
    parser.add_argument("--shape", help="of one sample: 3,224,224")
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="adam")
    parser.add_argument(
        "--precision", choices=["fp32", "bf16-autocast", "fp16-autocast", "bf16", "fp16"], default="fp32"
    )
    parser.add_argument("--mode", choices=["train", "infer"], default="train")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--gpu", default="NVIDIA H200", help="name that the program reads")
    parser.add_argument("--capability", default="9.0")
    parser.add_argument("--total-mib", type=int, default=143771)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=0, help="seconds")
    parser.add_argument("--edition", help="fingerprint of the program's text, noted in the log")
    parser.add_argument("--notes", help="file for what is to be done by `carma_trace_files.py NOTES` once this is over")
    words = sys.argv[1:]
    rest = []
    if "--" in words:
        rest = words[words.index("--") + 1 :]
        words = words[: words.index("--")]
    options, more = parser.parse_known_args(words)
    rest = more + rest
    if options.spec:
        return run_specs(options, words)
    if not rest:
        parser.error("no script" if options.command == "run" else "no MODULE:FUNCTION")
    install(options)
    return run_script(options, rest) if options.command == "run" else run_entry(options, rest[0])


def run_specs(options, words):
    """Each in a process of its own."""
    import subprocess
    with open(options.spec) as file:
        specs = json.load(file)
    failed = 0
    for spec in specs:
        command = [sys.executable, __file__, "entry", "-o", os.path.join(options.out, spec["name"] + ".trace.gz")]
        for key, value in spec.items():
            if key not in ("name", "entry", "arguments") and value not in (None, False):
                command += ["--" + key.replace("_", "-")] + ([] if value is True else [str(value)])
        arguments = json.dumps(spec.get("arguments", {}))
        code = subprocess.call(command + [spec["entry"]], env=dict(os.environ, CARMA_TRACE_ARGUMENTS=arguments))
        failed += code != 0
        print("%s %s" % ("failed" if code else "ok", spec["name"]), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
