#!/usr/bin/env python3
"""Attacks of one user (carma-bob) on another (carma-alice), on root's daemon and on the machine: none may succeed.

Each attack is a function whose first sentence says what is tried and whose second says what should stop it. It returns
whether it succeeded, and what was seen. What cannot be tried here raises `Skip` with the reason. Needs root.
"""

import ctypes
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import lib

ALICE, BOB = lib.USERS
ATTACKS = []
GPUS = 8
"""More than jobs that any attack leaves running: a GPU takes one job at a time that shows no activity on it."""
SURVIVES = 15
"""Seconds after which a process that should have been ended counts as one that got away."""


class Skip(Exception):
    """An attack cannot be tried; says why."""


def attack(number="", slow=False):
    """Registers an attack; `number`: the defect that it comes from."""
    def register(function):
        ATTACKS.append((function, number, slow))
        return function
    return register


class Field:
    """A root daemon, a victim with secrets, an attacker with a directory of his own."""

    def __init__(self, args):
        self.args = args
        self.needle = "needle" + os.urandom(6).hex()
        self.others = []
        self.daemon = self.new_daemon()
        self.dir = self.daemon.dir
        self.bob = self.directory("bob", BOB, 0o700)
        self.alice = self.directory("alice", ALICE, 0o700)
        self.secret = self.alice / "secret"
        self.secret.write_text(self.needle + "\n")
        self.give(self.secret, ALICE, 0o600)
        self.roots = self.directory("roots", "root", 0o700)
        (self.roots / "secret").write_text(self.needle + "\n")
        (self.roots / "secret").chmod(0o600)

    def new_daemon(self, **how):
        config = "[queue]\nmost-jobs = 24\n[jobs]\nkill-grace = '2s'\n"
        daemon = lib.Daemon(self.args.carma, gpus=f"virtual:{GPUS}xH200", config=config, keep=self.args.keep, **how).start()
        self.others.append(daemon)
        return daemon

    def give(self, path, user, mode):
        who = lib.pwd.getpwnam(user)
        os.chown(path, who.pw_uid, who.pw_gid)
        os.chmod(path, mode)

    def directory(self, name, user, mode):
        path = self.dir / name
        path.mkdir(exist_ok=True)
        self.give(path, user, mode)
        return path

    def request(self, user, method, path, body=None, headers=None, daemon=None, timeout=20):
        """Status and bytes of a request as a user; status 0: no answer."""
        place = (daemon or self.daemon).socket

        def ask():
            try:
                return lib.Client(place, timeout).raw(method, path, body, headers)
            except lib.Gone as gone:
                return 0, str(gone).encode()
        return lib.as_user(user, ask, patience=timeout + 10)

    def submit(self, user, command, daemon=None, must=True, **more):
        """The id of a job that a user submits; `None` where it was refused and need not be taken."""
        status, data = self.request(user, "POST", "/v1/jobs", (daemon or self.daemon).job(command, **more), daemon=daemon)
        if status != 200:
            if must:
                raise RuntimeError(f"a submission was answered with {status}: {data[:300]!r}")
            return None
        return json.loads(data)["id"]

    def ran(self, user, command, daemon=None, patience=30, **more):
        """Submits a job and returns its end and output."""
        host = daemon or self.daemon
        job = self.submit(user, command, daemon=daemon, **more)
        over = host.end_of(job, patience)
        return over, host.output(job)

    def victim(self, command=None, daemon=None, **more):
        """A job of Alice's that runs, and its pid."""
        host = daemon or self.daemon
        line = command or f"echo {self.needle}; echo $TOKEN >/dev/null; sleep 300"
        job = self.submit(ALICE, line, daemon=daemon, env={"TOKEN": self.needle}, **more)
        pid = host.running(job)
        if pid is None:
            raise RuntimeError(f"job {job} of the victim does not run: {host.show(job)['job']['reason']}")
        return job, pid

    def failed(self):
        """A job of Alice's that failed with a secret in its log, its directory and its program."""
        place = self.directory(f"project-{self.needle}", ALICE, 0o755)
        line = f"echo 'ValueError: db password is {self.needle}'; exit 1"
        job = self.submit(ALICE, line, cwd=str(place), env={"TOKEN": self.needle}, name="training")
        self.daemon.end_of(job)
        absent = self.submit(ALICE, [f"/srv/{self.needle}/train"], name="training")
        self.daemon.end_of(absent)
        nowhere = self.submit(ALICE, "true", cwd=f"/srv/{self.needle}", name="training")
        self.daemon.end_of(nowhere)
        return [job, absent, nowhere]

    def leaks(self, paths, **how):
        """Which of Bob's requests are answered with the secret."""
        found = []
        for path in paths:
            status, data = self.request(BOB, "GET", path, **how)
            if self.needle.encode() in data:
                at = data.index(self.needle.encode())
                found.append(f"GET {path}: ...{data[max(0, at - 60):at + 30].decode(errors='replace')}...")
        return bool(found), "; ".join(found) or f"{len(paths)} answers without it"

    def lives(self, daemon=None):
        """Whether the daemon lives and answers Alice within five seconds."""
        host = daemon or self.daemon
        if not host.alive():
            return False
        started = time.monotonic()
        status, _ = self.request(ALICE, "GET", "/v1/status", daemon=daemon, timeout=5)
        return status == 200 and time.monotonic() - started < 5

    def settle(self):
        """Between attacks: everything is cancelled, and the daemon is there."""
        if not self.daemon.alive():
            self.daemon.start()
        for other in self.others[1:]:
            other.clean()
        del self.others[1:]
        client = self.daemon.client()
        for job in self.daemon.queue():
            try:
                client.post(f"/v1/jobs/{job['id']}/cancel")
            except lib.Refused:
                pass
        for gpu in client.get("/v1/gpus")["gpus"]:
            if gpu["status"] == "drained":
                client.post(f"/v1/gpus/{gpu['index']}/resume")
        if not self.daemon.ends(20):
            for pid in lib.marked(self.daemon.mark):
                lib.signal_process(pid, signal.SIGKILL)
            self.daemon.ends(10)

    def hands_out_logs(self, job):
        """Skips where the daemon hands out no logs by its socket."""
        status, data = self.request("root", "GET", f"/v1/jobs/{job}/log")
        if status == 405 or status == 404 and b"no such address" in data:
            raise Skip("this daemon hands out no logs: `carma logs` opens them with its user's rights")

    def supports(self, *flags):
        """Skips where `carma submit` does not know a flag."""
        text = subprocess.run([self.daemon.carma, "submit", "--help"], capture_output=True, text=True).stdout
        for flag in flags:
            if not re.search(rf"(^|\s){re.escape(flag)}\b", text):
                raise Skip(f"this carma does not know {flag}")


def denied(function, *args):
    """Whether Bob is refused by the kernel, and with what."""
    def trial():
        try:
            return False, repr(function(*args))[:200]
        except OSError as error:
            return True, str(error)
    return lib.as_user(BOB, trial)


def survivors(field, job, daemon=None, patience=SURVIVES):
    """Processes of a job that live on after a time."""
    host = daemon or field.daemon
    left = []
    for _ in range(int(patience * 10)):
        left = [pid for pid, env in lib.marked(host.mark).items() if env.get("CARMA_JOB_ID") == str(job)]
        if not left:
            break
        time.sleep(0.1)
    return left


def resident(daemon):
    """Resident memory of a daemon, MiB."""
    text = Path(f"/proc/{daemon.pid()}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024


# --- reading what is another's -------------------------------------------------------------------


def _read(path):
    with open(path, "rb") as file:
        return file.read(64)


def _journal(field, suffix):
    field.victim()
    path = Path(f"{field.daemon.state}/carma.db{suffix}")
    if not path.exists():
        found = list(field.daemon.state.rglob(f"*.db{suffix}"))
        if not found:
            raise Skip(f"there is no {path.name}")
        path = found[0]
    refused, text = denied(_read, path)
    return not refused, f"{path.name}: {text}"


@attack("T1")
def journal(field):
    """Reads the journal, in which every environment is. Its directory and file should be root's alone."""
    return _journal(field, "")


@attack("T1")
def journal_wal(field):
    """Reads the journal's write-ahead log. As the journal."""
    return _journal(field, "-wal")


@attack("T1")
def journal_shm(field):
    """Reads the journal's shared memory. As the journal."""
    return _journal(field, "-shm")


@attack("T1", slow=True)
def journal_lock(field):
    """Takes a read lock on the journal's shared memory, which stops every commit. It should not be his to open."""
    paths = list(field.daemon.state.rglob("*.db-shm"))
    if not paths:
        raise Skip("the journal has no shared memory")

    def hold():
        try:
            file = os.open(paths[0], os.O_RDONLY)
        except OSError as error:
            return False, str(error)
        lock = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 120, 8, 0)
        fcntl.fcntl(file, 37, lock)  # F_OFD_SETLK
        status, data = 0, b""
        client = lib.Client(field.daemon.socket, 30)
        for _ in range(2):
            status, data = client.raw("POST", "/v1/jobs", field.daemon.job("true"))
            if status != 200:
                break
        return status != 200, f"with the lock held a submission is answered with {status}: {data[:120]!r}"
    return lib.as_user(BOB, hold, patience=60)


@attack("T1")
def state_listing(field):
    """Lists the state directory and what is in it, which shows whose jobs there are. They should be root's alone."""
    field.victim()
    for place in (field.daemon.state, field.daemon.state / "logs", field.daemon.state / "run", field.daemon.state / "mps"):
        refused, text = denied(os.listdir, place)
        if not refused:
            return True, f"{place.name}: {text}"
    return False, "refused everywhere"


@attack("T9")
def log_file(field):
    """Reads another's log by its name, which can be guessed. It should be its owner's alone."""
    job, _ = field.victim()
    lib.until(lambda: field.needle in field.daemon.output(job), 10)
    refused, text = denied(_read, field.daemon.show(job)["log"])
    return not refused, text


@attack("T9")
def log_by_socket(field):
    """Asks the daemon for another's log. It should say that it is not allowed."""
    job, _ = field.victim()
    lib.until(lambda: field.needle in field.daemon.output(job), 10)
    field.hands_out_logs(job)
    return field.leaks([f"/v1/jobs/{job}/log", f"/v1/jobs/{job}/log?tail=10", f"/v1/jobs/{job}/logs",
                        f"/v1/jobs/{job}/output"])


@attack("T9")
def log_by_command(field):
    """Asks for another's log by `carma logs`. It should say that it is not allowed."""
    job, _ = field.victim()
    lib.until(lambda: field.needle in field.daemon.output(job), 10)
    done = field.daemon.cli("logs", job, user=BOB)
    return field.needle.encode() in done.stdout + done.stderr, f"exit {done.returncode}: {done.stderr[:150]!r}"


@attack("T9")
def listings_of_failures(field):
    """Looks in the history for lines of another's log, his directories and programs. They should be left out."""
    field.failed()
    return field.leaks(["/v1/history", "/v1/history?limit=5", "/v1/jobs"])


@attack("T9")
def details_of_failures(field):
    """Looks at another's failed jobs one by one. Their reasons should be left out or general."""
    jobs = field.failed()
    return field.leaks([f"/v1/jobs/{job}{verb}" for job in jobs for verb in ("", "/explain", "/wait?timeout_ms=1")])


@attack("T9")
def details_of_running(field):
    """Looks for the command and environment of another's running job. They should be its owner's alone."""
    job, _ = field.victim()
    return field.leaks(["/v1/jobs", "/v1/gpus", f"/v1/jobs/{job}", f"/v1/jobs/{job}/explain",
                        f"/v1/jobs/{job}/wait?timeout_ms=1", "/v1/status"])


@attack("T9")
def details_of_out_of_memory(field):
    """Looks at a job that ran out of memory. The line of its log that says so should be left out."""
    job = field.submit(ALICE, f"echo 'torch.cuda.OutOfMemoryError: CUDA out of memory {field.needle}'; sleep 0.3; exit 1")
    lib.until(lambda: field.daemon.show(job)["attempts"] and field.daemon.show(job)["attempts"][0]["ended_ms"], 15)
    return field.leaks([f"/v1/jobs/{job}", f"/v1/jobs/{job}/explain", "/v1/jobs"])


@attack()
def listings_by_command(field):
    """Reads every listing of the command line. None should show what is another's."""
    field.failed()
    job, _ = field.victim()
    for words in (["queue"], ["queue", "--json"], ["history", "--wide"], ["history", "--json"], ["show", job],
                  ["show", job, "--json"], ["explain", job], ["gpus"], ["gpus", "--json"], ["history", "export"]):
        done = field.daemon.cli(*words, user=BOB)
        if field.needle.encode() in done.stdout + done.stderr:
            return True, f"carma {' '.join(map(str, words))}"
    return False, "10 listings without it"


@attack()
def learned_memory(field):
    """Reads what was learned of another's runs. It should be its owner's alone."""
    field.failed()
    over, _ = field.ran(ALICE, [f"/bin/echo", field.needle], gpu_memory_mib=1024)
    return field.leaks(["/v1/memory"])


@attack()
def learned_slowdowns(field):
    """Reads the profiles of another's jobs. They should not show a command."""
    job, _ = field.victim()
    return field.leaks([f"/v1/slowdowns?jobs={job}", "/v1/slowdowns", f"/v1/slowdowns?job={job}"])


@attack()
def estimates(field):
    """Reads the reasons of the estimate of another's job, which name files of his. They should be left out."""
    estimate = {"need_mib": 10, "use_mib": 10, "upper_mib": 10, "tier": "config", "source": "allocator/config",
                "family": "cnn", "reasons": [f"read from /home/alice/{field.needle}/model.json"]}
    job = field.submit(ALICE, "sleep 60", estimates=[estimate])
    return field.leaks([f"/v1/jobs/{job}", f"/v1/jobs/{job}/explain"])


@attack()
def process_environment(field):
    """Reads the environment and descriptors of another's processes and supervisor in /proc. The kernel refuses."""
    _, pid = field.victim()
    supervisor = lib.parent_of(pid)
    for who in (pid, supervisor):
        for name in ("environ", "fd/0", "fd/1", "mem", "maps"):
            refused, text = denied(_read, f"/proc/{who}/{name}")
            if not refused and text != "b''":
                return True, f"/proc/{who}/{name}: {text}"
    cmdline = Path(f"/proc/{supervisor}/cmdline").read_bytes()
    return field.needle.encode() in cmdline, f"the supervisor's command line: {cmdline!r}"


@attack()
def resubmitted(field):
    """Submits another's finished job again, to run his command with his environment. It should be refused."""
    job = field.submit(ALICE, f"echo {field.needle}", env={"TOKEN": field.needle})
    field.daemon.end_of(job)
    status, data = field.request(BOB, "POST", f"/v1/jobs/{job}/requeue", {})
    return status == 200, f"{status}: {data[:120]!r}"


@attack()
def runtime_listing(field):
    """Lists the runtime directory and finds names and contents there. It should be root's alone to read."""
    field.victim()
    place = field.daemon.runtime()
    if place is None:
        raise Skip("this daemon has no directory in memory")
    refused, text = denied(os.listdir, place)
    if not refused:
        return True, text
    for path in place.rglob("*"):
        if path.is_file():
            refused, text = denied(_read, path)
            if not refused:
                return True, f"{path}: {text}"
    return False, "refused"


# --- logs and their names ------------------------------------------------------------------------


def _output(field, target, command="echo vandal", user=BOB, patience=20):
    job = field.submit(user, command, output=str(target), must=False)
    if job is None:
        return None
    field.daemon.end_of(job, patience)
    return job


@attack("T2")
def take_log(field):
    """Names another's log as his own output. A name in carma's directory should count as any other."""
    job, _ = field.victim()
    lib.until(lambda: field.needle in field.daemon.output(job), 10)
    log = Path(field.daemon.show(job)["log"])
    owner = log.stat().st_uid
    _output(field, log)
    now, text = log.stat().st_uid, log.read_text()
    return now != owner or "vandal" in text, f"owner {owner} -> {now}, text {text[:60]!r}"


@attack("T2")
def plant_in_logs(field):
    """Creates a file among carma's logs. The supervisor should open with his rights."""
    target = field.daemon.state / "logs" / "planted"
    _output(field, target)
    return target.exists(), f"{target.name} is {'there' if target.exists() else 'not there'}"


@attack("T2")
def log_in_advance(field):
    """Opens the log of the next job before it is submitted and reads along. He should not be able to make it."""
    job = field.submit(BOB, "sleep 300")
    log = field.daemon.state / "logs" / f"{job + 2}.log"
    mine = field.submit(BOB, "sleep 4; cat <&1 2>/dev/null; cat /proc/self/fd/1", output=str(log), must=False)
    if mine is None:
        return False, "refused"
    lib.until(lambda: field.daemon.show(mine)["job"]["state"] != "PENDING", 5)
    time.sleep(0.3)
    theirs = field.submit(ALICE, f"echo {field.needle}; sleep 1")
    field.daemon.end_of(theirs)

    def read_along():
        try:
            return field.needle in log.read_text()
        except OSError as error:
            return str(error)
    seen = lib.as_user(BOB, read_along)
    held = lib.marked(field.daemon.mark)
    for pid, env in held.items():
        if env.get("CARMA_JOB_ID") == str(mine):
            target = os.readlink(f"/proc/{pid}/fd/1")
            if target == field.daemon.show(theirs)["log"]:
                return True, f"his job holds {target}, the log of job {theirs}"
    return seen is True, f"job {theirs} writes to {field.daemon.show(theirs)['log']}; he sees: {seen}"


def _untouched(field, what, before):
    after = (field.secret.read_text(), field.secret.stat().st_uid, field.secret.stat().st_mode)
    return after != before, f"{what}: owner {after[1]}, text {after[0][:40]!r}"


@attack("T2")
def log_by_link(field):
    """Names a link to another's file as his output. It should be opened with his rights."""
    before = (field.secret.read_text(), field.secret.stat().st_uid, field.secret.stat().st_mode)
    link = field.bob / "link.log"
    os.symlink(field.secret, link)
    _output(field, link)
    return _untouched(field, "symbolic link", before)


@attack("T2")
def log_by_hard_link(field):
    """Names a hard link to root's file as his output. It should be opened with his rights."""
    file = field.dir / "root-file"
    file.write_text("root's\n")
    file.chmod(0o644)
    link = field.bob / "hard.log"
    os.link(file, link)
    _output(field, link)
    now = file.stat()
    return now.st_uid != 0 or "vandal" in file.read_text(), f"owner {now.st_uid}, text {file.read_text()[:40]!r}"


@attack("T2")
def log_hard_linked(field):
    """Makes a hard link of another's log for himself, so that it outlives it. The directory should not be entered."""
    job, _ = field.victim()
    lib.until(lambda: field.needle in field.daemon.output(job), 10)
    log = field.daemon.show(job)["log"]
    refused, text = denied(os.link, log, str(field.bob / "kept.log"))
    return not refused, text


@attack()
def log_in_the_directory_of_another(field):
    """Names a file in another's directory as his output. It should be opened with his rights."""
    target = field.alice / "planted"
    _output(field, target)
    return target.exists(), "it is there" if target.exists() else "it is not there"


@attack()
def log_in_proc(field):
    """Names files of /proc as his output, to read or write what is the supervisor's. His rights should not do."""
    for path in ("/proc/self/fd/0", "/proc/self/environ", "/proc/self/mem", f"/proc/{field.daemon.pid()}/environ",
                 "/proc/self/oom_score_adj", "/proc/sysrq-trigger", "/proc/self/attr/current"):
        job = field.submit(BOB, "true", output=path, env={"OF_BOB": "1"}, must=False)
        if job is None:
            continue
        field.daemon.end_of(job, 20)
        status, data = field.request(BOB, "GET", f"/v1/jobs/{job}/log")
        if status == 200 and (b'"run_dir"' in data or b'"attempt"' in data or b"CARMA_LOG" in data):
            return True, f"{path} is handed out: {data[:80]!r}"
    return not field.lives(), "7 names, nothing handed out"


@attack("T11", slow=True)
def device_by_swap(field):
    """Swaps the directory of his log for a link to devices while the job runs. Root should not open what is there."""
    devices = field.directory("devices", "root", 0o755)
    os.mkfifo(devices / "n.log", 0o600)
    place = field.bob / "place"
    place.mkdir()
    field.give(place, BOB, 0o755)
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK)
    job = field.submit(BOB, "sleep 300", output=str(place / "n.log"))
    if field.daemon.running(job) is None:
        raise RuntimeError("the job does not run")

    def swap():
        os.rename(place, field.bob / "away")
        os.symlink(devices, place)
    lib.as_user(BOB, swap)
    libc.inotify_add_watch(watch, str(devices / "n.log").encode(), 0x20)  # IN_OPEN
    time.sleep(4)
    field.request(BOB, "GET", f"/v1/jobs/{job}/log", timeout=5)
    try:
        opened = bool(os.read(watch, 4096))
    except BlockingIOError:
        opened = False
    os.close(watch)
    return opened, "root opened the device" if opened else "nobody opened it"


@attack("T11")
def device_as_log(field):
    """Names a device of root's as his output. It should be opened with his rights."""
    device = field.dir / "device"
    if not device.exists():
        os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(1, 7))  # /dev/full
    job = _output(field, device)
    if job is None:
        return False, "refused"
    over = field.daemon.show(job)["job"]
    return over["state"] == "COMPLETED", f"{over['state']}: {over['reason']['text']}"


@attack("T7", slow=True)
def pipe_as_log(field):
    """Names a pipe that nobody reads as his output, to keep others waiting. It should keep only himself waiting."""
    pipe = field.bob / "pipe"
    os.mkfifo(pipe)
    field.give(pipe, BOB, 0o600)
    for _ in range(3):
        field.submit(BOB, "cat /dev/zero | head -c 300000", output=str(pipe), must=False)
    started = time.monotonic()
    over, _ = field.ran(ALICE, "true", patience=20)
    took = time.monotonic() - started
    return over is None or took > 8, f"another's job was over after {took:.1f} s"


@attack("T11", slow=True)
def swap_race(field):
    """Exchanges the directory of his log with a link to another's again and again. His rights should not do there."""
    libc = ctypes.CDLL(None, use_errno=True)
    target = field.directory("target", ALICE, 0o755)
    place, link = field.bob / "race", field.bob / "race-link"
    place.mkdir()
    field.give(place, BOB, 0o755)
    os.symlink(target, link)

    def race():
        end = time.monotonic() + 6
        while time.monotonic() < end:
            libc.renameat2(-100, str(place).encode(), -100, str(link).encode(), 2)  # RENAME_EXCHANGE
        return True
    racer = lib.Child(BOB, race)
    jobs = []
    for number in range(40):
        log = str(place / f"{number}.log")
        jobs.append(field.submit(BOB, "echo vandal", output=log, cwd=str(place), must=False))
    racer.result(30)
    for job in filter(None, jobs):
        field.daemon.end_of(job, 20)
    found = os.listdir(target)
    return bool(found), f"{len(jobs)} jobs; in the other's directory: {found[:5]}"


@attack("T11")
def log_replaced_by_link(field):
    """Replaces his own log by a link to root's file and asks the daemon for the log. It should be read as himself."""
    log = field.bob / "own.log"
    job = _output(field, log, "echo fine")
    lib.as_user(BOB, lambda: (os.unlink(log), os.symlink(field.roots / "secret", log)))
    done = field.daemon.cli("logs", job, user=BOB)
    if field.needle.encode() in done.stdout:
        return True, "carma logs prints it"
    field.hands_out_logs(job)
    status, data = field.request(BOB, "GET", f"/v1/jobs/{job}/log")
    return field.needle.encode() in data, f"{status}: {data[:100]!r}"


@attack("T7", slow=True)
def log_replaced_by_pipe(field):
    """Replaces his own log by a pipe and asks the daemon for it many times. Others should be answered meanwhile."""
    log = field.bob / "pipe.log"
    job = _output(field, log, "echo fine")
    field.hands_out_logs(job)
    lib.as_user(BOB, lambda: (os.unlink(log), os.mkfifo(log)))

    def ask():
        open_ones = []
        for _ in range(40):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(field.daemon.socket))
            connection.sendall(f"GET /v1/jobs/{job}/log HTTP/1.1\r\nHost: c\r\n\r\n".encode())
            open_ones.append(connection)
        time.sleep(6)
        return True
    asker = lib.Child(BOB, ask)
    time.sleep(1)
    good = field.lives()
    over, _ = field.ran(ALICE, "true", patience=20)
    asker.result(30)
    return not good or over is None, f"another is answered: {good}; her job ends: {over is not None}"


# --- directories and programs --------------------------------------------------------------------


@attack("T3")
def enter_by_parent(field):
    """Starts in an open directory inside another's closed one. It should be entered with his rights."""
    inner = field.alice / "proj"
    inner.mkdir()
    field.give(inner, ALICE, 0o755)
    (inner / "data.txt").write_text(field.needle)
    field.give(inner / "data.txt", ALICE, 0o644)
    over, text = field.ran(BOB, "cat data.txt", cwd=str(inner))
    return field.needle in text, f"{over['job']['state']}: {over['job']['reason']['text'][:100]}"


@attack("T3")
def enter_by_link(field):
    """Starts in a link to a directory inside root's closed one. It should be entered with his rights."""
    inner = field.roots / "open"
    inner.mkdir()
    inner.chmod(0o777)
    (inner / "data.txt").write_text(field.needle)
    (inner / "data.txt").chmod(0o644)
    os.symlink(inner, field.bob / "dir")
    over, text = field.ran(BOB, "cat data.txt; touch planted", cwd=str(field.bob / "dir"))
    got = field.needle in text or (inner / "planted").exists()
    return got, f"{over['job']['state']}: {over['job']['reason']['text'][:100]}"


@attack("T3")
def enter_by_proc(field):
    """Starts in the directory of root's processes by way of /proc. It should be entered with his rights."""
    inner = field.roots / "cwd"
    inner.mkdir()
    inner.chmod(0o755)
    (inner / "data.txt").write_text(field.needle)
    (inner / "data.txt").chmod(0o644)
    sleeper = subprocess.Popen(["sleep", "60"], cwd=inner)
    try:
        over, text = field.ran(BOB, "cat data.txt", cwd=f"/proc/{sleeper.pid}/cwd")
    finally:
        sleeper.kill()
        sleeper.wait()
    return field.needle in text, f"{over['job']['state']}: {over['job']['reason']['text'][:100]}"


@attack("T3")
def probe_by_directory(field):
    """Asks by starts in directories whether another's closed directory has one of a name. Answers should be equal."""
    (field.alice / "exists").mkdir()
    field.give(field.alice / "exists", ALICE, 0o700)
    texts = []
    for name in ("exists", "absent"):
        over, _ = field.ran(BOB, "true", cwd=str(field.alice / name))
        texts.append((over["job"]["state"], over["job"]["reason"]["text"].replace(name, "NAME")))
    return texts[0] != texts[1], f"{texts[0]} | {texts[1]}"


@attack("T3")
def program_of_root(field):
    """Runs a program that only root can reach. It should be started with his rights."""
    program = field.roots / "program"
    program.write_text(f"#!/bin/sh\necho {field.needle}\n")
    program.chmod(0o755)
    over, text = field.ran(BOB, [str(program)])
    return field.needle in text, over["job"]["reason"]["text"][:100]


@attack()
def rights(field):
    """Looks for rights of root that his job may have kept: capabilities, groups, ids. It should have its user's only."""
    _, text = field.ran(BOB, "cat /proc/self/status; id -u; id -G")
    caps = re.findall(r"^Cap(?:Eff|Prm|Inh|Amb):\s*([0-9a-f]+)", text, re.M)
    ids = re.findall(r"^[UG]id:\s+(.*)", text, re.M)
    who = lib.pwd.getpwnam(BOB)
    bad = [c for c in caps if int(c, 16)] or [i for i in ids if set(i.split()) - {str(who.pw_uid), str(who.pw_gid)}]
    groups = re.search(r"^Groups:\s*(.*)", text, re.M)
    if not caps or groups is None:
        raise RuntimeError(f"nothing was printed: {text[:200]}")
    extra = set(map(int, groups[1].split())) - set(os.getgrouplist(BOB, who.pw_gid))
    return bool(bad or extra), f"capabilities {caps}, ids {ids}, groups {groups[1]}"


@attack()
def submit_as_another(field):
    """Writes another's user id into the submission or into headers. The kernel's word should count."""
    alice = lib.pwd.getpwnam(ALICE).pw_uid
    found = []
    headers = {"X-Forwarded-User": "root", "X-Remote-User": ALICE, "X-Carma-Uid": "0", "Authorization": "Basic cm9vdDo="}
    for more in ({"uid": alice}, {"user": ALICE}, {"gid": 0}, {"become_user": {"uid": 0, "gid": 0, "name": "root"}}, {}):
        body = field.daemon.job("id -u") | more
        status, data = field.request(BOB, "POST", "/v1/jobs", body, None if more else headers)
        if status == 200:
            job = json.loads(data)["id"]
            field.daemon.end_of(job)
            text = field.daemon.output(job).strip()
            if text != str(lib.pwd.getpwnam(BOB).pw_uid):
                found.append((more, text))
    return bool(found), f"ran as somebody else: {found}"


# --- what a job inherits -------------------------------------------------------------------------


@attack("T10")
def inherited_descriptor(field):
    """Reads a descriptor that the daemon was started with. Jobs should inherit none."""
    os.environ.pop("CARMA_SOCKET", None)
    daemon = lib.Daemon(field.args.carma, gpus="virtual:1xH200", keep=field.args.keep)
    field.others.append(daemon)
    daemon.start(prefix=("/bin/sh", "-c", f'exec 9<{field.roots}/secret; exec "$0" "$@"'))
    over, text = field.ran(BOB, "cat <&9", daemon=daemon)
    return field.needle in text, f"{text[:80]!r}"


@attack("T10")
def open_descriptors(field):
    """Lists the descriptors that a job has. There should be three, and none that can do more than its log."""
    _, text = field.ran(BOB, ["/bin/ls", "-l", "/proc/self/fd"])
    extra = [line.split(" ", 8)[-1] for line in text.splitlines()
             if (m := re.search(r" (\d+) -> (.*)", line)) and int(m[1]) > 2 and not m[2].startswith("/proc/")]
    return bool(extra), f"beside 0, 1, 2: {extra}"


@attack()
def daemons_environment(field):
    """Looks for variables of the daemon's own environment in a job's. It should be the submitter's and carma's alone."""
    secret = {"NOTIFY_SOCKET": "/run/notify-" + field.needle, "CREDENTIALS_DIRECTORY": "/" + field.needle,
              "DB_PASSWORD": field.needle}
    daemon = field.new_daemon(env=secret)
    _, text = field.ran(BOB, "env; tr '\\0' '\\n' </proc/$PPID/environ", daemon=daemon)
    return field.needle in text, "found" if field.needle in text else "not found"


@attack()
def oom_score(field):
    """Looks whether a job inherits the daemon's protection from the kernel's out-of-memory killer. It should not."""
    daemon = lib.Daemon(field.args.carma, gpus="virtual:1xH200", keep=field.args.keep)
    field.others.append(daemon)
    daemon.start(prefix=("/bin/sh", "-c", 'echo -500 >/proc/$$/oom_score_adj; exec "$0" "$@"'))
    if Path(f"/proc/{daemon.pid()}/oom_score_adj").read_text().strip() != "-500":
        raise Skip("this machine's root may not protect a process from the out-of-memory killer")
    _, text = field.ran(BOB, "cat /proc/self/oom_score_adj", daemon=daemon)
    return text.strip().startswith("-"), f"oom_score_adj of the job: {text.strip()}"


@attack()
def loader_variables(field):
    """Gives variables of the dynamic loader, that root's processes might obey. They should reach his command alone."""
    env = {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(field.bob / "ld"), "LD_PRELOAD": str(field.bob / "no.so"),
           "LD_LIBRARY_PATH": str(field.bob), "CARMA_FAULT": "after-spawn", "CARMA_LOG": "trace", "RUST_BACKTRACE": "full",
           "SQLITE_TMPDIR": str(field.bob), "TMPDIR": str(field.bob)}
    field.ran(BOB, "true", env=env)
    found = [p.name for p in field.bob.iterdir() if p.name.startswith("ld.") and p.stat().st_uid == 0]
    return bool(found) or not field.lives(), f"files that root wrote: {found}"


@attack()
def carmas_variables(field):
    """Gives carma's own variables with values of another's job. Carma's should win."""
    job, _ = field.victim()
    env = {"CARMA_JOB_ID": str(job), "CARMA_ATTEMPT": "9", "CARMA_PROGRESS": "/tmp/x", "CUDA_VISIBLE_DEVICES": "all"}
    over, text = field.ran(BOB, "echo $CARMA_JOB_ID $CARMA_ATTEMPT $CUDA_VISIBLE_DEVICES", env=env)
    words = text.split()
    return words[:2] != [str(over["job"]["id"]), "1"] or "all" in words, text.strip()[:100]


# --- runtime sockets and files -------------------------------------------------------------------


@attack()
def heartbeats(field):
    """Sends heartbeats for another's job. The socket should not be his to reach."""
    _, pid = field.victim()
    place = lib.environment(pid).get("CARMA_PROGRESS")
    if not place:
        raise Skip("the job has no socket for heartbeats")

    def send():
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.connect(place)
            return out.send(b"1000000")
    refused, text = denied(send)
    return not refused, text


@attack()
def heartbeat_file(field):
    """Writes another's file of heartbeats. It should not be his to reach."""
    _, pid = field.victim()
    place = lib.environment(pid).get("CARMA_HEARTBEAT")
    if not place:
        raise Skip("the job has no file for heartbeats")
    refused, text = denied(lambda: open(place, "w").write("1000000"))
    return not refused, text


@attack()
def runtime_sockets(field):
    """Connects to every socket below the state and runtime directories. None should be his to reach."""
    field.victim()
    places = [p for root in (field.daemon.state, field.daemon.runtime()) if root for p in root.rglob("*") if p.is_socket()]
    if not places:
        raise Skip("there are no sockets")
    reached = []
    for place in places:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
            def connect(place=place, kind=kind):
                with socket.socket(socket.AF_UNIX, kind) as out:
                    out.connect(str(place))
                    return place.name
            refused, text = denied(connect)
            if not refused:
                reached.append(text)
    # Tasks on virtual GPUs must reach the host of the GPUs, which is a test double and no part of a real daemon.
    reached = [name for name in reached if "virtual-gpus" not in name]
    return bool(reached), f"{len(places)} sockets, reached: {reached}"


@attack()
def plant_in_runtime(field):
    """Plants directories and links in the runtime, state and log directories. They should not be his to write."""
    field.victim()
    places = [field.daemon.state, field.daemon.state / "logs", field.daemon.state / "run", field.daemon.state / "mps",
              field.daemon.runtime(), *(p for p in (field.daemon.runtime() or Path("/none")).rglob("*") if p.is_dir())]
    planted = []
    for place in filter(None, places):
        for what in (lambda p: os.mkdir(p / "99.1"), lambda p: os.symlink("/etc/passwd", p / "99.1.record"),
                     lambda p: open(p / "planted.log", "w").close()):
            refused, text = denied(what, place)
            if not refused:
                planted.append(place.name)
    return bool(planted), f"planted in {planted}"


@attack()
def runtime_in_advance(field):
    """Makes the directory in memory of another user's daemon before it is started. It should not be used."""
    home = field.directory("own", ALICE, 0o755)
    state = home / "state"
    state.mkdir(exist_ok=True)
    field.give(state, ALICE, 0o700)
    there = state.stat()
    alice = lib.pwd.getpwnam(ALICE)
    trap = Path("/dev/shm") / f"carma-{alice.pw_uid}-{there.st_dev:x}-{there.st_ino:x}"

    def plant():
        trap.mkdir(mode=0o777)
        trap.chmod(0o777)
        return True
    lib.as_user(BOB, plant)
    daemon = lib.Daemon(field.args.carma, gpus="virtual:1xH200", user=ALICE, state=state, keep=field.args.keep)
    field.others.append(daemon)
    try:
        daemon.start()
        job = field.submit(ALICE, "sleep 60", daemon=daemon)
        daemon.running(job)
        used = os.listdir(trap)
        return bool(used), f"in the trap: {used}"
    finally:
        shutil.rmtree(trap, ignore_errors=True)


@attack()
def socket_replaced(field):
    """Removes or renames the daemon's socket, to answer in its place. Its directory should be root's."""
    for what in (os.unlink, lambda p: os.rename(p, str(p) + "x")):
        refused, text = denied(what, field.daemon.socket)
        if not refused:
            return True, text
    return False, text


# --- orders --------------------------------------------------------------------------------------


def _order(field, user, path, headers=None):
    status, data = field.request(user, "POST", path, None, headers)
    if status == 0:
        raise RuntimeError(f"POST {path} is not answered: {data[:200]!r}")
    return status, data[:120]


@attack()
def cancel(field):
    """Cancels another's job. It should be refused."""
    job, _ = field.victim()
    status, data = _order(field, BOB, f"/v1/jobs/{job}/cancel")
    time.sleep(0.5)
    return status == 200 or field.daemon.show(job)["job"]["state"] != "RUNNING", f"{status}: {data!r}"


@attack()
def requeue(field):
    """Puts another's running job back into the queue. It should be refused."""
    job, _ = field.victim()
    status, data = _order(field, BOB, f"/v1/jobs/{job}/requeue")
    return status == 200, f"{status}: {data!r}"


@attack()
def hold(field):
    """Holds another's waiting job back, and releases one that she holds. Both should be refused."""
    waiting = field.submit(ALICE, "true", gpu_memory_mib=100_000, hold=True)
    status, data = _order(field, BOB, f"/v1/jobs/{waiting}/release")
    if status == 200:
        return True, f"released: {data!r}"
    for gpu in range(GPUS):
        field.request("root", "POST", f"/v1/gpus/{gpu}/drain", {})
    pending = field.submit(ALICE, "true")
    status, data = _order(field, BOB, f"/v1/jobs/{pending}/hold")
    return status == 200, f"{status}: {data!r}"


@attack()
def drain(field):
    """Drains GPUs, so that nobody's jobs start. It should be for root and operators."""
    for gpu in range(GPUS):
        status, data = _order(field, BOB, f"/v1/gpus/{gpu}/drain")
        if status == 200:
            return True, f"GPU {gpu}: {data!r}"
    return False, f"{status}: {data!r}"


@attack()
def undrain(field):
    """Uses GPUs again that root has drained. It should be for root and operators."""
    field.request("root", "POST", "/v1/gpus/0/drain", {})
    status, data = _order(field, BOB, "/v1/gpus/0/resume")
    return status == 200, f"{status}: {data!r}"


@attack("T17")
def priority(field):
    """Asks for the highest priority, to go before root. Above 0 should be for operators."""
    job = field.submit(BOB, "sleep 5", priority=2_147_483_647, must=False)
    if job is None:
        return False, "refused"
    got = field.daemon.show(job)["job"]["priority"]
    return got > 0, f"priority {got}"


@attack("T17")
def priority_by_command(field):
    """Asks for priority by the command line and by `requeue` of a job that has it. As before."""
    done = field.daemon.cli("submit", "--priority", "1000", "--parsable", "--", "true", user=BOB)
    if done.returncode != 0:
        return False, f"exit {done.returncode}: {done.stderr[:120]!r}"
    got = field.daemon.show(int(done.stdout))["job"]["priority"]
    return got > 0, f"priority {got}"


@attack()
def teach_contexts(field):
    """Tells the daemon what a CUDA context takes, so that nobody's job fits. It should be for root."""
    body = {"gpu": 0, "framework": "torch 2.11", "context_mib": 100_000}
    status, data = field.request(BOB, "POST", "/v1/memory/contexts", body)
    return status == 200, f"{status}: {data[:100]!r}"


@attack()
def orders_by_odd_paths(field):
    """Gives orders by paths that are written oddly. They should mean the same or nothing."""
    job, _ = field.victim()
    for path in (f"/v1/jobs/{job}/%63ancel", f"/v1/jobs/0{job}/cancel", f"//v1/jobs/{job}/cancel",
                 f"/v1/jobs/{job}/../{job}/cancel", f"/v1/jobs/{job}/cancel/", f"/v1/jobs/{job}/cancel?uid=0",
                 f"/v1/jobs/+{job}/cancel"):
        status, data = _order(field, BOB, path, {"X-HTTP-Method-Override": "POST"})
        if status == 200:
            return True, f"{path}: {data!r}"
    time.sleep(0.3)
    state = field.daemon.show(job)["job"]["state"]
    return state != "RUNNING", f"the job is {state}"


@attack()
def smuggling(field):
    """Hides a second request in the first one's body, with contradicting lengths. It should stay Bob's or be refused."""
    job, _ = field.victim()
    hidden = f"POST /v1/jobs/{job}/cancel HTTP/1.1\r\nHost: c\r\nContent-Length: 2\r\n\r\n{{}}"
    heads = (f"POST /v1/jobs HTTP/1.1\r\nHost: c\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
             f"POST /v1/jobs HTTP/1.1\r\nHost: c\r\nContent-Length: 0\r\nContent-Length: {len(hidden)}\r\n\r\n",
             f"GET /v1/status HTTP/1.1\r\nHost: c\r\nContent-Length: {len(hidden)}\r\nConnection: Upgrade\r\n\r\n",
             "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")

    def send():
        for head in heads:
            with socket.socket(socket.AF_UNIX) as out:
                out.settimeout(0.5)
                out.connect(str(field.daemon.socket))
                try:
                    out.sendall((head + hidden).encode())
                    while out.recv(4096):
                        pass
                except OSError:
                    pass
        return True
    lib.as_user(BOB, send)
    state = field.daemon.show(job)["job"]["state"]
    return state != "RUNNING" or not field.lives(), f"the job is {state}"


# --- signals, sessions, supervisors --------------------------------------------------------------


@attack()
def foreign_signals(field):
    """Kills, stops or traces another's command, her supervisor, and root's daemon. The kernel refuses."""
    _, pid = field.victim()
    libc = ctypes.CDLL(None, use_errno=True)

    def trace(who):
        if libc.ptrace(16, who, 0, 0) == -1:  # PTRACE_ATTACH
            raise OSError(ctypes.get_errno(), "ptrace")
    for who, name in ((pid, "command"), (lib.parent_of(pid), "supervisor"), (field.daemon.pid(), "daemon")):
        for what in (lambda w: os.kill(w, signal.SIGSTOP), lambda w: os.kill(w, signal.SIGKILL), trace,
                     lambda w: os.setpriority(os.PRIO_PROCESS, w, 19)):
            refused, text = denied(what, who)
            if not refused:
                lib.signal_process(who, signal.SIGCONT)
                return True, f"{name}: {text}"
    return False, "refused for all three"


@attack("T12", slow=True)
def stop_own_supervisor(field):
    """Stops his own supervisor, so that a time limit cannot end him. The daemon should end the job all the same."""
    line = "kill -STOP $PPID 2>/dev/null; setsid sleep 900 & sleep 900"
    job = field.submit(BOB, line, time_limit_ms=1500)
    field.daemon.running(job)
    time.sleep(1.5)
    left = survivors(field, job)
    return bool(left), f"{len(left)} processes live on {SURVIVES} s after the limit"


@attack("T13", slow=True)
def kill_own_supervisor(field):
    """Kills his own supervisor and leaves a child behind in a session of its own. A cancel should end it."""
    job = field.submit(BOB, "setsid sleep 900 & sleep 0.3; kill -9 $PPID; sleep 900")
    field.daemon.running(job)
    time.sleep(1.5)
    _order(field, BOB, f"/v1/jobs/{job}/cancel")
    left = survivors(field, job)
    return bool(left), f"{len(left)} processes live on"


@attack("T13", slow=True)
def escape_by_session(field):
    """Leaves a grandchild in a session of its own that ignores signals, then is cancelled. Nothing should be left."""
    line = "(trap '' TERM HUP INT; setsid sh -c \"trap '' TERM; (setsid sleep 900 &) ; sleep 900\" &) ; sleep 900"
    job = field.submit(BOB, line)
    field.daemon.running(job)
    time.sleep(0.5)
    _order(field, BOB, f"/v1/jobs/{job}/cancel")
    left = survivors(field, job)
    return bool(left), f"{len(left)} processes live on {SURVIVES} s after the cancel"


@attack("T13", slow=True)
def outlive_own_end(field):
    """Ends, and leaves children that fork all the time. Nothing should be left that holds the GPU."""
    line = "sh -c 'trap \"\" TERM; i=0; while [ $i -lt 4000 ]; do i=$((i+1)); (sleep 0.02) & wait; done' & sleep 0.2"
    job = field.submit(BOB, line)
    field.daemon.end_of(job, 20)
    left = survivors(field, job)
    return bool(left), f"{len(left)} processes live on"


@attack()
def supervisor_internals(field):
    """Reaches by way of his own supervisor what is root's: its descriptors in the state directory. It has none for him."""
    job = field.submit(BOB, "sleep 300")
    pid = field.daemon.running(job)
    supervisor = lib.parent_of(pid)

    def look():
        found = []
        try:
            names = os.listdir(f"/proc/{supervisor}/fd")
        except OSError as error:
            return found, str(error)
        for name in names:
            place = f"/proc/{supervisor}/fd/{name}"
            try:
                target = os.readlink(place)
                if not target.startswith(str(field.daemon.state)) or target.endswith(".log"):
                    continue
                for mode in (os.O_RDONLY, os.O_WRONLY):
                    try:
                        os.close(os.open(place, mode))
                        found.append(target)
                    except OSError:
                        pass
            except OSError:
                pass
        return found, f"{len(names)} descriptors"
    found, text = lib.as_user(BOB, look)
    return bool(found), f"{text}; opened: {found}"


@attack()
def leave_cgroup(field):
    """Moves his job's processes out of its cgroup. The files of the parents should be root's."""
    line = ("for f in $(sed 's/^[0-9]*:[^:]*://' /proc/self/cgroup); do for r in /sys/fs/cgroup /sys/fs/cgroup/*; do "
            "p=$r$f; while [ -n \"$p\" ] && [ \"$p\" != / ] && [ \"$p\" != /sys/fs ]; do "
            "[ -d \"$p\" ] && [ \"$p\" != \"$r$f\" ] && (echo $$ >\"$p/cgroup.procs\") 2>/dev/null && echo \"moved to $p\"; "
            "p=${p%/*}; done; done; done; true")
    _, text = field.ran(BOB, line)
    return "moved to" in text, text.strip()[:150] or "refused everywhere"


@attack(slow=True)
def fork_bomb(field):
    """Starts many processes, bounded by --pids. The kernel should refuse those beyond it."""
    field.supports("--pids")
    done = field.daemon.cli("submit", "--pids", "40", "--parsable", "--env", f"{lib.MARK}={field.daemon.mark}", "--", "sh",
                            "-c", "i=0; while [ $i -lt 300 ]; do sleep 60 & i=$((i+1)); done; wait", user=BOB)
    if done.returncode != 0:
        if re.search(rb"cgroup|controller", done.stderr):
            raise Skip(f"no limit of processes here: {done.stderr[:150]!r}")
        raise RuntimeError(f"--pids is refused: {done.stderr[:200]!r}")
    job = int(done.stdout)
    field.daemon.running(job)
    time.sleep(2)
    most = sum(env.get("CARMA_JOB_ID") == str(job) for env in lib.marked(field.daemon.mark).values())
    if most > 60 and not _has_controller("pids"):
        raise Skip("this machine's cgroup v2 has no controller of processes")
    return most > 60, f"{most} processes with --pids 40"


def _has_controller(name):
    for place in ("/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup/unified/cgroup.controllers"):
        try:
            if name in Path(place).read_text().split():
                return True
        except OSError:
            pass
    return False


@attack(slow=True)
def host_memory(field):
    """Takes more host memory than --mem allows. The kernel should end the job and nobody else."""
    field.supports("--mem")
    if not _has_controller("memory"):
        raise Skip("this machine's cgroup v2 has no controller of memory")
    done = field.daemon.cli("submit", "--mem", "64M", "--parsable", "--", "python3", "-c",
                            "b = b'x' * (400 << 20); print('took', len(b))", user=BOB)
    if done.returncode != 0:
        raise RuntimeError(f"--mem is refused: {done.stderr[:200]!r}")
    job = int(done.stdout)
    over = field.daemon.end_of(job, 30)
    return "took" in field.daemon.output(job), f"{over and over['job']['reason']}"


# --- budgets -------------------------------------------------------------------------------------


def _size(daemon):
    return sum(p.stat().st_size for p in daemon.state.rglob("*.db*")) >> 20


@attack("T18", slow=True)
def held_jobs(field):
    """Leaves held jobs with large environments. There should be a limit of bytes and of jobs."""
    daemon = field.new_daemon()
    before = _size(daemon)

    def flood():
        client, taken = lib.Client(daemon.socket, 60), 0
        for number in range(60):
            env = {f"V{i}": f"{number}." + "x" * 97_000 for i in range(40)}
            status, _ = client.raw("POST", "/v1/jobs", daemon.job("true", hold=True, env=env))
            taken += status == 200
        return taken
    taken = lib.as_user(BOB, flood, patience=120)
    grown = _size(daemon) - before
    return grown > 100, f"{taken} of 60 taken; the journal grew by {grown} MiB"


@attack("T18", slow=True)
def many_jobs(field):
    """Leaves very many waiting jobs. There should be a limit for each user."""
    daemon = field.new_daemon()

    def flood():
        client, taken = lib.Client(daemon.socket, 60), 0
        for _ in range(15_000):
            status, _ = client.raw("POST", "/v1/jobs", daemon.job("true", hold=True))
            if status != 200:
                break
            taken += 1
        return taken
    taken = lib.as_user(BOB, flood, patience=200)
    return taken >= 15_000, f"{taken} of 15,000 held jobs were taken"


@attack("T18", slow=True)
def log_flood(field):
    """Writes a log without end on the journal's disk. There should be a limit of its size."""
    job = field.submit(BOB, "head -c 1400000000 /dev/zero | tr '\\0' 'x'; sleep 20")
    log = None
    for _ in range(150):
        log = log or Path(field.daemon.show(job)["log"])
        size = log.stat().st_blocks * 512 >> 20 if log.exists() else 0
        if size > 1200:
            break
        time.sleep(0.1)
    return size > 1200, f"the log has {size} MiB on the disk"


@attack("T4", slow=True)
def idle_connections(field):
    """Holds 1,100 idle connections while another's jobs start and end. There should be a budget of connections."""
    daemon = field.new_daemon(nofile=1024)
    ending = field.submit(ALICE, "sleep 4; exit 7", daemon=daemon)
    daemon.running(ending)

    def flood():
        lib.allow_descriptors(4096)
        held = []
        for _ in range(1100):
            one = socket.socket(socket.AF_UNIX)
            one.settimeout(2)
            try:
                one.connect(str(daemon.socket))
                held.append(one)
            except OSError:
                pass
        time.sleep(12)
        return len(held)
    flood = lib.Child(BOB, flood)
    time.sleep(1.5)
    good = field.lives(daemon)
    pending = []
    if good:
        pending = [field.submit(ALICE, "exit 0", daemon=daemon, must=False) for _ in range(6)]
    held = flood.result(60)
    over = daemon.end_of(ending, 20)
    ends = [daemon.end_of(job, 30) for job in pending if job]
    right = over and over["job"]["exit_code"] == 7
    fine = sum(bool(e) and e["job"]["state"] == "COMPLETED" for e in ends)
    return not (good and right and fine == 6), f"{held} held; another is answered: {good}; exit code 7 seen: {right}; " \
                                               f"{fine} of 6 jobs completed"


@attack("T22", slow=True)
def waiters(field):
    """Asks 15,000 times to wait for a job that goes on, without patience. The dead waiters should be let go."""
    daemon = field.new_daemon()
    job = field.submit(BOB, "sleep 300", daemon=daemon)
    daemon.running(job)

    def flood(count):
        client = lib.Client(daemon.socket)
        for _ in range(count):
            client.raw("GET", f"/v1/jobs/{job}/wait?timeout_ms=0")
        return resident(daemon)
    before = lib.as_user(BOB, flood, 4_000, patience=60)
    grown = lib.as_user(BOB, flood, 11_000, patience=120) - before
    return grown > 0.5 or not field.lives(daemon), f"memory grew by {grown:.2f} MiB in the last 11,000"


@attack(slow=True)
def pipelining(field):
    """Sends 20,000 requests and reads no answer. The daemon should stop reading, and answer others."""
    before = resident(field.daemon)

    def flood():
        one = socket.socket(socket.AF_UNIX)
        one.settimeout(4)
        one.connect(str(field.daemon.socket))
        try:
            one.sendall(b"GET /v1/gpus HTTP/1.1\r\nHost: c\r\n\r\n" * 20_000)
        except OSError:
            pass
        time.sleep(3)
        return True
    child = lib.Child(BOB, flood)
    time.sleep(1)
    good = field.lives()
    grown = resident(field.daemon) - before
    child.result(30)
    return not good or grown > 64, f"another is answered: {good}; memory grew by {grown:.1f} MiB"


# --- bytes that are not as they should be --------------------------------------------------------


def _names(field, name, **more):
    field.submit(BOB, "exit 1", name=name, must=False, **more)
    job = field.submit(BOB, "sleep 30", name=name, must=False, **more)
    time.sleep(0.5)
    out = b""
    for words in (["queue"], ["history", "--wide"], ["gpus"]) + ((["show", job], ["explain", job]) if job else ()):
        done = field.daemon.cli(*words)
        out += done.stdout + done.stderr
    return out


@attack()
def escapes_in_names(field):
    """Names a job with a terminal's escape sequences, for root's listings. They should be replaced."""
    out = _names(field, "\x1b]0;owned\x07\x1b[2Jx\u009b31m\r\nroot  COMPLETED")
    bad = b"\x1b]0" in out or b"\x1b[2J" in out or b"\xc2\x9b" in out or b"\x07" in out
    return bad, repr(out[:160])


@attack()
def direction_in_names(field):
    """Names a job with marks that reverse or hide text, for root's listings. They should be replaced."""
    out = _names(field, "x\u202egpj.exe\u2066\u200b\u2028y").decode(errors="replace")
    bad = [f"U+{ord(c):04X}" for c in "\u202e\u2066\u2028" if c in out]
    return bool(bad), f"in a listing: {bad}"


@attack()
def escapes_in_details(field):
    """Puts escape sequences into command, directory and environment, for root's `show`. They should be replaced."""
    evil = "\x1b]0;owned\x07\x1b[2J"
    job = field.submit(BOB, ["/bin/sh", "-c", f"sleep 30 # {evil}"], must=False)
    gone = field.submit(BOB, ["/bin/" + evil], cwd="/tmp/" + evil, must=False)
    time.sleep(0.7)
    out = b""
    for words in (["show", job], ["show", gone], ["explain", gone], ["history", "--wide"]):
        if words[-1] is not None:
            done = field.daemon.cli(*words)
            out += done.stdout + done.stderr
    return evil.encode()[:4] in out, repr(out[out.find(b"\x1b"):][:100] if b"\x1b" in out else b"none")


@attack()
def escapes_in_evidence(field):
    """Prints escape sequences in a line that the daemon keeps as the reason. They should be replaced."""
    field.ran(BOB, "printf 'ValueError: \\033]0;owned\\007\\033[2J bad\\n'; exit 1")
    done = field.daemon.cli("history", "--wide")
    return b"\x1b]0" in done.stdout or b"\x07" in done.stdout, repr(done.stdout[-160:])


@attack()
def bad_bytes(field):
    """Sends NULs, invalid UTF-8 and broken JSON. They should be refused with a reason, and nothing should run."""
    bodies = [b'{"command":["/bin/true\\u0000x"],"cwd":"/"}', b'{"command":["true"],"cwd":"/\\u0000"}',
              b'{"command":["\xff\xfe"],"cwd":"/"}', b'{"command":["true"],"cwd":"/","output":"/tmp/\\u0000"}',
              b'{"command":["true"],"cwd":"/","env":{"A\\u0000":"b"}}', b'{"command":["true"],"cwd":"/","env":{"A=B":"b"}}',
              b'{"command":["\\ud800"],"cwd":"/"}', b"", b"\0" * 1000, b'{"command":']
    answers = [field.request(BOB, "POST", "/v1/jobs", body)[0] for body in bodies]
    bad = [(b[:40], s) for b, s in zip(bodies, answers) if s == 200 or s == 0 or s >= 500]
    return bool(bad) or not field.lives(), f"answers {answers}; {bad}"


@attack()
def nested_json(field):
    """Sends JSON that nests a hundred thousand deep. It should be refused, and the daemon should live."""
    answers = []
    for body in (b"[" * 100_000, b'{"command":' + b"[" * 100_000, b'{"env":' + b'{"a":' * 100_000):
        answers.append(field.request(BOB, "POST", "/v1/jobs", body)[0])
    return any(s == 200 or s >= 500 for s in answers) or not field.lives(), f"answers {answers}"


@attack("T24")
def huge_numbers(field):
    """Gives numbers at the edges of their types. They should be refused or bounded, and hurt nobody."""
    answers = {}
    for path in ("/v1/history?limit=18446744073709551615", "/v1/history?limit=9223372036854775807",
                 "/v1/history?limit=-1", "/v1/jobs/18446744073709551615", "/v1/jobs/99999999999999999999/wait",
                 "/v1/jobs/0", "/v1/jobs/0/wait?timeout_ms=18446744073709551615"):
        answers[path] = field.request(BOB, "GET", path)[0]
    for more in ({"gpus": 4_294_967_295}, {"gpu_memory_mib": 2**64 - 1}, {"time_limit_ms": 2**64 - 1}, {"gpus": 0},
                 {"max_retries": 4_294_967_295}, {"thread_pct": 255}, {"measured_mib": 2**64 - 1},
                 {"priority": -2_147_483_648}, {"max_slowdown_pct": 4_294_967_295}):
        status, _ = field.request(BOB, "POST", "/v1/jobs", field.daemon.job("true", **more))
        answers[str(more)] = status
    bad = {k: v for k, v in answers.items() if v >= 500 or v == 0}
    over, _ = field.ran(ALICE, "true")
    return bool(bad) or over is None or not field.lives(), f"answered by 5xx or nothing: {bad}; another's job runs: " \
                                                            f"{over is not None}"


@attack()
def huge_requests(field):
    """Sends headers of a megabyte, a body of 200 MB and one that never ends. They should be refused within bounds."""
    before = resident(field.daemon)

    def send():
        seen = []
        for head, piece, count in (
                (b"GET /v1/status HTTP/1.1\r\nHost: c\r\nX: ", b"a" * 65536, 16),
                (b"POST /v1/jobs HTTP/1.1\r\nHost: c\r\nContent-Length: 200000000\r\n\r\n", b"a" * 65536, 3000),
                (b"POST /v1/jobs HTTP/1.1\r\nHost: c\r\nTransfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"a" * 65536 + b"\r\n",
                 3000)):
            with socket.socket(socket.AF_UNIX) as out:
                out.settimeout(5)
                out.connect(str(field.daemon.socket))
                sent = 0
                try:
                    out.sendall(head)
                    for _ in range(count):
                        out.sendall(piece)
                        sent += len(piece)
                except OSError:
                    pass
                seen.append(sent >> 20)
        return seen
    sent = lib.as_user(BOB, send, patience=60)
    grown = resident(field.daemon) - before
    return grown > 150 or not field.lives(), f"MiB taken: {sent}; memory grew by {grown:.0f} MiB"


@attack("T23")
def socket_on_a_file(field):
    """Has a daemon started with --socket on somebody's file. It should not delete what is no socket."""
    file = field.dir / "precious"
    file.write_text("precious\n")
    process = subprocess.Popen([field.daemon.carma, "--socket", str(file), "serve", "--gpus", "virtual:1xH200", "--state",
                                str(field.dir / "other-state")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    there = file.is_file() and file.read_text() == "precious\n"
    return not there, "the file is " + ("there" if there else "gone")


@attack("T20", slow=True)
def stopped_daemon(field):
    """Lets a client wait for a daemon that is stopped. It should give up with a clear line."""
    daemon = field.new_daemon()
    os.kill(daemon.pid(), signal.SIGSTOP)
    started = time.monotonic()
    done = daemon.cli("queue", user=BOB, timeout=40)
    took = time.monotonic() - started
    os.kill(daemon.pid(), signal.SIGCONT)
    return done.returncode == 124, f"exit {done.returncode} after {took:.0f} s: {done.stderr[:120]!r}"


@attack("T25", slow=True)
def endless_files(field):
    """Gives the client's readers a file without end. They should stop at a bound."""
    for words in (["submit", "--file", "/dev/zero", "--", "true"], ["submit", "--rad", "/dev/zero"],
                  ["submit", "--summary", "/dev/zero", "--", "true"], ["submit", "--trace", "/dev/zero", "--", "true"]):
        process = subprocess.Popen([field.daemon.carma, "--socket", str(field.daemon.socket), *words], cwd="/",
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        most = 0
        for _ in range(750):
            try:
                text = Path(f"/proc/{process.pid}/status").read_text()
            except OSError:
                text = ""
            most = max([most, *(int(size) >> 10 for size in re.findall(r"VmHWM:\s+(\d+)", text))])
            if process.poll() is not None or most > 1024:
                break
            time.sleep(0.02)
        ended = process.poll() is not None
        process.kill()
        process.wait()
        if not ended or most > 1024:
            return True, f"{' '.join(words)}: {most} MiB" + ("" if ended else " and no end")
    return False, "4 readers stopped"


@attack("T16")
def old_records(field):
    """Plants an exit record of a job to come, by a job of his. The record's directory should not be his to write."""
    run = field.daemon.state / "run"
    _, text = field.ran(BOB, f"echo '{{}}' > {run}/999.1.record && echo planted")
    output = field.submit(BOB, "echo x", output=str(run / "998.1.record"), must=False)
    if output is not None:
        field.daemon.end_of(output, 20)
    return "planted" in text or (run / "998.1.record").exists(), text.strip()[:120]


@attack()
def unknown_ids(field):
    """Asks for jobs by all ids. Answers about another's job should show no more than a listing."""
    job, _ = field.victim()
    rest = []
    for verb in ("", "/explain", "/wait?timeout_ms=0", "/log"):
        status, data = field.request(BOB, "GET", f"/v1/jobs/{job}{verb}")
        if status == 200:
            value = json.loads(data)
            rest += [f"{verb}: {k}" for k in ("command", "cwd", "log", "pid", "env") if value.get(k)]
    # The pid of a process can be seen in /proc by everybody; the others cannot.
    rest = [r for r in rest if not r.endswith("pid")]
    return bool(rest), f"filled: {rest}"


# --- the run -------------------------------------------------------------------------------------


def main():
    parser = lib.parser(__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="names of attacks; all by default")
    parser.add_argument("--list", action="store_true", help="print the attacks and end")
    args = parser.parse_args()
    if args.list:
        lib.table([(f.__name__, n, f.__doc__.split(". ")[0]) for f, n, _ in ATTACKS])
        return 0
    report = lib.Report("attacks", args)
    why = lib.two_users()
    if why:
        print(f"SKIPPED: {why}")
        report.target("attacks that succeeded", None, why)
        return report.finish()
    field = Field(args)
    rows, counts = [], {"held": 0, "SUCCEEDED": 0, "SKIPPED": 0, "broken": 0}
    for function, number, slow in ATTACKS:
        name = function.__name__
        if args.only and name not in args.only or args.small and slow and not args.only:
            continue
        field.settle()
        for path in field.bob.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        started = time.monotonic()
        try:
            succeeded, evidence = function(field)
            outcome = "SUCCEEDED" if succeeded else "held"
        except Skip as skip:
            outcome, evidence = "SKIPPED", str(skip)
        except Exception as error:
            # An attack that does not work as written proves nothing, so it counts as a miss.
            outcome, evidence = "broken", f"{type(error).__name__}: {str(error)[:300]}"
        counts[outcome] += 1
        took = time.monotonic() - started
        rows.append((name, number, outcome, f"{took:.1f}", " ".join(evidence.split())))
        lib.say(f"{outcome:9} {name}: {rows[-1][-1][:160]}")
    field.settle()
    for daemon in field.others:
        daemon.clean()
    print()
    lib.table([r[:4] + (r[4][:90],) for r in rows], ("attack", "defect", "outcome", "s", "seen"))
    report.raw["attacks"] = [dict(zip(("name", "defect", "outcome", "seconds", "seen"), r)) for r in rows]
    report.number("attacks", f"{len(rows)}: " + ", ".join(f"{v} {k}" for k, v in counts.items()))
    if not args.only and not args.small:
        report.target("attacks tried or skipped", len(rows) >= 60, len(rows), "at least 60")
    report.target("attacks that succeeded", counts["SUCCEEDED"] == 0, counts["SUCCEEDED"])
    report.target("attacks that broke", counts["broken"] == 0, counts["broken"])
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
