"""What the programs of the trust campaign share: a daemon in a directory of its own on virtual GPUs, a client of its
socket, other users, processes, targets, tables and raw results.

Only the standard library is used. No program here changes the machine: what it starts, it ends.
"""

import argparse
import atexit
import ctypes
import datetime
import http.client
import json
import os
import pickle
import platform
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

MARK = "CARMA_TRUST"
"""Environment variable of every process of a job that this campaign started; its value names the run."""

USERS = ("carma-alice", "carma-bob")
"""The two ordinary users that .ci/setup makes."""


def say(text):
    """A line of progress, on stderr: stdout is for the report."""
    print(text, file=sys.stderr, flush=True)


# --- the client ----------------------------------------------------------------------------------


class Gone(Exception):
    """The daemon did not answer: whether it took what was said is unknown."""


class Absent(Gone):
    """Nobody listens: what was to be said was not said."""


class Refused(Exception):
    """The daemon said no."""

    def __init__(self, status, body):
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body


class _Connection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("carma", timeout=timeout)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                return self.sock.connect(self.path)
            except BlockingIOError:
                # The queue of the socket is full. With a time-out, Python does not wait for room.
                if time.monotonic() > deadline:
                    raise TimeoutError("no room in the queue of the socket") from None
                time.sleep(0.005)


class Client:
    """One connection that is kept open; opened again after the daemon was gone."""

    def __init__(self, path, timeout=30):
        self.path = path
        self.timeout = timeout
        self.connection = None

    def raw(self, method, path, body=None, headers=None):
        """The answer's status and bytes."""
        if self.connection is None or self.connection.sock is None:
            self.connection = _Connection(self.path, self.timeout)
            try:
                self.connection.connect()
            except OSError as error:
                self.connection = None
                raise Absent(f"{type(error).__name__}: {error}") from error
        try:
            if body is not None and not isinstance(body, (bytes, bytearray)):
                body = json.dumps(body).encode()
            head = {"Content-Type": "application/json"} if body is not None else {}
            try:
                self.connection.request(method, path, body=body, headers={**head, **(headers or {})})
            except BrokenPipeError:
                # It answered and closed before it had read all: the answer is there to be read.
                pass
            reply = self.connection.getresponse()
            data = reply.read()
            if reply.will_close:
                self.close()
            return reply.status, data
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Gone(f"{type(error).__name__}: {error}") from error

    def call(self, method, path, body=None):
        """The answer, decoded; `Refused` for any status but 200."""
        status, data = self.raw(method, path, body)
        try:
            value = json.loads(data)
        except ValueError:
            value = data.decode("utf-8", "replace")
        if status != 200:
            raise Refused(status, value)
        return value

    def get(self, path):
        return self.call("GET", path)

    def post(self, path, body=None):
        return self.call("POST", path, body)

    def close(self):
        if self.connection is not None:
            self.connection.close()
            self.connection = None


# --- the daemon ----------------------------------------------------------------------------------

_daemons = []
_children = []


class Daemon:
    """A daemon in a directory of its own."""

    def __init__(self, carma, gpus="virtual:2xH200", policy="or-rr", args=(), config="", env=None, nofile=None,
                 user=None, state=None, cwd=None, keep=False):
        self.carma = str(Path(carma).resolve())
        self.gpus = gpus
        self.args = ["--policy", policy, *args] if policy else list(args)
        self.env = dict(env or {})
        self.nofile = nofile
        self.user = user
        self.cwd = cwd
        self.keep = keep
        self.dir = Path(tempfile.mkdtemp(prefix="carma-trust-"))
        # Other users' clients come here too.
        self.dir.chmod(0o755)
        if user is not None:
            who = pwd.getpwnam(user)
            os.chown(self.dir, who.pw_uid, who.pw_gid)
        self.socket = self.dir / "s"
        self.state = Path(state) if state is not None else self.dir / "state"
        self.state_word = None
        """How the state directory is named to the daemon, where that is not its absolute path."""
        self.log_file = self.dir / "daemon.log"
        self.mark = f"{os.getpid()}.{os.urandom(4).hex()}"
        (self.dir / "carma.toml").write_text(config)
        self.process = None
        self.lives = 0
        _daemons.append(self)

    def command(self):
        """The command line."""
        return [self.carma, "--socket", str(self.socket), "serve", "--gpus", self.gpus, "--state",
                str(self.state_word or self.state),
                "--config", str(self.dir / "carma.toml"), *self.args]

    def spawn(self, env=None, prefix=()):
        """Starts it and does not wait. `prefix`: a program that starts it."""
        variables = {k: v for k, v in os.environ.items() if not k.startswith("CARMA_")}
        variables |= {"CARMA_LOG": "info", "NO_COLOR": "1"} | self.env | (env or {})
        command = [*prefix, *self.command()]
        if self.nofile is not None:
            command = ["/bin/sh", "-c", f'ulimit -Sn {self.nofile} && exec "$0" "$@"', *command]
        who = {}
        if self.user is not None:
            entry = pwd.getpwnam(self.user)
            who = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        with open(self.log_file, "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
                                            env=variables, cwd=self.cwd, start_new_session=True, **who)
        self.lives += 1
        return self

    def up(self, patience=60):
        """Waits until it answers; `False`: it died first."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                return False
            try:
                self.client(timeout=5).get("/v1/status")
                return True
            except (Gone, Refused):
                time.sleep(0.01)
        raise SystemExit(f"the daemon does not answer within {patience} s; its log:\n{self.log()[-3000:]}")

    def start(self, **how):
        """Starts it and waits until it answers."""
        self.spawn(**how)
        if not self.up():
            raise SystemExit(f"the daemon ended with {self.process.returncode}; its log:\n{self.log()[-3000:]}")
        return self

    def pid(self):
        return self.process.pid

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        """`kill -9`."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self, patience=20):
        """SIGTERM, and its exit code."""
        if self.process is None:
            return None
        self.process.terminate()
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def client(self, timeout=30):
        return Client(self.socket, timeout)

    def log(self):
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def cli(self, *words, user=None, timeout=60, cwd="/", env=None, stdin=subprocess.DEVNULL):
        """Runs the command line against it, perhaps as another user."""
        command = [self.carma, "--socket", str(self.socket), *map(str, words)]
        return run_as(user, command, timeout=timeout, cwd=cwd, env=env, stdin=stdin)

    # --- jobs

    def job(self, command, **more):
        """A submission. A string is a line for /bin/sh."""
        words = ["/bin/sh", "-c", command] if isinstance(command, str) else list(map(str, command))
        env = {"PATH": "/usr/bin:/bin", MARK: self.mark} | more.pop("env", {})
        return {"command": words, "cwd": "/", "env": env, **more}

    def submit(self, command, **more):
        return self.client().post("/v1/jobs", self.job(command, **more))["id"]

    def show(self, job):
        return self.client().get(f"/v1/jobs/{job}")

    def end_of(self, job, patience=60):
        """The job when it is over, or `None`."""
        return until(lambda: (lambda d: d if d["job"]["ended_ms"] is not None else None)(self.show(job)), patience)

    def in_state(self, job, state, patience=30):
        """The job when it is in a state, or `None`."""
        return until(lambda: (lambda d: d if d["job"]["state"] == state else None)(self.show(job)), patience)

    def running(self, job, patience=30):
        """The pid of the job's first process when it runs, or `None`."""
        return until(lambda: self.show(job).get("pid"), patience)

    def output(self, job, user=None):
        """What a job printed, asked of the daemon, or read where it does not hand logs out."""
        try:
            status, data = self.client().raw("GET", f"/v1/jobs/{job}/log")
            if status == 200:
                return data.decode(errors="replace")
            if status >= 500:
                return f"<{status}: {data[:200]!r}>"
        except Gone:
            pass
        try:
            return Path(self.show(job)["log"]).read_text(errors="replace")
        except OSError as error:
            return f"<{error}>"

    def queue(self):
        return self.client().get("/v1/jobs")["jobs"]

    def ends(self, patience=60):
        """Waits until no job is live; `False`: some still are."""
        return until(lambda: not self.queue(), patience) is not None

    # --- processes

    def descriptors(self):
        try:
            return len(os.listdir(f"/proc/{self.pid()}/fd"))
        except OSError:
            return None

    def supervisors(self):
        """Pids of supervisors: children of the daemon that run carma, and parents of jobs' processes that do."""
        table = processes()
        mine = {pid for pid, p in table.items() if p["parent"] == self.pid() and not p["zombie"]}
        own = marked(self.mark, table)
        for pid in own:
            parent = table[pid]["parent"]
            if parent in table and parent not in own:
                mine.add(parent)
        mine.discard(self.pid())
        return {pid for pid in mine if executable(pid) == self.carma}

    def commands(self):
        """The first processes of jobs, by pid: those whose parent is no process of a job."""
        table = processes()
        own = marked(self.mark, table)
        return {pid: env for pid, env in own.items() if table[pid]["parent"] not in own}

    def clean(self):
        """Ends everything and removes the directory."""
        if self in _daemons:
            _daemons.remove(self)
        supervisors = set()
        for _ in range(50):
            table = processes()
            found = marked(self.mark, table)
            supervisors |= {table[p]["parent"] for p in found if table[p]["parent"] not in found}
            self.kill()
            if not found:
                break
            for pid in found:
                signal_process(pid, signal.SIGKILL)
            time.sleep(0.02)
        for pid in supervisors:
            if pid > 1 and executable(pid) == self.carma:
                signal_process(pid, signal.SIGCONT)
        # A daemon that a tracer or a shell had started, and that outlived it.
        for pid in processes():
            if executable(pid) == self.carma and str(self.socket).encode() in command_line(pid):
                signal_process(pid, signal.SIGKILL)
        if self.keep:
            say(f"kept: {self.dir}")
            return
        states = {self.state, *(lock.parent for lock in self.dir.glob("**/lock"))}
        places = [self.runtime(state) for state in states]
        shutil.rmtree(self.dir, ignore_errors=True)
        for place in filter(None, places):
            shutil.rmtree(place, ignore_errors=True)

    def runtime(self, state=None):
        """The directory in memory that belongs to this state directory, if there is one."""
        try:
            there = (state or self.state).stat()
        except OSError:
            return None
        uid = 0 if self.user is None else pwd.getpwnam(self.user).pw_uid
        uid = os.geteuid() if self.user is None else uid
        name = f"carma-{uid}-{there.st_dev:x}-{there.st_ino:x}"
        for place in ("/run", "/dev/shm"):
            if (Path(place) / name).is_dir():
                return Path(place) / name
        return None


@atexit.register
def _clean_all():
    for child in list(_children):
        if child.pid:
            signal_process(child.pid, signal.SIGTERM)
    for daemon in list(_daemons):
        daemon.clean()


# A program that is told to end takes what it started with it.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def until(check, patience=30, pause=0.02):
    """The first true value of a check, or `None` when patience ends. A daemon that is gone counts as not yet."""
    deadline = time.monotonic() + patience
    while True:
        try:
            value = check()
        except Gone:
            value = None
        if value:
            return value
        if time.monotonic() > deadline:
            return None
        time.sleep(pause)


# --- processes -----------------------------------------------------------------------------------


def processes():
    """All processes: pid -> parent, start time in ticks, whether it is a zombie, session."""
    table = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            text = Path(f"/proc/{name}/stat").read_text(errors="replace")
        except OSError:
            continue
        fields = text.rsplit(")", 1)[-1].split()
        if len(fields) < 20:
            continue
        table[int(name)] = {"parent": int(fields[1]), "start": int(fields[19]), "zombie": fields[0] in "ZX",
                            "session": int(fields[3])}
    return table


def environment(pid):
    """The environment of a process when it was started, or nothing."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in data.split(b"\0") if b"=" in item)
    return {k.decode(errors="replace"): v.decode(errors="replace") for k, _, v in pairs}


def marked(mark, table=None):
    """Living processes of this run's jobs: pid -> environment."""
    found = {}
    for pid, process in (table if table is not None else processes()).items():
        if process["zombie"]:
            continue
        env = environment(pid)
        if env.get(MARK) == mark:
            found[pid] = env
    return found


def executable(pid):
    try:
        return os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
    except OSError:
        return None


def command_line(pid):
    """The words of a process, each with a NUL behind it."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def signal_process(pid, number):
    """Signals a process; `False`: there was none."""
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


def parent_of(pid):
    entry = processes().get(pid)
    return entry["parent"] if entry else None


def allow_descriptors(count):
    """Raises this process's soft limit of open files, as far as the hard one allows; returns it."""
    libc = ctypes.CDLL(None, use_errno=True)
    limits = (ctypes.c_ulong * 2)()
    libc.getrlimit(7, limits)  # RLIMIT_NOFILE
    limits[0] = max(limits[0], min(count, limits[1]))
    if libc.setrlimit(7, limits) != 0:
        raise OSError(ctypes.get_errno(), "setrlimit")
    return limits[0]


def boot_seconds():
    """Seconds since boot, the clock of /proc/uptime."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# --- other users ---------------------------------------------------------------------------------


def user_known(name):
    try:
        pwd.getpwnam(name)
        return True
    except KeyError:
        return False


def two_users():
    """Why two users cannot be had, or `None`."""
    if os.geteuid() != 0:
        return "needs root to act as two users"
    missing = [u for u in USERS if not user_known(u)]
    return f"the users {', '.join(missing)} do not exist; .ci/setup makes them" if missing else None


def become(name):
    """Becomes a user for good. For a child process."""
    who = pwd.getpwnam(name)
    os.initgroups(name, who.pw_gid)
    os.setgid(who.pw_gid)
    os.setuid(who.pw_uid)
    os.environ.update(HOME=who.pw_dir, USER=name, LOGNAME=name)
    os.chdir("/")


def run_as(user, command, timeout=60, cwd="/", env=None, stdin=subprocess.DEVNULL):
    """Runs a program, perhaps as another user. A time-out reads as exit code 124."""
    who = {}
    variables = {k: v for k, v in os.environ.items() if not k.startswith("CARMA_")}
    if user is not None:
        entry = pwd.getpwnam(user)
        who = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": os.getgrouplist(user, entry.pw_gid)}
        variables |= {"HOME": entry.pw_dir, "USER": user, "LOGNAME": user}
    variables |= env or {}
    data = stdin if isinstance(stdin, bytes) else None
    try:
        return subprocess.run(command, capture_output=True, timeout=timeout, cwd=cwd, env=variables, input=data,
                              stdin=None if data is not None else stdin, **who)
    except subprocess.TimeoutExpired as error:
        return subprocess.CompletedProcess(command, 124, error.stdout or b"", error.stderr or b"timed out")


class Child:
    """A function that runs in a process of its own, perhaps as another user; its value or error comes back."""

    def __init__(self, user, function, *args):
        self.reader, writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid:
            os.close(writer)
            _children.append(self)
            return
        code = 0
        try:
            os.close(self.reader)
            _daemons.clear()
            _children.clear()
            if user is not None:
                become(user)
            value = (True, function(*args))
        except BaseException as error:
            value = (False, f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=4)}")
        try:
            with os.fdopen(writer, "wb") as pipe:
                pickle.dump(value, pipe)
        except BaseException:
            code = 1
        os._exit(code)

    def result(self, patience=60):
        """The function's value. Raises where it failed or took too long."""
        import select
        data = b""
        deadline = time.monotonic() + patience
        while True:
            ready, _, _ = select.select([self.reader], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                self.end()
                raise TimeoutError(f"no answer within {patience} s")
            piece = os.read(self.reader, 1 << 16)
            if not piece:
                break
            data += piece
        os.close(self.reader)
        os.waitpid(self.pid, 0)
        self.pid = None
        _children.remove(self)
        if not data:
            raise RuntimeError("the child process died")
        good, value = pickle.loads(data)
        if not good:
            raise RuntimeError(value)
        return value

    def end(self):
        if self.pid:
            signal_process(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = None
            _children.remove(self)


def as_user(user, function, *args, patience=60):
    """Calls a function as another user and returns its value."""
    return Child(user, function, *args).result(patience)


# --- reports -------------------------------------------------------------------------------------


def parser(text, seed=1):
    """The arguments that all programs have."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument("--carma", required=True, help="the binary under test")
    made.add_argument("--seed", type=int, default=seed, help="of all random choices")
    made.add_argument("--out", type=Path, help="folder for the raw results")
    made.add_argument("--small", action="store_true", help="sizes that take seconds")
    made.add_argument("--keep", action="store_true", help="leave the daemon's directory behind")
    return made


def machine():
    """What it was measured on."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = int(Path("/proc/meminfo").read_text().split()[1]) // 1024
    return f"{model}, {os.cpu_count()} core(s), {memory} MiB memory, Linux {platform.release()}"


def version_of(carma):
    """Version and fingerprint of a binary."""
    import hashlib
    text = subprocess.run([carma, "--version"], capture_output=True, text=True).stdout.strip()
    digest = hashlib.sha256(Path(carma).read_bytes()).hexdigest()
    return f"{text}, sha256 {digest[:12]}, {os.path.getsize(carma) >> 20} MiB"


def table(rows, head=None):
    """Prints columns, numbers to the right."""
    rows = [[str(cell) for cell in row] for row in rows]
    if head:
        rows.insert(0, list(head))
    if not rows:
        return
    width = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    number = [all(_is_number(row[i]) for row in rows[1 if head else 0:]) for i in range(len(width))]
    for row in rows:
        cells = (c.rjust(w) if n else c.ljust(w) for c, w, n in zip(row, width, number))
        print("  " + "  ".join(cells).rstrip())


def _is_number(text):
    return text.replace(".", "").replace("-", "").replace("%", "").replace(",", "").isdigit() or text in ("", "-")


class Report:
    """What came of a program: targets, numbers, raw results."""

    def __init__(self, name, args):
        self.name = name
        self.args = args
        self.targets = []
        self.rows = []
        self.raw = {}
        self.started = time.monotonic()
        self.when = datetime.datetime.now(datetime.timezone.utc)
        self.load = os.getloadavg()
        # At the start: what a campaign of hours found must not be lost to a binary that cannot be read at its end.
        self.version = version_of(args.carma)

    def target(self, what, ok, got, bound="0"):
        """A target: `ok` is true, false, or `None` where it could not be tried."""
        self.targets.append((what, str(got), str(bound), "SKIPPED" if ok is None else "PASS" if ok else "FAIL"))

    def none(self, what, found):
        """A target: nothing of a list may be. Its first entries are printed."""
        found = list(found)
        self.target(what, not found, len(found))
        self.raw.setdefault("found", {})[what] = found[:200]

    def number(self, what, value):
        """A number that is no target."""
        self.rows.append((what, str(value)))

    def finish(self):
        """Prints the report and returns the exit code."""
        took = time.monotonic() - self.started
        for what, found in self.raw.get("found", {}).items():
            for one in found[:5]:
                print(f"  {what}: {one}")
        print(f"\n{self.name}")
        head = [("machine", machine()), ("date", self.when.strftime("%Y-%m-%d %H:%M UTC")),
                ("carma", self.version), ("seed", self.args.seed),
                ("load", " ".join(f"{x:.2f}" for x in self.load) + " (1, 5, 15 min) at the start"),
                ("took", f"{took:.0f} s")]
        table(head)
        if self.rows:
            print()
            table(self.rows)
        print()
        table(self.targets, ("target", "found", "allowed", ""))
        outcomes = [target[3] for target in self.targets]
        failed, skipped = outcomes.count("FAIL"), outcomes.count("SKIPPED")
        # What tried nothing has shown nothing. run.sh reads this line.
        outcome = "FAIL" if failed else "SKIPPED" if skipped == len(outcomes) else "PASS"
        print(f"{self.name}: {outcome}, {failed} of {len(outcomes)} targets missed, {skipped} skipped", flush=True)
        if self.args.out:
            self.args.out.mkdir(parents=True, exist_ok=True)
            data = {"name": self.name, "head": dict((k, str(v)) for k, v in head), "numbers": self.rows,
                    "targets": self.targets, "arguments": {k: str(v) for k, v in vars(self.args).items()}, **self.raw}
            (self.args.out / f"{self.name}.json").write_text(json.dumps(data, indent=1, default=str) + "\n")
        return 1 if failed else 0


def percentile(values, percent):
    """A value of those given, the nearest rank; `None` of none."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * percent // 100) - 1))]


def chance(seed, *more):
    """A source of randomness that depends on the seed and on what it is for."""
    return random.Random(":".join(map(str, (seed, *more))))
