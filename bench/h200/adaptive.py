#!/usr/bin/env python3
"""24 real tasks of seven kinds of which carma is told nothing: exclusive, the default policy, and the default again with the
history of that run.

    python3 bench/h200/adaptive.py --carma target/h200/carma --out results --part exclusive
    python3 bench/h200/adaptive.py --carma target/h200/carma --out results --part adaptive

Everything is asked of carma's command line. The daemon has its defaults. `--virtual` rehearses on a virtual GPU. Each part
takes up to nine minutes on one H200 and writes one JSON file; the table at the end has what was in `--out` before, too.
"""

import argparse
import json
import os
import time

from first_run import Carma, Sampler, guarded, machine, mean

# name, model, steps, memory declared (none), for --virtual: memory taken (GiB), SM, DRAM, seconds of work
CIFAR = ("cifar", "cifar", 700, None, 2.0, 0.23, 0.05, 7)
RESNET = ("resnet152", "resnet152", 160, None, 8.5, 0.57, 0.23, 8)
GPT = ("gpt2", "gpt2", 100, None, 12.0, 0.60, 0.30, 9)
MOBILENET = ("mobilenet", "mobilenet", 280, None, 3.0, 0.30, 0.15, 7)
VIT = ("vit", "vit", 100, None, 7.0, 0.70, 0.25, 8)
BERT = ("bert", "bert", 160, None, 6.0, 0.65, 0.25, 8)
LSTM = ("lstm", "lstm", 300, None, 4.0, 0.40, 0.20, 7)
# Each kind several times, no two of a kind in a row; half a second apart.
MIX = [CIFAR, RESNET, GPT, MOBILENET, VIT, BERT, LSTM] * 3 + [CIFAR, BERT, MOBILENET]
GAP_S = 0.5


def play(options, carma, label):
    """The mix, once. A task is over when its last attempt is."""
    sampler = Sampler(carma)
    jobs = []
    for task in MIX:
        jobs.append(carma.submit(task, mark=False)[0])
        time.sleep(GAP_S)
    try:
        carma.over(jobs, options.patience, "the mix to end")
    except RuntimeError as error:
        print(error)
    rows = sampler.finish()
    details = [carma.show(job) for job in jobs]
    first = min(d["job"]["submitted_ms"] for d in details) / 1000
    ends = [d["job"]["ended_ms"] / 1000 - first for d in details if d["job"]["ended_ms"]]
    if len(ends) < len(details):
        # No makespan, but a bound on it, and when the others ended.
        error = f"{len(ends)} of {len(details)} tasks were done after {options.patience:.0f} s"
        return {"label": label, "error": error, "ended_s": sorted(ends)}
    ended = max(d["job"]["ended_ms"] for d in details) / 1000
    attempts = [a for d in details for a in d["attempts"]]
    codes = [a["verdict"]["code"] for a in attempts if a["verdict"]]
    inside = [r for r in rows if r["t"] <= ended + 1]

    def over(field, since):
        return mean([(d["job"][field] - d["job"][since]) / 1000 for d in details])

    return {
        "label": label,
        "tasks": len(details),
        "makespan_s": ended - first,
        "mean_jct_s": over("ended_ms", "submitted_ms"),
        "mean_wait_s": over("started_ms", "submitted_ms"),
        "mean_run_s": over("ended_ms", "started_ms"),
        "completed": sum(d["job"]["state"] == "COMPLETED" for d in details),
        "attempts": len(attempts),
        "out_of_memory": sum(code.startswith("OutOfMemory") for code in codes),
        "energy_kj": (inside[-1]["energy_j"] - inside[0]["energy_j"]) / 1000,
        "mean_smact": mean([r["smact"] for r in inside]),
        "jobs": [
            {
                "name": d["job"]["name"],
                "submitted_s": d["job"]["submitted_ms"] / 1000 - first,
                "peak_mib": d["job"]["memory_peak_mib"],
                "attempts": [
                    {
                        "started_s": a["started_ms"] / 1000 - first,
                        "ended_s": a["ended_ms"] / 1000 - first,
                        "sharing": a["sharing"],
                        "cap_mib": a["cap_mib"],
                        "placed": a["placed"]["text"],
                        "verdict": a["verdict"] and a["verdict"]["text"],
                    }
                    for a in d["attempts"]
                ],
            }
            for d in details
        ],
    }


def part_exclusive(options):
    carma = Carma(options, "exclusive", "mps", config="")
    try:
        return [guarded(play, options, carma, "exclusive")]
    finally:
        carma.stop()


def part_adaptive(options):
    carma = Carma(options, "adaptive", "mps", config="")
    try:
        # The second time the daemon has seen all kinds.
        return [guarded(play, options, carma, "adaptive, no numbers"), guarded(play, options, carma, "the same again")]
    finally:
        carma.stop()


def table(runs):
    base = next((r for r in runs if r.get("label") == "exclusive" and "makespan_s" in r), None)
    print(f"{'':22}{'makespan s':>12}{'':7}{'mean JCT s':>12}{'':7}{'wait s':>8}{'run s':>8}{'OOM':>5}{'done':>6}{'kJ':>8}{'SMACT':>7}")
    for run in runs:
        if "error" in run:
            print(f"{run.get('label', '?'):22}{run['error']}")
            continue

        def against(field, run=run):
            return f"({run[field] / base[field]:.2f})" if base else ""

        print(
            f"{run['label']:22}{run['makespan_s']:12.1f}{against('makespan_s'):>7}{run['mean_jct_s']:12.1f}"
            f"{against('mean_jct_s'):>7}{run['mean_wait_s']:8.1f}{run['mean_run_s']:8.1f}{run['out_of_memory']:5}"
            f"{run['completed']:6}{run['energy_kj']:8.1f}{run['mean_smact'] or 0:7.2f}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--carma", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--part", choices=["exclusive", "adaptive"], required=True)
    parser.add_argument("--virtual", action="store_true")
    parser.add_argument("--patience", type=float, default=540, help="seconds that the mix may take")
    options = parser.parse_args()
    options.carma = os.path.abspath(options.carma)
    os.makedirs(options.out, exist_ok=True)
    result = {"machine": machine(options)}
    result["runs"] = (part_exclusive if options.part == "exclusive" else part_adaptive)(options)
    with open(os.path.join(options.out, f"adaptive-{options.part}.json"), "w") as file:
        json.dump(result, file, indent=1)
    print(json.dumps(result["machine"]))
    runs = []
    for part in ("exclusive", "adaptive"):
        path = os.path.join(options.out, f"adaptive-{part}.json")
        if os.path.exists(path):
            with open(path) as file:
                runs += json.load(file)["runs"]
    table(runs)


if __name__ == "__main__":
    main()
