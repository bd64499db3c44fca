#!/usr/bin/env python3
"""How much memory a program's next command takes, by what others of its commands took.

    python3 bench/h200/programs.py

Of a program whose memory is unknown, `adaptive` gives the next command a multiple of the most that N others of its commands took
(docs/policies.md). This draws N + 1 runs at random of 1,022 that carma measured on an H200, of one model with other batch sizes, lengths,
precisions and optimizers, or of one library whose models are a program's argument, and prints how often the last took more than it
would have been given, and how often that is less than the 32 GiB of a job of which nothing is known. Draws are seeded.
"""

import argparse
import csv
import gzip
import random
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
FILES = ["memory-known.csv.gz", "memory-models.csv.gz", "memory-fresh.csv", "memory-later.csv.gz"]
LEAST_MIB = 8 << 10
UNKNOWN_MIB = 32 << 10


def runs():
    """Model, library and MiB of the process at its peak, of each run that ended well."""
    for name in FILES:
        path = RESULTS / name
        with gzip.open(path, "rt") if name.endswith(".gz") else open(path, newline="") as file:
            for row in csv.DictReader(file):
                if row["status"] == "SUCCESSFUL" and row["process_mib"]:
                    yield row["model"], row["source"], float(row["process_mib"])


def grouped(keyed):
    groups = {}
    for key, mib in keyed:
        groups.setdefault(key, []).append(mib)
    return list(groups.values())


def shares(groups, known, factor, draws, dice):
    """Of so many draws the shares in which the next takes more than it would get, and in which it would get less than an unknown job."""
    groups = [group for group in groups if len(group) > known]
    short = less = 0
    for _ in range(draws):
        *before, following = dice.sample(dice.choice(groups), known + 1)
        gets = max(factor * max(before), LEAST_MIB)
        short += following > min(gets, UNKNOWN_MIB)
        less += gets < UNKNOWN_MIB
    return short / draws, less / draws


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=50_000, help="of each cell (50000)")
    options = parser.parse_args()
    found = list(runs())
    kinds = {
        "one model": grouped((model, mib) for model, _, mib in found),
        "models of a library": grouped((library, mib) for _, library, mib in found),
        "any": [[mib for _, _, mib in found]],
    }
    factors = {"2 + 4/N": lambda n: 2 + 4 / n, "2.5": lambda _: 2.5, "3": lambda _: 3, "4": lambda _: 4}
    print(f"{len(found)} runs, {len(kinds['one model'])} models; percent short of memory, and given less than 32 GiB\n")
    print(f"{'':20} {'N':>3}" + "".join(f"{name:>16}" for name in factors))
    for kind, groups in kinds.items():
        for known in (1, 2, 3, 4, 6, 8, 12):
            cells = [shares(groups, known, factor(known), options.draws, random.Random(1)) for factor in factors.values()]
            print(f"{kind:20} {known:3}" + "".join(f"{100 * short:10.1f} {100 * less:5.0f}" for short, less in cells))


if __name__ == "__main__":
    main()
