#!/usr/bin/env python3
"""Twenty minutes of jobs by three users: do descriptors, memory, threads, files and the database stay bounded?

The daemon keeps a short history, so that the steady state is reached within the first half. A line is fitted to each
curve over the second half, and a plot of all of them is drawn into --out.
"""

import html
import os
import re
import sys
import time
from pathlib import Path

import lib

CONFIG = """
[queue]
most-jobs = 24
[jobs]
kill-grace = "2s"
[journal]
keep-jobs = 500
keep-inputs = 1000
"""

# name: (unit, growth allowed over the second half: share of the mean, and absolute)
CURVES = {
    "descriptors": ("", 0.0, None),
    "threads": ("", 0.05, 3.0),
    "resident": ("MiB", 0.20, 1.0),
    "files": ("", 0.10, 20.0),
    "logs": ("", 0.10, 20.0),
    "database": ("MiB", 0.20, 1.0),
    "wal": ("MiB", 0.20, 4.0),
}


def users():
    """Three users to submit as, and what is missing."""
    if os.geteuid() != 0:
        return [None], "not root: one user submits"
    names = [u for u in (*lib.USERS, "carma-carol") if lib.user_known(u)]
    if len(names) < 3 and lib.user_known("nobody"):
        names.append("nobody")
    names = (names + [None] * 3)[:3]
    shown = ", ".join(n or "root" for n in names)
    return names, f"users: {shown}"


def submit(daemon, seed, user, rate, seconds):
    """Submits as one user at a steady rate; numbers of accepted and refused, and the first refusals."""
    random = lib.chance(seed, "soak", user)
    client = daemon.client(30)
    taken, refused, recent = 0, [], []
    begun = time.monotonic()
    number = 0
    while True:
        at = number / rate
        if at >= seconds:
            return taken, len(refused), refused[:5]
        number += 1
        time.sleep(max(0, begun + at - time.monotonic()))
        command = random.choices((
            "exit 0", f"exit {random.randint(1, 9)}", f"sleep {random.random() * 2:.2f}", "head -c 20000 /dev/urandom | od -x",
            "i=0; while [ $i -lt 5 ]; do i=$((i+1)); echo step $i/5; sleep 0.1; done", "sleep 5", "/no/such/program",
        ), (40, 15, 20, 10, 8, 5, 2))[0]
        try:
            recent.append(client.post("/v1/jobs", daemon.job(command, env={"SOAK": "x" * 500}))["id"])
            taken += 1
            if random.random() < 0.03:
                client.post(f"/v1/jobs/{recent[-1]}/cancel")
            if random.random() < 0.05:
                client.get(random.choice(("/v1/jobs", "/v1/history?limit=50", f"/v1/jobs/{recent[-1]}", "/v1/gpus")))
        except (lib.Refused, lib.Gone) as error:
            if "conflict" not in str(error):
                refused.append(str(error)[:200])
        del recent[:-10]


def look(daemon):
    """All curves now."""
    status = Path(f"/proc/{daemon.pid()}/status").read_text()
    files = logs = 0
    size = {"database": 0, "wal": 0}
    for place in filter(None, (daemon.state, daemon.runtime())):
        for folder, _, names in os.walk(place):
            for name in names:
                logs += name.endswith(".log")
                files += not name.endswith(".log")
                try:
                    if name.endswith(".db"):
                        size["database"] += os.stat(Path(folder) / name).st_size
                    elif name.endswith("-wal"):
                        size["wal"] += os.stat(Path(folder) / name).st_size
                except OSError:
                    pass
    return {"descriptors": daemon.descriptors() or 0, "threads": int(re.search(r"Threads:\s+(\d+)", status)[1]),
            "resident": int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024, "files": files, "logs": logs,
            "database": size["database"] / 2**20, "wal": size["wal"] / 2**20}


def fit(points):
    """Slope and mean of a line through points (seconds, value)."""
    n = len(points)
    mean_t, mean_v = sum(p[0] for p in points) / n, sum(p[1] for p in points) / n
    square = sum((t - mean_t) ** 2 for t, _ in points)
    return sum((t - mean_t) * (v - mean_v) for t, v in points) / square if square else 0.0, mean_v


def plot(rows, title):
    """The curves as an SVG of small panels, one below the other."""
    width, height, left, top = 900, 96, 110, 44
    total = top + len(CURVES) * (height + 22) + 20
    last = rows[-1]["at"] or 1
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{total}" fill="white"/>',
           f'<text x="12" y="24" font-size="15">{html.escape(title)}</text>']
    for number, (name, (unit, _, _)) in enumerate(CURVES.items()):
        y = top + number * (height + 22)
        high = max(row[name] for row in rows) * 1.1 or 1

        def place(row, y=y, high=high, name=name):
            return left + (width - left - 20) * row["at"] / last, y + height - height * row[name] / high
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in map(place, rows))
        out += [f'<rect x="{left}" y="{y}" width="{width - left - 20}" height="{height}" fill="none" stroke="#bbb"/>',
                f'<line x1="{left + (width - left - 20) / 2}" x2="{left + (width - left - 20) / 2}" y1="{y}" '
                f'y2="{y + height}" stroke="#ddd"/>',
                f'<text x="12" y="{y + 14}">{name}</text>', f'<text x="12" y="{y + 30}" fill="#777">{unit}</text>',
                f'<text x="{left - 6}" y="{y + 12}" text-anchor="end" fill="#555">{high:.0f}</text>',
                f'<text x="{left - 6}" y="{y + height}" text-anchor="end" fill="#555">0</text>',
                f'<polyline points="{points}" fill="none" stroke="#1f5fa8" stroke-width="1.5"/>']
    out += [f'<text x="{left}" y="{total - 8}" fill="#555">0</text>',
            f'<text x="{width - 20}" y="{total - 8}" text-anchor="end" fill="#555">{last / 60:.1f} min</text>', "</svg>"]
    return "\n".join(out) + "\n"


def main():
    parser = lib.parser(__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--rate", type=float, default=10, help="jobs a second, all users together")
    parser.add_argument("--every", type=float, default=5, help="seconds between looks")
    args = parser.parse_args()
    if args.small:
        args.minutes, args.every = min(args.minutes, 0.1), 0.25
    report = lib.Report("soak", args)
    daemon = lib.Daemon(args.carma, gpus="virtual:16xH200", config=CONFIG, keep=args.keep).start()
    names, text = users()
    report.number("users", text)
    seconds = args.minutes * 60
    children = [lib.Child(name, submit, daemon, args.seed, name, args.rate / len(names), seconds) for name in names]
    begun = time.monotonic()
    rows, said = [], 0.0
    while time.monotonic() - begun < seconds and daemon.alive():
        row = look(daemon)
        row["at"] = time.monotonic() - begun
        rows.append(row)
        if row["at"] - said > 60:
            said = row["at"]
            lib.say(f"soak: {said / 60:.0f} min: " + ", ".join(f"{k} {row[k]:.0f}" for k in CURVES))
        time.sleep(max(0, begun + len(rows) * args.every - time.monotonic()))
    taken, refused, first = 0, 0, []
    for child in children:
        one, two, some = child.result(120)
        taken, refused, first = taken + one, refused + two, first + some
    alive = daemon.alive()
    ended = alive and daemon.ends(60)
    after = look(daemon) if alive else {}
    report.number("jobs accepted", taken)
    report.number("submissions refused or unanswered", refused)
    if first:
        report.number("the first of them", first[0])
    report.raw["looks"] = rows
    half = [row for row in rows if row["at"] >= seconds / 2]
    span = (half[-1]["at"] - half[0]["at"]) if len(half) > 1 else 0
    # The journal folds every 20,000 inputs; before that has come twice its file is still growing.
    long = args.minutes >= 18
    for name, (unit, share, least) in CURVES.items():
        slope, mean = fit([(row["at"], row[name]) for row in half])
        growth = slope * span
        allowed = max(share * mean, least) if least is not None else max(2.0, 1.0 * span / 60)
        most = max(row[name] for row in rows)
        shown = f"{growth:+.1f} {unit} at a mean of {mean:.1f} (most {most:.1f}, at the end {after.get(name, 0):.1f})"
        # In a few minutes the history does not fill, so that what follows it is still growing.
        steady = long or name in ("descriptors", "threads")
        report.target(f"{name}: growth over the second half", growth <= allowed if steady else None, shown,
                      f"{allowed:.1f}")
    report.target("jobs accepted", taken >= 0.95 * args.rate * seconds, taken, f"{0.95 * args.rate * seconds:.0f}")
    report.target("the daemon lives and nothing is left running", bool(ended), bool(ended), True)
    if args.out and rows:
        args.out.mkdir(parents=True, exist_ok=True)
        title = f"Soak: {args.rate:g} jobs/s by {len(names)} users for {args.minutes:g} min, {report.when:%Y-%m-%d}"
        (args.out / "soak.svg").write_text(plot(rows, title))
    daemon.clean()
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
