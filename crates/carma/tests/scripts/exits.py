"""Refuses its arguments."""
import sys

import torch

torch.zeros(4, device="cuda")
sys.exit(3)
