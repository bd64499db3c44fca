"""Checkpoints that a dry run does not write.

`torch.save` writes a few bytes that stand for the object, be it to a path, an open file or a buffer, and `torch.load` gives
the object back where it finds them. So a program can rename, copy, measure and remove a checkpoint as it likes. What stands for
objects is removed at the end, and files of an earlier run come back: `carma_trace_files`.
"""

import atexit
import concurrent.futures
import contextlib
import gc
import importlib.machinery
import io
import os
import pickle
import sys
import tempfile

import torch

from carma_trace_files import MARK, MARKED, NUMBERS, PATHS, Kept, path_of, put_back
from carma_trace_record import (
    KNOWN, KNOWN_DERIVED, KNOWN_WHOLE, LOG, RAW_META, Tensor, answer, device_of, over, patch, storage_key,
)

OBJECTS = {}  # (process, number) -> Saved
UNWRITTEN = {}  # absolute path where nothing can be written -> Saved
PLAIN = (torch.Tensor, torch.nn.Parameter)  # classes of tensors that are described; others are kept


class Describing(pickle.Pickler):
    """Of tensors it writes where they are in the lists of what was saved."""

    def __init__(self, file, saved):
        super().__init__(file, 4)
        self.saved, self.numbers, self.alive = saved, {}, []

    def persistent_id(self, value):
        if not isinstance(value, (Tensor, torch.UntypedStorage, torch.TypedStorage)):
            return None
        if id(value) in self.numbers:
            return self.numbers[id(value)]
        self.alive.append(value)
        if type(value) in PLAIN and value.layout == torch.strided and not value.is_quantized:
            self.saved.tensors.append((
                self.storage_of(value), value.dtype, value.storage_offset(), value.size(), value.stride(),
                type(value) is torch.nn.Parameter, value.requires_grad,
            ))
            found = "tensor", len(self.saved.tensors) - 1
        else:
            self.saved.held.append(value)
            found = "held", len(self.saved.held) - 1
        self.numbers[id(value)] = found
        return found

    def storage_of(self, tensor):
        """Size, device and numbers, as far as they are known."""
        storage, key = tensor.untyped_storage(), storage_key(tensor)
        found = self.numbers.get(("storage", key))
        if found is None:
            size, numbers = storage.nbytes(), KNOWN.get(key) if RAW_META(tensor) else storage
            if numbers is not None and size <= KNOWN_WHOLE:
                numbers = numbers.clone()
            self.saved.storages.append((size, str(device_of(tensor)), numbers))
            found = self.numbers["storage", key] = len(self.saved.storages) - 1
        return found


class Making(pickle.Unpickler):
    """Makes the tensors anew, each once."""

    def __init__(self, file, saved, map_location):
        super().__init__(file)
        self.saved, self.map_location, self.storages, self.tensors = saved, map_location, {}, {}

    def persistent_load(self, found):
        kind, number = found
        if kind == "held":
            return self.saved.held[number]
        if number not in self.tensors:
            where, dtype, *shape, is_parameter, requires_grad = self.saved.tensors[number]
            data = self.storage(where)
            made = torch.empty(0, dtype=dtype, device=data.device).set_(data, *shape)
            self.tensors[number] = (
                torch.nn.Parameter(made, requires_grad) if is_parameter else made.requires_grad_(requires_grad)
            )
        return self.tensors[number]

    def storage(self, number):
        if number not in self.storages:
            size, location, numbers = self.saved.storages[number]
            here = zeros(size) if numbers is None else numbers.clone() if size <= KNOWN_WHOLE else numbers
            self.storages[number] = placed(here, location, self.map_location, numbers is not None)
        return self.storages[number]


class Saved:
    """An object as it was when it was saved. It holds no storage of a GPU; what is loaded takes new ones."""

    def __init__(self, obj):
        self.storages, self.tensors, self.held = [], [], []
        content = io.BytesIO()
        try:
            Describing(content, self).dump(obj)
            self.content = content.getvalue()
        except Exception:  # what cannot be pickled is kept as it is
            self.content, self.object = None, obj

    def load(self, map_location):
        if self.content is None:
            return self.object
        with torch.no_grad():
            return Making(io.BytesIO(self.content), self, map_location).load()


def zeros(size):
    """A storage on the CPU that costs nothing."""
    return torch.zeros(size, dtype=torch.uint8).untyped_storage()


def on_gpu(storage, device, known=True):
    made = torch.empty(storage.nbytes(), dtype=torch.uint8, device=device)
    key = storage_key(made)
    KNOWN.pop(key, None)
    if known and storage.nbytes() <= KNOWN_DERIVED:
        KNOWN[key] = storage.clone()
    return made.untyped_storage()


def placed(storage, location, map_location, known=True):
    """A storage where it was, or where `map_location` wants it."""
    target = location
    if isinstance(map_location, dict):
        target = map_location.get(location, location)
    elif callable(map_location):
        found = map_location(storage, location)
        if found is not None:
            return found
    elif map_location is not None:
        target = map_location
    target = torch.device("cuda", target) if isinstance(target, int) else torch.device(target)
    return on_gpu(storage, target, known) if target.type == "cuda" else storage


def save(obj, f, *_, **__):
    key = os.getpid(), next(NUMBERS)
    saved = Saved(obj)
    mark = MARK % (key[1], key[0])
    if isinstance(f, PATHS):
        try:
            with open(f, "wb") as file:
                KEPT[0].saving(file)
                file.write(mark)
        except OSError:
            UNWRITTEN[path_of(f)] = saved  # a disk that is not there where the dry run is
            return
    else:
        KEPT[0].saving(f)
        f.write(mark)
    OBJECTS[key] = saved


def found_in(f):
    """What was saved here in a path or an open file, which is then read on behind it; `None`: nothing."""
    try:
        if isinstance(f, PATHS):
            with open(f, "rb") as file:
                start = file.read(len(MARK) + 40)
        else:
            at = f.tell()
            start = f.read(len(MARK) + 40)
            f.seek(at)
    except (OSError, AttributeError, ValueError):
        return UNWRITTEN.get(path_of(f)) if isinstance(f, PATHS) else None
    found = MARKED.match(start) if isinstance(start, bytes) else None
    saved = OBJECTS.get((int(found[2]), int(found[1]))) if found else None
    if saved is not None and not isinstance(f, PATHS):
        f.seek(at + found.end())
    return saved


def loading(original):
    def load(f, map_location=None, *args, **kwargs):
        saved = found_in(f)
        if saved is not None:
            return saved.load(map_location)
        at = None if isinstance(f, PATHS) else f.tell()
        try:
            return original(f, lambda storage, location: placed(storage, location, map_location), *args, **kwargs)
        except Exception:
            # PyTorch before 1.6 wrote files whose numbers are read into storages later on.
            if at is not None:
                f.seek(at)
            loaded = original(f, "cpu", *args, **kwargs)
            LOG.doubt("torch.load: what is loaded stays on the CPU")
            return loaded
    return load


def of_storage(original):
    """A storage is only noted once where PyTorch thinks that it has an address."""
    return lambda self: 1 if self._untyped_storage.device.type == "meta" else original(self)


# --- checkpoints of libraries -------------------------------------------------------------------


def loading_safely(original):
    def load_file(filename, device="cpu"):
        saved = found_in(filename)
        if saved is not None:
            return saved.load(device)
        return {name: tensor.to(device) for name, tensor in original(filename).items()}
    return load_file


def no_checkpoint(_original):
    return answer()


def no_later_checkpoint(_original):
    """A future, as which PyTorch answers, or as its parts."""
    done = concurrent.futures.Future()
    done.set_result(None)
    done.staging_completion = done.upload_completion = done
    return answer(done)


DISTRIBUTED = [
    (None, "save", no_checkpoint), (None, "save_state_dict", no_checkpoint), (None, "async_save", no_later_checkpoint),
]

# From the import of a module on: programs take functions out of it.
SAVERS = {
    "transformers.modeling_utils": [("PreTrainedModel", "save_pretrained", no_checkpoint)],
    "transformers.trainer": [("Trainer", "_save_checkpoint", no_checkpoint), ("Trainer", "save_model", no_checkpoint)],
    "accelerate.accelerator": [("Accelerator", "save_state", no_checkpoint), ("Accelerator", "save_model", no_checkpoint)],
    "lightning.pytorch.trainer.trainer": [("Trainer", "save_checkpoint", no_checkpoint)],
    "pytorch_lightning.trainer.trainer": [("Trainer", "save_checkpoint", no_checkpoint)],
    # The package has the same functions, maybe from before.
    "torch.distributed.checkpoint.state_dict_saver": DISTRIBUTED,
    "torch.distributed.checkpoint": DISTRIBUTED,
    "safetensors.torch": [
        (None, "save_file", lambda _: lambda tensors, filename, metadata=None: save(dict(tensors), filename)),
        (None, "save_model", lambda _: lambda model, filename, *_, **__: save(model.state_dict(), filename)),
        (None, "load_file", loading_safely),
    ],
}


def fake_savers(module):
    for owner, name, make in SAVERS[module.__name__]:
        patch(getattr(module, owner, None) if owner else module, name, make)


class Importer:
    """Finds the modules that save as all are found, and changes them once they are there."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in SAVERS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def executed(module):
            execute(module)
            fake_savers(module)

        spec.loader.exec_module = executed
        return spec


KEPT = []


def fake_saving(notes):
    """`notes`: where is noted what another process puts back once this one is over; `None`: this one does so at its end."""
    process, parent = os.getpid(), os.getppid()
    mine = notes is None
    if mine:
        descriptor, notes = tempfile.mkstemp(prefix="carma-dry-run-")
        os.close(descriptor)

    def over():
        # What is never closed is not flushed at the end of the interpreter, since it is held until then.
        for file in gc.get_objects():
            if type(file) in (io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper):
                with contextlib.suppress(OSError, ValueError):
                    file.flush()
        # Also where the process that would do so was killed.
        if os.getpid() == process and (mine or os.getppid() != parent):
            KEPT[0].here.busy = True  # what is undone now is not noted
            with contextlib.suppress(FileNotFoundError):
                put_back(notes)

    atexit.register(over)
    KEPT.append(Kept(notes))
    torch.save = save
    patch(torch, "load", loading)
    patch(torch.TypedStorage, "_data_ptr", of_storage)
    patch(torch.UntypedStorage, "cuda", lambda _: lambda self, device=None, *_, **__: on_gpu(
        self, torch.device("cuda", device) if isinstance(device, int) else device or "cuda"))
    sys.meta_path.insert(0, Importer)
    for name in SAVERS:
        if name in sys.modules:
            fake_savers(sys.modules[name])
