#!/usr/bin/env python3
"""Random `kill -9` of the daemon, of supervisors and of jobs in a storm of submits, cancels, requeues and exits.

Each job writes a line when it starts and one when it ends, so what really ran is known without asking the daemon.
Afterwards the daemon's history is held against that: nothing lost, nothing twice, nothing that ended without having
run, no wrong exit code, nothing left running, no orphan.
"""

import json
import os
import re
import signal
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

import lib

POINTS = ("before-commit", "after-decision", "after-spawn", "after-exit")
BACKLOG = 250
GPUS = 32
"""These jobs show no activity on their GPU, and a GPU takes one such job at a time: with few GPUs they would wait."""
LATE = 12.0
"""Seconds after an acknowledged cancel after which no start can be one that was under way."""

# Without a process of its own: the shell reads the clock of the kernel and appends one short line.
HEAD = ('n=$0; m() { read t rest </proc/uptime; echo "$1 $n $CARMA_JOB_ID $CARMA_ATTEMPT $t $2" >>"$MARKS"; }; '
        "m S 0; ")
KINDS = {
    # name: (weight, what it does between its two lines, exit code or None where it has none of its own)
    "quick": (70, "", None),
    "short": (14, "sleep 0.{n}", None),
    "long": (4, "sleep {n}", None),
    "setsid": (5, "setsid sleep 900 >/dev/null 2>&1 </dev/null & sleep 0.{n}; ", None),
    "deaf": (3, "trap '' TERM; sleep {n}; ", None),
    "signal": (3, "m E 139; kill -SEGV $$", 139),
    "absent": (1, None, 127),
}


class Storm:
    """The state of one run."""

    def __init__(self, args, daemon):
        self.args = args
        self.daemon = daemon
        self.marks = daemon.dir / "marks"
        self.lock = threading.Lock()
        self.work = {}
        """Number of a submission -> its kind, exit code, ids, how many answers never came."""
        self.owner = {}
        """Id -> number of the submission that it was given for."""
        self.acts = defaultdict(list)
        """Id -> (act, sent, answered, status or `None`)."""
        self.recent = []
        self.kills = defaultdict(int)
        self.series = []
        """Points at which the next lives of the daemon end, and the pause before each."""
        self.siege = [0.2, 0.5, 0.8]
        """Shares of the kills at which a long series begins."""
        self.killed_supervisors = defaultdict(int)
        """Id -> supervisors of it that were killed."""
        self.unnamed = 0
        """Supervisors that were killed and whose job nobody could tell."""
        self.killed_jobs = defaultdict(set)
        """Id -> attempts of it whose command was killed."""
        self.accepted = 0
        self.backlog = 0
        self.refused = []
        self.reused = []
        self.stop = False

    # --- clients

    def submission(self, random, number):
        kind = random.choices(list(KINDS), [w for w, _, _ in KINDS.values()])[0]
        _, body, code = KINDS[kind]
        if code is None:
            code = random.choice((0, 0, 0, 1, 3, 42, 255))
        env = {"MARKS": str(self.marks)}
        if body is None:
            command = ["/no/such/program", str(number)]
        else:
            line = HEAD + body.format(n=random.randint(1, 6))
            line += f"; m E {code}; exit {code}" if kind != "signal" else ""
            command = ["/bin/sh", "-c", line.replace("; ;", ";"), str(number)]
        return kind, code, self.daemon.job(command, env=env, name=f"s{number}")

    def client(self, which):
        random = lib.chance(self.args.seed, "client", which)
        client = self.daemon.client(timeout=20)
        number = which
        while not self.stop:
            if self.backlog > BACKLOG:
                time.sleep(0.01)
                continue
            kind, code, request = self.submission(random, number)
            with self.lock:
                work = self.work[number] = {"kind": kind, "code": code, "ids": [], "unknown": 0}
            try:
                self.took(number, client.post("/v1/jobs", request)["id"])
            except lib.Absent:
                time.sleep(0.02)
            except lib.Gone:
                work["unknown"] += 1
                time.sleep(0.02)
            except lib.Refused as refused:
                with self.lock:
                    self.refused.append(str(refused))
                time.sleep(0.05)
            number += self.args.clients
            if random.random() < 0.10 and self.recent:
                self.act(client, random)

    def took(self, number, job):
        with self.lock:
            if self.owner.setdefault(job, number) != number:
                self.reused.append(f"job {job} was given to submissions {self.owner[job]} and {number}")
            self.work[number]["ids"].append(job)
            self.accepted += 1
            self.backlog += 1
            self.recent.append((job, self.work[number]["kind"]))
            del self.recent[:-60]

    def act(self, client, random):
        with self.lock:
            pool = [r for r in self.recent if r[1] not in ("quick", "absent")] if random.random() < 0.6 else self.recent
            job, _ = random.choice(pool or self.recent)
        verb = random.choice(("cancel", "cancel", "requeue"))
        sent = lib.boot_seconds()
        try:
            reply = client.post(f"/v1/jobs/{job}/{verb}")
            status = 200
        except lib.Absent:
            return
        except lib.Gone:
            reply, status = None, None
        except lib.Refused as refused:
            reply, status = None, refused.status
        with self.lock:
            self.acts[job].append((verb, sent, lib.boot_seconds(), status))
        number = self.owner[job]
        if verb == "requeue" and status is None:
            # It was over, perhaps, and is there again under a number that nobody heard of.
            self.work[number]["unknown"] += 1
        elif reply and reply["id"] != job:
            self.took(number, reply["id"])

    # --- kills

    def kill_supervisor(self, random):
        found = sorted(self.daemon.supervisors())
        if not found:
            return False
        pid = random.choice(found)
        table = lib.processes()
        of = order_of(pid)
        for child, env in lib.marked(self.daemon.mark, table).items():
            if table[child]["parent"] == pid and of is None:
                of = int(env["CARMA_JOB_ID"])
        if not lib.signal_process(pid, signal.SIGKILL):
            return False
        with self.lock:
            if of is None:
                self.unnamed += 1
            else:
                self.killed_supervisors[of] += 1
        return True

    def kill_job(self, random):
        found = self.daemon.commands()
        if not found:
            return False
        pid = random.choice(sorted(found))
        env = found[pid]
        with self.lock:
            self.killed_jobs[int(env["CARMA_JOB_ID"])].add(int(env["CARMA_ATTEMPT"]))
        return lib.signal_process(pid, signal.SIGKILL)

    def restart(self, random):
        """Starts the daemon again; kills it during its start now and then. Returns whether it is to die by itself."""
        for _ in range(20):
            if not self.series and self.siege and sum(self.kills.values()) >= self.siege[0] * self.args.kills:
                # Deaths between decision and launch again and again, with pauses in which a job that was put off may
                # be decided anew: the same job meets several of them.
                self.siege.pop(0)
                self.series = [("after-decision", 1.7)] * 10
            elif not self.series and random.random() < 0.06:
                self.series = [(random.choice(POINTS), 0.0)] * 4
            if self.series:
                point, pause = self.series.pop()
                time.sleep(pause)
                self.daemon.spawn(env={"CARMA_FAULT": point})
                if self.daemon.up():
                    return True
                self.kills["daemon at a named point"] += 1
                continue
            if random.random() < 0.12 and sum(self.kills.values()) < self.args.kills:
                self.daemon.spawn()
                time.sleep(random.random() * 0.25)
                self.daemon.kill()
                self.kills["daemon at its start"] += 1
                continue
            fault = random.random() < 0.25
            self.daemon.spawn(env={"CARMA_FAULT": random.choice(POINTS)} if fault else None)
            if self.daemon.up():
                return fault
            if not fault:
                raise SystemExit(f"the daemon does not start again; its log:\n{self.daemon.log()[-3000:]}")
            self.kills["daemon at a named point"] += 1
        self.daemon.start()
        return False

    def run(self):
        """Submits and kills until both are enough."""
        random = lib.chance(self.args.seed, "kills")
        threads = [threading.Thread(target=self.client, args=(i,), daemon=True) for i in range(self.args.clients)]
        for thread in threads:
            thread.start()
        every = self.args.jobs / self.args.kills
        looked = said = time.monotonic()
        doomed, doomed_since = False, 0.0
        while True:
            killed = sum(self.kills.values())
            if self.accepted >= self.args.jobs and killed >= self.args.kills:
                break
            now = time.monotonic()
            if now - said > 30:
                said = now
                lib.say(f"storm: {self.accepted} jobs accepted, {killed} kills, {self.backlog} live")
            if doomed and (not self.daemon.alive() or now - doomed_since > 3):
                self.daemon.kill()
                self.kills["daemon at a named point"] += 1
                doomed, doomed_since = self.restart(random), time.monotonic()
            elif not self.daemon.alive():
                raise SystemExit(f"the daemon died by itself; its log:\n{self.daemon.log()[-3000:]}")
            if now - looked > 0.15:
                looked = now
                try:
                    self.backlog = sum(self.daemon.client(5).get("/v1/status")["jobs"].values())
                except (lib.Gone, lib.Refused):
                    pass
            if not doomed and killed < self.args.kills and self.accepted >= (killed + 1) * every:
                what = random.choices(("daemon", "supervisor", "job"), (45, 30, 25))[0]
                if what == "daemon":
                    time.sleep(random.random() * 0.02)
                    self.daemon.kill()
                    self.kills[what] += 1
                    doomed, doomed_since = self.restart(random), time.monotonic()
                elif what == "supervisor" and self.kill_supervisor(random) or what == "job" and self.kill_job(random):
                    self.kills[what] += 1
            time.sleep(0.003)
        self.stop = True
        for thread in threads:
            thread.join(30)
        if doomed:
            self.daemon.kill()
            self.daemon.start()

    # --- oracle

    def read_marks(self):
        """Number, id, attempt and time of each start; the same with the exit code of each end."""
        starts, ends, broken = [], {}, []
        text = self.marks.read_text() if self.marks.exists() else ""
        for line in text.splitlines():
            match = re.fullmatch(r"([SE]) (\d+) (\d+) (\d+) ([\d.]+) (\d+)", line)
            if not match:
                broken.append(line)
                continue
            number, job, attempt, code = (int(match[i]) for i in (2, 3, 4, 6))
            if match[1] == "S":
                starts.append((number, job, attempt, float(match[5])))
            else:
                ends[(job, attempt)] = code
        return starts, ends, broken

    def history(self):
        """All jobs that are over, by id."""
        client = self.daemon.client(120)
        over = {row["id"]: row for row in client.get("/v1/history?limit=1000000")["jobs"]}
        for job in self.owner:
            if job not in over:
                try:
                    row = client.get(f"/v1/jobs/{job}")["job"]
                except lib.Refused:
                    continue
                if row["ended_ms"] is not None:
                    over[job] = row
        return over

    def judge(self, report):
        """Holds what the daemon says against what ran."""
        ended = self.daemon.ends(patience=self.args.patience)
        left = [] if ended else [f"job {j['id']} ({j['name']}) is {j['state']}: {j['reason']['text']}"
                                 for j in self.daemon.queue()]
        marked = None
        for _ in range(150):
            marked = lib.marked(self.daemon.mark)
            if not marked:
                break
            time.sleep(0.1)
        over = self.history()
        starts, ends, broken = self.read_marks()
        by_id = defaultdict(lambda: defaultdict(list))
        for number, job, attempt, at in starts:
            by_id[job][attempt].append((number, at))

        lost = [f"job {job} (s{n}, {self.work[n]['kind']})" for job, n in self.owner.items()
                if job not in over and not any(f"job {job} " in text for text in left)]
        twice, again, excused, never, wrong, late, strange, unnamed = [], [], 0, [], [], [], [], 0
        for job, attempts in by_id.items():
            for attempt, lines in attempts.items():
                if len(lines) > 1:
                    twice.append(f"job {job}, attempt {attempt}: {len(lines)} starts")
            if job not in over and job not in self.owner:
                strange.append(f"job {job} ran and is unknown")
            reasons = sum(1 for act in self.acts[job] if act[0] == "requeue" and act[3] in (200, None))
            extra = len(attempts) - 1 - reasons
            if extra > 0 and self.killed_supervisors[job]:
                excused += 1
            elif extra > 0:
                again.append(f"job {job} ran in attempts {sorted(attempts)} with {reasons} requeues")
            cancels = [act[2] for act in self.acts[job] if act[0] == "cancel" and act[3] == 200]
            if cancels and not reasons:
                late += [f"job {job} started {at - cancels[0]:.1f} s after its cancel was acknowledged"
                         for lines in attempts.values() for _, at in lines if at - cancels[0] > LATE]
        for job, row in over.items():
            match = re.fullmatch(r"s(\d+)", row["name"])
            number = int(match[1]) if match else None
            work = self.work.get(number)
            if work is None:
                strange.append(f"job {job} named {row['name']} was never submitted")
                continue
            if job not in self.owner:
                # Its acceptance was never heard of; it must obey all the same.
                work["unknown"] -= 1
                if work["unknown"] < 0:
                    strange.append(f"job {job} (s{number}) was accepted nowhere")
            elif self.owner[job] != number:
                lost.append(f"job {job} is s{number} and was given to s{self.owner[job]}")
            state, code = row["state"], row["exit_code"]
            text = f"job {job} ({work['kind']}, exit {work['code']}) is {state} with exit code {code}: " \
                   f"{row['reason']['text']}"
            cancelled = any(act[0] == "cancel" and act[3] in (200, None) for act in self.acts[job])
            if state == "CANCELLED":
                if not cancelled:
                    wrong.append(text + "; nobody cancelled it")
                continue
            victim = self.killed_supervisors[job] > 0
            unknown = code is None and row["reason"]["code"] == "ExitUnknown"
            if unknown and not victim and unnamed < self.unnamed:
                victim = True
                unnamed += 1
            # A command that was killed before its first line has run, and nobody can see it.
            tried = work["kind"] != "absent" or row["reason"]["code"] == "LaunchFailed"
            if not by_id[job] and tried and not victim and not self.killed_jobs[job]:
                never.append(text)
                continue
            if unknown and victim:
                continue
            allowed = {work["code"]} | ({137} if self.killed_jobs[job] else set())
            if code not in allowed or (state == "COMPLETED") != (code == 0):
                wrong.append(text)
            elif state == "COMPLETED" and (job, max(by_id[job], default=0)) not in ends:
                wrong.append(text + "; its last attempt never came to its end")

        killed = sum(self.kills.values())
        report.number("jobs accepted", self.accepted)
        report.number("kills", ", ".join(f"{v} {k}" for k, v in sorted(self.kills.items())) + f"; {killed} in all")
        acts = [act for acts in self.acts.values() for act in acts]
        report.number("orders", f"{sum(a[0] == 'cancel' for a in acts)} cancels, "
                                f"{sum(a[0] == 'requeue' for a in acts)} requeues")
        report.number("commands started", len(starts))
        report.number("submissions without an answer", sum(max(0, w["unknown"]) for w in self.work.values()))
        report.number("submissions refused", len(self.refused))
        report.number("ran again after a killed supervisor", excused)
        report.number("ended with an unknown exit code", sum(r["exit_code"] is None and r["state"] == "FAILED"
                                                             for r in over.values()))
        report.target("jobs", self.accepted >= self.args.jobs, self.accepted, f"at least {self.args.jobs}")
        report.target("kills", killed >= self.args.kills, killed, f"at least {self.args.kills}")
        report.none("lost", lost + self.reused)
        report.none("started twice within an attempt", twice)
        report.none("ran in two attempts without a reason", again)
        report.none("ended without having run", never)
        report.none("wrong exit code or state", wrong)
        report.none("started long after an acknowledged cancel", late)
        report.none("left running or waiting", left)
        orphans = []
        for pid, env in marked.items():
            job = int(env.get("CARMA_JOB_ID", 0))
            note = "its supervisor was killed" if self.killed_supervisors[job] else "its supervisor was not killed"
            orphans.append(f"process {pid} of job {job}; {note}")
        report.none("orphans", orphans)
        report.none("jobs or lines that nobody submitted", strange + broken)
        report.raw["kills"] = dict(self.kills)
        report.raw["refused"] = self.refused[:50]


def order_of(pid):
    """The job whose order a supervisor was given, as far as that can be told from outside."""
    try:
        with open(f"/proc/{pid}/fd/0", "rb") as file:
            return int(json.loads(file.read())["job"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def main():
    parser = lib.parser(__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=30_000, help="accepted at least")
    parser.add_argument("--kills", type=int, default=500, help="of daemon, supervisors and jobs")
    parser.add_argument("--clients", type=int, default=3, help="connections that submit")
    parser.add_argument("--patience", type=float, default=90, help="seconds for the last jobs to end")
    args = parser.parse_args()
    long = not args.small
    if args.small:
        args.jobs, args.kills = min(args.jobs, 300), min(args.kills, 10)
    config = "[queue]\nmost-jobs = 24\n[jobs]\nkill-grace = '2s'\n[journal]\nkeep-jobs = 1000000\n"
    daemon = lib.Daemon(args.carma, gpus=f"virtual:{GPUS}xH200", config=config, keep=args.keep).start()
    report = lib.Report("storm", args)
    storm = Storm(args, daemon)
    if not long:
        storm.siege.clear()
    storm.run()
    lib.say(f"storm: {storm.accepted} jobs accepted in {time.monotonic() - report.started:.0f} s; waiting for the last")
    storm.judge(report)
    daemon.clean()
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
