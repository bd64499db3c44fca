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
    {"format":"carma-trace","version":1,...}    first line: versions and platform
    a BYTES      a storage comes into being
    f N          the storage that came into being N allocations ago (0: the last) is let go of
    w THREAD     first matrix product on a thread: 0 forward, 1 backward (a cuBLAS workspace)
    c BYTES      a convolution with so many bytes of input, output and weight
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
import functools
import gzip
import importlib
import json
import math
import platform
import runpy
import signal
import sys
import sysconfig
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

Tensor = torch.Tensor
aten = torch.ops.aten
BASE = Tensor.__mro__[1]
RAW_DEVICE, RAW_META = BASE.device.__get__, BASE.is_meta.__get__
META, CPU = torch.device("meta"), torch.device("cpu")
# Numbers are kept of tensors up to this many bytes: integers and masks; and scalars of other types.
KNOWN_WHOLE, KNOWN_REAL = 1 << 21, 64


class Stop(BaseException):
    """Enough was seen. Not an Exception, so that scripts don't swallow it."""


class Log:
    """The events, and what `torch.cuda.memory_allocated` answers."""

    def __init__(self):
        self.file, self.next, self.live, self.peak = None, 0, 0, 0
        self.doubts, self.end = {}, {"steps": 0, "backwards": 0, "batch_sizes": []}
        self.threads = set()

    def open(self, path, header):
        if path == "-":
            self.file = sys.stdout
        else:
            # mtime=0: the same run gives the same bytes.
            self.file = (
                gzip.GzipFile(path, "wb", 9, mtime=0) if path.endswith(".gz") else open(path, "wb")
            )
            raw = self.file
            self.file = types.SimpleNamespace(
                write=lambda text: raw.write(text.encode()), close=raw.close, flush=raw.flush
            )
        self.write(json.dumps(header))

    def write(self, line):
        if self.file:
            self.file.write(line + "\n")

    def alloc(self, size):
        self.next += 1
        self.live += size
        self.peak = max(self.peak, self.live)
        self.write("a %d" % size)
        return self.next

    def free(self, number, size):
        self.live -= size
        # Counted backwards, so that equal layers look equal: the log compresses to a quarter.
        self.write("f %d" % (self.next - number))

    def gemm(self):
        thread = 1 if in_backward() else 0
        if thread not in self.threads:
            self.threads.add(thread)
            self.write("w %d" % thread)

    def convolution(self, size):
        self.write("c %d" % size)

    def doubt(self, what):
        key = what + (" (%s)" % (place() or "library"))
        self.doubts[key] = self.doubts.get(key, 0) + 1

    def close(self, **end):
        self.end.update(end)
        doubts = sorted(self.doubts.items(), key=lambda kv: -kv[1])
        self.end["doubts"] = ["%s, %d times" % kv if kv[1] > 1 else kv[0] for kv in doubts[:20]]
        self.write(json.dumps({"end": self.end}))
        if self.file and self.file is not sys.stdout:
            self.file.close()
        self.file = None


LOG = Log()
SEEN = {}  # storage -> Storage, for those on meta
KNOWN = {}  # storage -> the same bytes on the CPU, where they are known
INSIDE = 0  # within the dispatch mode: devices are what they are
APPLYING = 0  # within Module._apply: a whole model is moved
WANT = None  # device of the storages that the present call makes


class Storage:
    __slots__ = ("number", "size", "device", "ref")


def in_backward():
    try:
        return torch._C._current_graph_task_id() != -1
    except AttributeError:
        return False


STDLIB = sysconfig.get_path("stdlib")


def foreign(name):
    return (
        "site-packages" in name or "dist-packages" in name or name.startswith((STDLIB, "<"))
        or name == __file__
    )


def place():
    """Innermost line of the user's own code."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not foreign(name):
            return "%s:%d" % (os.path.basename(name), frame.f_lineno)
        frame = frame.f_back
    return None


def storage_key(t):
    return t.untyped_storage()._cdata


def device_of(t):
    """What the program believes; C++ knows `meta`."""
    raw = RAW_DEVICE(t)
    if INSIDE or raw.type != "meta":
        return raw
    try:
        seen = SEEN.get(storage_key(t))
    except (RuntimeError, NotImplementedError):
        return raw
    return seen.device if seen else raw


def forget(key, _):
    seen = SEEN.pop(key, None)
    KNOWN.pop(key, None)
    if seen is not None and seen.number is not None:
        LOG.free(seen.number, seen.size)


def register(t, device):
    """Notes the storage of a tensor on meta; true if it is new."""
    try:
        st = t.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return False
    key, size = st._cdata, st.nbytes()
    seen = SEEN.get(key)
    if seen is None:
        seen = Storage()
        seen.device, seen.size, seen.number = device, size, None
        seen.ref = weakref.ref(st, functools.partial(forget, key))
        SEEN[key] = seen
        if device.type == "cuda" and size:
            seen.number = LOG.alloc(size)
        return True
    if seen.size != size:  # resize_
        KNOWN.pop(key, None)
        if seen.number is not None:
            LOG.free(seen.number, seen.size)
        seen.size, seen.number = size, None
        if seen.device.type == "cuda" and size:
            seen.number = LOG.alloc(size)
    return False


def tensors(*values):
    found = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(tensors(*value))
    return found


def convert(value, change):
    if isinstance(value, Tensor):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)([convert(v, change) for v in value])
    return value


# --- numbers of small tensors -------------------------------------------------------------------


class Unknown(Exception):
    pass


def eligible(t):
    try:
        size = t.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError):
        return False
    return size <= (KNOWN_REAL if t.is_floating_point() or t.is_complex() else KNOWN_WHOLE)


def over(t, store):
    return torch.empty(0, dtype=t.dtype).set_(store, t.storage_offset(), t.size(), t.stride())


def real(t):
    """The tensor on the CPU, in the same bytes, if they are known."""
    if not RAW_META(t):
        return t
    store = KNOWN.get(storage_key(t))
    if store is None:
        raise Unknown
    return over(t, store)


def learn(t, value):
    """The new tensor on meta has these numbers."""
    store = torch.UntypedStorage(t.untyped_storage().nbytes())
    over(t, store).copy_(value)
    KNOWN[storage_key(t)] = store


def span(args):
    """How many values an index made by this operator may have."""
    if not args or not isinstance(args[0], Tensor) or args[0].dim() == 0:
        return 1
    dims = [a for a in args[1:] if isinstance(a, int) and not isinstance(a, bool)]
    dim = dims[-1] if dims and -args[0].dim() <= dims[-1] < args[0].dim() else -1
    return max(args[0].size(dim), 1)


def guess(t, name, args):
    """Plausible numbers: indices spread evenly, masks say yes only to `all`, other numbers are one."""
    if t.dtype == torch.bool:
        return torch.full(t.size(), name == "all")
    if t.is_floating_point() or t.is_complex():
        return torch.ones(t.size(), dtype=t.dtype)
    if name in ("topk", "argmax", "argmin", "sort", "argsort", "multinomial", "max", "min"):
        return (torch.arange(t.numel()) % span(args)).reshape(t.size()).to(t.dtype)
    return torch.zeros(t.size(), dtype=t.dtype)


def map_tensors(value, change):
    """Tensors in what programs pass around: tuples, dictionaries, outputs of transformers."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        mapped = {k: map_tensors(v, change) for k, v in value.items()}
        return mapped if type(value) is dict else type(value)(**mapped)
    if isinstance(value, (list, tuple)):
        parts = [map_tensors(v, change) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


WRITES = {}


def written(func, args, kwargs):
    spots = WRITES.get(func)
    if spots is None:
        spots = WRITES[func] = [
            (i, a.name) for i, a in enumerate(func._schema.arguments)
            if a.alias_info is not None and a.alias_info.is_write
        ]
    return tensors(*[args[i] if i < len(args) else kwargs.get(n) for i, n in spots]) if spots else []


OVERWRITES = ("copy_", "zero_", "fill_")
KEEPS = ("_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_")


def follow(func, name, args, kwargs, out, fresh):
    """Computes on the CPU what is small and known, and guesses what is small and not known."""
    changed = [t for t in written(func, args, kwargs) if RAW_META(t)]
    new = [t for t in fresh if eligible(t)]
    if not new and not any(storage_key(t) in KNOWN for t in changed):
        if not (name in OVERWRITES and changed and eligible(changed[0])):
            return
    if name in KEEPS:
        return
    if name in OVERWRITES and changed and storage_key(changed[0]) not in KNOWN and eligible(changed[0]):
        t = changed[0]
        if t.numel() * t.element_size() == t.untyped_storage().nbytes():
            KNOWN[storage_key(t)] = torch.UntypedStorage(t.untyped_storage().nbytes())
    try:
        if len(new) < len(fresh):
            raise Unknown
        here = dict(kwargs)
        if here.get("device") is not None:
            here["device"] = CPU
        result = func(*convert(args, real), **{k: convert(v, real) for k, v in here.items()})
        known = {id(a): b for a, b in zip(tensors(out), tensors(result))}
        for t in new:
            learn(t, known[id(t)])
    except Exception:
        for t in changed:
            KNOWN.pop(storage_key(t), None)
        for t in new:
            learn(t, guess(t, name, args))


def to_cpu(t):
    """A real tensor for one on meta: known numbers, or zeros that cost nothing."""
    try:
        return real(t).clone()
    except Unknown:
        return torch.zeros(t.size(), dtype=t.dtype)


# --- the dispatch mode ---------------------------------------------------------------------------

GEMMS = {"mm", "addmm", "bmm", "baddbmm", "addbmm", "_scaled_mm", "addmv", "mv", "_addmm_activation"}


def count_nonzero(mask):
    """Indices of a mask's true entries, on meta; all of them where the mask is unknown."""
    try:
        return [i.to(META) for i in real(mask).nonzero(as_tuple=True)]
    except Unknown:
        LOG.doubt("a mask's numbers are not known: all of its entries were taken")
        return [torch.empty(mask.numel(), dtype=torch.long, device=META) for _ in range(max(mask.dim(), 1))]


def by_mask(indices):
    """Masks among indices become indices, since their number decides the shape."""
    plain = []
    for index in indices:
        if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8):
            plain.extend(count_nonzero(index))
        else:
            plain.append(index)
    return plain


def scalar(t):
    try:
        return real(t).item()
    except Unknown:
        LOG.doubt("a number of a tensor on the GPU was asked for")
        return guess(t.reshape(-1)[:1], "item", ()).item()


def unique(t):
    try:
        return real(t)
    except Unknown:
        LOG.doubt("unique values of unknown numbers: all taken to differ")
        return torch.arange(t.numel()).reshape(t.size()).to(t.dtype)


def dynamic(name, func, args, kwargs):
    """Operators whose result depends on numbers. `None`: not one of them."""
    if name == "_local_scalar_dense":
        return scalar(args[0])
    if name == "equal":
        try:
            return func(real(args[0]), real(args[1]))
        except Unknown:
            return False
    if name == "nonzero":
        return torch.stack(count_nonzero(args[0]), 1) if args[0].dim() else torch.empty(1, 0, device=META)
    if name == "masked_select":
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        return torch.empty(len(count_nonzero(args[1].expand(shape))[0]), dtype=args[0].dtype, device=META)
    if name in ("_unique", "_unique2", "unique_dim", "unique_consecutive", "bincount", "histc"):
        result = func(unique(args[0]), *args[1:], **kwargs)
        return convert(result, lambda t: t.to(META))
    if name == "repeat_interleave" and len(args) == 1:
        try:
            size = kwargs.get("output_size") or int(real(args[0]).sum())
        except Unknown:
            LOG.doubt("repeat_interleave by unknown numbers: one each")
            size = args[0].numel()
        return torch.empty(size, dtype=args[0].dtype, device=META)
    if name == "nms":
        LOG.doubt("non-maximum suppression kept every box")
        return torch.empty(args[0].size(0), dtype=torch.long, device=META)
    return None


def without_kernel(func, args, kwargs, error):
    """An operator that meta does not know: in place ones make nothing, others run on zeros."""
    outs = written(func, args, kwargs)
    if outs and len(outs) >= len(func._schema.returns):
        returns = len(func._schema.returns)
        return None if returns == 0 else outs[0] if returns == 1 else tuple(outs[:returns])
    if sum(t.numel() for t in tensors(args, list(kwargs.values()))) > 1 << 24:
        raise error
    here = {k: CPU if isinstance(v, torch.device) else convert(v, to_cpu) for k, v in kwargs.items()}
    try:
        result = func(*convert(args, to_cpu), **here)
    except Exception:
        raise error from None
    return convert(result, lambda t: t.to(META))


class Record(TorchDispatchMode):
    def __torch_dispatch__(self, func, _types, args=(), kwargs=None):
        global INSIDE
        kwargs = kwargs or {}
        device = kwargs.get("device")
        given = tensors(args, list(kwargs.values()))
        virtual = [t for t in given if RAW_META(t)]
        if not virtual and (device is None or device.type == "cpu"):
            return func(*args, **kwargs)
        if torch.is_inference_mode_enabled():
            # Operators made of others arrive whole in inference mode.
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        INSIDE += 1
        try:
            return self.virtual(func, args, kwargs, device, given, virtual)
        finally:
            INSIDE -= 1

    def virtual(self, func, args, kwargs, device, given, virtual):
        name = func.overloadpacket.__name__
        where = WANT
        if device is not None and device.type == "cuda":
            where = where or device
            kwargs = dict(kwargs, device=META)
        elif device is not None and device.type == "cpu":
            if name in ("_to_copy", "to"):
                dtype = kwargs.get("dtype") or args[0].dtype
                return to_cpu(args[0]).to(dtype)
            return func(*args, **kwargs)
        elif where is None and device is not None and not virtual:
            where = META
        if where is None:
            places = [SEEN[k].device for k in map(storage_key, virtual) if k in SEEN]
            where = next((p for p in places if p.type == "cuda"), places[0] if places else META)
        if where.type == "cuda" and where.index is None:
            where = torch.device("cuda", 0)

        if name == "copy_" and not RAW_META(args[0]):
            args[0].copy_(to_cpu(args[1]))
            return args[0]
        if virtual and len(virtual) < len(given):
            # Indices and masks on the CPU are allowed beside CUDA tensors.
            def lift(t):
                if RAW_META(t) or t.dim() == 0:
                    return t
                virtual = t.to(META)
                if eligible(t):
                    register(virtual, CPU)
                    learn(virtual, t)
                return virtual
            original = args
            args = convert(args, lift)
            kwargs = {k: convert(v, lift) for k, v in kwargs.items()}
            if name in ("set_", "resize_"):
                args = original
        if name in ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"):
            args = (args[0], by_mask(args[1])) + tuple(args[2:])

        out = dynamic(name, func, args, kwargs)
        if out is None:
            try:
                out = func(*args, **kwargs)
            except NotImplementedError as error:
                out = without_kernel(func, args, kwargs, error)
        made = [t for t in tensors(out) if RAW_META(t)]
        fresh = [t for t in made if register(t, where)]
        if where.type == "cuda":
            if name in GEMMS:
                LOG.gemm()
            elif name == "convolution" or name == "convolution_backward":
                convolution(name, args, out)
        if fresh or func._schema.is_mutable:
            follow(func, name, args, kwargs, out, fresh)
        return out


def size_of(t):
    return t.numel() * t.element_size()


def convolution(name, args, out):
    groups = args[8] if name == "convolution" else args[9]
    if groups != 1:
        return  # depthwise kernels need no workspace
    if name == "convolution":
        LOG.convolution(size_of(args[0]) + size_of(args[1]) + size_of(out))
    else:
        LOG.convolution(sum(size_of(t) for t in args[:3]))


# --- what CUDA does differently ------------------------------------------------------------------


def autocasting():
    return torch.is_autocast_enabled()


def autocast_dtype():
    get = getattr(torch, "get_autocast_dtype", None)
    return get("cuda") if get else torch.get_autocast_gpu_dtype()


CASTS = {}


def cast(t, dtype):
    """As autocast does: weights once for as long as it is on."""
    if not (t.is_floating_point() and t.is_cuda and t.dtype != dtype and t.dtype != torch.float64):
        return t
    keep = (
        t.requires_grad and t.is_leaf and not t._is_view() and t.dtype == torch.float32
        and dtype != torch.float32 and torch.is_autocast_cache_enabled()
    )
    if not keep:
        return t.to(dtype)
    if id(t) not in CASTS:
        CASTS[id(t)] = (t, t.to(dtype))
    return CASTS[id(t)][1]


def lower(f):
    @functools.wraps(f)
    def wrapped(*args, **kwargs):
        if autocasting():
            dtype = autocast_dtype()
            args = convert(args, lambda t: cast(t, dtype))
            kwargs = {k: convert(v, lambda t: cast(t, dtype)) for k, v in kwargs.items()}
        return f(*args, **kwargs)
    return wrapped


def upper(f):
    @functools.wraps(f)
    def wrapped(*args, **kwargs):
        if not autocasting() or not args or not isinstance(args[0], Tensor):
            return f(*args, **kwargs)
        single = torch.float32
        args = convert(args, lambda t: cast(t, single))
        return f(*args, **{k: convert(v, lambda t: cast(t, single)) for k, v in kwargs.items()})
    return wrapped


def upper_dtype(f):
    """Autocast asks these for a result in 32 bits; half precision is converted within the kernel."""
    name = f.__name__

    @functools.wraps(f)
    def wrapped(*args, **kwargs):
        x = args[0] if args else kwargs.get("input")
        if not autocasting() or not isinstance(x, Tensor) or not x.is_cuda or not x.is_floating_point():
            return f(*args, **kwargs)
        if kwargs.get("dtype") is not None or x.dtype not in (torch.float16, torch.bfloat16):
            return f(*args, **kwargs)
        if name in ("softmax", "log_softmax") and x.dtype == torch.float16:
            dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
            return getattr(torch, "_" + name)(x, -1 if dim is None else dim, True)
        return f(*args, **dict(kwargs, dtype=torch.float32))
    return wrapped


def cross_entropy(original):
    @functools.wraps(original)
    def loss(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None,
             reduction="mean", label_smoothing=0.0):
        if not autocasting() or not input.is_cuda:
            return original(input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        if target.is_floating_point() or label_smoothing or input.dim() < 2:
            return original(input.float(), target, weight, size_average, ignore_index, reduce, reduction,
                            label_smoothing)
        return F.nll_loss(F.log_softmax(input, 1), target, weight, ignore_index=ignore_index, reduction=reduction)
    return loss


LOWER = (
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear matmul mm mv bmm addmm "
    "addmv addr addbmm baddbmm chain_matmul multi_dot einsum prelu __matmul__ __rmatmul__ bilinear"
).split()
UPPER = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow __pow__ softplus "
    "layer_norm native_layer_norm group_norm cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss "
    "hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss "
    "multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss "
    "binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp interpolate"
).split()
UPPER_DTYPE = "prod softmax log_softmax cumprod cumsum vector_norm matrix_norm sum".split()


class Attention(torch.autograd.Function):
    """Flash or memory-efficient attention: output and one number a row kept, no probabilities."""

    @staticmethod
    def forward(ctx, q, k, v, mask, flash):
        batch, heads, rows, _ = q.shape
        out = q.new_empty(batch, rows, heads, v.size(-1)).transpose(1, 2)
        rounded = rows if flash else -(-rows // 32) * 32
        sums = q.new_empty(batch, heads, rounded, dtype=torch.float32)
        ctx.flash = flash
        ctx.save_for_backward(q, k, v, mask, out, sums)
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, mask, out, sums = ctx.saved_tensors
        batch, heads, rows, dim = q.shape
        delta = torch.empty_like(sums)
        accumulated = bias = None
        if ctx.flash:
            accumulated = q.new_empty(
                batch, heads, -(-rows // 128) * 128, -(-dim // 32) * 32, dtype=torch.float32
            )
        grads = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        if ctx.needs_input_grad[3]:
            # For each sample and head, then summed over what the mask is shared by.
            bias = q.new_empty(batch, heads, rows, mask.size(-1)).sum_to_size(mask.shape)
        del delta, accumulated
        return grads + (bias, None)


def attention(original):
    @functools.wraps(original)
    def sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **kwargs):
        if autocasting():
            dtype = autocast_dtype()
            query, key, value = (cast(t, dtype) for t in (query, key, value))
            if attn_mask is not None and attn_mask.is_floating_point():
                attn_mask = cast(attn_mask, dtype)
        half = query.dtype in (torch.float16, torch.bfloat16)
        dim = query.size(-1)
        allowed = torch.backends.cuda
        flash = half and attn_mask is None and dim <= 256 and allowed.flash_sdp_enabled()
        efficient = dim % (8 if half else 4) == 0 and allowed.mem_efficient_sdp_enabled()
        same_heads = query.dim() == 4 and query.size(1) == key.size(1)
        if (
            not query.is_cuda or query.dim() != 4 or query.dtype == torch.float64
            or not (flash or (efficient and same_heads))
        ):
            return original(query, key, value, attn_mask, dropout_p, is_causal, **kwargs)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)
        if attn_mask is not None and attn_mask.size(-1) % 8:
            # The kernel reads rows of a multiple of eight.
            attn_mask = F.pad(attn_mask, [0, -attn_mask.size(-1) % 8])
        return Attention.apply(query, key, value, attn_mask, flash)
    return sdpa


def dropout(original):
    @functools.wraps(original)
    def fused(input, p=0.5, train=True, *rest, **kwargs):
        if input.is_cuda and train and 0 < p < 1 and input.numel():
            return torch.native_dropout(input, p, True)[0]
        return original(input, p, train, *rest, **kwargs)
    return fused


class RmsNorm(torch.autograd.Function):
    """The fused kernel of newer releases: one number a row kept."""

    @staticmethod
    def forward(ctx, x, weight, dims):
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[: x.dim() - dims], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, grad):
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), None if weight is None else torch.empty_like(weight), None


def rms_norm(original):
    def norm(input, normalized_shape, weight=None, eps=None):
        if not input.is_cuda:
            return original(input, normalized_shape, weight, eps)
        return RmsNorm.apply(input, weight, len(normalized_shape))
    return norm


class Recurrent(torch.autograd.Function):
    """cuDNN's recurrent layers: output, last states, and a reserve space for the backward pass."""

    @staticmethod
    def forward(ctx, train, gates, layers, directions, states, x, *tensors):
        hidden = tensors[0].size(-1)
        width = hidden * directions
        out = x.new_empty(x.shape[:-1] + (width,))
        last = tuple(torch.empty_like(s) for s in tensors[:states])
        # Gates and states of every step, cell and layer.
        reserve = x.new_empty(x.numel() // x.size(-1) * width * layers * (gates + 2)) if train else None
        LOG.gemm()
        ctx.save_for_backward(x, out, reserve, *tensors)
        return (out,) + last

    @staticmethod
    def backward(ctx, *grads):
        x, _out, _reserve, *rest = ctx.saved_tensors
        LOG.gemm()
        needed = ctx.needs_input_grad[5:]
        return (None,) * 5 + tuple(torch.empty_like(t) if n else None for t, n in zip([x] + rest, needed))


def recurrent(original, gates):
    @functools.wraps(original)
    def cell(input, *args):
        if not input.is_cuda:
            return original(input, *args)
        packed = isinstance(args[2], (list, tuple))
        hx, weights, _bias, layers, _dropout, train, both = args[1:8] if packed else args[:7]
        states = list(hx) if isinstance(hx, (list, tuple)) else [hx]
        inputs = [input] + states + list(weights)
        if autocasting():
            inputs = [cast(t, autocast_dtype()) for t in inputs]
        return Recurrent.apply(train, gates, layers, 2 if both else 1, len(states), *inputs)
    return cell


def to(original):
    @functools.wraps(original)
    def moved(self, *args, **kwargs):
        global WANT
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
        if target is None or INSIDE:
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
        elif target.type == "cpu" and APPLYING and present.type == "cuda":
            kwargs["copy"] = True  # a model that goes back to the CPU stays virtual
        raw = META if target.type == "cuda" or kwargs.get("copy") and RAW_META(self) else target
        if spot is None:
            kwargs["device"] = raw
        else:
            args[0] = raw
        before, WANT = WANT, target if raw is META else None
        try:
            if kwargs.get("copy") and len(args) >= 4:
                del args[3:]
            return original(self, *args, **kwargs)
        finally:
            WANT = before
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


def parameter(original):
    def new(cls, data=None, requires_grad=True):
        global WANT
        if type(data) is Tensor and not RAW_META(data) and data.device.type == "cpu" and data.dtype != torch.uint8:
            before, WANT = WANT, CPU
            try:
                data = TO(data.detach(), META)
            finally:
                WANT = before
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
    if here:
        LOG.end["parameters"] = sum(p.numel() for p in here)
        LOG.end["trainable"] = sum(p.numel() for p in here if p.requires_grad)


def patch(owner, name, make):
    """Puts something in the place of a function, where this release has it."""
    original = getattr(owner, name, None)
    if original is None:
        return
    try:
        setattr(owner, name, make(original))
    except (TypeError, AttributeError):
        pass


def answer(value=None):
    """A function of its own each time: torch._dynamo wants to tell them apart."""
    return lambda *_args, **_kwargs: value


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


def fake_cuda(options):
    cuda = torch.cuda
    total = options.total_mib << 20
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
        "reserved_bytes.all.current": LOG.live, "reserved_bytes.all.peak": LOG.peak,
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
        memory_reserved=lambda *_: LOG.live, max_memory_reserved=lambda *_: LOG.peak,
        memory_cached=lambda *_: LOG.live, max_memory_cached=lambda *_: LOG.peak,
        mem_get_info=lambda *_: (max(total - LOG.live, 0), total), memory_stats=stats,
        memory_summary=answer(""), memory_snapshot=answer([]), reset_peak_memory_stats=answer(),
        reset_max_memory_allocated=answer(), reset_max_memory_cached=answer(),
        reset_accumulated_memory_stats=answer(), set_per_process_memory_fraction=answer(),
        empty_cache=lambda: LOG.write("e"), manual_seed=answer(), manual_seed_all=answer(), seed=answer(),
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
            empty_cache=lambda: LOG.write("e"), memory_allocated=lambda *_: LOG.live,
            max_memory_allocated=lambda *_: LOG.peak, memory_reserved=lambda *_: LOG.live,
            max_memory_reserved=lambda *_: LOG.peak, memory_stats=stats, reset_peak_memory_stats=answer(),
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
    patch(Tensor, "new_tensor", with_device)
    patch(torch, "tensor", with_device)
    patch(torch, "as_tensor", with_device)
    patch(torch, "asarray", with_device)
    torch.nn.Parameter.__new__ = parameter(torch.nn.Parameter.__new__)

    class Generator(torch.Generator):
        def __new__(cls, device=None):
            return super().__new__(cls, "cpu")

    torch.Generator = Generator


def fake_kernels():
    owners = [torch, F, torch._C._nn, torch._VF, Tensor, torch.linalg]
    for owner in owners:
        for name in LOWER:
            patch(owner, name, lower)
        for name in UPPER:
            patch(owner, name, upper)
        for name in UPPER_DTYPE:
            patch(owner, name, upper_dtype)
    for owner in (torch, torch._VF):
        patch(owner, "dropout", dropout)
        for name, gates in (("lstm", 4), ("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1)):
            patch(owner, name, lambda f, gates=gates: recurrent(f, gates))
    for owner in (F, torch._C._nn):
        patch(owner, "scaled_dot_product_attention", attention)
    patch(F, "cross_entropy", cross_entropy)
    if hasattr(aten, "_fused_rms_norm"):
        for owner in (torch, F):
            patch(owner, "rms_norm", rms_norm)
    patch(torch, "_use_cudnn_rnn_flatten_weight", lambda _: answer(False))
    patch(torch, "clear_autocast_cache", lambda f: lambda: (CASTS.clear(), f())[1])
    if hasattr(torch.backends, "mha"):
        torch.backends.mha.set_fastpath_enabled(False)

    def grouped(original):
        def groups(*args, **kwargs):
            found = original(*args, **kwargs)
            change = lambda d: torch.device("cuda", 0) if d is not None and d.type == "meta" else d
            return {(change(d), t): v for (d, t), v in found.items()}
        return groups

    patch(torch._C, "_group_tensors_by_device_and_dtype", grouped)
    patch(torch, "compile", lambda _: lambda model=None, **k: model if model is not None else (lambda f: f))


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


# --- running a program ---------------------------------------------------------------------------

BATCHES = 3  # of a data loader, and optimizer steps
MOST_BATCHES = 512  # of a data loader whose program steps rarely (accumulated gradients)


class Run:
    """What the program did so far, and when it is enough."""

    def __init__(self):
        self.steps, self.backwards, self.loaders, self.stopped = 0, 0, 0, False

    def stepped(self, *_):
        self.steps += 1
        if self.steps == 1:
            count_model()
            no_checkpoints()
        LOG.write("m forward")
        # A program without a loader has no next epoch at which to stop.
        if self.steps >= BATCHES and not self.loaders:
            self.enough()

    def enough(self, *why):
        self.stopped = True
        count_model()
        raise Stop(*why)

    def before_backward(self):
        self.backwards += 1
        LOG.write("m backward")


RUN = Run()


def cut(original):
    """Three batches of an epoch and the partial one at its end."""
    def batches(loader):
        if RUN.steps >= BATCHES and getattr(loader, "_carma_done", False):
            RUN.enough()
        RUN.loaders += 1
        steps, backwards, count = RUN.steps, RUN.backwards, 0
        size, _ = batch_of(loader)
        if size and size not in LOG.end["batch_sizes"]:
            LOG.end["batch_sizes"].append(size)
        for batch in original(loader):
            count += 1
            LOG.write("m batch")
            yield batch
            training = RUN.backwards > backwards
            if count >= BATCHES and (not training or RUN.steps - steps >= BATCHES or count >= MOST_BATCHES):
                break
        last = partial_batch(loader, count)
        if last is not None:
            LOG.write("m batch")
            yield last
        loader.__dict__["_carma_done"] = True
    return batches


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


# Checkpoints of libraries: a dry run leaves none behind.
SAVERS = (
    ("transformers.modeling_utils", "PreTrainedModel", "save_pretrained"),
    ("transformers.trainer", "Trainer", "_save_checkpoint"),
    ("transformers.trainer", "Trainer", "save_model"),
    ("accelerate.accelerator", "Accelerator", "save_state"),
    ("lightning.pytorch.trainer.trainer", "Trainer", "save_checkpoint"),
    ("pytorch_lightning.trainer.trainer", "Trainer", "save_checkpoint"),
    ("safetensors.torch", None, "save_file"),
)


def no_checkpoints():
    for module, owner, name in SAVERS:
        found = sys.modules.get(module)
        if found is not None:
            patch(getattr(found, owner, None) if owner else found, name, lambda _: answer())


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
    optimizer.register_optimizer_step_post_hook(lambda *_: RUN.stepped())

    def backward(original):
        def run(*args, **kwargs):
            RUN.before_backward()
            return original(*args, **kwargs)
        return run

    patch(torch.autograd, "backward", backward)
    # A dry run leaves no checkpoints behind.
    saved = {}
    name_of = lambda f: f if isinstance(f, str) else str(getattr(f, "name", f))
    torch.save = lambda obj, f, *_, **__: saved.__setitem__(name_of(f), obj)

    def load(original):
        def from_memory(f, map_location=None, *args, **kwargs):
            if name_of(f) in saved:
                return saved[name_of(f)]
            return original(f, "cpu", *args, **kwargs)
        return from_memory

    patch(torch, "load", load)


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
            global APPLYING
            APPLYING += 1
            try:
                return original(self, *args, **kwargs)
            finally:
                APPLYING -= 1
        return apply

    patch(torch.nn.Module, "_apply", applying)


def install(options):
    without_dynamo(Record, TorchDispatchMode, torch.optim.Optimizer, torch.utils.checkpoint, torch.autograd.function)
    fake_cuda(options)
    fake_tensor_methods()
    fake_kernels()
    fake_loader()
    hook_training()
    watch_models()
    fake_parallel()


TOLD = ("batch_size", "seq_len", "samples", "shape", "optimizer", "precision", "mode", "channels_last", "gpus")


def header(options, what):
    return {
        "format": "carma-trace", "version": 1, "ids": "counted", "torch": torch.__version__, "python": platform.python_version(),
        "device": "meta", "gpu": options.gpu, "what": what,
        "options": {k: v for k, v in vars(options).items() if k in TOLD and v},
        "arguments": json.loads(os.environ.get("CARMA_TRACE_ARGUMENTS", "{}")),
    }


def why(error):
    """What failed, in the words of the error, and the user's line."""
    line = None
    for frame in traceback.extract_tb(error.__traceback__):
        if not foreign(frame.filename):
            line = "%s:%s" % (os.path.basename(frame.filename), frame.lineno)
    text = "%s: %s" % (type(error).__name__, str(error).strip().split("\n")[0][:200] or "no message")
    return "%s at %s" % (text, line) if line else text


def recorded(options, what, body):
    """Runs `body` under the mode and closes the log; returns the exit code."""
    LOG.open(options.out, header(options, what))
    began, status, reason, code = time.time(), "complete", None, 0

    def ended(*_):
        RUN.enough("timeout")

    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, ended)
    if options.timeout:
        signal.alarm(options.timeout)
    try:
        with Record():
            body()
    except Stop as stop:
        if stop.args:
            status, reason = "partial", "stopped after %d s and %d optimizer steps" % (
                time.time() - began, RUN.steps)
    except SystemExit as leave:
        if leave.code not in (None, 0):
            status, reason = "failed", "the program left with exit code %s" % leave.code
    except KeyboardInterrupt:
        status, reason = "partial", "interrupted"
    except BaseException as error:
        if RUN.stopped:
            pass  # what the program says to being stopped
        elif RUN.steps >= BATCHES:
            # All of a training loop has been seen.
            LOG.doubt("after %d optimizer steps: %s" % (RUN.steps, why(error)))
        else:
            status, reason = "failed", why(error)
            traceback.print_exc()
    signal.alarm(0)
    if status == "complete" and LOG.next == 0:
        status, reason = "failed", "the program put nothing on a GPU"
    if "parameters" not in LOG.end:
        count_model()
    LOG.close(
        status=status, reason=reason, steps=RUN.steps, backwards=RUN.backwards,
        cudnn_benchmark=bool(torch.backends.cudnn.benchmark), allocated=LOG.peak,
    )
    if status == "failed":
        print("carma: the dry run failed: %s" % reason, file=sys.stderr)
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
    return recorded(options, " ".join(words), body)


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
    """Three steps, with variables re-assigned as scripts do."""
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
    sizes = [None] * BATCHES
    if options.samples and options.batch_size and options.samples % options.batch_size:
        # An epoch ends with a smaller batch, and another begins.
        sizes += [options.samples % options.batch_size, None]
    for size in sizes:
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
        RUN.loaders = 1  # three steps, then the end of `train`
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
