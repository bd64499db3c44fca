"""What conv_workspaces.py and recurrent_workspaces.py have in common: memory beside tensors, read by many processes on one GPU."""

import csv
import os
import time


def beside_and_kept(f):
    """What `f()` returns, how many bytes it left in use, and the most that were asked for meanwhile, less those."""
    import torch

    stats = torch.cuda.memory_stats
    torch.cuda.reset_peak_memory_stats()
    start = stats()["requested_bytes.all.current"]
    made = f()
    torch.cuda.synchronize()
    end = stats()
    kept = end["requested_bytes.all.current"] - start
    return made, kept, end["requested_bytes.all.peak"] - start - kept


def beside(f):
    made, _, most = beside_and_kept(f)
    return made, most


def work(jobs, asked, measure, columns, path, until):
    import torch

    try:
        # Without memory in use there are no statistics.
        torch.zeros(1, device="cuda")
    except Exception:  # noqa: BLE001: each row says why
        pass
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for job in jobs:
            if time.monotonic() > until:
                break
            row = asked(*job)
            try:
                writer.writerow([*row, *measure(*job), ""])
            except Exception as error:  # noqa: BLE001: cuDNN does not take every geometry
                nothing = [""] * (len(columns) - len(row) - 1)
                writer.writerow([*row, *nothing, f"{type(error).__name__}: {error}".split("\n")[0][:120]])
            torch.cuda.empty_cache()


def measured(jobs, asked, measure, columns, output, workers, until):
    """Divides the jobs among processes, and writes one CSV of what `asked` says of each and `measure` gives."""
    # The parent of forks must not touch the GPU.
    import torch

    torch.set_num_threads(1)
    children = []
    for at in range(workers):
        pid = os.fork()
        if pid == 0:
            try:
                work(jobs[at::workers], asked, measure, columns, f"{output}.{at}", until)
            finally:
                os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    with open(output, "w") as out:
        out.write(",".join(columns) + "\n")
        for at in range(workers):
            with open(f"{output}.{at}") as part:
                out.write(part.read())
            os.remove(f"{output}.{at}")
    with open(output) as file:
        errors = [row["error"] for row in csv.DictReader(file)]
    print(f"{len(jobs)} asked for, {len(errors)} answered, {sum(map(bool, errors))} failed; {next(filter(None, errors), '')}")
