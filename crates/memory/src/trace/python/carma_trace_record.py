"""What the tracer records: storages on `meta`, numbers of small tensors, and the dispatch mode that sees both."""

import functools
import gzip
import json
import mmap
import os
import sys
import sysconfig
import types
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from carma_trace_reserved import Segments

Tensor = torch.Tensor
aten = torch.ops.aten
BASE = Tensor.__mro__[1]
OPEN = open  # before anything is put in its place
RAW_DEVICE, RAW_META = BASE.device.__get__, BASE.is_meta.__get__
META, CPU = torch.device("meta"), torch.device("cpu")
# Numbers are kept of tensors up to this many bytes: integers and masks; scalars of other types; and what is calculated
# of these alone, as positions are that a program converts.
KNOWN_WHOLE, KNOWN_REAL, KNOWN_DERIVED = 1 << 21, 64, 1 << 16


class Stop(BaseException):
    """Enough was seen. Not an Exception, so that scripts don't swallow it."""


def whole(f):
    """A signal does not stop this in the middle: a line would be missing, and what is counted would be off by one."""
    @functools.wraps(f)
    def run(*args):
        before, LOG.busy = LOG.busy, True
        try:
            return f(*args)
        finally:
            LOG.busy = before
    return run


class Log:
    """The events, and what `torch.cuda.memory_allocated` answers."""

    FLUSH = 20000  # lines after which the next point in the run is on the disk, should the process be killed

    def __init__(self):
        self.file, self.next, self.live, self.peak = None, 0, 0, 0
        self.busy, self.stop, self.unflushed = False, None, 0
        self.doubts = {}
        self.end = {"steps": 0, "backwards": 0, "batch_sizes": [], "train_batch_sizes": [], "started": []}
        # Whether this is a forked process, and whether others than the first may have worked on a GPU: all can say so.
        self.forked, self.elsewhere = False, mmap.mmap(-1, 1)
        self.threads = set()
        self.segments, self.most_reserved = Segments(), 0
        self.room = None  # bytes of all GPUs

    def is_forked(self):
        self.forked = True

    def open(self, path, header):
        os.register_at_fork(after_in_child=self.is_forked)
        if path == "-":
            self.file = sys.stdout
        else:
            # mtime=0: the same run gives the same bytes.
            self.file = (
                gzip.GzipFile(path, "wb", 9, mtime=0) if path.endswith(".gz") else OPEN(path, "wb")
            )
            raw = self.file
            self.file = types.SimpleNamespace(
                write=lambda text: raw.write(text.encode()), close=raw.close, flush=raw.flush
            )
            descriptor = raw.fileno()
            # What a child process has in its copy of the buffer is not to be written twice.
            os.register_at_fork(after_in_child=lambda: os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor))
        self.write(json.dumps(header))
        self.file.flush()  # the tracer has begun, however the program ends

    @whole
    def write(self, line):
        if self.file:
            self.file.write(line + "\n")
            self.unflushed += 1
            if line[0] == "m" and self.unflushed > self.FLUSH:
                self.unflushed = 0
                self.file.flush()

    def asked_to_stop(self, why):
        """By a signal: at once, or before the next operator where something is being noted."""
        self.stop = self.stop or why
        if not self.busy:
            raise Stop(self.stop)

    def alloc(self, size):
        if self.forked:
            self.elsewhere[0] = 1
        self.next += 1
        self.live += size
        self.peak = max(self.peak, self.live)
        self.write("a %d" % size)
        block = self.segments.take(size)
        self.most_reserved = max(self.most_reserved, self.segments.reserved)
        if self.room and self.live > self.room:
            self.asked_to_stop("stopped at %s, where tensors alone took more than the GPU has," % (place() or "a library"))
        return self.next, block

    def free(self, number, size):
        number, block = number
        self.live -= size
        self.segments.give_back(block)
        # Counted backwards, so that equal layers look equal: the log compresses to a quarter.
        self.write("f %d" % (self.next - number))

    def gemm(self):
        thread = 1 if in_backward() else 0
        if thread not in self.threads:
            self.threads.add(thread)
            self.write("w %d" % thread)

    def emptied(self):
        self.write("e")
        self.segments.empty()

    def doubt(self, what):
        key = what + (" (%s)" % (place() or "library"))
        self.doubts[key] = self.doubts.get(key, 0) + 1

    def close(self, **end):
        self.end.update(end)
        doubts = sorted(self.doubts.items(), key=lambda kv: -kv[1])
        self.end["doubts"] = ["%s, %d times" % kv if kv[1] > 1 else kv[0] for kv in doubts[:20]]
        self.end["untraced"] = self.elsewhere[0] > 0
        self.write(json.dumps({"end": self.end}))
        if self.file and self.file is not sys.stdout:
            self.file.close()
        self.file = None


LOG = Log()
SEEN = {}  # storage -> Storage, for those on meta
KNOWN = {}  # storage -> the same bytes on the CPU, where they are known
GUESSED = set()  # storages whose numbers are guesses, or made of guesses
# inside: within the dispatch mode, where devices are what they are. applying: within Module._apply, where a
# whole model is moved. want: device of the storages that the present call makes.
NOW = types.SimpleNamespace(inside=0, applying=0, want=None)


class Storage:
    __slots__ = ("number", "size", "device", "ref", "node")  # number: of the allocation, and its block; node: at whose work


def in_backward():
    try:
        return torch._C._current_graph_task_id() != -1
    except AttributeError:
        return False


STDLIB = sysconfig.get_path("stdlib")


def foreign(name):
    return (
        "site-packages" in name or "dist-packages" in name or name.startswith((STDLIB, "<"))
        or os.path.basename(name).startswith("carma_trace")
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
    if NOW.inside or raw.type != "meta":
        return raw
    try:
        seen = SEEN.get(storage_key(t))
    except (RuntimeError, NotImplementedError):
        return raw
    return seen.device if seen else raw


@whole
def forget(key, _):
    seen = SEEN.pop(key, None)
    KNOWN.pop(key, None)
    GUESSED.discard(key)
    if seen is not None and seen.number is not None:
        LOG.free(seen.number, seen.size)


@whole
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
        seen.device, seen.size, seen.number, seen.node = device, size, None, node_at_work()
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


def eligible(t, derived=False):
    try:
        size = t.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError):
        return False
    if t.is_floating_point() or t.is_complex():
        return size <= (KNOWN_DERIVED if derived else KNOWN_REAL)
    return size <= KNOWN_WHOLE


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
KEEPS = ("_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_", "set_")  # no number changes


def follow(func, name, args, kwargs, out, fresh):
    """Computes on the CPU what is small and known, and guesses what is small and not known."""
    changed = [t for t in written(func, args, kwargs) if RAW_META(t)]
    given = [storage_key(t) for t in tensors(args, list(kwargs.values())) if RAW_META(t)]
    sure = all(key in KNOWN and key not in GUESSED for key in given)
    new = [t for t in fresh if eligible(t, bool(given) and sure)]
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
        new, sure = [t for t in new if eligible(t)], False
        for t in new:
            learn(t, guess(t, name, args))
    if not sure:
        GUESSED.update(storage_key(t) for t in new + changed)


def to_cpu(t):
    """A real tensor for one on meta: known numbers, or zeros that cost nothing."""
    try:
        return real(t).clone()
    except Unknown:
        return torch.zeros(t.size(), dtype=t.dtype)


# --- the dispatch mode ---------------------------------------------------------------------------



def dense(t):
    """No gaps, no element twice, in whatever order of the dimensions."""
    expected = 1
    for stride, size in sorted((s, n) for n, s in zip(t.size(), t.stride()) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def references(t):
    """Those to the tensor, and those to its storage; `None` where this release does not tell."""
    try:
        return t._use_count(), torch._C._storage_Use_Count(storage_key(t))
    except AttributeError:
        return None


def node_at_work():
    """What the engine runs now, by its number; `None` outside of a backward pass."""
    try:
        node = torch._C._current_autograd_node()
        return None if node is None else node._sequence_nr()
    except AttributeError:
        return None


def accumulates(t):
    """Whether this sum is the engine's own, of two gradients of one tensor, and not part of a formula.

    The node whose result is added last is still at work then. What its formula adds it has made itself; what the
    engine has kept comes from a node before, or the node's results go to one place, as those of `x * x`.
    """
    now = node_at_work()
    if now is None or not in_backward() or torch.is_grad_enabled():
        return False
    seen = SEEN.get(storage_key(t))
    if seen is None or seen.node != now:
        return True
    edges = [(f._sequence_nr(), f.name(), i) for f, i in torch._C._current_autograd_node().next_functions if f is not None]
    return len(set(edges)) < len(edges)


class Alone(TorchDispatchMode):
    """Learns how many references the first of two summed gradients has when nobody but the engine holds it."""

    counts = None

    def __torch_dispatch__(self, func, _types, args=(), kwargs=None):
        if func is aten.add.Tensor and in_backward():
            Alone.counts = references(args[0])
        return func(*args, **(kwargs or {}))


def learn_references():
    with torch.enable_grad(), Alone():
        x = torch.empty(2, device=META, requires_grad=True)
        y = x * 2
        (torch.exp(y) * torch.tanh(y)).sum().backward()


def in_place(func, args):
    """The engine adds to a gradient that only it holds in place, but for one thing: not under a dispatch mode.

    The conditions are those of PyTorch's input buffer (torch/csrc/autograd/input_buffer.cpp).
    """
    return (
        func is aten.add.Tensor and Alone.counts is not None and references(args[0]) == Alone.counts
        and dense(args[0]) and accumulates(args[0])
    )


GEMMS = {"mm", "addmm", "bmm", "baddbmm", "addbmm", "_scaled_mm", "addmv", "mv", "_addmm_activation"}


def count_nonzero(mask):
    """Indices of a mask's true entries, on meta; all of them where the mask is unknown or rests on a guess."""
    try:
        if RAW_META(mask) and storage_key(mask) in GUESSED:
            raise Unknown
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
        given = unique(args[0])
        if name == "histc" and not given.is_floating_point():
            given = given.float()  # the CPU has no kernel for whole numbers
        result = func(given, *args[1:], **kwargs)
        return convert(result, lambda t: t.to(META))
    if name == "repeat_interleave" and len(args) == 1:
        try:
            size = kwargs.get("output_size") or int(real(args[0]).sum())
        except Unknown:
            LOG.doubt("repeat_interleave by unknown numbers: one each")
            size = args[0].numel()
        return torch.empty(size, dtype=args[0].dtype, device=META)
    if name == "_ctc_loss":
        # Sums over the paths through targets with a blank around each.
        steps, batch = args[0].shape[:2]
        longest = args[1].size(1) if args[1].dim() == 2 else -(-args[1].numel() // max(batch, 1))
        return args[0].new_empty(batch), args[0].new_empty(batch, steps, 2 * longest + 1)
    if name == "_ctc_loss_backward":
        return torch.empty_like(args[1])
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


def in_single(func, args, kwargs):
    """torchvision's operators under autocast: they calculate in 32 bits and answer in the type of the first tensor.

    Autocast has that for CUDA tensors alone, and these are given features in 16 bits and boxes in 32.
    """
    to = lambda kind: lambda t: t.to(kind) if t.is_floating_point() else t
    single = convert(args, to(torch.float32))  # let go of after the answer, as there
    return convert(func(*single, **kwargs), to(args[0].dtype))


COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


class Record(TorchDispatchMode):
    def __torch_dispatch__(self, func, _types, args=(), kwargs=None):
        if LOG.stop:
            raise Stop(LOG.stop)  # asked for at a moment when it could not be, or swallowed by the program
        kwargs = kwargs or {}
        device = kwargs.get("device")
        given = tensors(args, list(kwargs.values()))
        virtual = [t for t in given if RAW_META(t)]
        if not virtual and (device is None or device.type == "cpu"):
            return func(*args, **kwargs)
        if torch.is_inference_mode_enabled():
            # Operators made of others arrive whole in inference mode. As the GPU's library takes them apart: what is written
            # in Python for compilers makes many more tensors, e.g. of interpolation.
            if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), COMPOSITE):
                with self:
                    return func._op_dk(COMPOSITE, *args, **kwargs)
        if func.namespace == "torchvision" and len({t.dtype for t in virtual if t.is_floating_point()}) > 1:
            with self:
                return in_single(func, args, kwargs)
        NOW.inside += 1
        try:
            return self.virtual(func, args, kwargs, device, given, virtual)
        finally:
            NOW.inside -= 1

    def virtual(self, func, args, kwargs, device, given, virtual):
        name = func.overloadpacket.__name__
        where = NOW.want
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
        if in_place(func, args):
            func, name = aten.add_.Tensor, "add_"

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


def convolution(name, args, out):
    """The sizes of a convolution: carma knows what cuDNN takes for it beside its tensors."""
    if name == "convolution":
        (x, weight), y, more = args[:2], out, args[3:9]
        passes = "f"
    else:
        (y, x, weight), more = args[:3], args[4:10]
        passes = "".join(letter for letter, asked in zip("dw", args[10]) if asked)
    stride, _padding, dilation, transposed, _more, groups = more
    last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    sizes = " ".join(",".join(map(str, t.shape)) for t in (x, weight, y))
    for letter in passes:
        LOG.write("v %s %d %d %d %d %d %d %s" % (
            letter, x.element_size(), last, transposed, groups, max(stride), max(dilation), sizes))


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
