"""The ways in which programs save and load, in a folder where an earlier run left `best.pt`, and none leaves anything else.

What fails here fails before the first step, so that the dry run fails."""

import gzip
import io
import os
import shutil
import sys
import tempfile
from pathlib import Path

import torch

os.chdir(sys.argv[1])
model = torch.nn.Linear(512, 512).cuda()
weights = model.state_dict()


def loaded(f):
    return torch.load(f)["weight"] is weights["weight"]


# Over the file of an earlier run, which was emptied when it was opened.
for mode in ("wb", "w+b"):
    with open("best.pt", mode) as f:
        torch.save(weights, f)
    with Path("best.pt").open(mode) as f:
        torch.save(weights, f)
        f.flush()
        os.fsync(f.fileno())
with gzip.open("best.pt", "wb") as f:
    torch.save(weights, f)
with open("best.pt", "rb") as f:
    assert loaded(f) and loaded("best.pt")
# By way of memory.
buffer = io.BytesIO()
torch.save(weights, buffer)
buffer.seek(0)
assert loaded(buffer)
with open("best.pt", "wb") as f:
    f.write(buffer.getvalue())
descriptor, name = tempfile.mkstemp(dir=".")
os.close(descriptor)
with open(name, "wb") as f:
    f.write(buffer.getvalue())
shutil.move(name, "best.pt")
assert loaded("best.pt")
del buffer

# A path is the same by whatever type it is given, and two folders may have files of one name.
torch.save({"layers": 2}, Path("out/config.pt"))
torch.save({"layers": 20}, Path("pretrained/config.pt"))
assert torch.load("out/config.pt")["layers"] == 2
assert torch.load(os.path.abspath("pretrained/config.pt"))["layers"] == 20
torch.save(weights, b"last.pt")
assert loaded(Path("./last.pt"))
with open("new.pt", "xb") as f:
    torch.save(weights, f)
with open("new.pt", "rb") as f:
    assert loaded(f)

# The old one stays whole until the new one is.
for replace in (os.replace, os.rename, shutil.move, lambda a, b: Path(a).replace(b), lambda a, b: Path(a).rename(b)):
    torch.save({"by": replace}, "best.pt.new")
    replace("best.pt.new", "best.pt")
    assert torch.load("best.pt")["by"] is replace
    with open("best.pt.new", "wb") as f:
        torch.save(weights, f)
    replace("best.pt.new", "best.pt")
    assert loaded("best.pt")
# A folder of them.
os.mkdir("part")
torch.save(weights, "part/model.pt")
os.rename("part", "whole")
assert loaded("whole/model.pt")
os.rmdir("whole")
# The best is a copy of the last, and of those only the newest stay.
for copy in (shutil.copyfile, shutil.copy, shutil.copy2):
    torch.save({"by": copy}, "last.pt")
    copy("last.pt", "best.pt")
    assert torch.load("best.pt")["by"] is copy
for remove in (os.remove, os.unlink, lambda path: Path(path).unlink()):
    torch.save(weights, "best.pt")
    remove("best.pt")
    torch.save(weights, "epoch-1.pt")
    remove("epoch-1.pt")

# All other files are as the program writes them.
with open("data.bin", "wb") as f:
    f.write(b"shorter")
assert os.path.getsize("data.bin") == 7
open("empty.bin", "wb").close()
assert os.path.getsize("empty.bin") == 0
shutil.copyfile("data.bin", "copy.bin")
os.replace("copy.bin", "moved.bin")
with open("moved.bin", "w+b", buffering=0) as f:
    assert f.read() == b""
    f.write(b"again")
    f.seek(0)
    assert f.read() == b"again"
os.remove("moved.bin")

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.ones(8, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
