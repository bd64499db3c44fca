"""A model that the program compiles."""
import torch

model = torch.compile(torch.nn.Linear(2048, 2048).cuda())
optimizer = torch.optim.Adam(model.parameters())
for _ in range(10):
    model(torch.randn(8, 2048, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
