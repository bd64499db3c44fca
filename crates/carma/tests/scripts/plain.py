"""A plain loop: a small network, SGD, the loss printed, accuracy, a scheduler, gradients clipped."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.MaxPool2d(2),
    nn.Flatten(), nn.Dropout(0.5), nn.Linear(32 * 16 * 16, 512), nn.ReLU(), nn.Linear(512, 10),
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
data = TensorDataset(torch.randn(1000, 3, 32, 32), torch.randint(0, 10, (1000,)))
loader = DataLoader(data, batch_size=64, shuffle=True, num_workers=2, pin_memory=True)
for epoch in range(100):
    correct = seen = 0
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        optimizer.zero_grad()
        out = model(images)
        loss = nn.functional.cross_entropy(out, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        assert torch.isfinite(loss), "diverged"
        if torch.isnan(loss):
            raise SystemExit("nan")
        correct += (out.argmax(1) == labels).sum().item()
        seen += len(labels)
        print(f"epoch {epoch} loss {loss.item():.3f} {loss:.2f} batch {len(labels)} on {images.device}")
    scheduler.step()
print("never reached: a dry run ends with the first epoch")
