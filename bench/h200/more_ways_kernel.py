"""The Triton kernel of more_ways_tasks.py: softmax of each row."""

import triton
import triton.language as tl


@triton.autotune(configs=[triton.Config({}, num_warps=warps) for warps in (4, 8, 16)], key=["columns"])
@triton.jit
def softmax_rows(values, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    read = tl.load(values + row * columns + at, mask=inside, other=-float("inf"))
    raised = tl.exp(read - tl.max(read, axis=0))
    tl.store(out + row * columns + at, raised / tl.sum(raised, axis=0), mask=inside)
