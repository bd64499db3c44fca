"""What a dry run must not lose: files that were there before it.

An audit hook sees what Python is about to do to a file, by whatever function. A file that is older than the run is renamed into
a folder of our own before it would be emptied, replaced or removed. Each such act is noted in a file first, in the order in
which they happen and by all processes of the program. When the program is over, however it ended, another process undoes them, last
first: `carma_trace_files.py NOTES`. What takes the place of an older file and stands for objects (`MARK`), or is empty, goes;
what else the program wrote there stays. No part of this needs PyTorch.
"""

import bz2
import contextlib
import errno
import gzip
import itertools
import json
import lzma
import os
import re
import shutil
import stat
import sys
import tempfile
import threading
import zipfile

MARK = b"carma: object %d that process %d saved in a dry run\n"
MARKED = re.compile(rb"carma: object (\d+) that process (\d+) saved in a dry run\n")
LONGEST = 1 << 20  # of a file that stands for objects, or of a part of an archive
PIECES = 64  # so often that much is read of what is packed
PACKED = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ", lzma.open))
PATHS = (str, bytes, os.PathLike)
SYSTEM = ("/proc/", "/sys/", "/dev/")
NUMBERS = itertools.count()


def path_of(name):
    return os.path.realpath(os.fsdecode(name))


def name_of(name, folder=-1):
    """The path of a name in an open folder, and not of what it leads to: of a link it is the link that is renamed."""
    name = os.fsdecode(name)
    if isinstance(folder, int) and folder >= 0:
        name = os.path.join(os.readlink("/proc/self/fd/%d" % folder), name)
    parent, last = os.path.split(name.rstrip(os.sep))
    if last in ("", os.curdir, os.pardir):
        return path_of(name)
    return os.path.join(path_of(parent or os.curdir), last)


def is_folder(path):
    return os.path.isdir(path) and not os.path.islink(path)


def parents(path):
    """Folders of its file system in which we may write, the farthest first: a near one may be listed, renamed or removed."""
    found, folder = [], os.path.dirname(path)
    device = os.stat(folder).st_dev
    while os.stat(folder).st_dev == device:
        if os.access(folder, os.W_OK | os.X_OK):
            found.insert(0, folder)
        if folder == os.path.dirname(folder):
            break
        folder = os.path.dirname(folder)
    return found


class Kept:
    """Sees what happens to files, sets older ones aside, and notes all that is to be undone."""

    def __init__(self, notes):
        self.notes = notes
        os.utime(notes)
        self.began = os.stat(notes).st_ctime_ns
        # Older files that have been changed since, by device and number; paths that are noted; our folders, by where they are.
        self.changed, self.noted, self.folders = set(), set(), {}
        self.here = threading.local()
        self.seen = {
            "open": self.opened, "os.truncate": self.truncated, "os.remove": self.removed, "os.rename": self.renamed,
            "os.mkdir": self.folder_made, "os.rmdir": self.folder_removed, "os.symlink": self.linked, "os.link": self.linked,
            "os.chmod": self.touched, "os.chown": self.touched, "os.utime": self.touched,
        }
        sys.addaudithook(self.hook)

    def hook(self, event, args):
        act = self.seen.get(event)
        # What is done here is not looked at again.
        if act is None or getattr(self.here, "busy", False):
            return
        self.here.busy = True
        try:
            act(*args)
        finally:
            self.here.busy = False

    def note(self, *what):
        if what[0] == "written":
            if what in self.noted:
                return
            self.noted.add(what)
        elif what[0] == "renamed":
            self.noted.clear()  # what was written there is elsewhere
        # One write of a line, since other processes append, too; a line that was cut off does not spoil the next. The file is
        # not made anew: once it is gone nothing is put back any more.
        line = b"\n" + json.dumps(what).encode() + b"\n"
        descriptor = os.open(self.notes, os.O_WRONLY | os.O_APPEND)
        try:
            if os.write(descriptor, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.notes)
        finally:
            os.close(descriptor)

    def is_older(self, found):
        return found.st_ctime_ns < self.began or (found.st_dev, found.st_ino) in self.changed

    def remember(self, found):
        """What changes now is as old as before."""
        if found.st_ctime_ns < self.began:
            self.changed.add((found.st_dev, found.st_ino))

    def folder_in(self, parent):
        folder = self.folders.get(parent)
        if folder is None or not os.path.isdir(folder):
            folder = self.folders[parent] = tempfile.mkdtemp(prefix=".carma-dry-run-", dir=parent)
        return folder

    def take(self, path, found, always):
        """Moves a file, or copies it where it cannot be moved. Says whether it was moved."""
        name = "%d-%d-%s" % (os.getpid(), next(NUMBERS), os.path.basename(path)[-100:])
        for parent in parents(path):
            # Some folders cannot be written in, and some are of another mount.
            with contextlib.suppress(OSError):
                folder = self.folder_in(parent)
                aside = os.path.join(folder, name)
                self.note("aside", path, aside, always)
                try:
                    os.rename(path, aside)
                except OSError:
                    with contextlib.suppress(OSError):
                        os.rmdir(folder)
                    raise
                self.changed.add((found.st_dev, found.st_ino))
                return True
        if not os.path.lexists(path):
            return False
        aside = os.path.join(self.folder_in(tempfile.gettempdir()), name)
        self.note("aside", path, aside, always)
        shutil.copy2(path, aside, follow_symlinks=False)
        return False

    def set_aside(self, path, emptied=False, always=False):
        """Before a file is lost; afterwards an empty one is in its place."""
        try:
            found = os.lstat(path)
        except (OSError, ValueError):
            return
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)) or not self.is_older(found):
            return
        if emptied and (found.st_size == 0 or not os.access(path, os.W_OK)) or path.startswith(SYSTEM):
            return
        try:
            if self.take(path, found, always):
                mode = stat.S_IMODE(found.st_mode) if stat.S_ISREG(found.st_mode) else 0o600
                descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, mode)
                with contextlib.suppress(OSError):
                    os.fchown(descriptor, found.st_uid, found.st_gid)
                os.fchmod(descriptor, mode)
                os.close(descriptor)
        except OSError as error:
            raise OSError(
                error.errno, "the dry run cannot keep %s, which the program replaces: %s" % (path, error.strerror)
            ) from None

    def swap(self, file):
        """Before an object goes into an open file that has content of an earlier run: another file is behind it then."""
        try:
            descriptor = file.fileno()
            found, path = os.fstat(descriptor), os.readlink("/proc/self/fd/%d" % descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_size == 0 or not os.path.samestat(found, os.lstat(path)):
                return
        except (AttributeError, OSError, ValueError):
            return
        if not self.is_older(found):
            return
        self.set_aside(path, always=True)
        new = os.open(path, os.O_RDWR)
        os.lseek(new, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(new, descriptor, inheritable=os.get_inheritable(descriptor))
        os.close(new)

    # What Python is about to do.

    def opened(self, path, _mode, flags):
        if not isinstance(path, PATHS) or not flags & (os.O_WRONLY | os.O_RDWR):
            return
        path = path_of(path)
        if path.startswith(SYSTEM):
            return
        if flags & os.O_TRUNC:
            self.set_aside(path, emptied=True)
        else:
            with contextlib.suppress(OSError):
                self.remember(os.lstat(path))
        self.note("written", path)

    def truncated(self, path, length):
        if isinstance(path, PATHS) and length == 0:
            self.set_aside(path_of(path), emptied=True)

    def removed(self, path, folder):
        self.set_aside(name_of(path, folder))

    def renamed(self, old, new, folder, to):
        old, new = name_of(old, folder), name_of(new, to)
        try:
            found = os.lstat(old)
        except OSError:
            return
        if stat.S_ISDIR(found.st_mode):
            self.note("renamed", old, new)
            return
        with contextlib.suppress(OSError):
            if os.path.samestat(found, os.lstat(new)):
                return
        older = self.is_older(found)
        self.remember(found)
        self.set_aside(new)
        if older:
            self.note("renamed", old, new)
        else:
            self.note("written", new)

    def folder_made(self, path, _mode, folder):
        path = name_of(path, folder)
        if not os.path.lexists(path):
            self.note("made", path)

    def folder_removed(self, path, folder):
        path = name_of(path, folder)
        if is_folder(path):
            self.note("removed", path, stat.S_IMODE(os.stat(path).st_mode))

    def linked(self, old, new, *folders):
        new = name_of(new, folders[-1])
        if len(folders) > 1:
            self.touched(old, folders[0])
        if not os.path.lexists(new):
            self.note("written", new)

    def touched(self, path, *rest):
        with contextlib.suppress(OSError):
            self.remember(os.fstat(path) if isinstance(path, int) else os.lstat(name_of(path, rest[-1])))


# --- once the program is over -------------------------------------------------------------------


def stands_for_objects(path):
    """Whether a file has in it what `torch.save` wrote, packed perhaps."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            return False
        with open(path, "rb") as file:
            start = file.read(512)
        if start.startswith(b"PK\3\4"):
            with zipfile.ZipFile(path) as archive:
                parts = [part for part in archive.infolist() if part.file_size <= LONGEST]
                return any(MARKED.search(archive.read(part)) for part in parts)
        unpack = next((unpack for magic, unpack in PACKED if start.startswith(magic)), None)
        if unpack is None and found.st_size > LONGEST and start[257:262] != b"ustar":
            return False
        with (unpack or open)(path, "rb") as file:
            last = b""
            for _ in range(PIECES):
                piece = file.read(LONGEST)
                if MARKED.search(last + piece):
                    return True
                if not piece:
                    break
                last = piece[-100:]
    except Exception:  # modules for packed files have an error each for what is no such file
        pass
    return False


def is_lost(path):
    """Whether nothing but this run's checkpoints took the place of what was there."""
    if not os.path.exists(path):
        return True
    if is_folder(path):
        return not os.listdir(path)
    return os.path.getsize(path) == 0 or stands_for_objects(path)


def clear(path):
    """Removes what is lost."""
    if is_folder(path):
        os.rmdir(path)
    elif os.path.lexists(path):
        os.remove(path)


def move(there, here):
    os.makedirs(os.path.dirname(here), exist_ok=True)
    if is_folder(here) or os.path.islink(there):
        clear(here)
    try:
        os.replace(there, here)
    except OSError:  # of another file system, or in a folder where only the file may be written
        if os.path.islink(there):
            os.symlink(os.readlink(there), here)
        else:
            shutil.copyfile(there, here)
            with contextlib.suppress(OSError):
                shutil.copystat(there, here)
        os.remove(there)


def bring(there, here):
    """Renames back, of a folder what it has where the program has made another."""
    if is_lost(here):
        clear(here)
        os.rename(there, here)
    elif is_folder(there) and is_folder(here):
        for name in os.listdir(there):
            bring(os.path.join(there, name), os.path.join(here, name))
        with contextlib.suppress(OSError):
            os.rmdir(there)


def within(paths, old, new):
    """Where those of these paths are that a rename has moved."""
    start = old + os.sep
    return {p: new + p[len(old):] for p in paths if p == old or p.startswith(start)}


def read(notes):
    found = []
    with open(notes, "rb") as file:
        for line in file:
            with contextlib.suppress(ValueError):  # cut off
                found.append(json.loads(line))
    return found


def put_back(notes):
    """Undoes what was noted, and tells what cannot be undone."""
    taken = notes + ".taken"
    os.rename(notes, taken)
    # Paths as they are at the end of the run, but for those in `steps`.
    written, made, steps = {}, set(), []
    for what, *args in read(taken):
        if what == "written":
            written[args[0]] = None
        elif what == "made":
            made.add(args[0])
        elif what == "removed":
            if args[0] in made:
                made.discard(args[0])
            else:
                steps.append((what, args))
        elif what == "renamed":
            old, new = args
            if old not in made:
                steps.append((what, args))
            written.update(dict.fromkeys(within(written, old, new).values()))
            moved = within(made, old, new)
            made = made - set(moved) | set(moved.values())
        else:
            steps.append((what, args))
    # Links first, which lead to others.
    for path in sorted(written, key=os.path.islink, reverse=True):
        if stands_for_objects(path):
            with contextlib.suppress(OSError):
                os.remove(path)
    folders, new = set(), set()  # new: what the program made where something older was
    for what, args in reversed(steps):
        try:
            undo(what, args, folders, new)
        except OSError as error:
            if what == "aside":
                tell("%s could not be put back (%s): it is %s" % (args[0], error.strerror, args[1]))
            elif what == "renamed":
                tell("%s could not be named %s again (%s)" % (args[1], args[0], error.strerror))
            else:
                tell("the folder %s could not be made again (%s)" % (args[0], error.strerror))
    for folder in folders:
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # once it is empty
    os.remove(taken)


def undo(what, args, folders, new):
    if what == "aside":
        path, aside, always = args
        folders.add(os.path.dirname(aside))
        if not os.path.lexists(aside):
            return  # it had not been moved yet
        if always or is_lost(path):
            move(aside, path)
        else:
            new.add(path)
            os.remove(aside)
    elif what == "removed":
        path, mode = args
        if os.path.lexists(path):
            new.add(path)
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.mkdir(path)
            os.chmod(path, mode)
    else:
        old, there = args
        if os.path.lexists(there) and there not in new:
            bring(there, old)
            if os.path.lexists(there):
                tell("%s is what the program renamed: it was %s, where the program has written anew" % (there, old))


def tell(what):
    print("carma: %s" % what, file=sys.stderr)


if __name__ == "__main__":
    put_back(sys.argv[1])
