"""Programs meet files that they have not made: `before` makes those, the dry run meets them, `after` looks for them."""

import io
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile

os.chdir(sys.argv[2])
BIG = bytes(range(256)) * (3 << 12)


# A program and a job save in turns.
TURNS = ["turns/" + name for name in ("into.pt", "moved.pt", "opened.pt", "copied.pt", "removed.pt", "renamed.pt", "swapped.pt", "gone.pt")]
TURNS_NEW = ["turns/new.pt", "turns/first.pt", "turns/plain.pt"]
# Their older content goes to another name, which is written anew.
ROTATED = ["emptied.json", "replaced.json", "removed.json", "twice.json"]


def put(name, content):
    with open(name, "wb") as f:
        f.write(content)


def get(name):
    with open(name, "rb") as f:
        return f.read()


def before():
    for name in ("best.pt", "chmod.pt", "forked.pt", "hard.pt", "removed.pt", "renamed.pt", "again.pt", "at.pt", "linked.pt", "models.bin"):
        put(name, name.encode())
    os.link("hard.pt", "other.pt")
    put("empty.pt", b"")
    put("big.pt", BIG)
    put("big.bin", BIG)
    put("mixed.bin", BIG)
    put("large.bin", BIG)
    for name in ROTATED:
        put(name, name.encode())
        put(name + ".bak", b"older")
    for name in ("added.pt", "middle.pt"):
        put(name, b"earlier")
        os.link(name, "other-" + name)
    put("grown.json", b"1\n")
    put("plain.log", b"1\n")
    put("rotated.log", b"1\n")
    put("job.lock", b"")
    put("emptied.pid", b"123")
    put("written.pid", b"123")
    for name in ("all", "big"):
        with zipfile.ZipFile(name + ".zip", "w") as archive:
            archive.write("%s.%s" % (name, "pt") if name == "big" else "best.pt")
        with tarfile.open(name + ".tar", "w") as archive:
            archive.add("%s.%s" % (name, "pt") if name == "big" else "best.pt")
    for folder in ("ckpt", "ckpt.bak", "step-1", "step-3", "at", "over", "same"):
        os.mkdir(folder)
        put(folder + "/model.pt", folder.encode())
    os.symlink("step-1", "latest")
    put("owned.pt", b"owned")
    os.chmod("owned.pt", 0o660)
    own("owned.pt")
    # Folders that are private, and of a group.
    os.mkdir("turns")
    for folder in ("private", "logged", "group", "whole"):
        os.mkdir(folder)
        put(folder + "/model.pt", folder.encode())
        put(folder + "/rest.pt", folder.encode())
        own(folder)
        os.chmod(folder, 0o2770 if folder == "group" else 0o700)


    for name in TURNS:
        put(name, b"earlier")
    put("turns/big.pt", BIG)


def own(name):
    """Only root can give what it has to others."""
    if os.geteuid() == 0:
        os.chown(name, 1000, 2000)


def is_as_before(name, mode):
    found = os.stat(name)
    assert stat.S_IMODE(found.st_mode) == mode, (name, oct(found.st_mode))
    assert os.geteuid() != 0 or (found.st_uid, found.st_gid) == (1000, 2000), (name, found)


def after():
    for name in ("best.pt", "chmod.pt", "forked.pt", "hard.pt", "removed.pt", "renamed.pt", "again.pt", "at.pt", "linked.pt", "models.bin"):
        assert get(name) == name.encode(), name
    assert get("other.pt") == b"hard.pt" and os.path.samefile("hard.pt", "other.pt")
    assert get("empty.pt") == b"" and get("big.pt") == get("big.bin") == get("mixed.bin") == get("large.bin") == BIG
    for name in ROTATED:
        assert (get(name), get(name + ".bak")) == (name.encode(), b"new"), name
    assert not os.path.exists("twice.json.old") and get("grown.json") == b"1\n2\n" and not os.path.exists("grown.json.bak")
    for name in ("added.pt", "middle.pt"):
        assert get("other-" + name) == b"earlier" and get(name) == b"new", name
    assert not os.path.exists("over.tmp")
    assert get("plain.log") == b"1\n2\n" and get("rotated.log") == b"1\n2\n"
    # Another has removed it.
    assert not os.path.exists("job.lock")
    assert get("emptied.pid") == b"123" and get("written.pid") == b"456"
    for name in ("all", "big"):
        member = "big.pt" if name == "big" else "best.pt"
        with zipfile.ZipFile(name + ".zip") as archive:
            assert archive.namelist() == [member] and archive.read(member) == get(member)
        with tarfile.open(name + ".tar") as archive:
            assert archive.getnames() == [member] and archive.extractfile(member).read() == get(member)
    for folder in ("ckpt", "ckpt.bak", "step-1", "step-3", "at", "over", "same"):
        assert os.listdir(folder) == ["model.pt"] and get(folder + "/model.pt") == folder.encode(), folder
    assert os.readlink("latest") == "step-1"
    assert get("live.pt") == b"live" and get("owned.pt") == b"owned"
    is_as_before("owned.pt", 0o660)
    for folder in ("private", "logged", "group", "whole"):
        assert {"model.pt", "rest.pt"} <= set(os.listdir(folder)) <= {"model.pt", "rest.pt", "new.log"}, folder
        assert get(folder + "/model.pt") == get(folder + "/rest.pt") == folder.encode()
        is_as_before(folder, 0o2770 if folder == "group" else 0o700)
    for name in [*TURNS, *TURNS_NEW, "turns/big.pt"]:
        assert get(name) == b"job", name
    assert {"turns/" + name for name in os.listdir("turns")} == {*TURNS, *TURNS_NEW, "turns/big.pt"}
    assert get("logged/new.log") == get("whole/new.log") == b"1\n"
    left = {"new.pt", "again.old", "renamed.old", "child.pt", "temporary.pt", "rotated.log.1", "latest.tmp", "own.json"} & set(os.listdir())
    assert not left, left
    assert not [name for name in os.listdir() if name.startswith(".carma")]


def by_another(line):
    subprocess.run(line, shell=True, check=True)


def meets():
    import torch

    model = torch.nn.Linear(64, 64).cuda()
    weights = model.state_dict()

    def save(name):
        torch.save(weights, name)

    content = io.BytesIO()
    save(content)
    # What is added to: archives, models one behind the other, logs.
    save("new.pt")
    for name in ("all", "big"):
        with zipfile.ZipFile(name + ".zip", "a") as archive:
            archive.write("new.pt")
        with tarfile.open(name + ".tar", "a") as archive:
            archive.add("new.pt")
    for name in ("models.bin", "big.bin"):
        with open(name, "ab") as f:
            f.write(content.getvalue())
    for name in ("plain.log", "rotated.log"):
        with open(name, "ab") as f:
            f.write(b"2\n")
    os.rename("rotated.log", "rotated.log.1")
    # What others have touched, or made since.
    by_another("chmod 600 chmod.pt; printf live > live.pt; cp -p best.pt copied; mv copied best.pt")
    for name in ("chmod.pt", "live.pt", "best.pt"):
        save(name)
    # Processes of the program know of each other.
    for _ in range(2):
        child = os.fork()
        if child == 0:
            with open("forked.pt", "ab"):
                pass
            os.chmod("forked.pt", 0o600)
            save("forked.pt")
            save("child.pt")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        save("forked.pt")
        save("child.pt")
    # What fails is not undone.
    try:
        os.rename("ckpt", "ckpt.bak")
        raise AssertionError("renamed")
    except OSError:
        pass
    try:
        os.open("job.lock", os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_WRONLY)
        raise AssertionError("opened")
    except FileExistsError:
        by_another("rm job.lock")
    # What others hold a lock of is the same file.
    for name, content_now in (("emptied.pid", ""), ("written.pid", "456")):
        was = os.stat(name)
        with open(name, "w") as f:
            f.write(content_now)
        assert os.path.samestat(os.stat(name), was)
    save("hard.pt")
    # Other names of what is replaced.
    for name, mode in (("added.pt", "ab"), ("middle.pt", "r+b")):
        with open(name, mode) as f:
            save(f)
        put(name + ".new", b"new")
        os.replace(name + ".new", name)
    # More than an object in a large file.
    with open("mixed.bin", "wb") as f:
        f.write(BIG[:-1])
        save(f)
    with open("large.bin", "wb") as f:
        f.seek(100 << 20)
        save(f)
    os.rename("twice.json", "twice.json.old")
    for name in ROTATED:
        os.replace(name + ".old" if name == "twice.json" else name, name + ".bak")
        if name == "replaced.json":
            put("temporary.json", b"new")
            os.replace("temporary.json", name + ".bak")
            continue
        if name == "removed.json":
            os.remove(name + ".bak")
        put(name + ".bak", b"new")
    os.rename("grown.json", "grown.json.bak")
    with open("grown.json.bak", "ab") as f:
        f.write(b"2\n")
    # A folder takes the place of an empty one, and is removed.
    os.mkdir("over.tmp")
    os.rename("over", "over.tmp")
    shutil.rmtree("over.tmp")
    os.mkdir("over")
    save("over/model.pt")
    os.remove("same/model.pt")
    os.rename("same", "same")
    os.symlink("step-3", "latest.tmp")
    os.replace("latest.tmp", "latest")
    os.remove("linked.pt")
    os.symlink("live.pt", "linked.pt")
    folder = os.open("at", os.O_RDONLY)
    for name in ("model.pt", "at.pt"):
        with os.fdopen(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, dir_fd=folder), "wb") as f:
            save(f)
    os.close(folder)
    for name in ("empty.pt", "big.pt", "big.pt"):
        save(name)
    os.remove("removed.pt")
    os.rename("renamed.pt", "renamed.old")
    for _ in range(2):
        save("owned.pt")
        os.remove("owned.pt")
    def job(*names):
        """Saves as a job does: into the file that is there, or by a new one."""
        for name in names:
            by_another("printf job > {0}".format(name) if "into" in name else "printf job > {0}.job; mv {0}.job {0}".format(name))

    # What a job saves between the program's own saves comes back: the newest, and not the program's.
    for name in [*TURNS, *TURNS_NEW]:
        save(name)
    with open("turns/big.pt", "r+b") as f:
        f.seek(len(BIG) // 2)
        save(f)
    os.remove("turns/gone.pt")
    put("turns/plain.pt", b"1")
    os.remove("turns/plain.pt")
    shutil.copyfile("turns/into.pt", "turns/copied.pt")
    put("own.json", b"1")
    job(*TURNS, *TURNS_NEW)
    put("own.json", b"2")
    os.remove("own.json")
    for name in ("turns/into.pt", "turns/moved.pt", "turns/swapped.pt", "turns/gone.pt", "turns/plain.pt"):
        save(name)
        save(name)
    with open("turns/opened.pt", "r+b") as f:
        save(f)
    put("turns/copied.pt", get("turns/into.pt"))
    os.remove("turns/removed.pt")
    os.rename("turns/renamed.pt", "turns/renamed.old")
    os.remove("turns/first.pt")
    save("turns/new.tmp")
    os.replace("turns/new.tmp", "turns/new.pt")
    job("turns/big.pt")
    for folder in ("private", "logged"):
        shutil.rmtree(folder)
        os.makedirs(folder)
        save(folder + "/model.pt")
    os.rename("whole", "whole.old")
    os.mkdir("whole")
    for folder in ("logged", "whole"):
        put(folder + "/new.log", b"1\n")
    shutil.rmtree("group")
    save("again.pt")
    os.rename("again.pt", "again.old")
    save("temporary.pt")
    os.replace("temporary.pt", "again.pt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


{"before": before, "meets": meets, "after": after}[sys.argv[1]]()
