"""What a dry run must not lose: files that were there before it.

An audit hook sees what Python is about to do to a file, by whatever function. Before a file that the program has not made is emptied,
replaced or removed, it is copied into a folder of our own, or renamed into it where it is large or goes anyway; of one that is only
added to the end is copied. Each such act is noted in a file, in the order in which they happen and by all processes of the
program, which learn from it what is the program's. When the program is over, however it ended, another process undoes them, last
first: `carma_trace_files.py NOTES`. What takes the place of an older file and stands for objects (`MARK`), or is empty, goes;
what else the program wrote there stays. No part of this needs PyTorch.
"""

import bz2
import collections
import contextlib
import errno
import fcntl
import functools
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
MOST_PENDING = 64
LONGEST = 1 << 20  # of a file that stands for objects, or of a part of an archive
PIECES = 64  # so often that much is read of what is packed
PACKED = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ", lzma.open))
PATHS = (str, bytes, os.PathLike)
SYSTEM = ("/proc/", "/sys/", "/dev/")
SHARED = "/dev/shm/"  # files as others
PART = ".part"  # of a copy that is not whole yet
FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NOT_ALL = 3  # what is returned where something was not put back
SAVED = 0, 0  # in place of a file's identity: what the program has there, if anything, stands for objects
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


def identity(found):
    return found.st_dev, found.st_ino


def identity_of(path):
    with contextlib.suppress(OSError):
        return identity(os.lstat(path))
    return None


def give(descriptor, owner, group):
    """Each by itself: only root may give a file to another user, but a user one to a group."""
    for ids in ((owner, -1), (-1, group)):
        with contextlib.suppress(OSError):
            os.fchown(descriptor, *ids)


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


def is_system(path):
    return path.startswith(SYSTEM) and not path.startswith(SHARED)


def within(paths, old, new):
    """Where those of these paths are that a rename has moved."""
    start = old + os.sep
    return {p: new + p[len(old):] for p in paths if p == old or p.startswith(start)}


def parsed(lines):
    for line in lines:
        with contextlib.suppress(ValueError):  # cut off
            yield json.loads(line)


class Kept:
    """Sees what happens to files, keeps what older ones have, and notes all that is to be undone.

    A file is this program's if its path was noted as one that it made, or whose older file is kept, until another's is found there.
    All others are older, whatever their times say: other programs write, too.
    """

    def __init__(self, notes):
        self.notes, self.read_to, self.lock, self.process = notes, 0, threading.Lock(), os.getpid()
        # From the notes of all processes: paths of this program's files (which these are, as far as that is known) and folders;
        # older files of which a copy is kept: from where on.
        self.mine, self.made, self.copied = {}, set(), {}
        # What this process is about to make: which file or folder that is, is not known yet. Of more than a few the latest.
        self.pending = collections.deque(maxlen=MOST_PENDING)
        self.folders = {}  # ours, by where they are
        self.temporary = os.path.realpath(tempfile.gettempdir())
        self.here = threading.local()
        self.seen = {
            "open": self.opened, "os.truncate": self.truncated, "os.remove": self.removed, "os.rename": self.renamed,
            "os.mkdir": self.folder_made, "os.rmdir": self.folder_removed, "os.symlink": self.linked, "os.link": self.linked,
            "os.exec": self.replaced,
        }
        os.register_at_fork(after_in_child=self.forked)
        self.tell_folder()
        sys.addaudithook(self.hook)

    def forked(self):
        self.lock = threading.Lock()  # another thread may have held it

    def tell_folder(self):
        """Of `os.open` in an open folder the hook is not told the folder."""
        original = os.open

        @functools.wraps(original)
        def opening(path, flags, mode=0o777, *, dir_fd=None):
            if dir_fd is None:
                return original(path, flags, mode)
            self.here.folder = dir_fd
            try:
                return original(path, flags, mode, dir_fd=dir_fd)
            finally:
                self.here.folder = -1

        opening.__module__ = "os"
        os.open = opening
        os.supports_dir_fd.add(opening)

    def hook(self, event, args):
        act = self.seen.get(event)
        # What is done here is not looked at again.
        if act is None or getattr(self.here, "busy", False):
            return
        reads = event == "open" and not args[2] & (os.O_WRONLY | os.O_RDWR)
        if reads and not self.pending:
            return
        self.here.busy = True
        try:
            self.settle()
            if not reads:
                self.learn()
                act(*args)
        finally:
            self.here.busy = False

    def settle(self):
        """Notes which files they are that the program has written, and which folders that it has made: new ones, in which nothing is."""
        for path in list(self.pending):
            with contextlib.suppress(OSError):
                found = os.lstat(path)
                if stat.S_ISREG(found.st_mode):
                    if found.st_size == 0:
                        continue  # it is still to be written
                    self.note("written", path, *(SAVED if stands_for_objects(path) else identity(found)))
                elif is_folder(path) and not os.listdir(path):
                    self.note("made", path, *identity(found))
            self.settled(path)

    def settled(self, path):
        with contextlib.suppress(ValueError):
            self.pending.remove(path)

    def note(self, *what):
        if what[0] == "written" and self.mine.get(what[1]) == what[2:]:
            return
        # One write of a line, since other processes append, too; a line that was cut off does not spoil the next. The file is
        # not made anew: once it is gone nothing is put back any more.
        line = b"\n" + json.dumps(what).encode() + b"\n"
        descriptor = os.open(self.notes, os.O_WRONLY | os.O_APPEND)
        try:
            if os.write(descriptor, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.notes)
        finally:
            os.close(descriptor)
        self.learn()

    def learn(self):
        """What this process and others have noted since."""
        with self.lock, contextlib.suppress(FileNotFoundError), open(self.notes, "rb", buffering=0) as file:
            file.seek(self.read_to)
            lines = file.read()
            lines = lines[:lines.rfind(b"\n") + 1]
            self.read_to += len(lines)
            for what, *args in parsed(lines.splitlines()):
                if what == "written":
                    self.mine[args[0]] = tuple(args[1:])
                elif what == "lost":
                    self.mine.pop(args[0], None)
                    self.copied.pop(args[0], None)
                elif what == "made":
                    self.made.add(args[0])
                elif what == "removed":
                    self.made.discard(args[0])
                elif what == "copied":
                    self.copied[args[0]] = args[2:]
                elif what == "renamed":
                    old, new = args[:2]
                    mine, made = within(self.mine, old, new), within(self.made, old, new)
                    mine = {path: self.mine[was] for was, path in mine.items()}
                    for path in within(self.mine, new, new):
                        del self.mine[path]
                    self.mine.update(mine)
                    self.made -= {*made, *within(self.made, new, new)}
                    self.made.update(made.values())
                    for path in [*within(self.copied, old, new), *within(self.copied, new, new)]:
                        self.copied.pop(path, None)

    def copied_from(self, path, found):
        """From where on a copy of this older file is kept; `None`: there is none."""
        start, *same = self.copied.get(path, (None,))
        return start if tuple(same) == identity(found) else None

    def is_mine(self, path):
        """Whether what is there, or was, is this program's. What another has put in its place, or written into it, is older from now on."""
        # A compiler's files, in what `tempfile.mkdtemp` made.
        start = path.startswith(self.temporary + os.sep) and path[len(self.temporary) + 1:].split(os.sep)
        if start and len(start) > 1 and os.path.join(self.temporary, start[0]) in self.made:
            return True
        which = self.mine.get(path)
        if which and identity_of(path) != which and not is_lost(path):
            self.note("lost", path)
        return path in self.mine

    def claim(self, path, which=()):
        """Notes that a path is this program's; which file that is, unless it is known, is noted once it is written."""
        if not which and self.mine.get(path, 0) == identity_of(path):
            return  # it is the same
        self.note("written", path, *which)
        self.settled(path)
        if not which:
            self.pending.append(path)

    def aside(self, path):
        """Paths for what is kept of a file: in our folders on its file system, or else in that of temporary files."""
        name = "%d-%d-%s" % (os.getpid(), next(NUMBERS), os.path.basename(path)[-100:])
        for parent in [*parents(path), None]:
            folder = self.folders.get(parent)
            if folder is None or not os.path.isdir(folder):
                try:
                    folder = tempfile.mkdtemp(prefix=".carma-dry-run-", dir=parent or self.temporary)
                except OSError:  # some folders cannot be written in
                    continue
                try:
                    self.note("kept", folder, *identity(os.stat(folder)))
                except OSError:  # the run is over, or no disk takes notes: what is kept would never come back
                    os.rmdir(folder)
                    raise
                self.folders[parent] = folder
            yield os.path.join(folder, name)

    def copy(self, path, found, start=0):
        """Copies a file from a place on. The file itself stays: others may have it open, or hold a lock of it."""
        failure = OSError(errno.EACCES, os.strerror(errno.EACCES))
        for aside in self.aside(path):
            try:
                # It is the file that was found: who may write in its folder could put a link there, to what only we may read.
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                with open(descriptor, "rb") as file, open(aside + PART, "xb") as part:
                    if identity(os.fstat(descriptor)) != identity(found):
                        raise OSError(errno.ESTALE, "it is another file now")
                    file.seek(start)
                    shutil.copyfileobj(file, part, LONGEST)
                    part.flush()
                    give(part.fileno(), found.st_uid, found.st_gid)
                    shutil.copystat("/proc/self/fd/%d" % descriptor, aside + PART)
                os.rename(aside + PART, aside)
                self.note("copied", path, aside, start, found.st_dev, found.st_ino)
                return
            except OSError as error:
                failure = error
                for left in (aside + PART, aside):
                    with contextlib.suppress(OSError):
                        os.remove(left)
        raise failure

    def move(self, path, found, start):
        """Moves a file, and puts an empty one in its place. Says whether it could be moved."""
        for aside in self.aside(path):
            self.note("aside", path, aside, start)
            try:
                os.rename(path, aside)
            except OSError:  # some folders are of another mount
                continue
            mode = stat.S_IMODE(found.st_mode) if stat.S_ISREG(found.st_mode) else 0o600
            with contextlib.suppress(FileExistsError):  # another's by now
                descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY, mode)
                give(descriptor, found.st_uid, found.st_gid)
                os.fchmod(descriptor, mode)
                os.close(descriptor)
            return True
        return False

    def set_aside(self, path, emptied=False, start=None):
        """Before a file is lost. Says whether the path is this program's from now on. `start`: from where on objects take its place."""
        if is_system(path):
            return False
        if self.is_mine(path):
            return True
        try:
            found = os.lstat(path)
        except (OSError, ValueError):
            return False
        regular = stat.S_ISREG(found.st_mode)
        if not (regular or stat.S_ISLNK(found.st_mode)) or emptied and not os.access(path, os.W_OK):
            return False
        try:
            done = False
            if emptied and found.st_size <= LONGEST and found.st_nlink == 1:
                done = self.copied_from(path, found) == 0
                if not done:
                    with contextlib.suppress(OSError):  # one that may not be read
                        self.copy(path, found)
                        done = True
            if not done and not self.move(path, found, start):
                if not os.path.lexists(path):
                    return False
                if not regular:
                    return False  # in a folder where the program cannot change it, either
                self.copy(path, found)
        except OSError as error:
            raise OSError(
                error.errno, "the dry run cannot keep %s, which the program replaces: %s" % (path, error.strerror)
            ) from None
        self.claim(path, SAVED)
        return True

    def saving(self, file):
        """Before an object goes into an open file: if that has content of an earlier run, another file is behind it then."""
        try:
            descriptor = file.fileno()
            found, path = os.fstat(descriptor), os.readlink("/proc/self/fd/%d" % descriptor)
            if not stat.S_ISREG(found.st_mode) or not os.path.samestat(found, os.lstat(path)):
                return
            appends = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND
        except (AttributeError, OSError, ValueError):
            return
        busy, self.here.busy = getattr(self.here, "busy", False), True
        try:
            self.learn()
            if found.st_size and not self.is_mine(path):
                # Of an older file that is small, and one that only grows, enough is kept.
                start, at = self.copied_from(path, found), os.lseek(descriptor, 0, os.SEEK_CUR)
                # What has another name is no longer this file once something takes this name.
                enough = found.st_nlink == 1 and (start == 0 or appends and start is not None)
                if enough or not self.set_aside(path, start=max(at - LONGEST, 0)):
                    return  # what was read ahead of a buffer is not written behind
                new = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
                os.lseek(new, at, os.SEEK_SET)
                os.dup2(new, descriptor, inheritable=os.get_inheritable(descriptor))
                os.close(new)
            if path in self.mine:
                self.claim(path, SAVED)
        finally:
            self.here.busy = busy

    # What Python is about to do.

    def opened(self, path, _mode, flags):
        if not isinstance(path, PATHS):
            return
        folder = getattr(self.here, "folder", -1)
        path = path_of(path) if folder < 0 else path_of(name_of(path, folder))
        if is_system(path):
            return
        try:
            found = os.lstat(path)
        except (OSError, ValueError):
            if flags & os.O_CREAT:
                self.claim(path)
            return
        if not stat.S_ISREG(found.st_mode) or flags & os.O_CREAT and flags & os.O_EXCL:
            return
        if flags & os.O_TRUNC:
            if self.set_aside(path, emptied=True):
                self.claim(path)
        elif self.is_mine(path):
            self.claim(path)
        elif self.copied_from(path, found) is None:
            with contextlib.suppress(OSError):  # nothing is lost yet
                self.copy(path, found, max(found.st_size - LONGEST, 0))

    def truncated(self, path, length):
        if isinstance(path, PATHS) and length == 0:
            self.set_aside(path_of(path), emptied=True)

    def removed(self, path, folder):
        path = name_of(path, folder)
        if self.set_aside(path):
            self.claim(path, SAVED)

    def renamed(self, old, new, folder, to):
        old, new = name_of(old, folder), name_of(new, to)
        try:
            found = os.lstat(old)
        except OSError:
            return
        what = "renamed", old, new, found.st_dev, found.st_ino
        if stat.S_ISDIR(found.st_mode):
            # It fails where something is.
            if not os.path.lexists(new) or is_folder(new) and not os.listdir(new):
                self.note(*what)
            return
        with contextlib.suppress(OSError):
            there = os.lstat(new)
            if os.path.samestat(found, there) or stat.S_ISDIR(there.st_mode):
                return
        self.set_aside(new)
        if self.is_mine(old):
            self.claim(new, self.mine.get(old, ()))
        else:
            self.note(*what)

    def folder_made(self, path, _mode, folder):
        path = name_of(path, folder)
        if not os.path.lexists(path):
            self.note("made", path)
            self.pending.append(path)

    def folder_removed(self, path, folder):
        path = name_of(path, folder)
        if is_folder(path) and not os.listdir(path):
            found = os.stat(path)
            self.note("removed", path, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, *identity(found))

    def linked(self, old, new, *folders):
        new = name_of(new, folders[-1])
        # Another name of an older file is an older file.
        if not os.path.lexists(new) and (len(folders) == 1 or self.is_mine(name_of(old, folders[0]))):
            self.claim(new)

    def replaced(self, *_):
        # In a child it is how another program is started.
        if os.getpid() == self.process:
            raise RuntimeError("the program starts another in its place, which a dry run cannot follow")


# --- once the program is over -------------------------------------------------------------------


@contextlib.contextmanager
def place(path, make=False):
    """A name for a path by way of no link: there was none when it was noted, but others who may write there may have put one since.

    Where a folder is gone it is made again, or else the name is empty, which nothing has.
    """
    *folders, name = path.split(os.sep)
    here = os.open(os.sep, FOLDER)
    try:
        for folder in filter(None, folders):
            try:
                inner = os.open(folder, FOLDER, dir_fd=here)
            except FileNotFoundError:
                if not make:
                    yield ""
                    return
                os.mkdir(folder, dir_fd=here)
                inner = os.open(folder, FOLDER, dir_fd=here)
            os.close(here)
            here = inner
        yield "/proc/self/fd/%d/%s" % (here, name)
    finally:
        os.close(here)


def has_mark(file):
    last = b""
    for _ in range(PIECES):
        piece = file.read(LONGEST)
        if MARKED.search(last + piece):
            return True
        if not piece:
            break
        last = piece[-100:]
    return False


def stands_for_objects(path):
    """Whether a file has in it what `torch.save` wrote, packed perhaps."""
    try:
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            start = file.read(512)
        if start.startswith(b"PK\3\4"):
            with zipfile.ZipFile(path) as archive:
                parts = [part for part in archive.infolist() if part.file_size <= LONGEST]
                return any(MARKED.search(archive.read(part)) for part in parts)
        unpack = next((unpack for magic, unpack in PACKED if start.startswith(magic)), None)
        with (unpack or open)(path, "rb") as file:
            if has_mark(file):
                return True
            # Of more the end counts, too: a large array, and the model behind it.
            size = os.stat(path).st_size
            if unpack or size <= PIECES * LONGEST:
                return False
            file.seek(size - PIECES * LONGEST)
            return has_mark(file)
    except Exception:  # modules for packed files have an error each for what is no such file
        pass
    return False


def is_lost(path):
    """Whether nothing but this run's checkpoints took the place of what was there; a link has nothing in it."""
    if os.path.islink(path) or not os.path.exists(path):
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
    if is_folder(here) or os.path.islink(here) or os.path.islink(there):
        clear(here)
    try:
        os.replace(there, here)
    except OSError:  # of another file system, or in a folder where only the file may be written
        if os.path.islink(there):
            os.symlink(os.readlink(there), here)
        else:
            fill(there, here)
        os.remove(there)


def fill(there, here, start=0, same=None):
    """Content of one file into another from a place on, never by way of a link that another user may have put there."""
    try:
        descriptor = os.open(here, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or same is None and found.st_uid != os.geteuid():
            os.close(descriptor)
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
    except FileNotFoundError:
        descriptor = os.open(here, os.O_WRONLY | os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file, open(there, "rb") as kept:
        if same is not None and identity(os.fstat(descriptor)) != same:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
        file.truncate(start)
        file.seek(start)
        shutil.copyfileobj(kept, file, LONGEST)
        file.flush()
        found = os.fstat(kept.fileno())
        if same is None:
            give(descriptor, found.st_uid, found.st_gid)
        with contextlib.suppress(OSError):
            if same is None:
                os.fchmod(descriptor, stat.S_IMODE(found.st_mode))
            os.utime(descriptor, ns=(found.st_atime_ns, found.st_mtime_ns))


def has_added(path, start):
    """Whether objects were added to a file behind a place."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(start)
        return has_mark(file)
    return False


def begins_with(path, kept):
    """Whether a file has only grown since all of it was kept."""
    with open(path, "rb") as file, open(kept, "rb") as before:
        before = before.read()
        return file.read(len(before)) == before


class Undoing:
    """Undoes what was noted, last first, and tells what cannot be undone."""

    def __init__(self, noted):
        # Paths as they are at the end of the run, but for those in `steps`.
        self.written, self.made, self.steps = set(), {}, []  # made: which folders these are, as far as that is known
        self.folders = {}  # in which files are kept: which these are
        # What the program made where something older was; what came back as another file or folder than it was.
        self.new, self.anew = set(), {}
        # What was renamed to where, of the steps that are still to be undone.
        # What is kept of such files, to come back under the older name.
        self.renames, self.older = [], {}
        self.failed = False
        ever = {args[0] for what, *args in noted if what == "written"}
        for what, *args in noted:
            if what == "written":
                self.written.add(args[0])
            elif what == "lost":
                self.written.discard(args[0])
            elif what == "made":
                self.made[args[0]] = tuple(args[1:])
            elif what == "kept":
                self.folders[args[0]] = tuple(args[1:])
            elif what == "removed" and args[0] in self.made:
                del self.made[args[0]]
            elif what == "renamed":
                self.renamed(*args)
            else:
                self.steps.append((what, [*args, args[0] in ever] if what == "copied" else args))

    def renamed(self, old, new, *same):
        if old not in self.made:
            self.steps.append(("renamed", (old, new, *same)))
        self.written = self.written - set(within(self.written, new, new)) | set(within(self.written, old, new).values())
        for path in within(self.made, new, new):  # an empty folder, which is gone
            del self.made[path]
        self.made.update({path: self.made.pop(was) for was, path in within(self.made, old, new).items()})

    def all(self):
        # An older file that has been emptied is filled again.
        copied = {(args[0], *args[3:-1]) for what, args in self.steps if what == "copied"}
        # Links first, which lead to others.
        for path in sorted(self.written, key=os.path.islink, reverse=True):
            with contextlib.suppress(OSError), place(path) as here:
                if stands_for_objects(here) and (path, *(identity_of(here) or ())) not in copied:
                    os.remove(here)
        self.renames = [tuple(args[1:]) for what, args in self.steps if what == "renamed"]
        for what, args in reversed(self.steps):
            if what == "renamed":
                aside = self.older.pop(self.renames.pop(), None)
                if aside is not None:
                    what, args = "aside", (args[0], aside, None, *args[2:])
            try:
                getattr(self, "undo_" + what)(*args)
            except Exception as error:  # whatever it is, the others come back
                self.failed = True
                why = getattr(error, "strerror", None) or repr(error)
                if what in ("aside", "copied"):
                    tell("%s could not be put back (%s): it is %s" % (args[0], why, args[1]))
                elif what == "renamed":
                    tell("%s could not be named %s again (%s)" % (args[1], args[0], why))
                else:
                    tell("the folder %s could not be made again (%s)" % (args[0], why))

    @contextlib.contextmanager
    def kept(self, aside):
        """A kept file, in the very folder that was made for it, into which no other user could put one."""
        folder = os.path.dirname(aside)
        with place(aside) as there:
            if identity(os.stat(os.path.dirname(there))) != self.folders.get(folder):
                raise OSError(errno.ESTALE, "%s is another folder now" % folder)
            yield there

    def undo_aside(self, path, aside, start, *same):
        with self.kept(aside) as there:
            if not os.path.lexists(there):
                return  # it had not been moved yet
            with place(path, make=True) as here:
                same = same or identity_of(there)
                if is_lost(here) or start is not None and has_added(here, start):
                    move(there, here)
                    self.anew[same] = identity_of(here)
                else:
                    self.new.add(path)
                    self.drop(path, aside, there, same)

    def drop(self, path, aside, there, same, start=0):
        """Where the program has written anew what is kept goes, unless that had another name before: there nothing took its place."""
        renamed = path, *same
        if not start and renamed in self.renames and renamed not in self.older:
            self.older[renamed] = aside
        else:
            os.remove(there)

    def undo_copied(self, path, aside, start, device, number, emptied):
        same = device, number
        with self.kept(aside) as there, place(path, make=emptied) as here:
            if not os.path.lexists(there):
                return
            # What took its place may have got its number.
            if identity_of(here) == same and not os.path.islink(here):
                if is_lost(here) or has_added(here, start):
                    try:
                        fill(there, here, start, same)
                    except OSError as error:
                        if start or error.errno not in FULL:
                            raise
                        try:
                            os.replace(there, here)  # a whole copy is there already
                        except OSError:  # on another file system
                            raise error from None
                        self.anew[same] = identity_of(here)
                        return
                elif not start and not begins_with(here, there):
                    self.drop(path, aside, there, same)
                    return
                os.remove(there)
            elif emptied and is_lost(here):
                move(there, here)
                self.anew[same] = identity_of(here)
            elif os.path.lexists(here):
                self.new.add(path)
                self.drop(path, aside, there, same, start)
            else:  # one that has only grown was removed by others
                os.remove(there)

    def undo_removed(self, path, mode, owner, group, *same):
        with place(path, make=True) as here:
            if os.path.islink(here) and path in self.written:
                os.remove(here)
            if os.path.lexists(here):
                self.new.add(path)
            else:
                os.mkdir(here, 0o700)
                self.anew[same] = identity_of(here)
            self.as_before(here, mode, owner, group)

    def as_before(self, here, mode, owner, group):
        """Of the folders that others may have put there those stay as they are that have something in them."""
        descriptor = os.open(here, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if identity(os.fstat(descriptor)) in self.made.values() or not os.listdir(descriptor):
                give(descriptor, owner, group)
                with contextlib.suppress(OSError):
                    os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)

    def bring(self, there, here):
        """Renames back, of a folder what it has where the program has made another."""
        with place(there) as old, place(here) as new:
            if is_lost(new):
                clear(new)
                os.rename(old, new)
            elif is_folder(old) and is_folder(new):
                found = os.lstat(old)
                self.as_before(new, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)
                for name in os.listdir(old):
                    self.bring(os.path.join(there, name), os.path.join(here, name))
                with contextlib.suppress(OSError):
                    os.rmdir(old)

    def undo_renamed(self, old, there, *same):
        with place(old) as before, place(there) as now:
            if identity_of(now) not in (same, self.anew.get(same, ())):
                if os.path.lexists(now) and not os.path.lexists(before):
                    tell("%s is not what the program renamed: that was %s" % (there, old))
            elif there not in self.new:
                self.bring(there, old)
                if os.path.lexists(now):
                    tell("%s is what the program renamed: it was %s, where the program has written anew" % (there, old))

    def leave(self, notes):
        """Removes the folders in which files were kept; where something still is, the notes are left beside it."""
        for folder in self.folders:
            try:
                with place(folder) as here:
                    os.rmdir(here)
            except FileNotFoundError:
                pass
            except OSError:
                if not self.failed:
                    continue
                with contextlib.suppress(OSError), self.kept(os.path.join(folder, "notes")) as there:
                    shutil.copyfile(notes, there)


def put_back(notes):
    """Undoes what was noted. Says whether all could be."""
    taken = notes + ".taken"
    os.rename(notes, taken)
    with open(taken, "rb") as file:
        undoing = Undoing(list(parsed(file)))
    undoing.all()
    undoing.leave(taken)
    if not undoing.failed:
        os.remove(taken)
    return not undoing.failed


def tell(what):
    # Standard error may be closed or full, and the rest is put back all the same.
    with contextlib.suppress(OSError, ValueError):
        os.write(2, os.fsencode("carma: %s\n" % what))


if __name__ == "__main__":
    sys.exit(0 if put_back(sys.argv[1]) else NOT_ALL)
