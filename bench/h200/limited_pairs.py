#!/usr/bin/env python3
"""What tasks keep with fewer threads, alone and beside each other: the figures of LIMITED_DATA.md.

    python3 bench/h200/limited_pairs.py bench/h200/results/limited-h200.log.jsonl.gz                  # alone
    python3 bench/h200/limited_pairs.py bench/h200/results/limited-h200.log.jsonl.gz --beside gemm    # the neighbours of one with fewer threads

Speeds are over the median alone with all threads in the same session.
"""

import argparse
import collections
import statistics

from new_tasks_log import read


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log")
    parser.add_argument("--beside", help="a task")
    options = parser.parse_args()
    windows = [line for line in read(options.log) if line["line"] == "combination" and not line.get("failed")]
    alone = collections.defaultdict(list)
    for window in windows:
        if len(window["members"]) == 1 and not window.get("threads_pct"):
            alone[window["session"], window["members"][0]].append(window["rates"][0])
    print(f"{'task':18}{'limit %':>8}{'speed':>7}{'SMACT %':>9}{'clock MHz':>11}" if options.beside is None else f"{'task':18}{'limit %':>8}{'speed':>7}")
    for window in sorted(windows, key=lambda window: (-min(window.get("threads_pct", [100])), window["members"])):
        limits = dict(zip(window["members"], window.get("threads_pct", [])))
        for task, rate in zip(window["members"], window["rates"]):
            share = rate / statistics.median(alone[window["session"], task])
            if options.beside is None and len(limits) == 1:
                activity = window["activity"]
                print(f"{task:18}{limits[task]:8}{share:7.2f}{activity['smact_pct']['mean']:9.1f}{activity['sm_clock_mhz']['mean']:11.0f}")
            elif len(limits) == 2 and task != options.beside and limits.get(options.beside, 100) < 100:
                print(f"{task:18}{limits[options.beside]:8}{share:7.2f}")


if __name__ == "__main__":
    main()
