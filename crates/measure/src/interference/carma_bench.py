"""Three lines that let `carma bench interference` start and pause a training or inference loop.

    import carma_bench
    pace = carma_bench.Pace()          # after the model is built
    while True:
        train_on_a_batch()
        pace.step()                    # one step is done; waits here while the task is paused

Without carma (no CARMA_BENCH in the environment) `step` does nothing. With PyTorch and a GPU, a step counts when
the GPU has finished it: an event is recorded after each, and at most `ahead` steps are in flight (0: the loop waits
for every step, as a request for inference does). Other frameworks: pass `done`, a function that starts watching
what was launched so far and returns a function that waits for it.
"""

import collections
import json
import os
import socket
import sys
import time

_WARM_S, _WARM_LEAST, _WARM_MOST = 0.5, 5, 200


def _nothing():
    return lambda: None


def _cuda():
    """Completion by CUDA events, if this process uses PyTorch on a GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return _nothing

    def done():
        event = torch.cuda.Event()
        event.record()
        return event.synchronize

    return done


def _memory():
    """What PyTorch holds of the GPU: for where the driver does not know this process."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return {}
    return {"memory_mib": torch.cuda.memory_reserved() // 2**20}


class Pace:
    def __init__(self, ahead=2, done=None):
        self._socket = None
        path = os.environ.get("CARMA_BENCH")
        if not path:
            return
        self._ahead, self._done = ahead, done or _cuda()
        self._flying, self._times = collections.deque(), []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._lines = self._socket.makefile("r")
        self._say(hello=1, pid=os.getpid())
        # Tasks warm up one after the other: some libraries choose their kernels by timing them then.
        self._hear("warm")
        self._began, self._warm = time.monotonic(), 0
        self._from = self._until = None

    def step(self):
        if self._socket is None:
            return
        self._flying.append(self._done())
        while len(self._flying) > self._ahead:
            self._land()
        now = time.monotonic()
        if self._until is None:
            self._warm += 1
            long_enough = now - self._began >= _WARM_S and self._warm >= _WARM_LEAST
            if long_enough or self._warm >= _WARM_MOST:
                self._drain()
                self._say(ready=1, **_memory())
                self._wait()
        elif now >= self._until:
            self._drain()
            # Whole microseconds after the common start.
            self._say(times_us=[round((t - self._from) * 1e6) for t in self._times])
            self._wait()

    def _land(self):
        self._flying.popleft()()
        self._times.append(time.monotonic())

    def _drain(self):
        while self._flying:
            self._land()

    def _wait(self):
        go = self._hear("go")
        self._from, self._until = go["from_s"], go["until_s"]
        self._times = []
        # Sleeping to the very moment would be late by the time that waking takes.
        while (left := self._from - time.monotonic()) > 0:
            time.sleep(left - 0.002 if left > 0.003 else 0)

    def _say(self, **what):
        self._socket.sendall(json.dumps(what).encode() + b"\n")

    def _hear(self, wanted):
        line = self._lines.readline()
        said = json.loads(line) if line else {"quit": 1}
        if "quit" in said:
            sys.exit(0)
        return said[wanted]
