"""Programs save until they are over, and end as they like: in a folder where an earlier run left checkpoints."""

import atexit
import multiprocessing
import os
import signal
import sys
import threading
import time

import torch

os.chdir(sys.argv[1])
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def save(name, wait=0):
    time.sleep(wait)
    torch.save(model.state_dict(), name)


def steps(count):
    for _ in range(count):
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


save("best.pt")
if sys.argv[2] == "killed":
    steps(2)
    os.kill(os.getpid(), signal.SIGKILL)
atexit.register(os._exit, 0)
atexit.register(save, "final.pt")
threading.Thread(target=save, args=("thread.pt", 1)).start()
multiprocessing.get_context("fork").Process(target=save, args=("forked.pt", 1)).start()
steps(9)
