#!/usr/bin/env python3
"""Turns the JSON files of first_run.py into the tables of docs/research/h200-first-run.md.

    python3 bench/h200/report.py RESULTS
"""

import glob
import json
import os
import statistics
import sys


def number(value, digits=1, unit=""):
    return "-" if value is None else f"{value:.{digits}f}{unit}"


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(str(c) for c in row) + " |" for row in rows])


def spread(runs, key, digits=1, scale=1.0):
    values = [r[key] * scale for r in runs if r.get(key) is not None]
    if not values:
        return "-"
    middle = statistics.median(values)
    if len(values) == 1:
        return number(middle, digits)
    return f"{middle:.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def modes(files):
    runs = [r for f in files for r in f["modes"] if "error" not in r]
    rows = []
    for policy, sharing, label in (
        ("exclusive", "time-slice", "exclusive"),
        ("oracle-magm", "time-slice", "shared, time-slice"),
        ("oracle-magm", "mps", "shared, MPS"),
    ):
        of = [r for r in runs if (r["policy"], r["sharing"]) == (policy, sharing)]
        if not of:
            continue
        for run in of:
            # Steps a second of different tasks do not add up to anything; finished jobs do.
            run["jobs_h"] = run["completed"] * 3600 / run["makespan_s"]
            run["mean_jct_s"] = run["mean_wait_s"] + run["mean_run_s"]
        rows.append(
            [label, len(of), spread(of, "makespan_s"), spread(of, "jobs_h", 0), spread(of, "mean_wait_s")]
            + [spread(of, "mean_run_s"), spread(of, "mean_jct_s")]
            + [spread(of, k, 2) for k in ("smact", "smocc", "drama", "gpu_util")]
            + [spread(of, "power_w", 0), spread(of, "energy_j", 1, 0.001)]
            + [sum(r["out_of_memory"] for r in of), f"{sum(r['completed'] for r in of)}/{8 * len(of)}"]
        )
    header = ["mode", "runs", "makespan s", "jobs/h", "mean wait s", "mean run s", "mean JCT s", "SMACT", "SMOCC", "DRAMA", "GPU util"]
    text = table(header + ["power W", "energy kJ", "OOM", "completed"], rows)
    kinds = {}
    for run in runs:
        label = run["policy"] if run["policy"] == "exclusive" else run["sharing"]
        for name, value in run["rates"]:
            kinds.setdefault(name, {}).setdefault(label, []).append(value)
    mean = lambda values: (lambda v: sum(v) / len(v) if v else None)([x for x in values if x is not None])
    header = ["task", "exclusive", "time-slice", "mps"]
    rows = [[name] + [number(mean(by.get(h, []))) for h in header[1:]] for name, by in kinds.items()]
    return text + "\n\nSteps a second of one task, mean over its runs:\n\n" + table(header, rows)


def attempts(story):
    rows = []
    for i, a in enumerate(story["attempts"], 1):
        seconds = (a["ended_ms"] - a["started_ms"]) / 1000 if a["ended_ms"] and a["started_ms"] else None
        cap = number(a["cap_mib"] and a["cap_mib"] / 1024, 1, " GiB")
        rows.append([story["name"], i, a["sharing"], cap, number(seconds, 1), a["verdict"] or story["state"]])
    return rows


ATTEMPTS = ["job", "attempt", "sharing", "cap", "ran s", "verdict"]


def faults(files):
    parts = {}
    for file in files:
        for name, part in file["faults"].items():
            if "error" not in part or name not in parts:
                parts[name] = part
    text = []
    oom = parts.get("out_of_memory", {})
    if "hungry" in oom:
        text.append("### Out of memory against the cap\n\n" + table(ATTEMPTS, attempts(oom["hungry"])))
        header = ["neighbour", "before, steps/s", "while it ran, steps/s", "after its out-of-memory, steps/s"]
        text.append(table(header, [[i + 1] + [number(x) for x in row] for i, row in enumerate(oom["rates"])]))
    # Who is blamed depends on who dies first, so every trial counts.
    trials = [f["faults"]["fault"] for f in files if "culprit" in f["faults"].get("fault", {})]
    for number_of, fault in enumerate(trials, 1):
        roles = [("faults", fault["culprit"])] + [("healthy", v) for v in fault["victims"]]
        rows = [[role, *row[1:]] for role, told in roles for row in attempts(told)]
        title = f"### A fatal fault under MPS, trial {number_of} of {len(trials)}"
        text.append(title + "\n\n" + table(["job", *ATTEMPTS[1:]], rows))
        again = [x for x in fault.get("seconds_to_steps_again", []) if x is not None]
        if again:
            text.append(
                f"{len(again)} of {len(fault['victims'])} neighbours made steps again, "
                f"{number(max(again))} s after the fault at the latest."
            )
    cancel = parts.get("cancel", {})
    if "cancelled" in cancel:
        before, after = cancel["neighbour_rate_before_after"]
        text.append(
            "### Cancel of a busy MPS client\n\n"
            f"It ended {number(cancel['seconds_to_end'])} s after it was asked to. Its neighbour ran at "
            f"{number(before)} steps/s before and at {number(after)} steps/s after, in the same attempt "
            f"({len(cancel['neighbour']['attempts'])})."
        )
    strangers = parts.get("strangers", {})
    if "gpus" in strangers:
        shown = "\n".join(f"$ carma {k}\n{strangers[k].rstrip()}\n" for k in ("gpus", "queue", "explain"))
        text.append("### What the listings say\n\n```console\n" + shown + "```")
    errors = [f"- {name}: {part['error']}" for name, part in parts.items() if "error" in part]
    return "\n\n".join(text + (["Failed:\n" + "\n".join(errors)] if errors else []))


def markdown(folder):
    load = lambda pattern: [json.load(open(p)) for p in sorted(glob.glob(os.path.join(folder, pattern)))]
    text = []
    for pattern, part in (("modes*.json", modes), ("faults*.json", faults)):
        files = load(pattern)
        if files:
            text.append(f"<!-- {json.dumps(files[0]['machine'])} -->\n\n{part(files)}")
    return "\n\n".join(text)


if __name__ == "__main__":
    print(markdown(sys.argv[1]))
