#!/usr/bin/env python3
"""How much GPU memory a PyTorch process takes beside its tensors: after the context, a matrix product, a convolution.

    python3 memory_context.py -o memory-context.json

Each row is a process of its own; `context_mib` is what NVML counts for it less what PyTorch's allocator holds. Done
with the defaults, with CUDA_MODULE_LOADING=EAGER, and as a client of an MPS daemon of its own.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

STAGES = {
    "gemm": lambda torch, nn: (nn.Linear(1024, 1024), (256, 1024)),
    "conv": lambda torch, nn: (nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3)), (8, 3, 64, 64)),
    "norm": lambda torch, nn: (
        nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)), (8, 3, 64, 64)),
    "attention": lambda torch, nn: (nn.TransformerEncoderLayer(256, 4, 512, batch_first=True), (8, 64, 256)),
}  # fmt: skip
ORDERS = ["gemm", "conv", "gemm conv norm attention"]


def probe(precision, order):
    import torch

    from worker import Nvml

    readings = []
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    nvml = Nvml(str(torch.cuda.get_device_properties(0).uuid))

    def note(stage):
        torch.cuda.synchronize()
        used = nvml.used()
        reserved = torch.cuda.memory_reserved()
        readings.append([stage, None if used is None else (used - reserved) / 2**20, reserved / 2**20])

    note("context")
    for name in order.split():
        model, shape = STAGES[name](torch, torch.nn)
        model = model.cuda()
        note(f"{name}: model")
        data = torch.randn(shape, device="cuda")
        if precision == "bf16":
            model, data = model.bfloat16(), data.bfloat16()
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16-autocast"):
            out = model(data)
        note(f"{name}: forward")
        out.float().sum().backward()
        note(f"{name}: backward")
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step()
    note("step")
    print(json.dumps(readings))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", default="memory-context.json")
    parser.add_argument("--scripts", help="folder of worker.py [default: that in crates/memory]")
    parser.add_argument("--probe", nargs=2)
    options = parser.parse_args()
    here = os.path.dirname(os.path.abspath(__file__))
    scripts = options.scripts or os.path.join(here, "../../lab/memory/src/dataset/python")
    sys.path.insert(0, scripts)
    if options.probe:
        return probe(*options.probe)
    folder = tempfile.mkdtemp()
    mps = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
    rows = []
    for setting, extra in (("default", {}), ("eager", {"CUDA_MODULE_LOADING": "EAGER"}), ("mps", mps)):
        if setting == "mps":
            if not shutil.which("nvidia-cuda-mps-control"):
                continue
            subprocess.run(["nvidia-cuda-mps-control", "-d"], env={**os.environ, **mps}, check=True)
        started = []
        for precision in ("fp32", "bf16", "bf16-autocast"):
            for order in ORDERS:
                command = [sys.executable, __file__, "--scripts", scripts, "--probe", precision, order]
                process = subprocess.Popen(command, env={**os.environ, **extra}, stdout=subprocess.PIPE, text=True)
                started.append((precision, order, process))
        for precision, order, process in started:
            text = process.communicate(timeout=120)[0]
            readings = json.loads(text) if process.returncode == 0 else None
            rows.append({"setting": setting, "precision": precision, "order": order, "readings": readings})
            with open(options.output, "w") as file:
                json.dump({"date": time.strftime("%Y-%m-%d"), "rows": rows}, file, indent=1)
        if setting == "mps":
            subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, env={**os.environ, **mps}, check=False)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
