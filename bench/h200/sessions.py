#!/usr/bin/env python3
"""Prints what INTERFERENCE_DATA.md says of the sessions of a log of `carma bench interference`.

    python3 bench/h200/sessions.py bench/h200/results/interference-h200.log.jsonl

Sum of progress by session, how far rates alone lie apart within a session, and how they go with the host's speed.
"""

import collections
import json
import math
import statistics
import sys


def main(path):
    with open(path, encoding="utf-8") as log:
        lines = [json.loads(line) for line in log]
    windows = [w for w in lines if w["line"] == "combination"]
    good = [w for w in windows if not w.get("failed")]
    print(f"{len(windows)} windows, {len(windows) - len(good)} failed\n")
    plain = [w for w in good if not w.get("threads_pct")]
    alone = collections.defaultdict(list)
    for window in plain:
        if len(window["members"]) == 1:
            alone[window["session"], window["members"][0]].append(window)

    for session in (line for line in lines if line["line"] == "session"):
        number = session["number"]
        print(
            f"session {number}: {session['began']} {session['sharing']}, GPU {session['gpu_uuid'][4:12]}, "
            f"processors each: {session.get('processors_each', '-')}"
        )
        here = [w for w in plain if w["session"] == number]
        limited = sum(1 for w in good if w["session"] == number and w.get("threads_pct"))
        print(f"  {sum(1 for w in here if len(w['members']) == 1)} alone, {limited} with thread limits")
        for k in (2, 3, 4):
            groups = [w for w in here if len(w["members"]) == k]
            sums = [
                sum(
                    rate / statistics.median(w["rates"][0] for w in alone[number, name])
                    for name, rate in zip(group["members"], group["rates"])
                )
                for group in groups
            ]
            if sums:
                power = statistics.mean(group["power_w"] for group in groups)
                print(
                    f"  {len(sums)} of {k}: sum {statistics.mean(sums):.2f} "
                    f"({min(sums):.2f} to {max(sums):.2f}), {power:.0f} W"
                )

    print("\nrates alone, least and most of a session (most over least)")
    speeds, rates = [], []
    for name in dict.fromkeys(name for _, name in alone):
        row = []
        for number in sorted({number for number, other in alone if other == name}):
            values = [w["rates"][0] for w in alone[number, name]]
            row.append(f"{number}: {min(values):.0f}-{max(values):.0f} ({max(values) / min(values):.2f})")
        print(f"  {name:16} " + "  ".join(row))
    for (_, _), found in alone.items():
        found = [w for w in found if w.get("host_mops")]
        # Tasks that fill the GPU do not follow the host.
        if len(found) > 1 and statistics.mean(w["activity"]["gract_pct"]["mean"] for w in found) < 90:
            for values, of in ((speeds, lambda w: w["host_mops"]), (rates, lambda w: w["rates"][0])):
                logs = [math.log(of(w)) for w in found]
                values.extend(v - statistics.mean(logs) for v in logs)
    if len(rates) > 2:
        mops = [w["host_mops"] for w in good if w.get("host_mops")]
        stolen = max(w.get("host_stolen_pct") or 0 for w in good)
        print(
            f"\nhost: {min(mops):.0f} to {max(mops):.0f} M steps/s, at most {stolen:.2f} % stolen; correlation of its speed "
            f"with rates alone of tasks that leave the GPU idle a tenth of the time: "
            f"{statistics.correlation(speeds, rates):.2f} ({len(rates)} windows)"
        )


if __name__ == "__main__":
    main(sys.argv[1])
