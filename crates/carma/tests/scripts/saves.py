"""The ways in which programs save and load, in a folder where an earlier run left checkpoints, and none leaves anything else.

What fails here fails before the first step, so that the dry run fails."""

import gzip
import io
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

os.chdir(sys.argv[1])
model = torch.nn.Linear(512, 512).cuda()
weights = model.state_dict()


def loaded(f):
    found = torch.load(f)["weight"]
    return found.shape == (512, 512) and found.is_cuda and found is not weights["weight"]


def content_of(obj):
    content = io.BytesIO()
    torch.save(obj, content)
    return content.getvalue()


# Over the file of an earlier run.
for mode in ("wb", "w+b"):
    with open("best.pt", mode) as f:
        torch.save(weights, f)
    with Path("best.pt").open(mode) as f:
        torch.save(weights, f)
        f.flush()
        os.fsync(f.fileno())
with gzip.open("packed.pt.gz", "wb") as f:
    torch.save(weights, f)
with gzip.open("packed.pt.gz", "rb") as f:
    assert loaded(f)
with open("best.pt", "rb") as f:
    assert loaded(f) and loaded("best.pt")
assert os.path.getsize("best.pt") > 0
with open("chdir.pt", "wb") as f:
    os.chdir("out")
    torch.save(weights, f)
os.chdir("..")
assert loaded("chdir.pt")
# By way of memory, several at a time.
with open("best.pt", "wb") as f:
    f.write(content_of(weights))
Path("other.pt").write_bytes(content_of({"other": 1}))
assert loaded("best.pt") and loaded(io.BytesIO(content_of(weights))) and torch.load("other.pt") == {"other": 1}
# Safely.
descriptor, name = tempfile.mkstemp(dir=".")
with os.fdopen(descriptor, "wb") as f:
    torch.save(weights, f)
os.replace(name, "best.pt")
assert loaded("best.pt")
with tempfile.NamedTemporaryFile(dir=".", delete=False) as f:
    f.write(content_of(weights))
shutil.move(f.name, "replaced.pt")
assert loaded("replaced.pt")

# A path is the same by whatever type it is given, and two folders may have files of one name.
torch.save({"layers": 2}, Path("out/config.pt"))
torch.save({"layers": 20}, Path("pretrained/config.pt"))
assert torch.load("out/config.pt")["layers"] == 2
assert torch.load(os.path.abspath("pretrained/config.pt"))["layers"] == 20
torch.save(weights, b"last.pt")
assert loaded(Path("./last.pt"))
with open("new.pt", "xb") as f:
    torch.save(weights, f)
assert os.path.exists("new.pt")
with open("new.pt", "rb") as f:
    assert loaded(f)
# Where nothing can be written it is known by its path.
torch.save(weights, "absent/model.pt")
assert loaded("absent/model.pt")

# The old one stays whole until the new one is.
for replace in (os.replace, os.rename, shutil.move, lambda a, b: Path(a).replace(b), lambda a, b: Path(a).rename(b)):
    torch.save({"by": str(replace)}, "best.pt.new")
    replace("best.pt.new", "best.pt")
    assert torch.load("best.pt")["by"] == str(replace)
    with open("best.pt.new", "wb") as f:
        torch.save(weights, f)
    replace("best.pt.new", "best.pt")
    assert loaded("best.pt")
# The last but one stays, too.
for _ in range(3):
    if os.path.exists("two.pt"):
        os.replace("two.pt", "one.pt")
    torch.save(weights, "two.pt")
# A folder of them, again and again.
for _ in range(2):
    os.mkdir("part")
    torch.save(weights, "part/model.pt")
    os.rename("part", "whole")
    assert loaded("whole/model.pt")
    shutil.rmtree("whole")
os.rename("kept/", "renamed/")
torch.save(weights, "renamed/model.pt")
os.rename("renamed/", "kept/")
# The best is a copy of the last, and of those only the newest stay.
for copy in (shutil.copyfile, shutil.copy, shutil.copy2):
    torch.save({"by": copy}, "last.pt")
    copy("last.pt", "best.pt")
    assert torch.load("best.pt")["by"] is copy
# Into a file that is open already, with what an earlier run wrote in it.
with open("inside.pt", "r+b") as f:
    torch.save(weights, f)
    f.truncate()
assert loaded("inside.pt")
with open("behind.pt", "ab") as f:
    at = f.tell()
    torch.save(weights, f)
with open("behind.pt", "rb") as f:
    f.seek(at)
    assert loaded(f)
with os.fdopen(os.open("opened.pt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as f:
    torch.save(weights, f)
# In an archive.
shutil.make_archive("archive", "zip", "pretrained")
shutil.make_archive("archive", "gztar", "pretrained")
# One folder in the place of another, of which something is not written anew.
for _ in range(2):
    os.mkdir("swapped.tmp")
    torch.save(weights, "swapped.tmp/model.pt")
    if os.path.exists("swapped"):
        os.rename("swapped", "swapped.old")
    os.rename("swapped.tmp", "swapped")
    shutil.rmtree("swapped.old", ignore_errors=True)
# Only the newest stay, of an earlier run's, too; and a link leads to the best.
os.remove("step-1.pt")
torch.save(weights, "step-2.pt")
os.symlink("step-2.pt", "link.tmp")
os.replace("link.tmp", "link.pt")
os.symlink("step-2.pt", "newest.pt")
assert loaded("link.pt")
# Several in one file.
several = io.BytesIO()
torch.save(1, several)
torch.save({"two": 2}, several)
several.seek(0)
assert torch.load(several) == 1 and torch.load(several) == {"two": 2}
# What begins like a packed file and is none.
with open("broken.gz", "ab") as f:
    f.write(b"x")
with open("broken.gz", "wb") as f:
    torch.save(weights, f)
# By a library that writes by itself; programs take its functions when they begin.
os.mkdir("safetensors")
Path("safetensors/__init__.py").write_text("")
Path("safetensors/torch.py").write_text("""
def save_file(tensors, filename, metadata=None):
    raise AssertionError("written")
def load_file(filename, device="cpu"):
    raise AssertionError("read")
""")
sys.path.insert(0, os.getcwd())
from safetensors.torch import load_file, save_file
save_file(weights, "model.safetensors")
assert load_file("model.safetensors", device="cuda")["weight"].is_cuda
assert load_file("model.safetensors")["weight"].device.type == "cpu"
shutil.rmtree("safetensors")
for remove in (os.remove, os.unlink, lambda path: Path(path).unlink()):
    torch.save(weights, "best.pt")
    remove("best.pt")
    torch.save(weights, "epoch-1.pt")
    remove("epoch-1.pt")
# By another process.
child = os.fork()
if child == 0:
    torch.save(weights, "forked.pt")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0

# All other files are as the program writes them.
with open("data.bin", "wb") as f:
    f.write(b"shorter")
assert os.path.getsize("data.bin") == 7
with open("nested.bin", "wb") as f:
    with open("nested.bin", "wb") as g:
        g.write(b"data")
assert os.path.getsize("nested.bin") == 4
f = open("child.bin", "wb")
subprocess.run("printf child >> child.bin", shell=True, check=True)
f.close()
assert os.path.getsize("child.bin") == 5
shutil.copyfile("data.bin", "copy.bin")
os.replace("copy.bin", "moved.bin")
with open("moved.bin", "w+b", buffering=0) as f:
    assert f.read() == b""
    f.write(b"again")
    f.seek(0)
    assert f.read() == b"again"
os.remove("moved.bin")
open("DONE", "wb").close()
assert os.path.exists("DONE")
assert pickle.loads(pickle.dumps(os.replace)) is os.replace and pickle.loads(pickle.dumps(open)) is open
left = open("left.bin", "wb")
left.write(b"never closed")

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.ones(8, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
