#!/usr/bin/env python3
"""Thousands of connections that one user holds, while another asks, submits and looks: who is answered, and when?

carma-bob holds idle, slow, garbage, half-open and pipelined connections and opens again what the daemon closes.
carma-alice opens a connection ten times a second and asks for the status, submits a job, or lists the queue. Her jobs
must start and end meanwhile. The daemon has the soft limit of open files that a login gives. Needs root.
"""

import errno
import os
import select
import socket
import sys
import time

import lib

ALICE, BOB = lib.USERS
KINDS = ("idle", "slow", "garbage", "half-open", "pipelined")
WHOLE = b"GET /v1/jobs HTTP/1.1\r\nHost: c\r\n\r\n"


def first_bytes(kind, random):
    """What a connection of a kind says at first."""
    if kind == "garbage":
        return random.randbytes(400)
    if kind == "half-open":
        return b"POST /v1/jobs HTTP/1.1\r\nHost: c\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{\"com"
    if kind == "pipelined":
        return WHOLE * 40
    if kind == "slow":
        return b"GET /v1/status HTTP/1.1\r\n"
    return b""


def hold(path, count, seconds, seed):
    """Holds connections for a time; says how many were open at most, and how often one was closed on us."""
    random = lib.chance(seed, "holder")
    lib.allow_descriptors(count + 200)
    poll = select.epoll()
    held, order, most, closed, refused = {}, 0, 0, 0, 0
    end = time.monotonic() + seconds
    drip = time.monotonic()
    pause_until = 0.0
    while time.monotonic() < end:
        now = time.monotonic()
        burst = 0
        while len(held) < count and burst < 200 and now >= pause_until:
            burst += 1
            kind = KINDS[order % len(KINDS)]
            one = socket.socket(socket.AF_UNIX)
            one.setblocking(False)
            try:
                one.connect(path)
            except OSError as error:
                one.close()
                refused += 1
                pause_until = now + (0.02 if error.errno == errno.EAGAIN else 0.2)
                break
            order += 1
            held[one.fileno()] = (one, kind)
            poll.register(one.fileno(), select.EPOLLIN | select.EPOLLHUP | select.EPOLLRDHUP)
            try:
                one.send(first_bytes(kind, random))
                if kind == "half-open":
                    one.shutdown(socket.SHUT_WR) if random.random() < 0.3 else None
            except OSError:
                pass
        most = max(most, len(held))
        for number, event in poll.poll(0.02, 256):
            one, kind = held[number]
            gone = bool(event & select.EPOLLHUP)
            if not gone and kind == "pipelined":
                # Its answers are left unread for good; the look is only at whether it lives.
                poll.modify(number, select.EPOLLHUP)
                continue
            if not gone:
                try:
                    gone = not one.recv(4096)
                except BlockingIOError:
                    pass
                except OSError:
                    gone = True
            if gone:
                poll.unregister(number)
                one.close()
                del held[number]
                closed += 1
        if now - drip > 1:
            drip = now
            for one, kind in held.values():
                if kind == "slow":
                    try:
                        one.send(b"X")
                    except OSError:
                        pass
    return most, closed, refused


def ask(path, request, seconds):
    """Asks ten times a second, each time on a new connection; what, when, seconds, outcome, id of each."""
    begun = time.monotonic()
    rows, number = [], 0
    while time.monotonic() - begun < seconds:
        at = begun + number * 0.1
        time.sleep(max(0, at - time.monotonic()))
        what = ("status", "submit", "queue")[number % 3]
        number += 1
        started = time.monotonic()
        client = lib.Client(path, timeout=10)
        job = None
        try:
            if what == "submit":
                job = client.post("/v1/jobs", request)["id"]
            else:
                client.get("/v1/status" if what == "status" else "/v1/jobs")
            outcome = "answered"
        except lib.Refused as refused:
            outcome = f"refused {str(refused)[:120]}"
        except lib.Gone as gone:
            outcome = f"not answered: {gone}"
        client.close()
        rows.append((what, started - begun, time.monotonic() - started, outcome, job))
    return rows


def main():
    parser = lib.parser(__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=90, help="of asking")
    parser.add_argument("--nofile", type=int, default=1024, help="soft limit of open files that the daemon starts with")
    args = parser.parse_args()
    if args.small:
        args.connections, args.seconds = min(args.connections, 1500), min(args.seconds, 5)
    # Full sizes are for a quiet machine; the small ones run among other tests, and show that nobody is shut out.
    bound = 5.0 if args.small else 1.0
    report = lib.Report("connections", args)
    why = lib.two_users()
    if why:
        print(f"SKIPPED: {why}")
        report.target("others are answered", None, why)
        return report.finish()
    config = "[queue]\nmost-jobs = 24\n"
    daemon = lib.Daemon(args.carma, gpus="virtual:16xH200", config=config, nofile=args.nofile, keep=args.keep).start()
    mark = daemon.dir / "marks"
    mark.touch()
    mark.chmod(0o666)
    wanted = args.seconds * 10 / 3
    request = daemon.job(f"echo $CARMA_JOB_ID >>{mark}; exit 3")
    running = lib.as_user(ALICE, lambda: lib.Client(daemon.socket).post("/v1/jobs", daemon.job(
        f"sleep {args.seconds / 2}; exit 9"))["id"])
    daemon.running(running)

    quiet = lib.Child(ALICE, ask, daemon.socket, request, 1 if args.small else 5).result(120)
    before = len(mark.read_text().split())
    holder = lib.Child(BOB, hold, str(daemon.socket), args.connections, args.seconds + 4, args.seed)
    # The asking begins while the connections are still being made: that is part of the test.
    time.sleep(0.3)
    asker = lib.Child(ALICE, ask, daemon.socket, request, args.seconds)
    most_fds = 0
    while time.monotonic() - report.started < args.seconds + 3 and daemon.alive():
        most_fds = max(most_fds, daemon.descriptors() or 0)
        if os.waitid(os.P_PID, asker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            break
        time.sleep(0.5)
    ran_meanwhile = len(mark.read_text().split()) - before
    rows = asker.result(args.seconds + 60)
    most, closed, refused = holder.result(60)
    alive = daemon.alive()
    jobs = [row[4] for row in quiet + rows if row[4] is not None]
    ended = alive and daemon.ends(30)
    client = daemon.client(60)
    over = {}
    for job in [*jobs, running] if alive else []:
        try:
            row = client.get(f"/v1/jobs/{job}")["job"]
            over[job] = (row["state"], row["exit_code"])
        except (lib.Refused, lib.Gone) as error:
            over[job] = (f"unknown: {error}", None)

    report.number("connections wanted by one user", args.connections)
    report.number("held at most, closed by the daemon, not taken", f"{most}, {closed}, {refused}")
    report.number("the daemon's descriptors at most", most_fds)
    for what in ("status", "submit", "queue"):
        alone = [r[2] for r in quiet if r[0] == what]
        during = [r[2] for r in rows if r[0] == what and r[3] == "answered"]
        if alone and during:
            report.number(f"{what}: median alone, median, 99 %, worst",
                          f"{lib.percentile(alone, 50) * 1000:.1f}, {lib.percentile(during, 50) * 1000:.1f}, "
                          f"{lib.percentile(during, 99) * 1000:.1f}, {max(during) * 1000:.1f} ms")
    report.raw["asked"] = rows
    report.target("connections tried", most >= min(args.connections, 200) or closed + refused > 200, most, "hundreds")
    slow = [r for r in rows if r[2] >= bound]
    worst = max((r[2] for r in rows), default=float("inf"))
    report.target("worst answer to another user", not slow and bool(rows), f"{worst:.3f} s", f"below {bound:g} s")
    report.none("questions of another user not answered", [f"{r[0]} after {r[1]:.1f} s: {r[3]}" for r in rows
                                                           if r[3] != "answered"])
    enough = ran_meanwhile > 0 if args.small else ran_meanwhile >= 0.9 * wanted - 2
    report.target("jobs that started meanwhile", enough, ran_meanwhile,
                  f"about {wanted:.0f}")
    report.target("the daemon lives", alive, alive, True)
    report.target("nothing is left running", bool(ended), bool(ended), True)
    report.none("jobs that ended otherwise than with exit code 3",
                [f"job {j}: {over.get(j)}" for j in jobs if over.get(j) != ("FAILED", 3)])
    report.target("the job that ended meanwhile", over.get(running) == ("FAILED", 9), over.get(running), "FAILED, 9")
    daemon.clean()
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
