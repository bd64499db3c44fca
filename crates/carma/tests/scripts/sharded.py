"""A model whose weights are shared out among the processes that torchrun starts."""
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel

dist.init_process_group("nccl")
model = FullyShardedDataParallel(torch.nn.Linear(2048, 2048).cuda())
optimizer = torch.optim.Adam(model.parameters())
for _ in range(10):
    model(torch.randn(8, 2048, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
