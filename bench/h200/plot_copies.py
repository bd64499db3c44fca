#!/usr/bin/env python3
"""Copies of one training on a GPU: throughput, time and energy of an epoch, and SM activity, by way and number. An SVG.

    python3 bench/h200/plot_copies.py bench/h200/results/copies-{2,3,4,5}.json > docs/research/h200-copies.svg

Reads what `carma bench collocation` writes as summary.json (rows), alone or as `rows` beside a `machine`. A training is drawn from the first file that has it.
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


def read(paths):
    trainings = {}
    for path in paths:
        with open(path) as file:
            told = json.load(file)
        rows = told if isinstance(told, list) else told["rows"]
        for name in TRAININGS:
            of = [row for row in rows if row["family"] == name]
            if any(row["count"] > 1 for row in of):
                trainings.setdefault(name, of)
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
        left, rows = LEFT + column * (WIDTH + GAP), trainings.get(name, [])
        print(f'<text x="{left}" y="{TOP - 22}" font-weight="bold">{name}</text>')
        alone = next((row for row in rows if row["way"] == "alone"), None)
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
                points = sorted((row["count"], value(row, alone)) for row in rows if row["way"] == way and row["count"] > 1)
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
    picture(read(sys.argv[1:]))
