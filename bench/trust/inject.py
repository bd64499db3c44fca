#!/usr/bin/env python3
"""One injected error, or a hang, at a system call of the launch, exit, journal and adoption paths.

First a short scenario is recorded with strace: which system calls occur, in which thread of the daemon or in supervisors,
and how often. Then runs are drawn by the seed: a place, a call, its occurrence and an error. In each run jobs are
submitted, one is cancelled, one fails, the daemon is killed and started again while one runs. Nothing may be lost, run
twice, run as somebody else, leak a descriptor or stay; and what went wrong must be said.

Places: `start` (a daemon's first start), `adopt` (the start that finds a job running), `thread NAME` (one thread of the
running daemon), `supervisor` (supervisors, up to the command's own first instruction; each thread of the daemon meets the
error too, since strace follows children of all threads or of none).
"""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import lib

# What a call can answer with on a machine in trouble. No hang of execve: what is executed is carma's own program, and where
# that hangs nothing of carma runs.
OPENS = ("EMFILE", "ENOSPC", "EIO", "EINTR", "ENOMEM", "hang")
WRITES = ("ENOSPC", "EIO", "EINTR", "ENOMEM", "hang")
MAKES = ("EMFILE", "ENOMEM", "hang")
STARTS = ("EAGAIN", "ENOMEM", "hang")
SMALL = ("EIO", "ENOMEM", "hang")
CALLS = {
    "openat": OPENS, "write": WRITES, "pwrite64": WRITES, "read": ("EIO", "EINTR", "ENOMEM", "hang"),
    "pread64": ("EIO", "ENOMEM", "hang"), "fsync": ("EIO", "ENOSPC", "hang"), "fdatasync": ("EIO", "ENOSPC", "hang"),
    "link": WRITES, "linkat": WRITES, "unlink": SMALL, "unlinkat": SMALL, "rename": WRITES, "renameat2": WRITES,
    "mkdir": WRITES, "mkdirat": WRITES, "ftruncate": WRITES, "fallocate": WRITES, "writev": WRITES,
    "clone": STARTS, "clone3": STARTS, "vfork": STARTS, "fork": STARTS, "execve": ("ENOMEM", "EIO"),
    "pidfd_open": ("EMFILE", "ENOMEM", "hang"), "pidfd_send_signal": ("EINTR", "ENOMEM", "hang"), "kill": ("EINTR", "hang"),
    "epoll_ctl": ("ENOMEM", "ENOSPC", "hang"), "epoll_wait": ("EINTR", "hang"), "epoll_pwait": ("EINTR", "hang"),
    "epoll_create1": MAKES, "memfd_create": MAKES, "pipe2": MAKES, "dup2": ("EINTR", "hang"), "dup3": ("EINTR", "hang"),
    "fcntl": ("EMFILE", "EINTR", "hang"), "socket": MAKES, "socketpair": MAKES, "bind": ("EIO", "ENOMEM", "hang"),
    "accept4": ("EMFILE", "EINTR", "ENOMEM", "hang"), "sendmsg": ("EINTR", "ENOMEM", "hang"),
    "recvmsg": ("EINTR", "ENOMEM", "hang"), "sendto": ("EINTR", "ENOMEM", "hang"), "recvfrom": ("EINTR", "ENOMEM", "hang"),
    "waitid": ("EINTR", "hang"), "wait4": ("EINTR", "hang"), "setuid": ("EAGAIN", "hang"), "setresuid": ("EAGAIN", "hang"),
    "setgid": ("EINTR", "hang"), "setresgid": ("EINTR", "hang"), "setgroups": ("ENOMEM", "hang"),
    "chdir": ("EIO", "ENOMEM", "hang"), "fchdir": ("EIO", "hang"), "chmod": SMALL, "fchmod": SMALL, "fchown": SMALL,
    "lchown": SMALL, "fchownat": SMALL, "statx": SMALL, "newfstatat": SMALL, "getdents64": SMALL,
    "prctl": ("ENOMEM", "hang"), "setsid": ("hang",), "close_range": ("ENOMEM", "hang"), "poll": ("EINTR", "hang"),
}
MACHINES = ("EMFILE", "ENOSPC", "ENOMEM", "EAGAIN")
"""Errors that are the machine's fault: no job may end by them."""
ARTIFACT = "failed to wake I/O driver"
"""What tokio says when a write to wake a thread fails (eventfd). No kernel answers such a write with an error: a run in
which that write was hit shows nothing."""
IMPOSSIBLE = re.compile(r"fcntl\(\d+, F_(OFD_)?(SETLK|GETLK).* E(MFILE|INTR) ")
"""What the kernel never answers (fcntl(2)): locks need no descriptor, and these calls do not wait. SQLite believes such a lock
to be held for ever."""
HANG = 3_000_000
SMALL_RUNS = (("thread launch", "pidfd_open", 1, "EMFILE"), ("thread launch", "memfd_create", 2, "ENOMEM"),
              ("thread engine", "pwrite64", 5, "ENOSPC"), ("supervisor", "setuid", 1, "EAGAIN"))
MOST = 60
"""The latest occurrence of a call that is drawn."""
PATIENCE = 25
MARKS = 'echo x >"$MARKS/$CARMA_JOB_ID.$CARMA_ATTEMPT.$$"; '


def known_calls(strace):
    """The calls of `CALLS` that this strace knows."""
    known = []
    for call in CALLS:
        done = subprocess.run([strace, "-e", f"trace={call}", "-o", "/dev/null", "/bin/true"], capture_output=True)
        if done.returncode == 0:
            known.append(call)
    return known


def tracer_of(pid):
    """Who traces a process; `None`: nobody."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    return int(re.search(r"TracerPid:\s+(\d+)", text)[1]) or None


class Scene:
    """One run of the scenario."""

    def __init__(self, args, place=None, call=None, when=0, error=None, calls=()):
        self.args, self.place, self.call, self.when, self.error, self.calls = args, place, call, when, error, calls
        self.user = lib.USERS[0] if lib.two_users() is None else None
        self.daemon = lib.Daemon(args.carma, gpus="virtual:4xH200", keep=args.keep,
                                 config="[queue]\nmost-jobs = 24\n[jobs]\nkill-grace = '1s'\n")
        self.marks = self.daemon.dir / "marks"
        self.marks.mkdir()
        self.marks.chmod(0o1777)
        self.trace = self.daemon.dir / "trace"
        self.strace = None
        self.jobs = {}
        """Id -> what it should come to: state and exit code."""
        self.unknown = 0
        self.refused = []
        self.deaths = []
        self.findings = []
        self.threads = {}
        self.base = None
        self.leaked = None

    def find(self, kind, text):
        self.findings.append((kind, " ".join(text.split())[:300]))

    # --- strace

    def words(self):
        calls = [self.call] if self.call else list(self.calls)
        how = ["strace", "-f", "-o", str(self.trace), "-e", "trace=" + ",".join(dict.fromkeys([*calls, "execve"]))]
        if self.call:
            what = f"delay_enter={HANG}" if self.error == "hang" else f"error={self.error}"
            how += ["-e", f"inject={self.call}:{what}:when={self.when}"]
        return how

    def attach(self):
        """Attaches to the running daemon, at the place of this run."""
        pid = self.daemon.pid()
        for task in os.listdir(f"/proc/{pid}/task"):
            # The first thread bears the program's name.
            name = Path(f"/proc/{pid}/task/{task}/comm").read_text().strip()
            self.threads[int(task)] = "main" if int(task) == pid else name
        words = self.words()
        if self.place and self.place.startswith("thread "):
            name = self.place.removeprefix("thread ")
            tasks = [t for t, n in self.threads.items() if n == name]
            words.remove("-f")
            words += [w for task in tasks for w in ("-p", str(task))]
        elif self.place == "supervisor":
            words += ["-p", str(pid)]
        else:
            words += ["-p", str(pid)]
        self.strace = subprocess.Popen(words, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        os.set_blocking(self.strace.stderr.fileno(), False)
        text = b""

        def attached():
            nonlocal text
            text += self.strace.stderr.read() or b""
            return b"attached" in text
        if not lib.until(attached, 10):
            raise RuntimeError(f"strace does not attach: {text.decode(errors='replace')[:300]}")

    def detach(self):
        if self.tracer is not None:
            # Its polite end would end the daemon that it started; the kernel lets go of what a dead tracer traced.
            lib.signal_process(self.tracer, signal.SIGKILL)
            self.tracer = None
        if self.strace is not None:
            self.strace.terminate()
            try:
                self.strace.wait(10)
            except subprocess.TimeoutExpired:
                self.strace.kill()
                self.strace.wait()
            self.strace.stderr.close()
            self.strace = None

    def hits(self):
        """Lines of the trace that were injected, without those in the jobs' own commands."""
        own, found, mine = set(), [], []
        try:
            lines = self.trace.read_text(errors="replace").splitlines()
        except OSError:
            return [], []
        for line in lines:
            pid, _, rest = line.partition(" ")
            if rest.lstrip().startswith("execve(") and '"/bin/sh"' in rest and "= -1" not in rest:
                own.add(pid)
            if "INJECTED" in rest or "DELAYED" in rest:
                (mine if pid in own else found).append(line)
        return found, mine

    def once(self):
        """One error is enough: what comes after it must not meet another."""
        if not self.error or self.strace is None and self.tracer is None:
            return
        found = self.hits()[0]
        if self.place == "supervisor":
            # strace follows children only together with all threads; those are other places.
            found = [line for line in found if int(line.split()[0]) not in self.threads]
        if found:
            self.detach()

    # --- the scenario

    def start(self, place):
        """Starts the daemon, under strace where this run's place is its start. Dead at once: it is started again."""
        if self.place == place:
            # Let go of where a supervisor is executed: those are another place. The daemon is our child, not strace's.
            self.daemon.spawn(prefix=[*self.words(), "-D", "-b", "execve"])
            tracer = lib.until(lambda: tracer_of(self.daemon.pid()), 5, 0.002)
            self.tracer = tracer
            if not self.daemon.up(PATIENCE):
                self.died("at its start")
                self.tracer = None
                self.daemon.start()
            self.once()
        else:
            self.daemon.start()

    tracer = None

    def pid(self):
        return self.daemon.pid()

    def alive(self):
        return self.daemon.alive()

    def died(self, when):
        """The daemon died: allowed where it says why."""
        text = self.daemon.log()
        tail = [line for line in text.strip().splitlines() if not line.startswith("strace")][-4:]
        self.deaths.append(when)
        if "panicked" not in text and not any(re.search(r"ERROR|error|cannot|stops|failed|carma:", line) for line in tail):
            self.find("unclear", f"the daemon died {when} without a word: {tail}")

    def revive(self):
        if not self.alive():
            self.died("while it ran")
            self.detach()
            self.daemon.start()

    def submit(self, line, state, code, times=4):
        """Submits until it is accepted; the id, or `None`."""
        request = self.daemon.job(MARKS + line, env={"MARKS": str(self.marks)})
        if self.user:
            request["cwd"] = "/tmp"
        for _ in range(times):
            try:
                job = self.ask("POST", "/v1/jobs", request)["id"]
                self.jobs[job] = (state, code)
                return job
            except lib.Gone as gone:
                self.unknown += 1
                self.refused.append(str(gone))
            except lib.Refused as refused:
                self.refused.append(str(refused))
                text = refused.body.get("error", "") if isinstance(refused.body, dict) else str(refused.body)
                if len(text) < 15:
                    self.find("unclear", f"a submission is refused with {refused}")
            self.revive()
            time.sleep(0.3)
        self.find("stuck", f"{times} submissions were not taken: {self.refused[-1]}")
        return None

    def ask(self, method, path, body=None):
        """As the user whose jobs they are."""
        def go():
            try:
                return "ok", lib.Client(self.daemon.socket, 12).call(method, path, body)
            except lib.Gone as gone:
                return "gone", str(gone)
            except lib.Refused as refused:
                return "refused", (refused.status, refused.body)
        kind, value = lib.as_user(self.user, go, patience=30) if self.user else go()
        if kind == "gone":
            raise lib.Gone(value)
        if kind == "refused":
            raise lib.Refused(*value)
        return value

    def wait(self, check, patience=PATIENCE):
        """As `until`, and looks after strace and the daemon meanwhile."""
        def look():
            self.once()
            if not self.alive():
                self.revive()
            try:
                return check()
            except lib.Refused:
                return None
        return lib.until(look, patience)

    def state(self, job):
        return self.daemon.client(10).get(f"/v1/jobs/{job}")["job"]

    def fds(self):
        try:
            return len(os.listdir(f"/proc/{self.pid()}/fd"))
        except OSError:
            return None

    def run(self, base=None):
        """Plays the scenario and judges it."""
        try:
            self.play(base)
            self.judge()
        finally:
            self.last_words, self.met = self.daemon.log(), self.hits()[0]
            self.detach()
            self.daemon.clean()
        return self

    last_words = ""

    def play(self, base):
        self.start("start")
        warm = self.submit("exit 0", "COMPLETED", 0)
        self.wait(lambda: self.state(warm)["ended_ms"] if warm else True)
        if self.place is None or self.place == "supervisor" or self.place.startswith("thread "):
            time.sleep(0.15)
            self.base = self.fds()
            self.attach()
        elif self.place == "start":
            self.base = base
        long = self.submit("sleep 60", "CANCELLED", None)
        self.submit("exit 3", "FAILED", 3)
        self.submit("sleep 0.2; exit 0", "COMPLETED", 0)
        if long and self.wait(lambda: self.state(long)["state"] in ("RUNNING", "FAILED")):
            for _ in range(4):
                try:
                    self.ask("POST", f"/v1/jobs/{long}/cancel", {})
                    break
                except lib.Gone:
                    self.revive()
                except lib.Refused as refused:
                    if refused.status == 409:
                        break
                    self.refused.append(str(refused))
                    time.sleep(0.3)
        self.settle()
        if self.place != "adopt":
            self.detach()
            self.leaks()
        # And a restart that finds a job running.
        kept = self.submit("sleep 1.2; exit 4", "FAILED", 4)
        if kept:
            self.wait(lambda: self.state(kept)["state"] != "PENDING")
        self.daemon.kill()
        self.detach()
        self.start("adopt")
        self.settle()
        if self.place == "adopt":
            self.base = base
            self.leaks()

    def settle(self):
        """Waits for all jobs; names those that stay. One that was accepted in an answer which was lost may sleep for long."""
        if self.unknown:
            try:
                for row in self.daemon.client(10).get("/v1/jobs")["jobs"]:
                    if row["id"] not in self.jobs:
                        self.daemon.client(10).post(f"/v1/jobs/{row['id']}/cancel")
            except (lib.Gone, lib.Refused):
                self.revive()
        if not self.wait(lambda: not self.daemon.client(10).get("/v1/jobs")["jobs"]):
            try:
                for row in self.daemon.client(10).get("/v1/jobs")["jobs"]:
                    self.find("stuck", f"job {row['id']} is {row['state']} after {PATIENCE} s: {row['reason']['text']}")
                    self.daemon.client(10).post(f"/v1/jobs/{row['id']}/cancel")
            except (lib.Gone, lib.Refused) as error:
                self.find("stuck", f"the daemon does not answer: {error}")

    def leaks(self):
        """Ten more jobs; then there are no more descriptors than before, and no zombies."""
        if self.deaths or not self.alive():
            return
        for _ in range(10):
            self.submit("exit 0", "COMPLETED", 0)
        self.settle()
        if self.base is None:
            self.base = self.fds()
            return
        now = None
        for _ in range(60):
            now = self.fds()
            if now is None or now <= self.base:
                break
            time.sleep(0.05)
        self.leaked = None if now is None else now - self.base
        if self.leaked and self.leaked > 0:
            self.find("leak", f"{self.base} -> {now} descriptors")
        dead = [p for p, e in lib.processes().items() if e["parent"] == self.pid() and e["zombie"]]
        if dead:
            self.find("leak", f"{len(dead)} zombies")

    def judge(self):
        """Holds the history against the marks."""
        found, own = self.hits()
        client = self.daemon.client(20)
        rows = None
        for last in (False, False, True):
            try:
                rows = client.get("/v1/history?limit=1000")["jobs"]
                break
            except lib.Gone:
                # The error may have met this very answer.
                if last:
                    raise
        over = {row["id"]: row for row in rows}
        starts = Counter()
        uid = lib.pwd.getpwnam(self.user).pw_uid if self.user else os.geteuid()
        for mark in self.marks.iterdir():
            job, attempt, _ = mark.name.split(".")
            starts[(int(job), int(attempt))] += 1
            if mark.stat().st_uid != uid:
                self.find("rights", f"job {job} ran as user {mark.stat().st_uid}")
        ran = defaultdict(int)
        for (job, attempt), count in starts.items():
            ran[job] += count
            if count > 1:
                self.find("twice", f"job {job} started {count} times in attempt {attempt}")
        for job, count in ran.items():
            if count > 1 and not any(k == "twice" for k, _ in self.findings):
                self.find("twice", f"job {job} ran in {count} attempts")
        strays = [job for job in over if job not in self.jobs]
        if len(strays) > self.unknown:
            self.find("lost", f"jobs {strays} were accepted nowhere")
        for job, (state, code) in self.jobs.items():
            row = over.get(job)
            if row is None:
                self.find("lost", f"job {job} is in no history")
                continue
            text = f"job {job} is {row['state']} with exit code {row['exit_code']}: {row['reason']['text']}"
            if own:
                # The error met the command itself.
                continue
            if row["state"] == state and (code is None or row["exit_code"] == code):
                if state in ("COMPLETED", "FAILED") and not ran[job]:
                    self.find("never", text + "; it never ran")
                continue
            if self.findings and row["state"] == "CANCELLED":
                continue
            said = re.search(r"os error|" + "|".join(map(re.escape, map(os.strerror, (
                errno.EMFILE, errno.ENOSPC, errno.EIO, errno.EINTR, errno.ENOMEM, errno.EAGAIN)))), row["reason"]["text"])
            if ran[job] or not said:
                # Unknown is an honest end where its supervisor could not tell; only a machine in trouble makes it so.
                kind = "unknown" if row["reason"]["code"] == "ExitUnknown" else "wrong" if ran[job] else "never"
                self.find(kind, text)
            elif self.error in MACHINES:
                self.find("blamed", text)
        if "panicked" in self.daemon.log():
            at = self.daemon.log().index("panicked")
            text = self.daemon.log()[max(0, at - 80):at + 300]
            # The runtime gives up by a panic when it gets no thread or pipe at a start. It says why, and nothing runs yet.
            said = re.search(r"tokio-[\d.]+/src", text) and re.search(r"Os \{|os error|unavailable|Cannot allocate", text)
            if not (said and set(self.deaths) == {"at its start"}):
                self.find("panic", text)
        left = lib.marked(self.daemon.mark)
        if left and not lib.until(lambda: not lib.marked(self.daemon.mark), 6):
            self.find("orphan", f"{len(lib.marked(self.daemon.mark))} processes are left")
        self.hit = bool(found)


KINDS = {
    "twice": "ran twice", "lost": "lost", "rights": "ran as somebody else", "never": "ended without having run or a reason",
    "wrong": "wrong state or exit code", "blamed": "ended by an error of the machine's", "leak": "descriptors or zombies left",
    "unclear": "nothing said", "stuck": "stuck", "orphan": "orphans", "panic": "panics",
    "unknown": "exit codes unknown though the supervisor lived",
}


def record(args, calls):
    """How often each call occurs at each place; and how many descriptors an idle daemon has."""
    counts = {}

    def of(scene):
        table = defaultdict(Counter)
        for line in scene.trace.read_text(errors="replace").splitlines():
            match = re.match(r"(\d+)\s+(\w+)\(", line)
            if match:
                table[int(match[1])][match[2]] += 1
        return table
    # Over the whole of the running daemon, supervisors included.
    scene = Scene(args, calls=calls)
    try:
        scene.play(None)
        scene.judge()
        for tid, table in of(scene).items():
            place = f"thread {scene.threads[tid]}" if tid in scene.threads else "supervisor"
            counts.setdefault(place, Counter())
            for call, count in table.items():
                counts[place][call] = max(counts[place][call], count)
        base = scene.base
    finally:
        scene.detach()
        scene.daemon.clean()
    wrong = list(scene.findings)
    bases = {"thread": base}
    # A small run keeps to the running daemon and its supervisors.
    for place in () if args.small else ("start", "adopt"):
        scene = Scene(args, place=place, calls=calls)
        try:
            scene.play(None)
            counts[place] = Counter()
            for table in of(scene).values():
                for call, count in table.items():
                    counts[place][call] = max(counts[place][call], count)
            bases[place] = scene.base
            scene.judge()
            wrong += scene.findings
        finally:
            scene.detach()
            scene.daemon.clean()
    return counts, bases, wrong


def draw(args, counts):
    """Runs, drawn so that each place, call and error has its turn before any has a second one."""
    random = lib.chance(args.seed, "inject")
    cells = []
    for place, table in counts.items():
        for call, count in table.items():
            for error in CALLS.get(call, ()):
                if call == "write" and place in ("thread main", "thread requests") and error not in ("EINTR", "hang"):
                    # These threads write to wake each other (eventfd), which the kernel never answers so.
                    continue
                occurrences = list(range(1, min(count, MOST) + 1))
                random.shuffle(occurrences)
                cells.append([place, call, error, occurrences])
    random.shuffle(cells)
    runs = []
    while cells and len(runs) < args.runs:
        for cell in list(cells):
            place, call, error, occurrences = cell
            runs.append((place, call, occurrences.pop(), error))
            if not occurrences:
                cells.remove(cell)
            if len(runs) == args.runs:
                break
    return runs


def main():
    parser = lib.parser(__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--only", help="PLACE/CALL/WHEN/ERROR: this run alone, e.g. supervisor/openat/3/EMFILE")
    args = parser.parse_args()
    if args.small:
        args.runs = min(args.runs, 4)
    report = lib.Report("inject", args)
    strace = shutil.which("strace")
    if strace is None:
        print("SKIPPED: there is no strace; .ci/setup installs it")
        report.target("injected errors", None, "no strace")
        return report.finish()
    calls = known_calls(strace)
    counts, bases, wrong = record(args, calls)
    for kind, text in wrong:
        report.target(f"the scenario without an error: {kind}", False, text[:80], "")
    lib.say("inject: recorded " + "; ".join(f"{p}: {sum(t.values())} calls of {len(t)} kinds" for p, t in counts.items()))
    report.number("recorded", "; ".join(f"{p} {sum(t.values())}" for p, t in sorted(counts.items())))
    runs = draw(args, counts)
    if args.small:
        # Always the same ones where they occur, so that a test of every change is no lottery.
        runs = ([run for run in SMALL_RUNS if run[2] <= counts.get(run[0], {}).get(run[1], 0)] + runs)[:args.runs]
    if args.only:
        place, call, when, error = args.only.split("/")
        runs = [(place, call, int(when), error)]
    begun = time.monotonic()

    def work(share):
        """Plays some of the runs. In a process of its own, since it becomes another user in forks."""
        results = []
        for run in share:
            place, call, when, error = run
            scene = Scene(args, place, call, when, error)
            scene.hit = False
            try:
                scene.run(bases.get(place))
            except SystemExit as failure:
                if failure.code == 143:
                    raise
                scene.find("stuck", f"the scenario broke: {failure}")
            except Exception as failure:
                scene.find("stuck", f"the scenario broke: {type(failure).__name__}: {failure}")
            if ARTIFACT in scene.last_words or any(map(IMPOSSIBLE.search, scene.met)):
                scene.hit, scene.findings = False, []
            results.append((run, scene.hit, scene.findings, scene.refused, scene.deaths))
            for kind, text in scene.findings:
                lib.say(f"  {'/'.join(map(str, run))}: {kind}: {text[:200]}")
            if len(results) % 20 == 0:
                bad = sum(bool(r[2]) for r in results)
                lib.say(f"inject: {len(results)} of {len(share)} runs of one worker in {time.monotonic() - begun:.0f} s, "
                        f"{bad} with findings")
        return results
    workers = [lib.Child(None, work, runs[i::args.parallel]) for i in range(args.parallel)]
    results = [one for worker in workers for one in worker.result(7200)]

    errors = [e for e in ("EMFILE", "ENOSPC", "EIO", "EINTR", "ENOMEM", "EAGAIN", "hang")]
    rows = []
    for call in CALLS:
        cells, any_run = [call], False
        for error in errors:
            mine = [r for r in results if r[0][1] == call and r[0][3] == error]
            hit = [r for r in mine if r[1]]
            bad = sum(bool(r[2]) for r in mine)
            any_run |= bool(mine)
            cells.append(f"{len(hit)}/{len(mine)}" + (f" {bad}!" if bad else "") if mine else "")
        if any_run:
            rows.append(cells)
    print("Runs by call and error: met/drawn, and with findings (!).")
    lib.table(rows, ("call", *errors))
    met = sum(r[1] for r in results)
    report.number("runs drawn", len(results))
    report.number("in which the error was met", met)
    report.number("submissions refused or unanswered", sum(len(r[3]) for r in results))
    report.number("deaths of the daemon, said and restarted", sum(len(r[4]) for r in results))
    report.raw["runs"] = [{"run": "/".join(map(str, r[0])), "met": r[1], "findings": r[2], "refused": r[3], "deaths": r[4]}
                          for r in results]
    if not args.only:
        report.target("errors met", met >= len(results) // 3, met, f"at least {len(results) // 3}")
    found = defaultdict(list)
    for run, _, findings, _, _ in results:
        for kind, text in findings:
            found[kind].append(f"{'/'.join(map(str, run))}: {text}")
    for kind, what in KINDS.items():
        report.none(what, found[kind])
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
