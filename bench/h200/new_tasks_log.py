#!/usr/bin/env python3
"""Whether the measurement of the new tasks worked, and nothing of what it found.

    python3 bench/h200/new_tasks_log.py LOG...                # windows, failures, how steady the tasks are alone
    python3 bench/h200/new_tasks_log.py LOG... -o MERGED.gz   # and one log of all, its sessions counted on

The tasks are a test set. So rates are read of windows with one member only, and of those no more is printed than how
far they lie apart: CV over a session, and AFTER, the last over the first of a session less one.
"""

import argparse
import collections
import gzip
import json
import statistics


def read(path):
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as log:
        return [json.loads(line) for line in log]


def merged(logs):
    """One header, then the rest in order; sessions are numbered on from log to log."""
    lines = logs[0][:1]
    for log in logs:
        if log[0]["tasks"] != lines[0]["tasks"] or log[0]["machine"]["gpu"] != lines[0]["machine"]["gpu"]:
            raise SystemExit("the logs are of different tasks or GPUs")
        first = sum(line["line"] == "session" for line in lines)
        for line in log[1:]:
            which = {"session": "number", "combination": "session"}.get(line["line"])
            lines.append({**line, which: line[which] + first} if which else line)
    return lines


def sizes(windows):
    counts = collections.Counter(len(window["members"]) for window in windows)
    return " ".join(f"{k}:{n}" for k, n in sorted(counts.items())) or "none"


def show(lines):
    windows = [line for line in lines if line["line"] == "combination"]
    sessions = [line for line in lines if line["line"] == "session"]
    columns = []
    for session in sessions:
        here = [w for w in windows if w["session"] == session["number"]]
        failed = [w for w in here if w.get("failed")]
        print(
            f"session {session['number']}: {session['began']} {session['sharing']}, GPU {session['gpu_uuid'][4:12]}; "
            f"windows by members {sizes(here)}; failed {sizes(failed)}"
        )
        for window in failed[:3]:
            print(f"  {' + '.join(window['members'])}: {window['failed'][:300]}")
        alone = collections.defaultdict(list)
        for window in here:
            limited = any(percent < 100 for percent in window.get("threads_pct", []))
            if len(window["members"]) == 1 and not window.get("failed") and not limited:
                alone[window["members"][0]].append((window["at_s"], window["rates"][0]))
        columns.append({name: [rate for _, rate in sorted(rates)] for name, rates in alone.items()})
    print(f"\n{'alone':18}" + "".join(f"{'session ' + str(s['number']):>26}" for s in sessions))
    print(f"{'':18}" + f"{'windows':>10}{'CV %':>8}{'AFTER %':>8}" * len(sessions))
    spreads = [[] for _ in columns]
    for task in lines[0]["tasks"]:
        row = f"{task['name']:18}"
        for rates, spread in zip((column.get(task["name"], []) for column in columns), spreads):
            if len(rates) > 1 and min(rates) > 0:
                spread.append(statistics.stdev(rates) / statistics.mean(rates) * 100)
                row += f"{len(rates):10}{spread[-1]:8.1f}{(rates[-1] / rates[0] - 1) * 100:8.1f}"
            else:
                row += f"{len(rates):10}{'-':>8}{'-':>8}"
        print(row)
    medians = "".join(f"{statistics.median(s):18.1f}{'':8}" if s else f"{'-':>18}{'':8}" for s in spreads)
    print(f"{'median':18}{medians}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+", metavar="LOG")
    parser.add_argument("-o", "--output", help="write the merged log there")
    options = parser.parse_args()
    lines = merged([read(path) for path in options.logs])
    if options.output:
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
        with open(options.output, "wb") as file:
            file.write(gzip.compress(text, mtime=0) if options.output.endswith(".gz") else text)
    show(lines)


if __name__ == "__main__":
    main()
