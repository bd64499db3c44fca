"""The GPU that is not there: `torch.cuda`, devices of tensors, models that are moved, several GPUs."""

import contextlib
import functools
import gc
import sys
import types
import weakref

import torch

from carma_trace_record import (
    CPU, LOG, META, NOW, RAW_DEVICE, RAW_META, Tensor, answer, device_of, foreign, map_tensors, patch, to_cpu,
)

def to(original):
    @functools.wraps(original)
    def moved(self, *args, **kwargs):
        args = list(args)
        target = kwargs.get("device")
        spot = None
        if target is None and args:
            if isinstance(args[0], Tensor):
                other = args[0]
                args[0:1] = [device_of(other), other.dtype]
            if isinstance(args[0], (str, torch.device, int)):
                target, spot = args[0], 0
        if kwargs.get("other") is not None:
            other = kwargs.pop("other")
            target = kwargs["device"] = device_of(other)
            args = [other.dtype]
        if target is None or NOW.inside:
            return original(self, *args, **kwargs)
        target = torch.device("cuda", target) if isinstance(target, int) else torch.device(target)
        if target.type == "cuda" and target.index is None:
            target = torch.device("cuda", 0)
        present = device_of(self)
        if target.type == "cpu" and present.type == "cpu":
            # On the CPU, be it only virtually.
            target = RAW_DEVICE(self)
        elif target.type == "cuda":
            if present.type == "cpu" and RAW_META(self) or present.type == "cuda" and present != target:
                kwargs["copy"] = True
        elif target.type == "cpu" and NOW.applying and present.type == "cuda":
            kwargs["copy"] = True  # a model that goes back to the CPU stays virtual
        raw = META if target.type == "cuda" or kwargs.get("copy") and RAW_META(self) else target
        if spot is None:
            kwargs["device"] = raw
        else:
            args[0] = raw
        before, NOW.want = NOW.want, target if raw is META else None
        try:
            if kwargs.get("copy") and len(args) >= 4:
                del args[3:]
            return original(self, *args, **kwargs)
        finally:
            NOW.want = before
    return moved


def with_device(original):
    """For functions that take data: they make it on the CPU first."""
    @functools.wraps(original)
    def made(*args, **kwargs):
        device = kwargs.pop("device", None)
        if device is None:
            return original(*args, **kwargs)
        device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if device.type != "cuda":
            return original(*args, device=device, **kwargs)
        grad = kwargs.pop("requires_grad", False)
        made = original(*args, device="cpu", **kwargs) if not isinstance(args[0], Tensor) else original(*args, **kwargs)
        return made.to(device).requires_grad_(grad) if grad else made.to(device)
    return made


def new_tensor(original):
    """On the GPU of a tensor and of its type, with numbers that stay known."""
    @functools.wraps(original)
    def made(self, data, dtype=None, device=None, requires_grad=False, **kwargs):
        if not RAW_META(self) or isinstance(data, Tensor) or kwargs:
            return original(self, data, dtype=dtype, device=device, requires_grad=requires_grad, **kwargs)
        made = torch.tensor(data, dtype=dtype or self.dtype, device=self.device if device is None else device)
        return made.requires_grad_(requires_grad)
    return made


def parameter(original):
    def new(cls, data=None, requires_grad=True):
        if type(data) is Tensor and not RAW_META(data) and data.device.type == "cpu" and data.dtype != torch.uint8:
            before, NOW.want = NOW.want, CPU
            try:
                data = TO(data.detach(), META)
            finally:
                NOW.want = before
        made = original(cls, data, requires_grad)
        LIVE_PARAMETERS.append(weakref.ref(made))
        return made
    return staticmethod(new)


LIVE_PARAMETERS = []
TO = Tensor.to


def count_model():
    """Parameters on the GPU, and those of them with gradients."""
    alive = {id(p): p for p in (ref() for ref in LIVE_PARAMETERS) if p is not None}
    here = [p for p in alive.values() if device_of(p).type == "cuda"]
    note_sharding()
    if here:
        LOG.end["parameters"] = sum(p.numel() for p in here)
        LOG.end["trainable"] = sum(p.numel() for p in here if p.requires_grad)


class Handle:
    """A stream, event or device guard that does nothing."""

    def __init__(self, *_args, **_kwargs):
        self.device, self.stream_id, self.cuda_stream, self.idx = torch.device("cuda", 0), 0, 0, 0

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        return False

    def elapsed_time(self, _other):
        return 1.0

    def query(self):
        return True

    def record_event(self, event=None):
        return event or Handle()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return answer()


def note_compilers():
    """Compilation is off here; the log says that the program asks for it."""
    def noted(original):
        def compile(model=None, *args, **kwargs):
            # Libraries compile functions of their own.
            if isinstance(model, torch.nn.Module) or not foreign(sys._getframe(1).f_code.co_filename):
                LOG.end["compiled"] = True
            return original(model, *args, **kwargs)
        return functools.wraps(original)(compile)

    patch(torch, "compile", noted)
    patch(torch.nn.Module, "compile", noted)


def note_sharding():
    """Whether FSDP wrapped a model: with one process it keeps everything."""
    names = ("torch.distributed.fsdp.fully_sharded_data_parallel", "torch.distributed.fsdp._fully_shard._fully_shard")
    found = (getattr(sys.modules.get(module), name, None)
             for module, name in zip(names, ("FullyShardedDataParallel", "FSDPModule")))
    classes = tuple(c for c in found if c is not None)
    if classes and any(issubclass(type(o), classes) for o in gc.get_objects()):
        LOG.end["sharded"] = True


def free_memory(total):
    """`mem_get_info`: programs decide by it how much they take."""
    def info(*_):
        # transformers makes room by it in advance, and takes no more than the model does.
        if sys._getframe(1).f_code.co_name != "caching_allocator_warmup":
            LOG.end["asks_free"] = True
            LOG.doubt("how much memory is free was answered with all that its own tensors leave")
        return max(total - LOG.live, 0), total
    return info


def fake_cuda(options):
    cuda = torch.cuda
    total = options.total_mib << 20
    LOG.room = total * options.gpus
    capability = tuple(int(n) for n in options.capability.split("."))
    properties = types.SimpleNamespace(
        name=options.gpu, major=capability[0], minor=capability[1], total_memory=total,
        multi_processor_count=132, max_threads_per_multi_processor=2048, warp_size=32,
        is_integrated=0, is_multi_gpu_board=0, gcnArchName="", regs_per_multiprocessor=65536,
        shared_memory_per_block_optin=232448, L2_cache_size=50 << 20, uuid="", shared_memory_per_block=49152,
        shared_memory_per_multiprocessor=233472,
    )
    stats = lambda *_: {
        "allocated_bytes.all.current": LOG.live, "allocated_bytes.all.peak": LOG.peak,
        "reserved_bytes.all.current": LOG.segments.reserved, "reserved_bytes.all.peak": LOG.most_reserved,
        "active_bytes.all.current": LOG.live, "active_bytes.all.peak": LOG.peak,
        "num_alloc_retries": 0, "num_ooms": 0,
    }
    rng = lambda *_: torch.zeros(16, dtype=torch.uint8)
    functions = dict(
        _lazy_init=answer(), init=answer(), is_available=answer(True), is_initialized=answer(True),
        device_count=answer(options.gpus), _device_count_nvml=answer(options.gpus),
        current_device=answer(0), set_device=answer(), synchronize=answer(), ipc_collect=answer(),
        get_device_name=answer(options.gpu), get_device_capability=answer(capability),
        get_device_properties=answer(properties), get_arch_list=answer(["sm_%d%d" % capability]),
        is_bf16_supported=answer(True), is_tf32_supported=answer(True), can_device_access_peer=answer(False),
        memory_allocated=lambda *_: LOG.live, max_memory_allocated=lambda *_: LOG.peak,
        memory_reserved=lambda *_: LOG.segments.reserved, max_memory_reserved=lambda *_: LOG.most_reserved,
        memory_cached=lambda *_: LOG.segments.reserved, max_memory_cached=lambda *_: LOG.most_reserved,
        mem_get_info=free_memory(total), memory_stats=stats,
        memory_summary=answer(""), memory_snapshot=answer([]), reset_peak_memory_stats=answer(),
        reset_max_memory_allocated=answer(), reset_max_memory_cached=answer(),
        reset_accumulated_memory_stats=answer(), set_per_process_memory_fraction=answer(),
        empty_cache=LOG.emptied, manual_seed=answer(), manual_seed_all=answer(), seed=answer(),
        seed_all=answer(), initial_seed=answer(0), get_rng_state=rng, set_rng_state=answer(),
        get_rng_state_all=lambda: [rng()], set_rng_state_all=answer(), utilization=answer(0),
        current_stream=Handle, default_stream=Handle, stream=Handle, set_stream=answer(), device=Handle,
        device_of=Handle, Stream=Handle, Event=Handle, is_current_stream_capturing=answer(False),
        current_blas_handle=answer(0),
    )
    for module in (cuda, cuda.memory, cuda.random):
        for name, f in functions.items():
            if module is cuda or hasattr(module, name):
                setattr(module, name, f)
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        patch(cuda.nvtx, name, lambda _: answer())
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None:
        for name, f in dict(
            is_available=answer(True), current_accelerator=answer(torch.device("cuda")),
            device_count=answer(options.gpus), current_device_index=answer(0), current_device_idx=answer(0),
            set_device_index=answer(), synchronize=answer(), current_stream=Handle, set_stream=answer(),
            empty_cache=LOG.emptied, memory_allocated=lambda *_: LOG.live,
            max_memory_allocated=lambda *_: LOG.peak, memory_reserved=lambda *_: LOG.segments.reserved,
            max_memory_reserved=lambda *_: LOG.most_reserved, memory_stats=stats, reset_peak_memory_stats=answer(),
            get_memory_info=free_memory(total),
        ).items():
            patch(accelerator, name, lambda _, f=f: f)
    if torch.version.cuda is None:
        torch.version.cuda = "12.8"


def fake_tensor_methods():
    Tensor.device = property(device_of)
    Tensor.is_cuda = property(lambda t: device_of(t).type == "cuda")
    Tensor.is_cpu = property(lambda t: device_of(t).type == "cpu")
    Tensor.is_meta = property(lambda t: device_of(t).type == "meta")
    global TO
    TO = Tensor.to
    patch(Tensor, "to", to)

    def cuda(_original):
        return lambda self, device=None, non_blocking=False, memory_format=None: self.to(
            torch.device("cuda", 0) if device is None else device
        )

    def cpu(original):
        def back(self, *args, **kwargs):
            return self.to("cpu") if RAW_META(self) else original(self, *args, **kwargs)
        return back

    def numbers(original):
        def made(self, *args, **kwargs):
            return original(to_cpu(self.detach()) if RAW_META(self) else self, *args, **kwargs)
        return made

    patch(Tensor, "cuda", cuda)
    patch(Tensor, "cpu", cpu)
    for name in ("numpy", "tolist", "__array__"):
        patch(Tensor, name, numbers)
    patch(Tensor, "pin_memory", lambda _: lambda self, *a, **k: self)
    patch(Tensor, "is_pinned", lambda _: answer(False))
    patch(Tensor, "record_stream", lambda _: answer())
    patch(Tensor, "share_memory_", lambda f: lambda self: self if RAW_META(self) else f(self))
    patch(Tensor, "get_device", lambda f: lambda self: 0 if self.is_cuda else f(self))
    patch(
        Tensor, "__repr__",
        lambda f: lambda self, **k: "tensor(..., size=%s, device='%s')" % (tuple(self.size()), self.device)
        if RAW_META(self) else f(self, **k),
    )

    def copied(original):
        def deep(self, memo):
            if not RAW_META(self) or type(self) is not Tensor:
                return original(self, memo)
            if id(self) not in memo:
                memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
            return memo[id(self)]
        return deep

    patch(Tensor, "__deepcopy__", copied)
    patch(Tensor, "new_tensor", lambda original: new_tensor(with_device(original)))
    patch(torch, "tensor", with_device)
    patch(torch, "as_tensor", with_device)
    patch(torch, "asarray", with_device)
    torch.nn.Parameter.__new__ = parameter(torch.nn.Parameter.__new__)

    class Generator(torch.Generator):
        def __new__(cls, device=None):
            return super().__new__(cls, "cpu")

    torch.Generator = Generator


class Replicate(torch.autograd.Function):
    """DataParallel's copies of the weights; on the first GPU they are the weights, their gradients are not."""

    @staticmethod
    def forward(ctx, *weights):
        ctx.save_for_backward(*weights)
        return tuple(w.view_as(w) for w in weights)

    @staticmethod
    def backward(ctx, *grads):
        return tuple(None if g is None else torch.empty_like(g) for g in grads)


def data_parallel(original):
    """The first GPU's share: its part of the batch, and the outputs of all."""
    def forward(self, *inputs, **kwargs):
        count = len(self.device_ids) or 1
        if count < 2:
            return original(self, *inputs, **kwargs)
        LOG.doubt("nn.DataParallel: traced for the first GPU")
        part = lambda t: t.chunk(count)[0] if t.dim() else t
        inputs, kwargs = map_tensors(inputs, part), map_tensors(kwargs, part)
        weights = dict(self.module.named_parameters())
        if torch.is_grad_enabled():
            weights = dict(zip(weights, Replicate.apply(*weights.values())))
        out = torch.func.functional_call(self.module, weights, inputs, kwargs)
        gather = lambda t: torch.cat([t if t.dim() else t[None]] + [t.detach() if t.dim() else t.detach()[None]] * (count - 1))
        return map_tensors(out, gather)
    return forward


class DataParallelProcess(torch.nn.Module):
    """DistributedDataParallel in a world of one: the buckets in which gradients are exchanged."""

    def __init__(self, module, *_args, gradient_as_bucket_view=False, **_kwargs):
        super().__init__()
        self.module, self.require_backward_grad_sync = module, True
        LOG.doubt("DistributedDataParallel: without NCCL's buffers, 200 to 1000 MiB with several GPUs")
        trained = [p for p in module.parameters() if p.requires_grad]
        size = sum(p.numel() * p.element_size() for p in trained)
        self.buckets = []
        while size > 0 and not gradient_as_bucket_view:
            piece = min(size, 25 << 20)
            self.buckets.append(torch.empty(piece, dtype=torch.uint8, device=trained[0].device))
            size -= piece

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def no_sync(self):
        return contextlib.nullcontext()


def fake_parallel():
    patch(torch.nn.DataParallel, "forward", data_parallel)
    dist = torch.distributed
    if not dist.is_available():
        return
    torch.nn.parallel.DistributedDataParallel = DataParallelProcess
    torch.nn.parallel.distributed.DistributedDataParallel = DataParallelProcess

    def init(original):
        def one(*_args, **_kwargs):
            if not dist.is_initialized():
                original("gloo", store=dist.HashStore(), rank=0, world_size=1)
        return one

    patch(dist, "init_process_group", init)
    done = types.SimpleNamespace(wait=answer(True), is_completed=answer(True))
    for name in ("all_reduce", "broadcast", "reduce", "barrier"):
        patch(dist, name, lambda _: answer(done))

    def gathered(_original):
        def all_gather(parts, tensor, *_args, **_kwargs):
            parts[0].copy_(tensor)
            return done
        return all_gather

    patch(dist, "all_gather", gathered)
