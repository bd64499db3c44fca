#!/usr/bin/env python3
"""How long a new process takes to enter a cgroup: by cgroup.procs, and by clone3 with CLONE_INTO_CGROUP.

    python3 bench/trust/enter_cgroup.py [--rounds 50] [--pause-ms 20 100]

Both ways take turns, each in a group of its own, after a pause in which no process enters a group. A time is from the
fork until the child is in its group and has ended. Needs root, cgroup v2 and Linux 5.7.
"""

import argparse
import ctypes
import datetime
import os
import statistics
import struct
import sys
import time
from pathlib import Path

SYS_CLONE3 = 435  # the same on every architecture
CLONE_INTO_CGROUP = 0x2_0000_0000
SIGCHLD = 17
ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")


def by_file(group):
    """Forks, and the child writes itself into the group, as programs did before Linux 5.7."""
    child = os.fork()
    if child == 0:
        try:
            (group / "cgroup.procs").write_text("0")
            os._exit(0)
        except OSError as e:
            os._exit(e.errno)
    return child


def by_clone(group):
    """Forks the child into the group."""
    libc = ctypes.CDLL(None, use_errno=True)
    dir = os.open(group, os.O_DIRECTORY | os.O_PATH)
    # struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
    # set_tid_size, cgroup.
    args = ctypes.create_string_buffer(struct.pack("11Q", CLONE_INTO_CGROUP, 0, 0, 0, SIGCHLD, 0, 0, 0, 0, 0, dir), 88)
    child = libc.syscall(SYS_CLONE3, args, 88)
    if child == 0:
        os._exit(0)
    os.close(dir)
    if child < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(group))
    return child


def timed(enter, root, number):
    """Seconds that one way takes."""
    group = root / f"carma-bench-{os.getpid()}-{number}"
    group.mkdir()
    try:
        began = time.perf_counter()
        _, status = os.waitpid(enter(group), 0)
        took = time.perf_counter() - began
    finally:
        group.rmdir()
    if status:
        raise OSError(os.waitstatus_to_exitcode(status), "the child did not enter the group", str(group))
    return took


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--pause-ms", type=float, nargs="+", default=[20.0, 100.0])
    args = parser.parse_args()
    root = next((Path(root) for root in ROOTS if (Path(root) / "cgroup.procs").exists()), None)
    if root is None:
        sys.exit(f"no cgroup v2 at {' or '.join(ROOTS)}: mount one, or boot with systemd.unified_cgroup_hierarchy=1")
    print(f"{datetime.date.today()}, Linux {os.uname().release}, {os.cpu_count()} cores, {args.rounds} rounds")
    print(f"{'pause':>8}  {'way':<13} {'median':>9} {'90th':>9} {'worst':>9}")
    for pause in args.pause_ms:
        times = {by_file: [], by_clone: []}
        for number in range(args.rounds):
            for enter, found in times.items():
                time.sleep(pause / 1000)
                found.append(timed(enter, root, number) * 1000)
        for enter, name in ((by_file, "cgroup.procs"), (by_clone, "clone3")):
            found = sorted(times[enter])
            tenth = found[min(len(found) - 1, int(len(found) * 0.9))]
            print(f"{pause:>5g} ms  {name:<13} {statistics.median(found):>6.2f} ms {tenth:>6.2f} ms {found[-1]:>6.2f} ms")


if __name__ == "__main__":
    main()
