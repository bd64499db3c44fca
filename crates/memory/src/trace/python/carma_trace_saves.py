"""Checkpoints that a dry run does not write.

`torch.save` writes a few bytes that stand for the object, be it to a path, an open file or a buffer, and `torch.load` gives
the object back where it finds them. So a program can rename, copy, measure and remove a checkpoint as it likes. A file of an
earlier run that would be lost is set aside, in a folder beside it, and put back at the end; what stands for objects is removed
then. The processes of a program note both in one file, since only the first of them is there at the end.
"""

import builtins
import bz2
import contextlib
import functools
import gzip
import io
import itertools
import json
import lzma
import os
import pathlib
import re
import stat
import tempfile
import weakref

import torch

from carma_trace_record import patch

MARK = b"carma: object %d that process %d saved in a dry run\n"
MARKED = re.compile(rb"carma: object (\d+) that process (\d+) saved in a dry run\n")
LONGEST = 1 << 20  # of a file that stands for objects, packed with others perhaps
PACKED = ((b"\x1f\x8b", gzip), (b"BZh", bz2), (b"\xfd7zXZ", lzma))
PATHS = (str, bytes, os.PathLike)
OBJECTS = {}  # (process, number) -> object
UNWRITTEN = {}  # absolute path where nothing can be written -> object
NUMBERS = itertools.count()
OPEN, RENAME, REPLACE, REMOVE = io.open, os.rename, os.replace, os.remove


def path_of(name):
    return os.path.realpath(os.fsdecode(name))


def name_of(name):
    """The path of a name, and not of what it leads to: of a link it is the link that is renamed."""
    folder, last = os.path.split(os.fsdecode(name).rstrip(os.sep))
    return os.path.join(path_of(folder or "."), last)


def stands_for_objects(path):
    """Whether a file has in it what `torch.save` wrote."""
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or not 0 < found.st_size <= LONGEST:
            return False
        with OPEN(path, "rb") as file:
            content = file.read()
        for start, module in PACKED:
            if content.startswith(start):
                content = module.decompress(content)
    except (OSError, EOFError, ValueError, lzma.LZMAError):
        return False
    return MARKED.search(content) is not None


class Kept:
    """What was set aside, and what may stand for objects, in the order in which it happened."""

    def __init__(self):
        self.process = os.getpid()
        descriptor, self.notes = tempfile.mkstemp(prefix="carma-dry-run-")
        os.close(descriptor)
        self.began = os.stat(self.notes).st_ctime_ns
        self.noted, self.files = set(), weakref.WeakSet()

    def note(self, *what):
        if what in self.noted:
            return
        # One write of a short line: other processes append, too.
        with OPEN(self.notes, "ab", buffering=0) as notes:
            notes.write(json.dumps(what).encode() + b"\n")
        if what[0] == "renamed":
            self.noted.clear()  # what was written there is elsewhere
        else:
            self.noted.add(what)

    def set_aside(self, path):
        """Before a file is lost."""
        if ("aside of", path) in self.noted or stands_for_objects(path):
            return  # what is there now is this run's
        try:
            found = os.stat(path)
            if not stat.S_ISREG(found.st_mode) or found.st_size == 0:
                return
            folder = os.path.join(os.path.dirname(path), ".carma-dry-run-%d" % self.process)
            os.makedirs(folder, exist_ok=True)
            aside = os.path.join(folder, "%d-%d" % (os.getpid(), next(NUMBERS)))
            self.note("aside", path, aside, found.st_ctime_ns < self.began)
            self.noted.add(("aside of", path))
            RENAME(path, aside)
            # As it would be when it has been emptied.
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, stat.S_IMODE(found.st_mode)))
            os.chmod(path, stat.S_IMODE(found.st_mode))
        except FileNotFoundError:
            return
        except OSError as error:
            raise OSError(
                error.errno, "the dry run cannot keep %s, which the program writes over: %s" % (path, error.strerror)
            ) from None

    def put_back(self):
        """At the end of the run."""
        if os.getpid() != self.process:
            return
        for file in list(self.files):
            with contextlib.suppress(OSError, ValueError):
                file.flush()
        with OPEN(self.notes, "rb") as notes:
            noted = [json.loads(line) for line in notes]
        REMOVE(self.notes)
        aside, written = [], []
        for what, *paths in noted:
            if what == "aside":
                aside.append(tuple(paths))
            elif what == "written":
                written += paths
            else:
                # A folder was renamed, with all that is in it.
                old, new = (path + os.sep for path in paths)
                moved = lambda path: new + path[len(old):] if path.startswith(old) else path
                aside = [(moved(path), moved(kept), older) for path, kept, older in aside]
                written = [moved(path) for path in written]
        decided = set()
        for path, kept, older in aside:
            with contextlib.suppress(OSError):
                if os.path.lexists(path):
                    lost = os.path.getsize(path) == 0 or stands_for_objects(path)
                else:
                    lost = older  # what this run made it may remove
                # The first that was set aside is the earlier run's.
                if lost and path not in decided:
                    REPLACE(kept, path)
                else:
                    REMOVE(kept)
                decided.add(path)
                os.rmdir(os.path.dirname(kept))  # once it is empty
        for path in written:
            if stands_for_objects(path):
                with contextlib.suppress(OSError):
                    REMOVE(path)


def save(obj, f, *_, **__):
    key = os.getpid(), next(NUMBERS)
    OBJECTS[key] = obj
    mark = MARK % (key[1], key[0])
    if not isinstance(f, PATHS):
        if "a" in str(getattr(f, "mode", "")) and isinstance(getattr(f, "name", None), PATHS):
            UNWRITTEN[path_of(f.name)] = obj  # behind what an earlier run wrote
        else:
            f.write(mark)
        return
    try:
        with io.open(f, "wb") as file:
            file.write(mark)
    except OSError:
        UNWRITTEN[path_of(f)] = obj  # a disk that is not there where the dry run is


def mark_in(f):
    """What a path or an open file stands for; `None`: nothing that was saved here."""
    try:
        if isinstance(f, PATHS):
            with OPEN(f, "rb") as file:
                start = file.read(len(MARK) + 40)
        else:
            at = f.tell()
            start = f.read(len(MARK) + 40)
            f.seek(at)
    except (OSError, AttributeError, ValueError):
        return None
    found = MARKED.match(start) if isinstance(start, bytes) else None
    return (int(found[2]), int(found[1])) if found else None


def loading(original):
    def load(f, map_location=None, *args, **kwargs):
        key = mark_in(f)
        if key in OBJECTS:
            return OBJECTS[key]
        if isinstance(f, PATHS) and path_of(f) in UNWRITTEN:
            return UNWRITTEN[path_of(f)]
        return original(f, "cpu", *args, **kwargs)
    return load


def opening(kept, original):
    def open(file, mode="r", *args, **kwargs):
        if isinstance(file, PATHS) and isinstance(mode, str) and "b" in mode and set(mode) & set("wxa+"):
            path = path_of(file)
            if "w" in mode:
                kept.set_aside(path)
            kept.note("written", path)
            opened = original(file, mode, *args, **kwargs)
            kept.files.add(opened)
            return opened
        return original(file, mode, *args, **kwargs)
    return open


def renaming(kept, original):
    def rename(src, dst, **kwargs):
        if kwargs:
            return original(src, dst, **kwargs)
        old, new = name_of(src), name_of(dst)
        if stands_for_objects(old):
            kept.set_aside(new)
            kept.note("written", new)
        folder = os.path.isdir(old)
        original(src, dst)
        if folder:
            kept.note("renamed", old, new)
    return rename


class Instead:
    """Like a built-in function: no method where a class has it as an attribute, and it can be pickled."""

    def __init__(self, run, owner, original):
        functools.update_wrapper(self, original)
        self.run, self.__module__, self.__qualname__ = run, owner.__name__, self.__name__

    def __call__(self, *args, **kwargs):
        return self.run(*args, **kwargs)

    def __reduce__(self):
        return self.__name__


def fake_saving():
    """Returns what is to be called at the end of the run."""
    kept = Kept()
    torch.save = save
    patch(torch, "load", loading)
    # Until Python 3.10 pathlib calls those that this class took when it was made.
    older = getattr(pathlib, "_NormalAccessor", None)
    for owner, name, make in ((io, "open", opening), (os, "rename", renaming), (os, "replace", renaming)):
        original = getattr(owner, name)
        instead = Instead(make(kept, original), owner, original)
        setattr(owner, name, instead)
        if getattr(older, name, None) is original:
            setattr(older, name, instead)
    builtins.open = io.open
    return kept.put_back
