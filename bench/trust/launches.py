#!/usr/bin/env python3
"""Launches of two binaries, interleaved in one run: jobs/s, and the time from acceptance to a running command.

The machine's load drifts, so rounds alternate and each round of one is set against the round of the other beside it.
"""

import statistics
import sys
import time

import lib


def round_of(binary, jobs, singles, keep):
    """Jobs a second of one daemon, and its submit-to-spawn times of single jobs in microseconds."""
    daemon = lib.Daemon(binary, gpus="virtual:8xA100-40GB", policy=None, keep=keep).start()
    client = daemon.client(60)
    request = daemon.job(["/bin/true"], gpu_memory_mib=1024)

    def idle():
        while client.get("/v1/status")["jobs"]:
            time.sleep(0.002)
    for _ in range(20):
        client.post("/v1/jobs", request)
    idle()
    # From the first submission to the end of the last job.
    started = time.monotonic()
    for _ in range(jobs):
        client.post("/v1/jobs", request)
    submitted = time.monotonic() - started
    idle()
    rate = jobs / (time.monotonic() - started)
    wrong = [row for row in client.get(f"/v1/history?limit={jobs + 20}")["jobs"] if row["state"] != "COMPLETED"]
    if wrong:
        raise SystemExit(f"{binary}: {len(wrong)} jobs did not complete, e.g. {wrong[0]['reason']}")
    daemon.kill()
    # A new life, so that the statistics are of single jobs alone.
    daemon.start()
    client = daemon.client(60)
    for _ in range(singles):
        client.post("/v1/jobs", request)
        idle()
    stats = client.get("/v1/status")["launches"]
    daemon.clean()
    return {"jobs_per_s": rate, "submits_per_s": jobs / submitted, "spawn_p50_us": stats["submit_to_spawn_p50_us"],
            "spawn_p99_us": stats["submit_to_spawn_p99_us"], "launches": stats["count"]}


def main():
    parser = lib.parser(__doc__.splitlines()[0])
    parser.add_argument("--beside", required=True, help="the binary to set it against")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2000, help="a round")
    parser.add_argument("--singles", type=int, default=200, help="single jobs a round, for the latency")
    args = parser.parse_args()
    if args.small:
        args.rounds, args.jobs, args.singles = 2, min(args.jobs, 100), min(args.singles, 20)
    report = lib.Report("launches", args)
    report.number("set against", lib.version_of(args.beside))
    results = {"new": [], "old": []}
    for number in range(args.rounds):
        pair = [("new", args.carma), ("old", args.beside)]
        # Whichever is second finds warmer caches: they take turns.
        for name, binary in pair if number % 2 == 0 else pair[::-1]:
            results[name].append(round_of(binary, args.jobs, args.singles, args.keep))
            lib.say(f"round {number + 1}, {name}: " + ", ".join(f"{k} {v:.0f}" for k, v in results[name][-1].items()))
    rows = []
    for key, what, more in (("jobs_per_s", "jobs/s", True), ("submits_per_s", "submissions/s", True),
                            ("spawn_p50_us", "acceptance to running, p50, us", False),
                            ("spawn_p99_us", "acceptance to running, p99, us", False)):
        new, old = ([r[key] for r in results[name]] for name in ("new", "old"))
        ratios = [n / o for n, o in zip(new, old) if o]
        middle = statistics.median(ratios)
        rows.append((what, f"{statistics.median(new):.0f}", f"{min(new):.0f}-{max(new):.0f}",
                     f"{statistics.median(old):.0f}", f"{min(old):.0f}-{max(old):.0f}",
                     f"{middle:.3f}", f"{min(ratios):.3f}-{max(ratios):.3f}"))
        if key in ("jobs_per_s", "spawn_p50_us"):
            # A hundred jobs say nothing of speed: small sizes show only that it works.
            good = None if args.small else middle >= 0.9 if more else middle <= 1.1
            report.target(f"{what}: median ratio new/old", good, f"{middle:.3f}", ">= 0.900" if more else "<= 1.100")
    lib.table(rows, ("", "new", "spread", "old", "spread", "ratio", "spread"))
    report.raw["rounds"] = results
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
