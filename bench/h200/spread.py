#!/usr/bin/env python3
"""Two trainings that take turns on one GPU beside another that comes to be idle: `carma serve` moves one of them there by itself.

    python3 bench/h200/spread.py --carma target/release/carma --out results

The default policy, time-sliced, on two GPUs of which the second is drained at first. Says how fast both went before and after, what the move took, and whether the
losses are bit by bit those of the same training undisturbed. About three minutes; `--virtual` rehearses on virtual GPUs, without PyTorch. Writes spread.json.
"""

import time

from first_run import wait_for
from suspend import PATIENCE_S, Training, compare, order, run, speed, took


def play(options, carma):
    order(carma, "drain", "1")
    undisturbed = Training(carma, "undisturbed", options.steps, options.hold, declared=60)
    undisturbed.reach(0.1)
    alone = speed(undisturbed)
    undisturbed.end()
    reference = undisturbed.curves()[0]

    trainings = [Training(carma, name, options.steps, hold, declared=30) for name, hold in (("one", options.hold), ("two", 1))]
    for training in trainings:
        training.reach(0.05)
    gib = [training.memory_gib() for training in trainings]
    before = [speed(training) for training in trainings]
    since = time.time()
    order(carma, "resume", "--gpu", "1")
    moved = lambda training: training.show()["gpus"] == [1] and training.show()["state"] == "RUNNING"
    wait_for(lambda: any(moved(training) for training in trainings), PATIENCE_S, "one of the two to be on GPU 1")
    whole = time.time() - since
    there = [moved(training) for training in trainings]
    why = trainings[there.index(True)].show()["reason"]["text"]
    after = [speed(training) for training in trainings]
    for training in trainings:
        training.end()
    # Both begin with the same numbers; what is held is theirs alone.
    same = all([compare(training.name, [curve[:-1] for curve in training.curves()], reference[:-1]) for training in trainings])
    rows = []
    for at, training in enumerate(trainings):
        row = {"what": training.name, "gib": gib[at], "moved": there[at], "before": before[at], "after": after[at]}
        if there[at]:
            row |= {f"out_{key}": value for key, value in took(carma, training.id, "is suspended").items()}
            row |= {f"in_{key}": value for key, value in took(carma, training.id, "runs again").items()}
        rows.append(row)
    return {"same": same, "alone": alone, "moved_s": whole, "why": why, "rows": rows}


def table(result):
    print(f"{result['moved_s']:.1f} s after GPU 1 was there one ran on it ({result['why']}); steps a second, alone {result['alone']:.1f}:")
    print(f"{'':8}{'GiB':>7}{'before':>9}{'after':>9}{'ckpt':>7}{'restore':>9}")
    for row in result["rows"]:
        moves = f"{row['out_checkpoint_s']:7.2f}{row['in_restore_s']:9.2f}" if row["moved"] else ""
        print(f"{row['what']:8}{row['gib']:7.1f}{row['before']:9.1f}{row['after']:9.1f}{moves}")


if __name__ == "__main__":
    more = [("--hold", 10, "GiB of the larger training")]
    run(__doc__, play, table, "spread.json", "virtual:2xA100-80GB", "adaptive", steps=16000, more=more, sm=0.9)
