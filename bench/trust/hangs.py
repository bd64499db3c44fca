#!/usr/bin/env python3
"""What must hold where something hangs, is stopped, is damaged or is given by a name: one check a case.

A file system that never answers is made here: a FUSE server that speaks the kernel's protocol and keeps silent. It needs
root and /dev/fuse.
"""

import ctypes
import os
import re
import select
import shutil
import signal
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import lib

CASES = []
AT_ONCE = 10
"""Seconds within which a job starts and ends that nothing keeps waiting; generous, since nothing is measured here."""


class Skip(Exception):
    """A case cannot be tried; says why."""


def case(function):
    CASES.append(function)
    return function


class Fuse:
    """A FUSE mount with one server process. It answers the mount, then is silent until it is released.

    `deaf`: it does not even read requests, so that processes that wait can be killed. Otherwise it reads them and keeps
    the answers back: those processes cannot be killed until it answers or dies.
    """

    ROOT, FILE = 1, 2

    def __init__(self, place, deaf):
        if os.geteuid() != 0:
            raise Skip("mounting needs root")
        if not os.path.exists("/dev/fuse"):
            raise Skip("there is no /dev/fuse")
        self.place = Path(place)
        self.place.mkdir(parents=True, exist_ok=True)
        self.gate = Path(str(place) + ".released")
        self.seen = Path(str(place) + ".seen")
        libc = ctypes.CDLL(None, use_errno=True)
        self.device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if libc.mount(b"carma-trust", str(self.place).encode(), b"fuse", 0, options) != 0:
            code = ctypes.get_errno()
            os.close(self.device)
            raise Skip(f"a FUSE file system cannot be mounted: {os.strerror(code)}")
        self.server = lib.Child(None, self.serve, deaf)
        os.close(self.device)

    def attributes(self, node):
        mode = stat.S_IFDIR | 0o777 if node == self.ROOT else stat.S_IFREG | 0o666
        return struct.pack("<6Q10I", node, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def entry(self):
        return struct.pack("<QQQQII", self.FILE, 0, 0, 0, 0, 0) + self.attributes(self.FILE)

    def answer(self, opcode, node, body):
        """The error and the bytes that answer a request; `None`: it has no answer."""
        if opcode in (2, 36, 42):  # FORGET, INTERRUPT, BATCH_FORGET
            return None
        if opcode == 1:  # LOOKUP
            return (0, self.entry()) if self.created else (-2, b"")
        if opcode in (3, 4):  # GETATTR, SETATTR
            return 0, struct.pack("<QII", 0, 0, 0) + self.attributes(node)
        if opcode in (14, 27):  # OPEN, OPENDIR
            return 0, struct.pack("<QII", 1, 1, 0)
        if opcode == 35:  # CREATE
            self.created = True
            return 0, self.entry() + struct.pack("<QII", 1, 1, 0)
        if opcode == 16:  # WRITE
            return 0, struct.pack("<II", struct.unpack_from("<I", body, 16)[0], 0)
        if opcode in (15, 28, 18, 20, 25, 29, 30, 34):  # READ, READDIR, RELEASE, FSYNC, FLUSH, ..., ACCESS
            return 0, b""
        if opcode == 17:  # STATFS
            return 0, bytes(80)
        return -38, b""

    def serve(self, deaf):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.created, held, begun = False, [], False
        while True:
            released = self.gate.exists()
            if released:
                for request in held:
                    self.reply(*request)
                held.clear()
            if begun and deaf and not released:
                # A request that waits shows, and is not read.
                if select.select([self.device], [], [], 0.05)[0]:
                    self.seen.touch()
                    time.sleep(0.05)
                continue
            if not select.select([self.device], [], [], 0.05)[0]:
                continue
            try:
                data = os.read(self.device, 1 << 18)
            except OSError:
                return True
            _, opcode, unique, node = struct.unpack_from("<IIQQ", data)
            body = data[40:]
            if opcode == 26:  # INIT
                minor = min(31, struct.unpack_from("<I", body, 4)[0])
                out = struct.pack("<IIIIHHIIHHI7I", 7, minor, 65536, 0, 8, 4, 65536, 1, 16, 0, 0, *[0] * 7)
                self.write(0, unique, out)
                begun = True
            elif released:
                self.reply(opcode, unique, node, body)
            elif opcode not in (2, 36, 42):
                self.seen.touch()
                held.append((opcode, unique, node, body))

    def reply(self, opcode, unique, node, body):
        answer = self.answer(opcode, node, body)
        if answer is not None:
            self.write(answer[0], unique, answer[1])

    def write(self, error, unique, data):
        try:
            os.write(self.device, struct.pack("<IiQ", 16 + len(data), error, unique) + data)
        except OSError:
            pass

    def asked(self, patience=10):
        """Waits until something asked of the mount hangs."""
        return lib.until(self.seen.exists, patience)

    def release(self):
        self.gate.touch()

    def end(self):
        # The server's death ends every request that waits.
        self.server.end()
        ctypes.CDLL(None).umount2(str(self.place).encode(), 1 | 2)  # MNT_FORCE | MNT_DETACH


class Bench:
    """Makes daemons for cases."""

    def __init__(self, args):
        self.args = args
        self.made = []
        self.mounts = []

    def daemon(self, start=True, **how):
        config = "[queue]\nmost-jobs = 24\n[jobs]\nkill-grace = '2s'\n"
        made = lib.Daemon(self.args.carma, gpus="virtual:4xH200", config=config, keep=self.args.keep, **how)
        self.made.append(made)
        return made.start() if start else made

    def fuse(self, daemon, deaf):
        made = Fuse(daemon.dir / f"fuse{len(self.mounts)}", deaf)
        self.mounts.append(made)
        return made

    def clean(self):
        for mount in self.mounts:
            mount.end()
        for daemon in self.made:
            daemon.clean()
        self.mounts.clear()
        self.made.clear()


def ran_once(daemon, job, patience=60, word="ran", file=None):
    """What is wrong with a job that should complete after having run once; `None`: nothing."""
    over = daemon.end_of(job, patience)
    if over is None:
        return f"job {job} is {daemon.show(job)['job']['state']} after {patience} s"
    text = file.read_text() if file and file.exists() else daemon.output(job) if file is None else ""
    count = text.split().count(word)
    if over["job"]["state"] != "COMPLETED" or count != 1:
        return f"job {job} is {over['job']['state']} ({over['job']['reason']['text']}) and ran {count} times"
    return None


def left(daemon, job, patience):
    """Processes of a job that are still there after a time."""
    found = []
    for _ in range(int(patience * 10)):
        found = [p for p, env in lib.marked(daemon.mark).items() if env.get("CARMA_JOB_ID") == str(job)]
        if not found:
            break
        time.sleep(0.1)
    return found


def others(daemon, count=5):
    """What keeps other jobs waiting; `None`: nothing does."""
    started = time.monotonic()
    try:
        jobs = [daemon.client(AT_ONCE).post("/v1/jobs", daemon.job("echo ran"))["id"] for _ in range(count)]
    except lib.Gone as gone:
        return f"submissions are not answered: {gone}"
    for job in jobs:
        wrong = ran_once(daemon, job, max(0.5, AT_ONCE - (time.monotonic() - started)))
        if wrong:
            return f"of {count} other jobs: {wrong}"
    return None


@case
def relative_state_directory(bench):
    """`serve --state rel/dir`: a job runs, its log is there, and it is adopted after a restart."""
    daemon = bench.daemon(start=False)
    daemon.cwd, daemon.state, daemon.state_word = str(daemon.dir), daemon.dir / "rel" / "dir", "rel/dir"
    (daemon.dir / "rel").mkdir()
    daemon.start()
    wrong = ran_once(daemon, daemon.submit("echo ran"), 20)
    if wrong:
        return wrong
    job = daemon.submit("echo ran; sleep 2")
    daemon.running(job)
    daemon.kill()
    daemon.start()
    return ran_once(daemon, job, 20)


@case
def four_deaths_after_a_decision(bench):
    """The daemon dies four times between decision and launch, then starts normally: the job runs once."""
    daemon = bench.daemon()
    mark = daemon.dir / "ran"
    job = daemon.submit(f"echo ran >>{mark}", hold=True)
    daemon.kill()
    for number in range(4):
        daemon.spawn(env={"CARMA_FAULT": "after-decision"})
        if number == 0 and daemon.up():
            try:
                daemon.client().post(f"/v1/jobs/{job}/release")
            except lib.Gone:
                pass
        if not lib.until(lambda: not daemon.alive(), 40):
            return f"the daemon did not come to its decision in life {number + 1}: {daemon.show(job)['job']['reason']}"
    daemon.start()
    return ran_once(daemon, job, 60, file=mark)


@case
def stopped_supervisor_cancel(bench):
    """`kill -STOP` of a supervisor, then a cancel: the job ends, and nothing of it is left."""
    daemon = bench.daemon()
    job = daemon.submit("sleep 900")
    pid = daemon.running(job)
    supervisor = lib.parent_of(pid)
    os.kill(supervisor, signal.SIGSTOP)
    daemon.client().post(f"/v1/jobs/{job}/cancel")
    over = daemon.end_of(job, 30)
    rest, state = left(daemon, job, 5), daemon.show(job)["job"]["state"]
    lib.signal_process(supervisor, signal.SIGCONT)
    if over is None or rest:
        return f"30 s after the cancel it is {state}, with {len(rest)} processes"
    return None if over["job"]["state"] == "CANCELLED" else f"it is {over['job']['state']}"


@case
def stopped_supervisor_limit(bench):
    """`kill -STOP` of a supervisor: the time limit still holds."""
    daemon = bench.daemon()
    job = daemon.submit("sleep 900", time_limit_ms=2000)
    pid = daemon.running(job)
    supervisor = lib.parent_of(pid)
    os.kill(supervisor, signal.SIGSTOP)
    over = daemon.end_of(job, 30)
    rest, state = left(daemon, job, 5), daemon.show(job)["job"]["state"]
    lib.signal_process(supervisor, signal.SIGCONT)
    if over is None or rest:
        return f"28 s after its limit it is {state}, with {len(rest)} processes"
    return None if over["job"]["state"] == "TIMEOUT" else f"it is {over['job']['state']}"


@case
def session_child_of_a_killed_supervisor(bench):
    """A `setsid` child of a job whose supervisor was killed: a cancel ends it too."""
    daemon = bench.daemon()
    job = daemon.submit("setsid sleep 900 & sleep 900")
    pid = daemon.running(job)
    time.sleep(0.3)
    os.kill(lib.parent_of(pid), signal.SIGKILL)
    time.sleep(0.5)
    try:
        daemon.client().post(f"/v1/jobs/{job}/cancel")
    except lib.Refused:
        pass
    daemon.end_of(job, 20)
    rest = left(daemon, job, 15)
    return f"{len(rest)} processes are left 15 s later" if rest else None


@case
def session_child_across_a_restart(bench):
    """The same where the supervisor is killed while no daemon runs: after the restart nothing is left."""
    daemon = bench.daemon()
    job = daemon.submit("setsid sleep 900 & sleep 900")
    pid = daemon.running(job)
    time.sleep(0.3)
    daemon.kill()
    os.kill(lib.parent_of(pid), signal.SIGKILL)
    daemon.start()
    try:
        daemon.client().post(f"/v1/jobs/{job}/cancel")
    except lib.Refused:
        pass
    daemon.end_of(job, 20)
    rest = left(daemon, job, 15)
    return f"{len(rest)} processes are left 15 s later" if rest else None


def _hung(bench, deaf, words):
    daemon = bench.daemon()
    fuse = bench.fuse(daemon, deaf)
    more = {k: str(fuse.place) + v for k, v in words.items()}
    job = daemon.submit("echo ran", **more)
    if not fuse.asked():
        return f"nothing asked the file system: the case proves nothing; {daemon.show(job)['job']['reason']['text']}"
    wrong = others(daemon)
    if wrong:
        return wrong
    started = time.monotonic()
    try:
        daemon.client(5).post(f"/v1/jobs/{job}/cancel")
    except lib.Gone as gone:
        return f"the cancel is not answered: {gone}"
    except lib.Refused as refused:
        if not deaf:
            fuse.end()
        over = daemon.show(job)["job"]
        return None if over["ended_ms"] else f"the cancel is refused: {refused}; the job is {over['state']}"
    if not deaf:
        # Nobody can kill who waits for an answer that was asked for; but the end must come with it.
        wrong = others(daemon)
        if wrong:
            return f"after the cancel, {wrong}"
        fuse.end()
    over = daemon.end_of(job, 30)
    if over is None:
        return f"{time.monotonic() - started:.0f} s after the cancel it is {daemon.show(job)['job']['state']}"
    return None if over["job"]["state"] in ("CANCELLED", "FAILED") else f"it is {over['job']['state']}"


@case
def hung_file_system_as_output(bench):
    """--output on a file system that never answers: five others start at once, and the job can be cancelled."""
    return _hung(bench, True, {"output": "/job.log"})


@case
def hung_file_system_as_directory(bench):
    """-D on a file system that never answers: the same."""
    return _hung(bench, True, {"cwd": "/sub"})


@case
def unkillable_file_system_as_output(bench):
    """--output where the file system has taken the question and is silent, so that nobody can be killed: the same."""
    return _hung(bench, False, {"output": "/job.log"})


@case
def unkillable_file_system_as_directory(bench):
    """-D where the file system has taken the question and is silent: the same."""
    return _hung(bench, False, {"cwd": "/sub"})


@case
def file_system_hangs_while_jobs_run(bench):
    """A log's file system stops to answer while its job runs: others start, run, and their logs are read."""
    daemon = bench.daemon()
    fuse = bench.fuse(daemon, False)
    fuse.release()
    job = daemon.submit("while :; do echo step; sleep 0.1; done", output=str(fuse.place / "job.log"))
    if daemon.running(job) is None:
        return f"the job does not run: {daemon.show(job)['job']['reason']['text']}"
    time.sleep(1)
    fuse.gate.unlink()
    time.sleep(2.5)
    wrong = others(daemon)
    if wrong:
        return wrong
    for path in ("/v1/status", f"/v1/jobs/{job}", "/v1/jobs", "/v1/history"):
        try:
            daemon.client(5).get(path)
        except lib.Gone as gone:
            return f"{path} is not answered: {gone}"
    daemon.client(5).post(f"/v1/jobs/{job}/cancel")
    fuse.end()
    return None if daemon.end_of(job, 30) else f"after the file system died it is {daemon.show(job)['job']['state']}"


@case
def cancel_while_launching(bench):
    """A cancel while the launch hangs, then the file system answers: the command never starts."""
    daemon = bench.daemon()
    fuse = bench.fuse(daemon, False)
    mark = daemon.dir / "ran"
    job = daemon.submit(f"echo ran >>{mark}; sleep 3", output=str(fuse.place / "job.log"))
    if not fuse.asked():
        return "nothing asked the file system: the case proves nothing"
    try:
        daemon.client(5).post(f"/v1/jobs/{job}/cancel")
    except lib.Refused as refused:
        if daemon.show(job)["job"]["ended_ms"] is None:
            return f"the cancel is refused: {refused}"
    except lib.Gone as gone:
        return f"the cancel is not answered: {gone}"
    time.sleep(2.5)
    fuse.release()
    over = daemon.end_of(job, 20)
    time.sleep(1)
    if mark.exists():
        return f"the command started after its cancel was acknowledged; it is {daemon.show(job)['job']['state']}"
    if over is None:
        return f"it is {daemon.show(job)['job']['state']}"
    return None if over["job"]["state"] == "CANCELLED" else f"it is {over['job']['state']}"


@case
def inherited_descriptors(bench):
    """`exec 9<FILE; carma serve`: a job cannot read the file."""
    daemon = bench.daemon(start=False)
    secret = daemon.dir / "secret"
    secret.write_text("needle\n")
    daemon.start(prefix=("/bin/sh", "-c", f'exec 9<{secret}; exec "$0" "$@"'))
    job = daemon.submit("cat <&9; ls -l /proc/self/fd")
    daemon.end_of(job, 20)
    text = daemon.output(job)
    return "the job reads it" if "needle" in text or str(secret) in text else None


@case
def failed_launches_leak_nothing(bench):
    """Twelve launches that fail leave no descriptor behind."""
    if shutil.which("strace") is None:
        raise Skip("there is no strace to make launches fail; .ci/setup installs it")
    worst, tried = None, 0
    for call in ("memfd_create", "pipe2", "pidfd_open"):
        daemon = bench.daemon()
        daemon.end_of(daemon.submit("true"), 20)
        time.sleep(0.5)
        before = daemon.descriptors()
        trace = daemon.dir / "trace"
        strace = subprocess.Popen(["strace", "-f", "-p", str(daemon.pid()), "-e", f"trace={call}", "-e",
                                   f"inject={call}:error=EMFILE", "-o", str(trace)], stderr=subprocess.PIPE)
        try:
            if not lib.until(lambda: b"attached" in os.read(strace.stderr.fileno(), 4096), 5):
                raise Skip("strace cannot attach here")
            jobs = [daemon.submit("true") for _ in range(12)]
            lib.until(lambda: trace.read_text().count("INJECTED") >= 12, 15)
        finally:
            strace.terminate()
            strace.wait()
        hits = trace.read_text().count("INJECTED")
        tried += hits >= 12
        for job in jobs:
            daemon.end_of(job, 60)
        lib.until(lambda: daemon.descriptors() <= before, 5)
        after = daemon.descriptors()
        if after > before + 1:
            worst = f"{before} -> {after} after {hits} failures of {call}"
    if not tried:
        raise Skip("no launch could be made to fail")
    return worst


@case
def pipes_and_devices_as_output(bench):
    """A pipe that nobody reads and devices as --output: each job ends or can be cancelled, others go on."""
    daemon = bench.daemon()
    pipe = daemon.dir / "pipe"
    os.mkfifo(pipe)
    stuck = daemon.submit("head -c 1000000 /dev/zero", output=str(pipe))
    jobs = {path: daemon.submit("echo ran", output=path) for path in ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty")}
    wrong = others(daemon)
    if wrong:
        return wrong
    for path, job in jobs.items():
        over = daemon.end_of(job, 20)
        if over is None:
            return f"the job with {path} is {daemon.show(job)['job']['state']}"
    try:
        daemon.client().post(f"/v1/jobs/{stuck}/cancel")
    except lib.Refused:
        pass
    if daemon.end_of(stuck, 20) is None:
        return f"the job with a pipe is {daemon.show(stuck)['job']['state']} 20 s after its cancel"
    return others(daemon)


@case
def state_directory_deleted(bench):
    """The state directory is deleted while the daemon runs: what is answered 200 runs, or the answer is an error."""
    daemon = bench.daemon()
    daemon.end_of(daemon.submit("true"), 20)
    shutil.rmtree(daemon.state)
    mark = daemon.dir / "ran"
    accepted = []
    for _ in range(3):
        try:
            accepted.append(daemon.client(10).post("/v1/jobs", daemon.job(f"echo ran >>{mark}"))["id"])
        except (lib.Refused, lib.Gone):
            pass
        time.sleep(0.5)
    lib.until(lambda: mark.exists() and len(mark.read_text().split()) >= len(accepted), 10)
    ran = len(mark.read_text().split()) if mark.exists() else 0
    return f"{len(accepted)} accepted, {ran} ran" if ran != len(accepted) else None


# --- the journal ---------------------------------------------------------------------------------


def _checker(daemon):
    """The words of `carma journal check` for a state directory."""
    done = subprocess.run([daemon.carma, "journal", "check", "--help"], capture_output=True, text=True)
    if done.returncode != 0:
        raise Skip("this carma does not know `journal check`")
    return [daemon.carma, "journal", "check"] + (["--state"] if "--state" in done.stdout else [])


def _filled(bench):
    daemon = bench.daemon()
    for number in range(30):
        daemon.submit(f"exit {number % 3}", env={"FILL": "x" * 2000 + str(number)})
    daemon.ends(30)
    last = daemon.submit("true", hold=True)
    daemon.stop()
    return daemon, last


def _trial(bench, daemon, damage, words):
    """Damages a copy of a state directory; exit code and output of the check."""
    copy = daemon.dir / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(daemon.state, copy, ignore=lambda d, names: [n for n in names if (Path(d) / n).is_socket()])
    damage(copy / "carma.db")
    target = copy if words[-1] == "--state" else copy / "carma.db"
    try:
        done = subprocess.run([*words, str(target)], capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        return 124, "timed out"
    return done.returncode, done.stdout + done.stderr


def _refuses(bench, daemon, state):
    """Whether a daemon refuses to start on a state directory: with a clear line, or what it says instead."""
    other = bench.daemon(start=False)
    other.state = state
    other.spawn()
    if lib.until(lambda: not other.alive(), 4):
        text = other.log().strip().splitlines()[-1:] or [""]
        return "panicked" not in other.log() and len(text[0]) > 20, f"exit {other.process.returncode}: {text[0][:200]}"
    return False, "it starts"


@case
def journal_check_after_flips(bench):
    """`carma journal check`: fine as it is; names damage after bytes were flipped; never panics or hangs."""
    daemon, _ = _filled(bench)
    words = _checker(daemon)
    code, text = _trial(bench, daemon, lambda db: None, words)
    if code != 0:
        return f"a sound journal is answered with exit {code}: {text[:200]}"
    random = lib.chance(bench.args.seed, "flips")
    size = (daemon.state / "carma.db").stat().st_size
    missed, single = [], 0
    for number in range(12):
        page = random.randrange(1, max(2, size // 4096)) * 4096

        def flip(db, page=page):
            with open(db, "r+b") as file:
                file.seek(page)
                old = file.read(64)
                file.seek(page)
                file.write(bytes(b ^ 0xFF for b in old))
        code, text = _trial(bench, daemon, flip, words)
        if code in (0, 101, 124, 134) or code < 0 or "panicked" in text:
            missed.append(f"a page's head at {page}: exit {code}: {text[:120]}")
    for number in range(24):
        at = random.randrange(100, size)

        def touch(db, at=at):
            with open(db, "r+b") as file:
                file.seek(at)
                old = file.read(1)
                file.seek(at)
                file.write(bytes([old[0] ^ (1 << random.randrange(8))]))
        code, text = _trial(bench, daemon, touch, words)
        single += code != 0
        if code in (101, 124, 134) or code < 0 or "panicked" in text:
            missed.append(f"a bit at {at}: exit {code}: {text[:120]}")
    lib.say(f"journal check: {single} of 24 single bits were found")
    return "; ".join(missed[:4]) or None


@case
def journal_emptied(bench):
    """An empty database where there was one: refused in words, no number given twice."""
    daemon, last = _filled(bench)
    for path in daemon.state.glob("carma.db*"):
        path.unlink()
    (daemon.state / "carma.db").touch()
    refuses, text = _refuses(bench, daemon, daemon.state)
    if refuses:
        return None
    fresh = bench.made[-1]
    if not fresh.alive():
        return text
    fresh.up()
    job = fresh.submit("true")
    return f"{text}, and job {job} is given a second time" if job <= last else None


@case
def journal_rows_deleted(bench):
    """Inputs deleted from the journal: refused in words rather than replayed with gaps."""
    try:
        import sqlite3
    except ImportError:
        raise Skip("this Python has no sqlite3") from None
    daemon, _ = _filled(bench)
    accepted = []
    for percent in (10, 30, 50, 70, 90):
        copy = daemon.dir / f"copy{percent}"
        shutil.copytree(daemon.state, copy, ignore=lambda d, names: [n for n in names if (Path(d) / n).is_socket()])
        db = sqlite3.connect(copy / "carma.db", isolation_level=None)
        db.execute("DELETE FROM inputs WHERE seq IN (SELECT seq FROM inputs ORDER BY seq LIMIT 1 OFFSET "
                   "(SELECT count(*) * ? / 100 FROM inputs))", (percent,))
        db.close()
        refuses, text = _refuses(bench, daemon, copy)
        if not refuses:
            accepted.append(f"without the input at {percent} %: {text}")
    return "; ".join(accepted) or None


@case
def wal_truncated(bench):
    """A write-ahead log that lost its end: what was acknowledged is missed in words, or no number is given twice."""
    daemon = bench.daemon()
    first = daemon.submit("true", hold=True)
    accepted = [daemon.submit("true", hold=True) for _ in range(20)]
    daemon.kill()
    wal = daemon.state / "carma.db-wal"
    if not wal.exists() or wal.stat().st_size < 8192:
        raise Skip("the journal has no write-ahead log to cut")
    with open(wal, "r+b") as file:
        file.truncate(wal.stat().st_size // 2)
    daemon.spawn()
    if not daemon.up(20):
        return None
    job = daemon.submit("true", hold=True)
    return f"it starts, and job {job} is given a second time" if first < job <= accepted[-1] else None


def main():
    parser = lib.parser(__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="names of cases; all by default")
    args = parser.parse_args()
    small = ("relative_state_directory", "session_child_of_a_killed_supervisor", "hung_file_system_as_output",
             "inherited_descriptors", "pipes_and_devices_as_output")
    report = lib.Report("hangs", args)
    outcomes = []
    for function in CASES:
        name = function.__name__
        if args.only and name not in args.only or args.small and not args.only and name not in small:
            continue
        bench = Bench(args)
        started = time.monotonic()
        try:
            wrong = function(bench)
            ok = wrong is None
        except Skip as skip:
            ok, wrong = None, f"SKIPPED: {skip}"
        except Exception as error:
            ok, wrong = False, f"the case broke: {type(error).__name__}: {error}"
        except SystemExit as error:
            ok, wrong = False, str(error)
        finally:
            bench.clean()
        wrong = " ".join((wrong or "held").split())
        outcomes.append({"case": name, "ok": ok, "found": wrong, "seconds": round(time.monotonic() - started, 1)})
        lib.say(f"{'PASS' if ok else 'SKIPPED' if ok is None else 'FAIL'} {name} "
                f"({time.monotonic() - started:.0f} s): {wrong[:200]}")
        report.target(name, ok, wrong[:100], "")
    report.raw["cases"] = outcomes
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
