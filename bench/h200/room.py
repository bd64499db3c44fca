#!/usr/bin/env python3
"""Room for a job on two GPUs: `carma serve` suspends the trainings that are there, and puts them back when it is done.

    python3 bench/h200/room.py --carma target/release/carma --out results

The default policy, time-sliced, on two GPUs, a training on each. An operator's urgent job comes that wants both for itself (`--priority 1`). Says what each step
took and whether the losses of both trainings are bit by bit those of the same training undisturbed. About two minutes; `--virtual` rehearses
on virtual GPUs, without PyTorch. Writes room.json.
"""

import time

from first_run import wait_for
from suspend import PATIENCE_S, Training, compare, run, took


def state(training, wanted):
    wait_for(lambda: training.show()["state"] == wanted, PATIENCE_S, f"{training.name} to be {wanted}; it is {training.show()['reason']['text']}")
    return time.time()


def play(options, carma):
    steps = options.steps
    # The first to start up has the others' files in the page cache.
    undisturbed = Training(carma, "undisturbed", steps, options.hold, declared=60)
    undisturbed.end()
    print(f"undisturbed: {undisturbed.show()['ended_ms'] - undisturbed.show()['started_ms']} ms", flush=True)
    reference = undisturbed.curves()[0]

    trainings = [Training(carma, name, steps, options.hold, declared=60) for name in ("one", "two")]
    for training in trainings:
        training.reach(0.1)
    gib = [training.memory_gib() for training in trainings]
    came = time.time()
    urgent = Training(carma, "urgent", options.urgent_steps, 0, declared=30, more=["--gpus", "2", "--exclusive", "--priority", "1"], across=2)
    off = [state(training, "SUSPENDED") for training in trainings]
    print("both are suspended", flush=True)
    why = [training.show()["reason"]["text"] for training in trainings]
    started = state(urgent, "RUNNING")
    stood = [training.done() for training in trainings]
    urgent.end()
    over = time.time()
    print("the urgent job is done", flush=True)
    went_on = [training.done() - before for training, before in zip(trainings, stood)]
    back = [state(training, "RUNNING") for training in trainings]
    for training in trainings:
        training.end()
    same = all([compare(training.name, training.curves(), reference) for training in trainings])
    rows = []
    for at, training in enumerate(trainings):
        row = {"what": training.name, "gib": gib[at], "why": why[at], "off_s": off[at] - came, "back_s": back[at] - over}
        row["steps_meanwhile"] = went_on[at]
        row |= {f"out_{key}": value for key, value in took(carma, training.id, "is suspended").items()}
        row |= {f"in_{key}": value for key, value in took(carma, training.id, "runs again").items()}
        rows.append(row)
    return {"same": same, "urgent_started_s": started - came, "urgent_took_s": over - started, "rows": rows}


def table(result):
    print(f"the urgent job started {result['urgent_started_s']:.1f} s after it came, and took {result['urgent_took_s']:.1f} s")
    print(f"{'':8}{'GiB':>7}{'off':>7}{'ckpt':>7}{'back':>7}{'restore':>9}{'steps meanwhile':>17}")
    for row in result["rows"]:
        print(
            f"{row['what']:8}{row['gib']:7.1f}{row['off_s']:7.2f}{row['out_checkpoint_s']:7.2f}{row['back_s']:7.2f}"
            f"{row['in_restore_s']:9.2f}{row['steps_meanwhile']:17}"
        )
    print("seconds; off since the urgent job came, back since it was over, the others in the driver")


if __name__ == "__main__":
    more = [("--urgent-steps", 1500, None), ("--hold", 10, "GiB of each training")]
    run(__doc__, play, table, "room.json", "virtual:2xA100-80GB", "adaptive", steps=12000, more=more)
