#!/usr/bin/env python3
"""SM activity, power and jobs that are not done, over time, of the plays of one trace: an SVG from rows.

    python3 bench/h200/plot_trace.py samples RESULTS/plays > bench/h200/results/trace-5-samples.csv
    python3 bench/h200/plot_trace.py picture bench/h200/results/trace-5 > docs/research/h200-trace.svg

`samples` reads what `carma bench trace` keeps of each play (`plays/*.json`) and writes means over seconds. `picture` reads
NAME-jobs.csv, which that command writes, and NAME-samples.csv.
"""

import csv
import json
import math
import pathlib
import sys

WIDTH, LEFT, TOP, PANEL, GAP = 900, 60, 40, 150, 34
COLOURS = {
    "exclusive": "#777777",
    "or-magm": "#b07c00",
    "oracle-magm": "#e8a33d",
    "aegis": "#e07a7a",
    "aegis-oracle": "#b40426",
    "lucid": "#8a5fa8",
    "adaptive": "#1f9e89",
    "adaptive+history": "#3b4cc0",
}


def samples(folder):
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["policy", "play", "at_s", "smact", "power_w"])
    for file in sorted(pathlib.Path(folder).glob("*.json")):
        play = json.loads(file.read_text())
        end = max(job["ended_s"] for job in play["jobs"])
        seconds = {}
        for sample in play["samples"]:
            if 0 <= sample["at_s"] <= end:
                seconds.setdefault(int(sample["at_s"]), []).append(sample["gpus"])
        for at, looks in sorted(seconds.items()):
            # A look that could not read a GPU says nothing of all of them.
            whole = [gpus for gpus in looks if all("smact" in gpu and "power_w" in gpu for gpu in gpus)]
            if whole:
                smact = [sum(gpu["smact"] for gpu in gpus) / len(gpus) for gpus in whole]
                power = [sum(gpu["power_w"] for gpu in gpus) for gpus in whole]
                row = [f"{sum(smact) / len(smact):.3f}", f"{sum(power) / len(power):.0f}"]
                out.writerow([play["policy"], play["repeat"], at, *row])


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def picture(name):
    looks, jobs = rows(f"{name}-samples.csv"), rows(f"{name}-jobs.csv")
    plays = sorted({(row["policy"], int(row["play"])) for row in jobs}, key=lambda p: (list(COLOURS).index(p[0]), p[1]))
    end = max(float(row["ended_s"]) for row in jobs)
    of = {play: [row for row in looks if (row["policy"], int(row["play"])) == play] for play in plays}

    def not_done(play):
        ends = sorted(float(row["ended_s"]) for row in jobs if (row["policy"], int(row["play"])) == play)
        points = [(0.0, len(ends))]
        for done, at in enumerate(ends, 1):
            points += [(at, len(ends) - done + 1), (at, len(ends) - done)]
        return points

    most_kw = math.ceil(max(float(row["power_w"]) for row in looks) / 500) / 2
    panels = [
        ("SM active, mean of the GPUs", 1.0, {p: [(float(r["at_s"]), float(r["smact"])) for r in of[p]] for p in plays}),
        ("power of all GPUs, kW", most_kw, {p: [(float(r["at_s"]), float(r["power_w"]) / 1000) for r in of[p]] for p in plays}),
        ("jobs that are not done", len({row["job"] for row in jobs}), {p: not_done(p) for p in plays}),
    ]
    height = TOP + len(panels) * (PANEL + GAP) + 10

    def x(at):
        return LEFT + at / end * (WIDTH - LEFT - 10)

    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">')
    print(f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>')
    at = LEFT
    for policy in dict.fromkeys(policy for policy, _ in plays):
        print(f'<line x1="{at}" y1="16" x2="{at + 22}" y2="16" stroke="{COLOURS[policy]}" stroke-width="2.5"/>')
        print(f'<text x="{at + 27}" y="20">{policy}</text>')
        at += 50 + 7 * len(policy)
    print(f'<text x="{at}" y="20" fill="#555555">second plays dashed</text>')
    for number, (title, most, lines) in enumerate(panels):
        bottom = TOP + number * (PANEL + GAP) + PANEL
        print(f'<text x="{LEFT}" y="{bottom - PANEL - 5}" font-weight="bold">{title}</text>')
        for share in (0, 0.5, 1):
            y = bottom - share * PANEL
            print(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - 10}" y2="{y:.1f}" stroke="#dddddd"/>')
            print(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{most * share:.3g}</text>')
        for second in range(0, int(end) + 1, 60):
            print(f'<text x="{x(second):.1f}" y="{bottom + 15}" text-anchor="middle">{second} s</text>')
        for (policy, play), points in lines.items():
            path = " ".join(f"{x(s):.1f},{bottom - min(v / most, 1) * PANEL:.1f}" for s, v in points)
            dash = ' stroke-dasharray="4 3"' if play > 1 else ""
            print(f'<polyline points="{path}" fill="none" stroke="{COLOURS[policy]}" stroke-width="1.5"{dash}/>')
    print("</svg>")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("samples", "picture"):
        sys.exit(__doc__)
    {"samples": samples, "picture": picture}[sys.argv[1]](sys.argv[2])
