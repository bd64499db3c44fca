#!/usr/bin/env python3
"""Limits on the host (--mem, --cpus, --pids), tried with the kernel's controllers.

Where cgroup v2 has no controllers, as on machines that keep version 1 for them, nothing can be tried: bench/trust/vm.sh
runs this in a virtual machine that has them.
"""

import sys
import time
from pathlib import Path

import lib

EAT = "b = b'x' * ({} << 20); print('took it', flush=True)"
"""A line of Python that takes some MiB."""
BUSY = "sh -c 'while :; do :; done'"


def eat(mib, more=""):
    return ["/usr/bin/env", "python3", "-c", EAT.format(mib) + more]


def group_of(pid):
    """The cgroup v2 directory of a process."""
    name = next(line[3:] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if line.startswith("0::"))
    for place in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        if (Path(place) / name.lstrip("/") / "cgroup.kill").exists():
            return Path(place) / name.lstrip("/")
    return None


class Bench:
    def __init__(self, args, report):
        self.report = report
        self.daemon = lib.Daemon(args.carma, gpus="virtual:4xH200", policy=None, keep=args.keep)
        self.daemon.start()

    def submit(self, command, **limits):
        return self.daemon.submit(command, gpu_memory_mib=1024, **limits)

    def ended(self, job):
        """State, reason, host use and output of a job that is over."""
        over = self.daemon.end_of(job, 120)
        if over is None:
            return {"state": "not over", "reason": ""}, {}, ""
        row = over["job"] | {"reason": (over["job"].get("reason") or {}).get("text", "")}
        return row, (over["attempts"] or [{}])[-1].get("host") or {}, self.daemon.output(job)

    def check(self, what, ok, got):
        lib.say(f"{'PASS' if ok else 'FAIL'} {what}: {got}")
        self.report.target(what, ok, str(got)[:60], "")


def memory(bench):
    """A job over its --mem ends whole, with the reason; one under it completes, and its peak is shown."""
    beside = bench.submit("sleep 1000")
    # A shell that would go on, and a child that eats.
    line = f"sleep 500 & python3 -c \"{EAT.format(400)}\"; echo went on; wait"
    job, host, text = bench.ended(bench.submit(line, host_memory_mib=96))
    reason = job["reason"]
    ok = job["state"] == "OUT_OF_MEMORY" and "96 MiB" in reason and "took it" not in text and "went on" not in text
    bench.check("over --mem: all of the job ends, out of host memory", ok, f"{job['state']}: {reason}")
    bench.check("its peak is the limit", host.get("memory_peak_mib") == 96, f"{host.get('memory_peak_mib')} MiB")
    bench.check("it is not tried again", job.get("attempts") == 1, f"{job.get('attempts')} attempt(s)")
    bench.check("a neighbour goes on", bench.daemon.running(beside) is not None, "runs")
    bench.daemon.cli("cancel", beside)
    job, host, text = bench.ended(bench.submit(eat(200), host_memory_mib=512))
    peak = host.get("memory_peak_mib") or 0
    bench.check("under --mem: completes, and the peak is told", job["state"] == "COMPLETED" and 200 <= peak <= 260,
                f"{job['state']}, {peak} MiB for 200 taken")
    # Not even the program fits: an end in words, and never a start without the limit.
    job, _, text = bench.ended(bench.submit(eat(1), host_memory_mib=1))
    bench.check("a limit below what any program needs", job["state"] == "OUT_OF_MEMORY" and "took it" not in text,
                f"{job['state']}: {job['reason']}")


def memory_without_a_daemon(bench):
    """The verdict needs no daemon that watches: it is in the record."""
    job = bench.submit(eat(20, "; import time; time.sleep(8); b += b'x' * (400 << 20); print('more')"),
                       host_memory_mib=128)
    lib.until(lambda: "took it" in bench.daemon.output(job), 60)
    bench.daemon.kill()
    time.sleep(15)
    bench.daemon.start()
    job, _, text = bench.ended(job)
    bench.check("over --mem while no daemon ran", job["state"] == "OUT_OF_MEMORY" and "more" not in text,
                f"{job['state']}: {job['reason']}")


def processors(bench):
    """A job on half a processor gets half a processor."""
    job = bench.submit(f"timeout 10 {BUSY} & timeout 10 {BUSY}; wait", host_cpu_pct=50)
    job, host, _ = bench.ended(job)
    used = (host.get("cpu_ms") or 0) / 1000
    took = (job["ended_ms"] - job["started_ms"]) / 1000
    bench.check("--cpus 0.5: time on processors over time", 0.2 <= used / took <= 0.56,
                f"{used:.1f} s of {took:.1f}: {used / took:.2f}")


def processes(bench):
    """No more processes than allowed, those of others unharmed."""
    program = ("import os, time\nfor n in range(60):\n try: os.fork() or time.sleep(600)\n"
               " except OSError as e: print(e, flush=True); time.sleep(600)")
    job = bench.submit(["/usr/bin/env", "python3", "-c", program], host_processes=16)
    pid = bench.daemon.running(job)
    group = group_of(pid)
    time.sleep(5)
    most = int((group / "pids.current").read_text())
    beside, _, _ = bench.ended(bench.submit("for n in 1 2 3 4 5 6 7 8 9; do /bin/true & done; wait"))
    bench.daemon.cli("cancel", job)
    job, host, text = bench.ended(job)
    bench.check("--pids 16: processes at most", most <= 16 and (host.get("processes_peak") or 0) <= 16, most)
    bench.check("the program is told", "temporarily unavailable" in text,
                text.strip().splitlines()[-1:] or "nothing")
    bench.check("another job beside it", beside["state"] == "COMPLETED", beside["state"])
    job, _, text = bench.ended(bench.submit(["/bin/echo", "alone"], host_processes=1))
    bench.check("--pids 1: one process runs", job["state"] == "COMPLETED" and "alone" in text, job["state"])


def users(bench):
    """A user cannot lift the limit: the files of the group are not the user's."""
    why = lib.two_users()
    if why:
        return bench.report.target("a user lifts the own limit", None, why, "")
    line = "g=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup); echo max >$g/memory.max; echo $$ >/sys/fs/cgroup/cgroup.procs; true"
    done = bench.daemon.cli("run", "--mem", "64M", "--", "sh", "-c", line, user=lib.USERS[1])
    denied = (done.stdout + done.stderr).count(b"ermission denied")
    bench.check("a user lifts the own limit: refused twice", denied == 2, f"{denied} refusals")


def leftovers(bench):
    """Groups go with their jobs."""
    bench.daemon.ends()
    pid = bench.daemon.running(bench.submit("sleep 1000"))
    base = group_of(pid).parent
    left = sorted(p.name for p in base.iterdir() if p.is_dir())
    bench.check("groups left of jobs that are over", len(left) == 1, f"{len(left) - 1}")
    bench.daemon.cli("cancel", "--all")


def main():
    args = lib.parser(__doc__.splitlines()[0]).parse_args()
    report = lib.Report("limits", args)
    bench = Bench(args, report)
    there = (bench.daemon.client().get("/v1/status").get("cgroups") or {}).get("controllers") or []
    missing = {"memory", "cpu", "pids"} - set(there)
    if missing:
        why = f"cgroup v2 has no controller of {', '.join(sorted(missing))} here; bench/trust/vm.sh gives a machine that has"
        report.target("limits of the host", None, why, "")
    else:
        for part in (memory, memory_without_a_daemon, processors, processes, users, leftovers):
            part(bench)
    bench.daemon.clean()
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
