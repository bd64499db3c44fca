"""Checkpoints that a dry run does not write: `torch.save` keeps the object, `torch.load` gives it back, and what earlier
runs saved stays as it is.

A program that opens a file to write over it has emptied it before it calls `torch.save`. Here the file is emptied when
bytes come or when it is closed, and not at all for a checkpoint. What the program does with the name of a checkpoint
afterwards (rename, copy, remove) is done with what was kept.
"""

import builtins
import contextlib
import io
import os
import pathlib
import shutil
import stat
import weakref

import torch

from carma_trace_record import patch

SAVED = {}  # absolute path -> object
IN_MEMORY = weakref.WeakKeyDictionary()  # file without a name, as io.BytesIO -> object
OPENED = weakref.WeakSet()
REMOVE = os.remove
PATHS = (str, bytes, os.PathLike)


def path_of(f):
    """The absolute path of a name or of an open file; `None` of a file without a name."""
    name = f if isinstance(f, PATHS) else getattr(f, "name", None)
    return os.path.abspath(os.fsdecode(name)) if isinstance(name, PATHS) else None


class Overwritten(io.FileIO):
    """A file that was opened by "wb" or "xb", emptied as late as can be."""

    def __init__(self, path, mode, opener):
        self.path, self.full, self.made = path_of(path), "w" in mode, False
        self.touched = self.checkpoint = False

        def keeping(name, flags):
            self.made = not os.path.lexists(name)
            flags &= ~os.O_TRUNC
            return opener(name, flags) if opener else os.open(name, flags, 0o666)

        super().__init__(path, mode, opener=keeping)
        OPENED.add(self)

    def touch(self):
        """Before anything else can be done with it that needs the file to be as the program believes."""
        if not self.touched and not self.checkpoint:
            self.touched = True
            SAVED.pop(self.path, None)
            if self.full:
                os.ftruncate(super().fileno(), 0)

    def write(self, data):
        self.touch()
        return memoryview(data).nbytes if self.checkpoint else super().write(data)

    def truncate(self, *args):
        self.touch()
        return 0 if self.checkpoint else super().truncate(*args)

    def seek(self, offset, whence=os.SEEK_SET):
        if whence == os.SEEK_END:
            self.touch()
        return super().seek(offset, whence)

    def close(self):
        if not self.closed:
            kept = list(IN_MEMORY.values())
            if kept and not self.touched and not self.checkpoint:
                # Nothing came: what was to be written are the bytes of a buffer that `torch.save` was given.
                SAVED[self.path], self.checkpoint = kept[-1], True
            self.touch()
            if self.checkpoint and self.made and not self.touched:
                with contextlib.suppress(OSError):
                    REMOVE(self.path)
        super().close()


def touching(original):
    def run(self, *args):
        self.touch()
        return original(self, *args)
    return run


for _name in ("fileno", "read", "readall", "readinto"):
    setattr(Overwritten, _name, touching(getattr(io.FileIO, _name)))
# Another process has the file, too, from then on.
os.register_at_fork(before=lambda: [file.touch() for file in list(OPENED) if not file.closed])


def save(obj, f, *_, **__):
    path = path_of(f)
    if path is None:
        with contextlib.suppress(TypeError):  # not a thing that can be remembered
            IN_MEMORY[f] = obj
        return
    SAVED[path] = obj
    for file in list(OPENED):
        if file.path == path:
            file.checkpoint = True


def loading(original):
    def load(f, map_location=None, *args, **kwargs):
        path = path_of(f)
        kept, key = (IN_MEMORY, f) if path is None else (SAVED, path)
        return kept[key] if key in kept else original(f, "cpu", *args, **kwargs)
    return load


def opening(original):
    def open(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):
        as_bytes = "b" in mode and (encoding, errors, newline) == (None, None, None)
        if as_bytes and closefd and isinstance(file, PATHS):
            there = os.path.exists(file)
            if "r" in mode and not there and path_of(file) in SAVED:
                content = io.BytesIO()
                content.name = os.fspath(file)  # what `torch.load` knows it by
                return content
            if set(mode) & set("wx") and (not there or stat.S_ISREG(os.stat(file).st_mode)):
                raw = Overwritten(file, mode, opener)
                kind = io.BufferedRandom if "+" in mode else io.BufferedWriter
                return kind(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE) if buffering else raw
        return original(file, mode, buffering, encoding, errors, newline, closefd, opener)
    return open


def renaming(original):
    def rename(src, dst, **kwargs):
        old, new = path_of(src), path_of(dst)
        if kwargs or old not in SAVED:
            original(src, dst, **kwargs)
            # What was there is replaced, and a directory takes along what is in it.
            SAVED.pop(new, None)
            for path in [path for path in SAVED if path.startswith("%s%s" % (old, os.sep))]:
                SAVED[new + path[len(old):]] = SAVED.pop(path)
            return
        SAVED[new] = SAVED.pop(old)
        if os.path.exists(old) and os.path.getsize(old) == 0:
            REMOVE(old)  # made for the checkpoint, as by tempfile.mkstemp
    return rename


def copying(original):
    def copy(src, dst, *args, **kwargs):
        if path_of(src) not in SAVED:
            return original(src, dst, *args, **kwargs)
        to = os.path.join(dst, os.path.basename(src)) if os.path.isdir(dst) else dst
        SAVED[path_of(to)] = SAVED[path_of(src)]
        return to
    return copy


def removing(original):
    def remove(path, **kwargs):
        if kwargs or path_of(path) not in SAVED:
            return original(path, **kwargs)
        # A file of this name is an earlier run's: the program believes that it wrote over it.
        del SAVED[path_of(path)]
    return remove


class Instead:
    """Like a built-in function, no method where a class has it as an attribute."""

    def __init__(self, run):
        self.run = run

    def __call__(self, *args, **kwargs):
        return self.run(*args, **kwargs)


def fake_saving():
    torch.save = save
    patch(torch, "load", loading)
    for name in ("copyfile", "copy", "copy2"):
        patch(shutil, name, copying)
    # Until Python 3.10 pathlib calls those that this class took when it was made.
    older = getattr(pathlib, "_NormalAccessor", None)
    for owner, name, make in (
        (io, "open", opening), (os, "rename", renaming), (os, "replace", renaming),
        (os, "remove", removing), (os, "unlink", removing),
    ):
        original = getattr(owner, name)
        patch(owner, name, lambda original: Instead(make(original)))
        if getattr(older, name, None) is original:
            setattr(older, name, getattr(owner, name))
    builtins.open = io.open
