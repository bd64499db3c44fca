"""What is saved again and again takes nothing, and what is loaded to the GPU takes what it has."""

import sys

import torch

earlier, mine = sys.argv[1:]
model = torch.nn.Linear(2048, 2048).cuda()  # 16 MiB
with torch.no_grad():
    for _ in range(40):
        features = model(torch.ones(2048, 2048, device="cuda"))
        torch.save({"features": features, "at": 3}, mine)
del features
held = torch.load(mine)["features"]  # 16 MiB
assert held.is_cuda and torch.load(mine, map_location="cpu")["features"].device.type == "cpu"
# 64 MiB, of which another is a part; numbers are known of what is small.
found = torch.load(earlier, map_location="cuda")
assert found["part"].untyped_storage()._cdata == found["whole"].untyped_storage()._cdata
assert found["whole"].is_cuda and found["step"].is_cuda and found["step"].item() == 7
assert torch.load(earlier, map_location=lambda storage, place: storage.cuda(0))["whole"].is_cuda
assert torch.load(earlier, map_location=lambda storage, place: storage)["whole"].device.type == "cpu"
assert torch.load(earlier)["whole"].sum().item() == 4096 * 4096
for _ in range(4):
    model(torch.ones(1, 2048, device="cuda")).sum().backward()
