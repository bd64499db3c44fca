"""Measures the rows of a CSV file on a GPU, several at once, and appends what each took to another.

    python3 measure.py rows.csv -o measured.csv --workers 8

Workers stay resident (worker.py). Rows that the output has already are not measured again, so an interrupted run is
continued by the same command. `--fresh` gives every row a process of its own: slower, for checking. This file and
worker.py need nothing but Python's own library; PyTorch is imported by the workers alone.
"""

import argparse
import collections
import contextlib
import csv
import io
import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
RESULT = (
    "status reason params activations model_mib allocated_mib reserved_mib process_mib context_mib start_mib "
    "steps_mib alloc_retries asked_mib residue_mib fresh seconds layer_list"
).split()
CONTEXT_MIB = 1100  # of an idle worker, with room for the kernels that it will load
AHEAD = 64  # rows that may overtake one which does not fit at the moment
TRIES = 3


class Bad(Exception):
    """What the user gave can't be used: says what and why."""


def read_rows(path):
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Bad(f"{path}: {error}") from None
    columns = reader.fieldnames or []
    for needed in ("id", "family"):
        if needed not in columns:
            raise Bad(f"{path}: no column `{needed}`; `carma lab dataset generate` writes such files")
    seen = set()
    for at, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise Bad(f"{path}: line {at}: not {len(columns)} cells, as in the first line")
        if row["id"] in seen:
            raise Bad(f"{path}: line {at}: the id `{row['id']}` is there twice")
        seen.add(row["id"])
    return columns, rows


def done_before(path, columns):
    """Ids that the output has. A last line that was cut off is removed."""
    if not os.path.exists(path) or os.path.getsize(path) == 0:
        with open(path, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow(columns)
        return set()
    with open(path, "rb+") as file:
        text = file.read()
        # Our rows end in CR LF; a line feed alone may stand within a cell.
        end = b"\r\n" if b"\r\n" in text else b"\n"
        if not text.endswith(end):
            file.truncate(text.rfind(end) + len(end) if end in text else 0)
            return done_before(path, columns)
    found, rows = read_rows(path)
    if found != columns:
        raise Bad(f"{path}: its columns are not those of this file of rows; give another name with -o")
    return {row["id"] for row in rows}


class Worker:
    """A process that measures, and the row it is at."""

    def __init__(self, number, command, log, inbox):
        self.number, self.ready, self.row, self.since = number, False, None, time.monotonic()
        self.need = 0
        self.errors = os.path.join(log, f"worker-{number}-{time.monotonic_ns()}.err")
        with open(self.errors, "w") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        threading.Thread(target=self.listen, args=(inbox,), daemon=True).start()

    def listen(self, inbox):
        with contextlib.suppress(ValueError, OSError):
            for line in self.process.stdout:
                try:
                    inbox.put((self, json.loads(line)))
                except ValueError:
                    self.process.kill()  # no worker of ours says such things
        self.process.wait()
        inbox.put((self, None))

    def give(self, row, need):
        self.row, self.need, self.since = row, need, time.monotonic()
        with contextlib.suppress(OSError):  # its end is noticed by its reader
            self.process.stdin.write(json.dumps(row) + "\n")
            self.process.stdin.flush()

    def last_words(self):
        with contextlib.suppress(OSError):
            with open(self.errors, errors="replace") as file:
                lines = [line.strip() for line in file if line.strip()]
            if lines:
                return lines[-1][:200]
        return "it said nothing"


class Driver:
    def __init__(self, options, rows, out, columns, log):
        self.options, self.out, self.columns, self.log = options, out, columns, log
        self.waiting = collections.deque(rows)
        self.tries = collections.Counter()
        self.alone = collections.deque()  # rows to try again at the end, with nothing beside them
        self.lonely = set()  # their ids
        self.inbox, self.workers, self.counts = queue.Queue(), {}, collections.Counter()
        self.budget, self.began, self.spawned, self.failed_starts = options.memory_budget_mib, time.monotonic(), 0, 0
        self.total = len(rows)

    def spawn(self):
        if self.options.worker_command:
            command = shlex.split(self.options.worker_command)
        else:
            command = [sys.executable, os.path.join(HERE, "worker.py"), "--device", self.options.device]
            command += ["--models", os.path.abspath(self.options.models)] if self.options.models else []
            command += ["--fresh"] if self.options.fresh else []
        self.spawned += 1
        worker = Worker(self.spawned, command, self.log, self.inbox)
        self.workers[worker.number] = worker

    def need(self, row):
        cap = float(row.get("cap_mib") or 0)
        predicted = float(row.get("predicted_mib") or 8192) * 1.15 + 256
        return min(cap, predicted) if cap else predicted

    def used(self):
        return sum(w.need for w in self.workers.values() if w.row)

    def next_row(self):
        """The first that fits beside what runs; None when none does."""
        busy = any(w.row for w in self.workers.values())
        if not busy and not self.waiting and self.alone:
            return self.alone.popleft()
        for at, row in zip(range(AHEAD), self.waiting):
            if not busy or self.budget is None or self.used() + self.need(row) <= self.budget:
                del self.waiting[at]
                return row
        return None

    def hand_out(self):
        late = self.options.budget_s and time.monotonic() > self.began + self.options.budget_s
        if late:
            return
        for worker in self.workers.values():
            if worker.ready and worker.row is None:
                if any(w.row and w.row["id"] in self.lonely for w in self.workers.values()):
                    return
                row = self.next_row()
                if row is None:
                    return
                worker.give(row, self.need(row))

    def write(self, row, answer):
        self.counts[answer["status"]] += 1
        cells = {**row, **{k: "" if answer.get(k) is None else answer[k] for k in RESULT}}
        text = io.StringIO()
        csv.writer(text).writerow([cells.get(c, "") for c in self.columns])
        self.out.write(text.getvalue())
        self.out.flush()

    def again(self, row, why):
        self.tries[row["id"]] += 1
        if self.tries[row["id"]] >= TRIES:
            self.write(row, {"status": "FAILED", "reason": f"{why} ({TRIES} times)"})
        else:
            self.lonely.add(row["id"])
            self.alone.append(row)

    def heard(self, worker, message):
        if message is None:
            self.workers.pop(worker.number, None)
            if worker.row:
                self.again(worker.row, f"the worker died: {worker.last_words()}")
            elif not worker.ready:
                self.failed_starts += 1
                if self.failed_starts >= 3:
                    raise Bad(f"workers don't start: {worker.last_words()}")
            self.spawn()
        elif message.get("ready"):
            worker.ready, self.failed_starts = True, 0
            if self.budget is None and message.get("total_mib"):
                self.budget = message["total_mib"] * 0.95 - CONTEXT_MIB * self.options.workers
        elif worker.row and message.get("id") == worker.row["id"]:
            row, worker.row = worker.row, None
            if message.get("status") == "FULL":
                self.again(row, message.get("reason", "the GPU was full"))
            else:
                self.write(row, message)
            if message.get("poisoned"):
                worker.ready = False

    def look_after(self):
        for worker in list(self.workers.values()):
            if worker.row and time.monotonic() > worker.since + self.options.run_timeout_s:
                worker.row = self.give_up(worker.row)
                worker.ready = False
                worker.process.kill()

    def give_up(self, row):
        self.write(row, {"status": "FAILED", "reason": f"no answer within {self.options.run_timeout_s:.0f} s"})

    def left(self):
        return len(self.waiting) + len(self.alone) + sum(1 for w in self.workers.values() if w.row)

    def finished(self):
        running = any(w.row for w in self.workers.values())
        late = self.options.budget_s and time.monotonic() > self.began + self.options.budget_s
        return not running and (late or not (self.waiting or self.alone))

    def play(self):
        for _ in range(min(self.options.workers, max(1, self.total))):
            self.spawn()
        said = time.monotonic()
        while not self.finished():
            self.hand_out()
            with contextlib.suppress(queue.Empty):
                self.heard(*self.inbox.get(timeout=0.5))
            self.look_after()
            if time.monotonic() > said + 10:
                said = time.monotonic()
                print(self.progress(), file=sys.stderr, flush=True)
        print(self.progress(), file=sys.stderr, flush=True)

    def progress(self):
        done = sum(self.counts.values())
        parts = ", ".join(f"{n} {s}" for s, n in sorted(self.counts.items()))
        return f"{time.monotonic() - self.began:.0f} s: {done} of {self.total} measured ({parts or 'none yet'})"

    def end(self):
        for worker in self.workers.values():
            with contextlib.suppress(OSError):
                worker.process.stdin.close()
        for worker in self.workers.values():
            try:
                worker.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                worker.process.kill()


def options_of(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rows")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--workers", type=int, default=4, help="processes at once")
    parser.add_argument("--memory-budget-mib", type=float, help="for all runs together [default: the GPU's]")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu", "meta"], help="cpu, meta: a rehearsal")
    parser.add_argument("--models", help="a Python file with `case(row)`, for rows of the family `model`")
    parser.add_argument("--fresh", action="store_true", help="a new process for every row")
    parser.add_argument("--budget-s", type=float, help="start no run after that many seconds")
    parser.add_argument("--run-timeout-s", type=float, default=90)
    parser.add_argument("--only", help="ids of rows, by commas")
    parser.add_argument("--worker-command", help="another worker, for tests")
    return parser.parse_args(arguments)


def main(arguments=None):
    options = options_of(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        columns, rows = read_rows(options.rows)
        if options.workers < 1:
            raise Bad("--workers: at least 1")
        if options.only:
            rows = [row for row in rows if row["id"] in options.only.split(",")]
        columns = columns + [c for c in RESULT if c not in columns]
        done = done_before(options.output, columns)
        rows = [row for row in rows if row["id"] not in done]
        if done:
            print(f"{len(done)} rows are in {options.output} already; {len(rows)} to go", file=sys.stderr)
        with tempfile.TemporaryDirectory() as log, open(options.output, "a", newline="", encoding="utf-8") as out:
            driver = Driver(options, rows, out, columns, log)
            try:
                driver.play()
            finally:
                driver.end()
            if driver.left():
                print(f"{driver.left()} rows are left: the same command goes on with them", file=sys.stderr)
                return 1
    except Bad as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
