#!/usr/bin/env python3
"""Traces the rows of a plan that `carma lab dataset measure` measures on a GPU, by the very code that measures them.

    python bench/memory/trace_rows.py PLAN.csv -o FOLDER [--jobs 2] [--only REGEX]

Needs torch and what the models need, and no GPU. One log a row: FOLDER/ID.trace.gz. Rows that have one are left alone.
"""

import argparse
import csv
import importlib.util
import os
import re
import sys
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
MEMORY = os.path.join(ROOT, "crates", "memory", "src")
DATASET = os.path.join(ROOT, "lab", "memory", "src", "dataset", "python")


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def trace(tracer, worker, row, path):
    options = argparse.Namespace(out=path + ".part.gz", gpu="H200", timeout=600)
    builders = {"model": sys.modules["memory_models"].case}
    builders.update(dict.fromkeys(("mlp", "cnn", "transformer"), sys.modules["families"].build))
    tracer.RUN.loaders = 1  # the row says how many steps there are

    def body():
        import torch

        worker.run(torch, row, worker.Cuda(torch), builders)

    code = tracer.recorded(options, row["id"], body)
    if code == 0:
        os.rename(options.out, path)
    else:
        os.remove(options.out)
    return code


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("plan")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    os.makedirs(options.output, exist_ok=True)
    with open(options.plan, newline="") as file:
        rows = [row for row in csv.DictReader(file) if re.search(options.only, row["id"])]

    sys.path[:0] = [os.path.join(MEMORY, "trace", "python"), DATASET]
    import carma_trace as tracer
    import torch

    torch.set_num_threads(1)
    tracer.install(argparse.Namespace(gpu="NVIDIA H200", capability="9.0", total_mib=143771, gpus=1))
    models = load("memory_models", os.path.join(ROOT, "bench", "h200", "memory_models.py"))
    worker = load("worker", os.path.join(DATASET, "worker.py"))
    models.warm()

    running, failed, began = {}, [], time.time()

    def wait():
        pid, status = os.wait()
        name = running.pop(pid)
        if status:
            failed.append(name)
            print("failed", name, flush=True)

    for row in rows:
        path = os.path.join(options.output, row["id"] + ".trace.gz")
        if os.path.exists(path):
            continue
        while len(running) >= options.jobs:
            wait()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = trace(tracer, worker, row, path)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        running[pid] = row["id"]
    while running:
        wait()
    print("%d rows, %d failed, %.0f s" % (len(rows), len(failed), time.time() - began))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
