"""Saves by `torch.distributed.checkpoint` over what an earlier run left in `ck`, there and then and in the background."""
import os
import sys

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import save

os.chdir(sys.argv[1])
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    for f in (dcp.save, save):
        f({"model": model.state_dict()}, checkpoint_id="ck", no_dist=True)
    later = dcp.async_save({"model": model.state_dict()}, checkpoint_id="later", no_dist=True)
    getattr(later, "upload_completion", later).result()
