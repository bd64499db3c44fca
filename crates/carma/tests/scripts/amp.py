"""Mixed precision with a gradient scaler, and gradients accumulated over several batches."""
import torch
from torch import nn

model = nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True), 2).cuda()
head = nn.Linear(256, 1000).cuda()
parameters = list(model.parameters()) + list(head.parameters())
optimizer = torch.optim.Adam(parameters)
scaler = torch.cuda.amp.GradScaler()
data = torch.utils.data.TensorDataset(torch.randn(512, 64, 256), torch.randint(0, 1000, (512, 64)))
for epoch in range(2):
    for step, (x, y) in enumerate(torch.utils.data.DataLoader(data, batch_size=16)):
        with torch.autocast("cuda", dtype=torch.float16):
            out = head(model(x.cuda()))
            assert out.dtype == torch.float16, out.dtype
            loss = nn.functional.cross_entropy(out.flatten(0, 1), y.cuda().flatten()) / 4
            assert loss.dtype == torch.float32, loss.dtype
        scaler.scale(loss).backward()
        if (step + 1) % 4 == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters, 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
        print(step, scaler.get_scale(), loss.item())
