"""Opens a CUDA context as a training does, and waits until it has been measured.

One matrix product and one convolution, forward and backward: after that the libraries are loaded and
their workspaces exist. Prints one line of JSON, then waits for a line on standard input.
"""

import json
import sys


def say(**words):
    print(json.dumps(words), flush=True)


try:
    import torch
except Exception as error:  # a broken installation raises more than ImportError
    say(error=f"PyTorch cannot be imported: {error}")
    sys.exit(0)

try:
    if not torch.cuda.is_available():
        say(error=f"PyTorch {torch.__version__} sees no GPU")
        sys.exit(0)
    a = torch.randn(256, 256, device="cuda", requires_grad=True)
    (a @ a).sum().backward()
    x = torch.randn(2, 8, 32, 32, device="cuda", requires_grad=True)
    w = torch.randn(8, 8, 3, 3, device="cuda", requires_grad=True)
    torch.nn.functional.conv2d(x, w, padding=1).sum().backward()
    torch.cuda.synchronize()
    say(torch=torch.__version__, reserved=torch.cuda.memory_reserved())
    sys.stdin.readline()
except Exception as error:
    say(error=f"the probe failed: {error}")
