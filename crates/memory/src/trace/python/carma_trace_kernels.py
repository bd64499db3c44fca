"""What CUDA's kernels do differently from those of `meta`: autocast, attention, dropout, recurrent layers."""

import functools

import torch
import torch.nn.functional as F

from carma_trace_record import LOG, Tensor, answer, aten, convert, patch

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
        and not torch.is_inference_mode_enabled()  # there each use converts the weight again
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
        # It asks log_softmax for the type of its input, so that autocast leaves that; nll_loss gets 32 bits.
        logarithms = torch.log_softmax(input, 1, dtype=input.dtype)
        return F.nll_loss(logarithms, target, weight, ignore_index=ignore_index, reduction=reduction)
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
            # For each sample and head, in rows of a multiple of sixteen.
            columns = mask.size(-1)
            bias = q.new_empty(batch, heads, rows, -(-columns // 16) * 16)[..., :columns]
        if not ctx.flash:
            # As seen on an H200: in 32 bits the product of gradient and output for a moment, then tiles of 64 rows
            # in which the gradient of q is summed, each with a lock.
            if q.dtype == torch.float32:
                torch.empty_like(out)
            tiles = -(-rows // 64) * (64 * (-(-dim // 64) * 64) * 4 + 16)
            accumulated = torch.empty(batch * heads * tiles, dtype=torch.uint8, device=q.device)
        del accumulated
        if bias is not None:
            bias = bias.sum_to_size(mask.shape)  # over what the mask is shared by
        del delta
        return grads + (bias, None)


def attention_by_parts(query, key, value, mask, dropout_p, is_causal, scale):
    """Where no fused kernel takes the tensors: probabilities are kept, and half precision is calculated in 32 bits."""
    kind = query.dtype
    scale = (query.size(-1) ** -0.5 if scale is None else scale) ** 0.5
    if kind in (torch.float16, torch.bfloat16):
        query, key, value = query.float(), key.float(), value.float()
        mask = None if mask is None else mask.float()
    scores = torch.matmul(query * scale, key.transpose(-2, -1) * scale)
    if is_causal:
        mask = torch.zeros(scores.shape[-2:], dtype=scores.dtype, device=scores.device)
    if mask is not None:
        scores.add_(mask)
    shares = torch.softmax(scores, -1)
    if mask is not None:
        torch.empty_like(scores, dtype=torch.bool)  # which rows have nothing to look at
    del scores
    return torch.matmul(torch.dropout(shares, dropout_p, dropout_p > 0), value).to(kind)


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
        if attn_mask is not None and attn_mask.size(-1) > 1 and attn_mask.stride(-1) != 1:
            efficient = False  # T5's bias lies head by head
        if not query.is_cuda or query.dim() != 4 or query.dtype == torch.float64:
            return original(query, key, value, attn_mask, dropout_p, is_causal, **kwargs)
        if not (flash or efficient) and same_heads:
            if attn_mask is not None and attn_mask.dtype == torch.bool:
                attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)
            # Autocast has done its part.
            with torch.autocast("cuda", enabled=False):
                return attention_by_parts(
                    query, key, value, attn_mask, dropout_p, is_causal, kwargs.get("scale")
                )
        if not (flash or (efficient and same_heads)):
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


# Of a recurrent layer, however small, bytes.
WORKSPACE = 18 << 20


class Recurrent(torch.autograd.Function):
    """cuDNN's recurrent layers: output, last states, a reserve space for the backward pass, and workspaces while they run.

    Sizes are those of 2,000 layers measured on an H200 (`bench/h200/recurrent_workspaces.py`): the reserve space to 1 %,
    workspaces to some 20 %.
    """

    @staticmethod
    def forward(ctx, train, gates, layers, directions, states, first, x, *tensors):
        width = tensors[0].size(-1) * directions
        out = x.new_empty(x.shape[:-1] + (width,))
        last = tuple(torch.empty_like(s) for s in tensors[:states])
        weights, between = sum(t.numel() for t in tensors[states:]), out.numel() * (layers - 1)
        # cuDNN's weights lie in one piece. PyTorch does not keep those in bf16 so: they are copied at each call.
        one_piece = weights if x.dtype == torch.bfloat16 and not autocasting() else 0
        reserve = None
        if train:
            # LSTM: four gates and a state; GRU: three gates, and three more. Between layers, what goes from one to the next.
            kept = {4: 5, 3: 6}.get(gates, 1)
            reserve = x.new_empty(out.numel() * layers * kept + between + one_piece)
            workspace = 3.8 * out.numel() + (3.0 + 1.6 * first) * x.numel() + 1.2 * weights + 0.9 * between
        else:
            workspace = (1.5 + 0.63 * gates) * out.numel() + (1.25 + 1.3 * first) * x.numel() + 1.2 * weights + 1.1 * between
            workspace += one_piece
        ctx.workspace = int(workspace) + WORKSPACE // x.element_size()
        x.new_empty(ctx.workspace)
        LOG.gemm()
        ctx.save_for_backward(x, out, reserve, *tensors)
        return (out,) + last

    @staticmethod
    def backward(ctx, *grads):
        x, _out, _reserve, *rest = ctx.saved_tensors
        LOG.gemm()
        workspace = x.new_empty(ctx.workspace)
        needed = ctx.needs_input_grad[6:]
        made = (None,) * 6 + tuple(torch.empty_like(t) if n else None for t, n in zip([x] + rest, needed))
        del workspace
        return made


def recurrent(original, gates):
    @functools.wraps(original)
    def cell(input, *args):
        if not input.is_cuda:
            return original(input, *args)
        packed = isinstance(args[2], (list, tuple))
        hx, weights, _bias, layers, _dropout, train, both = args[1:8] if packed else args[:7]
        first = not packed and len(args) > 7 and bool(args[7])
        states = list(hx) if isinstance(hx, (list, tuple)) else [hx]
        inputs = [input] + states + list(weights)
        if autocasting():
            inputs = [cast(t, autocast_dtype()) for t in inputs]
        return Recurrent.apply(train, gates, layers, 2 if both else 1, len(states), first, *inputs)
    return cell


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
