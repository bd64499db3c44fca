"""Crashes in its own code after one step."""
import torch

model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(10):
    model(torch.zeros(4, 512).cuda()).mean().backward()
    optimizer.step()
    if step == 1:
        model(torch.zeros(4, 100, device="cuda"))
