"""What PyTorch's caching allocator would have reserved so far: decides when enough has been seen.

The same rules as carma's own model of it (crates/memory/src/alloc), without its settings and without workspaces.
"""

import bisect

MIB = 1 << 20


class Segments:
    def __init__(self):
        self.reserved = self.end = 0
        self.free = {True: [], False: []}  # small and large: (size, address), sorted
        self.blocks = {}  # address of a block -> [size, address before, address after, whether it is free, whether small]

    def take(self, size):
        """The address of a block for so many bytes."""
        size = max(512, -(-size // 512) * 512)
        small = size <= MIB
        free = self.free[small]
        at = bisect.bisect_left(free, (size, 0))
        if at < len(free):
            _, place = free.pop(at)
        else:
            whole = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            place, self.end, self.reserved = self.end, self.end + whole + 512, self.reserved + whole
            self.blocks[place] = [whole, None, None, True, small]
        block = self.blocks[place]
        rest = block[0] - size
        if rest >= 512 if small else rest > MIB:
            after = block[2]
            self.blocks[place + size] = [rest, place, after, True, small]
            if after is not None:
                self.blocks[after][1] = place + size
            block[0], block[2] = size, place + size
            bisect.insort(free, (rest, place + size))
        block[3] = False
        return place

    def give_back(self, place):
        size, before, after, _, small = self.blocks[place]
        free = self.free[small]
        if after is not None and self.blocks[after][3]:
            more, _, beyond, _, _ = self.blocks.pop(after)
            del free[bisect.bisect_left(free, (more, after))]
            size, after = size + more, beyond
        if before is not None and self.blocks[before][3]:
            more, earlier, _, _, _ = self.blocks[before]
            del free[bisect.bisect_left(free, (more, before))]
            del self.blocks[place]
            place, before, size = before, earlier, size + more
        if after is not None:
            self.blocks[after][1] = place
        self.blocks[place] = [size, before, after, True, small]
        bisect.insort(free, (size, place))

    def empty(self):
        """Gives whole free segments back."""
        for small, free in self.free.items():
            kept = []
            for size, place in free:
                if self.blocks[place][1] is None and self.blocks[place][2] is None:
                    self.reserved -= size
                    del self.blocks[place]
                else:
                    kept.append((size, place))
            free[:] = kept
