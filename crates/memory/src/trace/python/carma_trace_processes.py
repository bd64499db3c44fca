"""Other processes of a program, of which a trace has the first alone.

The first worker of `torch.multiprocessing.spawn` runs here. What is forked runs as it would, and the log says if that works on a
GPU. Another Python would train for real, over files that nothing keeps: what starts one fails, and says why. Other programs run,
and are named at the end.
"""

import importlib
import importlib.machinery
import itertools
import multiprocessing
import os
import re
import shlex
import shutil
import sys

import torch
import torch.multiprocessing

from carma_trace_record import LOG, STDLIB, foreign, patch

PYTHON = re.compile(r"(python|pypy)[\d.]*t?")
SHELLS = ("bash", "dash", "ksh", "sh", "zsh")
BEFORE = ("env", "exec", "nice", "nohup", "time")  # programs before the one that counts
BUILTINS = ("[", "cd", "echo", "exit", "export", "false", "printf", "set", "source", "test", "true", "unset")  # of a shell
SEPARATORS = set("();&|")


def is_foreign(path):
    """Whether a program is none of the user's: a library's, or one that was installed."""
    return foreign(path) or os.path.basename(os.path.dirname(path)) == "bin"


def commands(line):
    """The commands of a line for a shell, without what they read and write."""
    words, found = shlex.shlex(line.replace("\n", ";"), posix=True, punctuation_chars=True), [[]]
    words.whitespace_split = True
    with_file = False
    try:
        for word in words:
            if set(word) <= SEPARATORS:
                found.append([])
            elif set(word) & set("<>") and set(word) <= set("<>&|"):
                with_file = True
                continue
            elif not with_file:
                found[-1].append(word)
            with_file = False
    except ValueError:  # quotes that do not match
        pass
    return found


def of_command(words):
    """The programs that a command starts, each with its words; of a shell those of its line."""
    is_before = lambda word: "=" in word.split("/")[0] or word[:1] == "-" or word.isdigit() or os.path.basename(word) in BEFORE
    words = list(itertools.dropwhile(is_before, words))
    if len(words) > 2 and os.path.basename(words[0]) in SHELLS and re.match("-[a-z]*c$", words[1]):
        return [found for line in commands(words[2]) for found in of_command(line)]
    return [words] if words else []


def is_script_of_python(path):
    try:
        with open(path, "rb") as file:
            line = file.readline(200)
        return line.startswith(b"#!") and b"python" in line
    except OSError:
        return False


def module_file(name, folder):
    name = name.split(".")[0]
    if name in sys.builtin_module_names:
        return STDLIB
    spec = importlib.machinery.PathFinder.find_spec(name, [folder] + sys.path)
    return spec and (spec.origin or next(iter(spec.submodule_search_locations or ()), None))


def script_of(words, folder):
    """What of the user's a program runs in another Python: a script or a module; empty where that is unknown; `None`: nothing."""
    first, *words = words
    if not PYTHON.fullmatch(os.path.basename(first)) and first != sys.executable:
        path = os.path.join(folder, first) if os.sep in first else shutil.which(first)
        if path is None or not (first.endswith(".py") or is_script_of_python(path)):
            return None
        words.insert(0, path)
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "-":
            return ""
        letter = re.match("-[a-zA-Z]*?([mcWX])(.*)", option)
        if letter is None:
            continue
        kind, value = letter.groups()
        if kind == "c":
            return None
        if not value and words:
            value = words.pop(0)
        if kind == "m":
            path = module_file(value, folder)
            if path is None:
                return ""
            if not is_foreign(path):
                return "-m " + value
            break
    # Of an installed program that starts others, `accelerate`, it is a word of it.
    scripts = (word for i, word in enumerate(words) if i == 0 or word.endswith(".py"))
    for script in scripts:
        path = os.path.join(folder, script)
        if os.path.isfile(path) and not is_foreign(os.path.realpath(path)):
            return script
    return None


def by_user():
    """Whether the user's code does this, and not a library."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if "site-packages" in name or "dist-packages" in name:
            return False
        if not foreign(name):
            return True
        frame = frame.f_back
    return False


def started(words, folder=None):
    """Before another program starts."""
    folder = os.fsdecode(folder or os.getcwd())
    for words in of_command([os.fsdecode(word) for word in words]):
        name, script = os.path.basename(words[0]), script_of(words, folder)
        if script is not None or name.endswith(".sh") or name in SHELLS and len(words) > 1:
            LOG.elsewhere[0] = 1  # whatever it starts
        if script:
            raise RuntimeError(
                "the program starts another Python (%s), which a dry run cannot follow: give carma the command that trains, "
                "as in: -- python %s" % (script, script)
            )
        if by_user() and name not in BUILTINS and name not in LOG.end["started"]:
            LOG.end["started"].append(name)


def refused(method):
    def launch(_self, _process):
        LOG.elsewhere[0] = 1
        raise RuntimeError(
            "the program starts a process by `%s`, another Python, which a dry run cannot follow: let it train in its first process, "
            "or in workers of torch.multiprocessing.spawn" % method
        )
    return launch


def first_worker(_original):
    def start(fn, args=(), nprocs=1, join=True, *_, **__):
        if nprocs > 0:
            try:
                fn(0, *args)
            except SystemExit as leave:
                if leave.code not in (None, 0):
                    raise
        return None if join else torch.multiprocessing.ProcessContext([], [])
    return start


def join():
    """Waits for forked processes as the interpreter does at its end, when the log is closed."""
    for process in multiprocessing.active_children():
        if not process.daemon:
            process.join()


def fake_processes(kept):
    # The package has a function of the module's name.
    for owner in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
        for name in ("spawn", "start_processes"):
            patch(owner, name, first_worker)
    for method, name in (("spawn", "popen_spawn_posix"), ("forkserver", "popen_forkserver")):
        importlib.import_module("multiprocessing." + name).Popen._launch = refused(method)
    kept.seen.update({
        "subprocess.Popen": lambda program, words, folder, _env: started([program, *words[1:]], folder),
        "os.system": lambda line: started(["sh", "-c", line]),
        "os.posix_spawn": lambda program, words, _env: started([program, *words[1:]]),
    })
