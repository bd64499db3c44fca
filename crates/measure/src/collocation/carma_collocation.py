#!/usr/bin/env python3
"""Training of `carma bench collocation`: residual networks of timm's on random images, fp32, SGD, a step is a batch of each model.

    python3 carma_collocation.py resnet26 --size 32 --batch 32
    python3 carma_collocation.py resnet26 --size 32 --batch 32 --streams 4   # four models in one process, a thread and a stream each

Runs for ever; under carma it is started and paused.
"""

import argparse
import threading

import torch
from interference_tasks import Scale, classifier

import carma_bench


def together(steps):
    """One step of each, in threads with streams of their own. The caller's stream waits for all of them."""
    streams = [torch.cuda.Stream() for _ in steps]
    begin, end = threading.Barrier(len(steps) + 1), threading.Barrier(len(steps) + 1)

    def work(step, stream):
        try:
            with torch.cuda.stream(stream):
                while True:
                    begin.wait()
                    step()
                    end.wait()
        except threading.BrokenBarrierError:
            return
        except BaseException:
            # The others would wait for this one for ever.
            begin.abort()
            end.abort()
            raise

    for step, stream in zip(steps, streams):
        threading.Thread(target=work, args=(step, stream), daemon=True).start()

    def step():
        begin.wait()
        end.wait()
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--streams", type=int, default=1)
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    x = Scale(not torch.cuda.is_available())
    steps = [
        classifier(x, options.model, options.batch, options.size, mixed=False) for _ in range(options.streams)
    ]
    step = steps[0] if options.streams == 1 else together(steps)
    pace = carma_bench.Pace()
    while True:
        step()
        pace.step()


if __name__ == "__main__":
    main()
