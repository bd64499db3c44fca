#!/usr/bin/env python3
"""Copies of one training on a GPU: throughput, time and energy of an epoch, and SM activity, by way and number. An SVG.

    python3 bench/h200/plot_copies.py bench/h200/results/copies-{6,5,7,9,10,11}.json > docs/research/h200-copies.svg
    python3 bench/h200/plot_copies.py --rows results/measured.log.jsonl > copies.json

Reads what `carma bench collocation` writes as summary.json (rows), alone or as `rows` beside a `machine`. Ratios are to one alone of the same file; of one training, way
and number the first file that has it is drawn. `--rows` works the rows out of windows (measured.json, or the measured.log.jsonl of a run that was cut off), as carma does.
"""

import json
import sys

LEFT, TOP, WIDTH, HEIGHT, GAP = 46, 58, 152, 96, 22
COLOURS = {"streams": "#8a5fa8", "time-slice": "#b07c00", "mps": "#1f9e89", "mps, threads divided": "#3b4cc0"}
TRAININGS = ["resnet26-cifar", "resnet50-64px", "resnet152-64px", "resnet50-224px", "resnet152-224px"]
COUNTS = range(1, 8)
# Title, what is drawn of a row and of that of one alone, top of the axis.
PANELS = [
    ("samples a second, times one alone", lambda row, alone: row["per_s"] / alone["per_s"], 7),
    ("time of an epoch, times alone", lambda row, alone: row["epoch_s"] / alone["epoch_s"], 8),
    ("energy of an epoch, times alone", lambda row, alone: row["epoch_kj"] / alone["epoch_kj"], 1.2),
    ("SM active, %", lambda row, alone: row["smact_pct"], 100),
]


# Samples of an epoch, as `carma bench collocation` has them.
EPOCH = {name: 50_000 if name.endswith("cifar") else 1_281_167 for name in TRAININGS}
WAYS = ["alone", *COLOURS]


def windows(path):
    """Machine, tasks, day and windows of a measurement, whole or cut off."""
    with open(path) as file:
        if not path.endswith(".jsonl"):
            told = json.load(file)
            return told["machine"], told["tasks"], told["sessions"][0]["began"][:10], told["combinations"]
        lines = [json.loads(line) for line in file]
    day = next(line["began"][:10] for line in lines if line["line"] == "session")
    return lines[0]["machine"], lines[0]["tasks"], day, [line for line in lines if line["line"] == "combination"]


def rows_of(tasks, measured):
    """Means over the windows of each training, way and number."""
    batch = {task["name"]: task["batch"] for task in tasks}
    family = {task["name"]: task["family"] for task in tasks}
    single = {name: min(batch[task] for task in batch if family[task] == name) for name in family.values()}
    groups = {}
    for window in measured:
        name = window["members"][0]
        # A window that failed says nothing, nor does one of different tasks.
        if window.get("failed") or not window["rates"] or any(member != name for member in window["members"]):
            continue
        models = batch[name] // single[family[name]]
        way = "streams" if models > 1 else "mps, threads divided" if window.get("threads_pct") else window["sharing"]
        if way == "time-slice" and len(window["members"]) == 1:
            way = "alone"
        groups.setdefault((family[name], WAYS.index(way), models * len(window["members"])), []).append((batch[name], window))
    rows, alone = [], {}
    for (name, way, count), of in sorted(groups.items()):

        def mean(value, of=of):
            return sum(value(each, window) for each, window in of) / len(of)

        per_s, watts = mean(lambda each, window: each * sum(window["rates"])), mean(lambda _, window: window["power_w"])
        if WAYS[way] == "alone":
            alone[name] = per_s
        rows.append({
            "family": name, "way": WAYS[way], "count": count, "windows": len(of), "per_s": per_s, "gain": per_s / alone[name] if name in alone else None,
            "epoch_s": EPOCH[name] * count / per_s, "power_w": watts, "epoch_kj": watts * EPOCH[name] / per_s / 1000,
            "smact_pct": mean(lambda _, window: window["activity"]["smact_pct"]["mean"]), "memory_mib": mean(lambda _, window: sum(window["memory_mib"])),
        })
    return rows


def write_rows(paths):
    rows = []
    for path in paths:
        machine, tasks, day, measured = windows(path)
        rows += rows_of(tasks, measured)
    print(json.dumps({"date": day, "machine": machine, "window_s": round(measured[0]["window_s"]), "rows": rows}, indent=1))


def read(paths):
    """Of each training: rows, each with that of one alone in the same file."""
    trainings = {}
    for path in paths:
        with open(path) as file:
            told = json.load(file)
        rows = told if isinstance(told, list) else told["rows"]
        for name in TRAININGS:
            of = [row for row in rows if row["family"] == name]
            alone = next((row for row in of if row["way"] == "alone"), None)
            if alone and any(row["count"] > 1 for row in of):
                there = trainings.setdefault(name, {})
                for row in of:
                    there.setdefault((row["way"], row["count"]), (row, alone))
    return trainings


def picture(trainings):
    width, height = LEFT + len(TRAININGS) * (WIDTH + GAP), TOP + len(PANELS) * (HEIGHT + 2 * GAP)
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">')
    print(f'<rect width="{width}" height="{height}" fill="#ffffff"/>')
    at = LEFT
    for way, colour in COLOURS.items():
        print(f'<line x1="{at}" y1="14" x2="{at + 22}" y2="14" stroke="{colour}" stroke-width="2.5"/><text x="{at + 27}" y="18">{way}</text>')
        at += 50 + 7 * len(way)
    print(f'<text x="{at}" y="18" fill="#555555">across: copies at a time</text>')
    for column, name in enumerate(TRAININGS):
        left, rows = LEFT + column * (WIDTH + GAP), trainings.get(name, {})
        print(f'<text x="{left}" y="{TOP - 22}" font-weight="bold">{name}</text>')
        alone = rows.get(("alone", 1), (None, None))[1]
        for number, (title, value, most) in enumerate(PANELS):
            bottom = TOP + number * (HEIGHT + 2 * GAP) + HEIGHT
            if column == 0:
                print(f'<text x="{left}" y="{bottom - HEIGHT - 6}" fill="#555555">{title}</text>')

            def x(count, left=left):
                return left + (count - COUNTS[0]) / (COUNTS[-1] - COUNTS[0]) * (WIDTH - 8) + 4

            for share in (0, 0.5, 1):
                y = bottom - share * HEIGHT
                print(f'<line x1="{left}" y1="{y:.1f}" x2="{left + WIDTH}" y2="{y:.1f}" stroke="#dddddd"/>')
                if column == 0:
                    print(f'<text x="{left - 5}" y="{y + 4:.1f}" text-anchor="end">{most * share:.3g}</text>')
            for count in COUNTS:
                print(f'<text x="{x(count):.1f}" y="{bottom + 13}" text-anchor="middle">{count}</text>')
            for way, colour in COLOURS.items() if alone else ():
                points = sorted((count, value(*pair)) for (of, count), pair in rows.items() if of == way and count > 1)
                points = [(x(count), bottom - min(v / most, 1) * HEIGHT) for count, v in [(1, value(alone, alone)), *points]]
                if len(points) == 1:
                    continue
                print(f'<polyline points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in points)}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
                for a, b in points:
                    print(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.2" fill="{colour}"/>')
    print("</svg>")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--rows":
        write_rows(sys.argv[2:])
    else:
        picture(read(sys.argv[1:]))
