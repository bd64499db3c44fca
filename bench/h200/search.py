#!/usr/bin/env python3
"""One training of a search for a learning rate: ResNet-50 of timm's on random images of 64 pixels, batches of 32, fp32, SGD.

    python3 bench/h200/search.py --lr 0.01 --steps 340
"""

import argparse
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.join(HERE, "..", "..", "crates", "measure", "src", "trace")]

import torch
from carma_tasks import Teller
from interference_tasks import Scale, classifier


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--steps", type=int, default=340)
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    x = Scale(not torch.cuda.is_available())
    step = classifier(x, x("resnet50", "resnet18"), x(32, 2), 64, mixed=False, lr=options.lr)
    tell = Teller(torch, options.steps)
    for done in range(1, options.steps + 1):
        step()
        tell(done)


if __name__ == "__main__":
    main()
