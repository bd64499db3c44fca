#!/usr/bin/env python3
"""One training of a search for a learning rate: ResNet-50 of timm's on random images of 64 pixels, batches of 32, fp32, SGD.

    python3 bench/h200/search.py --lr 0.01 --steps 340
"""

import argparse
import os
import time

import torch
from interference_tasks import Scale

# Between two looks at what the GPU has done.
LOOK_S = 0.25


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--steps", type=int, default=340)
    options = parser.parse_args()
    x = Scale(not torch.cuda.is_available())
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    import timm

    model = timm.create_model(x("resnet50", "resnet18"), num_classes=x(200, 10)).to(x.device)
    images = torch.randn(x(32, 2), 3, 64, 64, device=x.device)
    labels = torch.randint(0, x(200, 10), (x(32, 2),), device=x.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    heartbeat, looked = os.environ.get("CARMA_HEARTBEAT"), float("-inf")
    for done in range(1, options.steps + 1):
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if done < options.steps and time.monotonic() - looked < LOOK_S:
            continue
        if not x.tiny:
            torch.cuda.synchronize()
        looked = time.monotonic()
        if heartbeat:
            with open(heartbeat, "w") as file:
                file.write(str(done))
        print(f"step {done}/{options.steps}", flush=True)


if __name__ == "__main__":
    main()
