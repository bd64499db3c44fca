"""Trains (or runs) one model after another on a GPU and says what memory each took.

A worker reads one row as JSON a line and answers one line. It stays, because PyTorch takes seconds to start; between
runs it gives back everything, so that PyTorch's allocator starts from nothing as in a new process. With `--fresh`
each run gets a process of its own: a fork of one that has the libraries loaded but never touched the GPU.
"""

import argparse
import contextlib
import ctypes
import gc
import importlib.util
import json
import os
import re
import signal
import sys
import time

import families

MIB = 2**20
STEPS = 3


class Skip(Exception):
    """The row can't be measured: says why."""


# ----------------------------------------------------------------------------------------------- NVML


class ProcessInfo(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class Nvml:
    """Memory of this process by the driver's count. None where the driver does not say."""

    def __init__(self, uuid):
        self.device = ctypes.c_void_p()
        self.lib = None
        for place in ("libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1"):
            with contextlib.suppress(OSError, AttributeError):
                lib = ctypes.CDLL(place)
                if lib.nvmlInit_v2() == 0 and self.find(lib, uuid):
                    self.lib = lib
                    return

    def find(self, lib, uuid):
        name = uuid if uuid.startswith("GPU-") else "GPU-" + uuid
        return lib.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(self.device)) == 0

    def used(self):
        if self.lib is None:
            return None
        count, infos = ctypes.c_uint(512), (ProcessInfo * 512)()
        if self.lib.nvmlDeviceGetComputeRunningProcesses_v3(self.device, ctypes.byref(count), infos) != 0:
            return None
        ours = [p.used for p in infos[: count.value] if p.pid in own_ids() and p.used < 2**63]
        return ours[0] if ours else None


def own_ids():
    """This process's numbers, in all the namespaces it is in."""
    with contextlib.suppress(OSError):
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith("NSpid:"):
                    return {int(n) for n in line.split()[1:]}
    return {os.getpid()}


# ------------------------------------------------------------------------------------------- machines


class Cuda:
    name = "cuda"

    def __init__(self, torch):
        self.torch = torch
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        self.total = torch.cuda.get_device_properties(0).total_memory
        self.nvml = Nvml(str(torch.cuda.get_device_properties(0).uuid))
        self.clear()
        self.start_used = self.nvml.used()

    def clear(self):
        """Everything back to the driver, as in a process that has just started."""
        cuda = self.torch.cuda
        with contextlib.suppress(RuntimeError):
            self.torch._C._cuda_clearCublasWorkspaces()
        gc.collect()
        cuda.empty_cache()
        cuda.reset_peak_memory_stats()
        cuda.reset_accumulated_memory_stats()

    def cap(self, mib):
        self.torch.cuda.set_per_process_memory_fraction(min(1.0, mib * MIB / self.total) if mib else 1.0)

    def synchronize(self):
        self.torch.cuda.synchronize()

    def reserved(self):
        return self.torch.cuda.memory_reserved()

    def allocated(self):
        return self.torch.cuda.memory_allocated()

    def reading(self):
        cuda, used, reserved = self.torch.cuda, self.nvml.used(), self.reserved()
        return {
            "allocated_mib": mib(cuda.max_memory_allocated()),
            "reserved_mib": mib(cuda.max_memory_reserved()),
            "process_mib": None if used is None else mib(used),
            "context_mib": None if used is None else mib(used - reserved),
            "alloc_retries": cuda.memory_stats().get("num_alloc_retries", 0),
        }


class Dry:
    """A rehearsal on `meta` (shapes only) or on the CPU: no memory is measured."""

    def __init__(self, torch, name):
        self.torch, self.name = torch, name
        self.total, self.start_used = 0, None

    def clear(self):
        gc.collect()

    def cap(self, mib):
        pass

    def synchronize(self):
        pass

    def reserved(self):
        return 0

    def allocated(self):
        return 0

    def reading(self):
        return {}


def mib(count):
    number = count / MIB
    return int(number) if number == int(number) else round(number, 4)


# ----------------------------------------------------------------------------------------------- runs


def optimizer_of(torch, row, parameters, dry):
    name, fused = row.get("optimizer") or "adam", not dry
    parameters = [p for p in parameters if p.requires_grad]
    optim = torch.optim
    makers = {
        "sgd": lambda: optim.SGD(parameters, lr=1e-4),
        "sgd-momentum": lambda: optim.SGD(parameters, lr=1e-4, momentum=0.9),
        "adam": lambda: optim.Adam(parameters, lr=1e-5),
        "adamw": lambda: optim.AdamW(parameters, lr=1e-5),
        "adam-fused": lambda: optim.AdamW(parameters, lr=1e-5, fused=fused),
        "rmsprop": lambda: optim.RMSprop(parameters, lr=1e-5),
        "adagrad": lambda: optim.Adagrad(parameters, lr=1e-5),
    }
    if name not in makers:
        raise Skip(f"optimizer `{name}` is none of {', '.join(makers)}")
    return makers[name]()


def describe(torch, case, dtype):
    """Leaf modules in the order of the forward pass: name, output elements a sample, parameters."""
    layers, hooks, size = [], [], 2

    def hook(module, _, out):
        shapes = [t.numel() for t in (out if isinstance(out, (tuple, list)) else [out]) if torch.is_tensor(t)]
        own = sum(p.numel() for p in module.parameters())
        layers.append((type(module).__name__, sum(shapes) // size, own))

    model = case.model
    for module in model.modules():
        # nn.MultiheadAttention uses the weights of its children without calling them.
        whole = isinstance(module, torch.nn.MultiheadAttention) or not list(module.children())
        if module is not model and whole:
            hooks.append(module.register_forward_hook(hook))
    try:
        with torch.no_grad():
            case.forward(model, case.batch("meta", size, dtype))
    finally:
        for one in hooks:
            one.remove()
    return layers


def compact(layers):
    """`Linear:512:262656` joined by spaces; `x3` where the same comes three times in a row."""
    words = []
    for name, outs, own in layers:
        word = f"{name}:{outs}:{own}"
        if words and words[-1][0] == word:
            words[-1][1] += 1
        else:
            words.append([word, 1])
    return " ".join(word + (f"x{n}" if n > 1 else "") for word, n in words)


def materialise(torch, module, device, made):
    """As `to_empty`, in the order of `module.to`, but what was shared stays shared."""
    for child in module.children():
        materialise(torch, child, device, made)
    for key, tensor in module._parameters.items():
        if tensor is not None:
            if id(tensor) not in made:
                made[id(tensor)] = torch.nn.Parameter(torch.empty_like(tensor, device=device), tensor.requires_grad), tensor
            module._parameters[key] = made[id(tensor)][0]
    for key, tensor in module._buffers.items():
        if tensor is not None:
            module._buffers[key] = torch.empty_like(tensor, device=device)


def load(torch, case, device, row, dtype):
    """The model onto the device, in the order and with the allocations of `model.to(device)`."""
    model = case.model
    if dtype != torch.float32:
        model.to(dtype)
    if device.name == "meta":
        return model.to("meta")
    if any(p.is_meta for p in model.parameters()):
        materialise(torch, model, device.name, {})
        with torch.no_grad():
            for p in model.parameters():
                p.uniform_(-0.02, 0.02)
            for name, b in model.named_buffers():
                b.fill_(1) if name.endswith("running_var") else b.zero_()
    else:
        model.to(device.name)
        with torch.no_grad():
            # What was made in a hurry is not initialised.
            for p in model.parameters():
                if p.is_floating_point():
                    p.uniform_(-0.02, 0.02)
    if families.flag(row, "channels_last"):
        model.to(memory_format=torch.channels_last)
    return model


def train(torch, case, model, row, device, dtype, answer):
    """The loop of an ordinary script. `batch` is let go before the next one is made; `out` and `value` live until
    they are assigned anew."""
    inference = row.get("mode") == "infer"
    model.train(not inference)
    optimizer = None if inference else optimizer_of(torch, row, model.parameters(), device.name != "cuda")
    size, samples = families.number(row, "batch_size"), families.number(row, "samples")
    sizes = [size] * STEPS + ([samples % size] if samples and samples % size else [])
    autocast = (row.get("precision") or "fp32").endswith("-autocast")
    kind = "cuda" if device.name == "cuda" else "cpu"
    device.synchronize()
    answer["model_mib"], answer["steps_mib"] = mib(device.allocated()), ""
    steps, batch, out, value = [], None, None, None
    for count in sizes:
        batch = None
        batch = case.batch(device.name, count, dtype)
        if families.flag(row, "channels_last"):
            batch = tuple(t.to(memory_format=torch.channels_last) if t.dim() == 4 else t for t in batch)
        if inference:
            with torch.inference_mode(), torch.autocast(kind, torch.bfloat16, enabled=autocast):
                out = case.forward(model, batch)
        else:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(kind, torch.bfloat16, enabled=autocast):
                out = case.forward(model, batch)
                value = case.loss(out, batch)
            value.backward()
            optimizer.step()
        steps.append(str(mib(device.reserved())))
        answer["steps_mib"] = " ".join(steps)
    device.synchronize()


def run(torch, row, device, builders):
    """One row: what it took, or why not. Nothing of it is alive when this returns."""
    precision, dtypes = row.get("precision") or "fp32", {"bf16": torch.bfloat16}
    if precision not in ("fp32", "bf16", "bf16-autocast"):
        raise Skip(f"precision `{precision}` is none of fp32, bf16, bf16-autocast")
    dtype = dtypes.get(precision, torch.float32)
    answer = {}
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = families.flag(row, "cudnn_benchmark")
    case = builders[row["family"]](row)
    answer["params"] = sum(p.numel() for p in case.model.parameters())
    if all(p.is_meta for p in case.model.parameters()):
        layers = describe(torch, case, dtypes.get("fp32", torch.float32))
        answer["activations"], answer["layer_list"] = sum(n for _, n, _ in layers), compact(layers)
    device.cap(families.number(row, "cap_mib"))
    try:
        model = load(torch, case, device, row, dtype)
        train(torch, case, model, row, device, dtype, answer)
        answer["status"] = "SUCCESSFUL"
    except torch.OutOfMemoryError as error:
        answer.update(out_of_memory(str(error), device, families.number(row, "cap_mib")))
    answer.update(device.reading())
    return answer


def out_of_memory(text, device, cap):
    """By the cap: the row is censored. By the neighbours: it is to be tried again."""
    tried = re.search(r"Tried to allocate ([\d.]+) (\w+)", text)
    asked = float(tried[1]) * {"MiB": 1, "GiB": 1024, "KiB": 1 / 1024, "bytes": 1 / MIB}.get(tried[2], 0) if tried else 0
    if cap and device.reserved() / MIB + asked > 0.97 * cap:
        return {"status": "OOM", "reason": f"needs more than the cap of {cap} MiB", "asked_mib": round(asked, 3)}
    return {"status": "FULL", "reason": "the GPU was full: " + text.split("\n")[0][:200]}


# ------------------------------------------------------------------------------------------- protocol


def measured(torch, row, device, builders):
    began, answer = time.monotonic(), {}
    device.clear()
    answer["residue_mib"] = mib(device.reserved())
    try:
        answer.update(run(torch, row, device, builders))
    except Exception as error:  # noqa: BLE001: whatever a row does, the next one gets its turn
        answer.update(status="FAILED", reason=f"{type(error).__name__}: {error}".split("\n")[0][:300])
    try:
        device.clear()
        device.synchronize()
        answer["poisoned"] = False
    except Exception:  # noqa: BLE001: a fault on the GPU: this process is of no more use
        answer["poisoned"] = True
    answer["seconds"] = round(time.monotonic() - began, 3)
    return answer


def builders_of(options):
    builders = dict.fromkeys(("mlp", "cnn", "transformer"), families.build)
    if options.models:
        spec = importlib.util.spec_from_file_location("measured_models", options.models)
        module = importlib.util.module_from_spec(spec)
        sys.modules["measured_models"] = module
        spec.loader.exec_module(module)
        builders["model"] = module.case
        getattr(module, "warm", lambda: None)()
    return builders


def in_a_fork(torch, row, device_name, builders):
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(readable)
        answer = {"status": "FAILED", "reason": "the process died"}
        try:
            device = Cuda(torch) if device_name == "cuda" else Dry(torch, device_name)
            answer = measured(torch, row, device, builders)
            answer["start_mib"] = None if device.start_used is None else mib(device.start_used)
        except Exception as error:  # noqa: BLE001
            answer = {"status": "FAILED", "reason": f"{type(error).__name__}: {error}".split("\n")[0][:300]}
        finally:
            with os.fdopen(writable, "w") as pipe:
                pipe.write(json.dumps(answer))
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    answer = json.loads(text) if text else {"status": "FAILED", "reason": "the process died"}
    return {**answer, "poisoned": False, "fresh": "true"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models")
    parser.add_argument("--fresh", action="store_true")
    options = parser.parse_args()
    # What libraries print goes to stderr; the pipe to the driver is ours alone.
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, int(signal.SIGTERM), 0, 0, 0)  # dies with the driver

    import torch

    torch.set_num_threads(1)
    builders = builders_of(options)
    ready = {"ready": True, "torch": torch.__version__, "cuda": torch.version.cuda}
    device = None
    if not options.fresh:
        device = Cuda(torch) if options.device == "cuda" else Dry(torch, options.device)
        ready["total_mib"] = mib(device.total)
    gc.collect()
    gc.freeze()
    pipe.write(json.dumps(ready) + "\n")
    for line in sys.stdin:
        row = json.loads(line)
        if options.fresh:
            answer = in_a_fork(torch, row, options.device, builders)
        else:
            answer = measured(torch, row, device, builders)
        pipe.write(json.dumps({"id": row["id"], **answer}) + "\n")
        if answer["poisoned"]:
            break


if __name__ == "__main__":
    main()
