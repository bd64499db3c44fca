"""What is kept of files, and put back, where a disk is full or another user is quick: by the functions of `carma_trace_files` themselves."""

import os
import resource
import sys
import types

import carma_trace_files as files

os.chdir(sys.argv[1])
MARK = files.MARK % (1, 2)


def put(name, content):
    with open(name, "wb") as f:
        f.write(content)


def get(name):
    with open(name, "rb") as f:
        return f.read()


def is_put_back(start):
    """An older file that stands for an object now, of which what comes after a place is kept; the disk takes no more than 4 KiB."""
    os.makedirs("kept", exist_ok=True)
    put("kept/best.pt", bytes(900_000))
    put("best.pt", MARK)
    here = os.path.realpath(os.curdir)
    folder, path = here + "/kept", here + "/best.pt"
    noted = [
        ["kept", folder, *files.identity(os.stat(folder))],
        ["copied", path, folder + "/best.pt", start, *files.identity(os.stat(path))],
        ["written", path, *files.SAVED],
    ]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    undoing = files.Undoing(noted)
    undoing.all()
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return not undoing.failed


assert is_put_back(0) and get("best.pt") == bytes(900_000)
assert not is_put_back(10) and get("kept/best.pt") == bytes(900_000)

# A link that came after the look: nothing of what it leads to is kept.
put("log", b"1\n")
put("secret", b"of another")
found = os.lstat("log")
os.remove("log")
os.symlink("secret", "log")
noted = []
kept = types.SimpleNamespace(aside=lambda path: ["aside"], note=lambda *what: noted.append(what))
for swapped in (True, False):
    try:
        files.Kept.copy(kept, "log", found)
        raise AssertionError("kept")
    except OSError:
        pass
    assert not noted and not os.path.exists("aside") and not os.path.exists("aside" + files.PART), noted
    # And another file.
    os.replace("secret", "log") if swapped else None

# Where nothing can be noted any more, no folder is left, and why is said.
os.makedirs("deep/er")
kept = types.SimpleNamespace(folders={}, temporary=os.path.realpath("deep"), note=lambda *what: os.stat("gone"))
try:
    next(files.Kept.aside(kept, os.path.realpath("deep/er/log")))
    raise AssertionError("kept")
except FileNotFoundError:
    pass
assert not [name for folder in (".", "deep", "deep/er") for name in os.listdir(folder) if name.startswith(".carma")]

# Of many files that stay empty only the last are looked at again.
put("notes", b"")
kept = files.Kept(os.path.realpath("notes"))
os.mkdir("empty")
for number in range(4 * files.MOST_PENDING):
    put("empty/%d" % number, b"")
assert len(kept.pending) <= files.MOST_PENDING, len(kept.pending)
