//! The caching allocator: blocks in segments, best fit, split and merge.

use super::{Event, Handle, Settings};
use crate::{Error, MIB};
use std::collections::{BTreeSet, HashMap};

/// Every request is rounded up to a multiple of this (`kMinBlockSize`).
const MIN_BLOCK: u64 = 512;
/// Requests up to this go to the small pool (`kSmallSize`).
const SMALL_SIZE: u64 = MIB;
/// Segment of the small pool (`kSmallBuffer`).
const SMALL_BUFFER: u64 = 2 * MIB;
/// Segment for large requests below [`MIN_LARGE_ALLOC`] (`kLargeBuffer`).
const LARGE_BUFFER: u64 = 20 * MIB;
/// Requests from this on get a segment of their own (`kMinLargeAlloc`).
const MIN_LARGE_ALLOC: u64 = 10 * MIB;
/// To which such segments are rounded up (`kRoundLarge`).
const ROUND_LARGE: u64 = 2 * MIB;
/// An oversize block may exceed a request by less than this (`max_non_split_rounding_mb`).
const MAX_NON_SPLIT_ROUNDING: u64 = 20 * MIB;
/// More than any GPU holds: sizes beyond are refused rather than added up.
pub(crate) const ABSURD: u64 = 1 << 50;

/// Bytes at the highest point, and now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Peak {
    /// In blocks that are handed out, now.
    pub allocated: u64,
    /// In segments, now.
    pub reserved: u64,
    /// In blocks that were handed out, at most.
    pub max_allocated: u64,
    /// In segments, at most.
    pub max_reserved: u64,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    segment: u32,
    /// Byte offset in an address space in which segments follow each other; breaks ties as addresses do.
    address: u64,
    size: u64,
    free: bool,
    prev: Option<u32>,
    next: Option<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Segment {
    small: bool,
    size: u64,
}

/// Free blocks in the order of the search: by size, then address.
type Pool = BTreeSet<(u64, u64, u32)>;

/// Handles below this are looked up in a list. A replay numbers its storages from 0 and has few; those of a
/// trace may be addresses.
const DENSE: u64 = 1 << 16;
/// No block.
const NONE: u32 = u32::MAX;

/// Blocks by handle.
#[derive(Debug, Clone, Default)]
struct Live {
    dense: Vec<u32>,
    others: HashMap<Handle, u32>,
}

impl Live {
    fn contains(&self, handle: Handle) -> bool {
        match self.dense.get(handle as usize) {
            Some(block) => *block != NONE,
            None => self.others.contains_key(&handle),
        }
    }

    fn insert(&mut self, handle: Handle, block: u32) {
        if handle >= DENSE {
            self.others.insert(handle, block);
            return;
        }
        let at = handle as usize;
        if at >= self.dense.len() {
            self.dense.resize(at + 1, NONE);
        }
        self.dense[at] = block;
    }

    fn remove(&mut self, handle: Handle) -> Option<u32> {
        match self.dense.get_mut(handle as usize) {
            Some(block) => Some(std::mem::replace(block, NONE)).filter(|block| *block != NONE),
            None => self.others.remove(&handle),
        }
    }
}

/// The allocator of one process on one device, one stream.
#[derive(Debug, Clone, Default)]
pub struct Caching {
    settings: Settings,
    limit: Option<u64>,
    blocks: Vec<Block>,
    /// Entries of `blocks` that may be used again.
    vacant: Vec<u32>,
    segments: Vec<Segment>,
    small: Pool,
    large: Pool,
    /// Free blocks that are a whole segment. A program may give them back after each step, and most that is free is a part.
    whole: BTreeSet<u32>,
    live: Live,
    workspaces: [bool; 2],
    workspace_bytes: u64,
    end_of_space: u64,
    /// With expandable segments: the last block of each pool's one segment.
    tails: [Option<u32>; 2],
    peak: Peak,
    convolution_bytes: u64,
    /// How often a block was looked at for whether it is a whole segment.
    #[cfg(test)]
    looks: std::cell::Cell<u64>,
}

impl Caching {
    /// An empty allocator. `compute_capability` decides the size of cuBLAS workspaces: 8,519,680 B
    /// before 9.0, 32 MiB from there (`CublasHandlePool.cpp`).
    #[must_use]
    pub fn new(settings: Settings, compute_capability: (u8, u8)) -> Self {
        let workspace_bytes =
            if compute_capability.0 >= 9 { 32 * MIB } else { 4096 * 1024 * 2 + 16 * 1024 * 8 };
        Self { settings, workspace_bytes, ..Self::default() }
    }

    /// The same with room for only so many bytes of segments: at the limit, free segments are given
    /// back first, as PyTorch does when `cudaMalloc` fails. Where that is not enough it goes on, so that the peak says how
    /// much was needed.
    #[must_use]
    pub fn with_limit(mut self, bytes: u64) -> Self {
        self.limit = Some(bytes);
        self
    }

    /// The highest points so far.
    #[must_use]
    pub const fn peak(&self) -> Peak {
        self.peak
    }

    /// Input, output and weight of the largest convolution seen, bytes.
    #[must_use]
    pub const fn largest_convolution(&self) -> u64 {
        self.convolution_bytes
    }

    /// Takes one step of a sequence.
    ///
    /// # Errors
    /// An absurd size, or a handle that is in use.
    pub fn apply(&mut self, event: &Event) -> Result<(), Error> {
        match event {
            Event::Alloc { handle, bytes } => self.alloc(*handle, *bytes),
            Event::Free { handle } => self.free(*handle),
            Event::CublasWorkspace { thread } => {
                let thread = usize::from(*thread != 0);
                if !self.workspaces[thread] {
                    self.workspaces[thread] = true;
                    self.take(self.workspace_bytes)?;
                }
                Ok(())
            }
            Event::Convolution { bytes } => {
                self.convolution_bytes = self.convolution_bytes.max(*bytes);
                Ok(())
            }
            Event::Cudnn(convolution) => {
                if convolution.groups == 1 {
                    self.convolution_bytes = self.convolution_bytes.max(convolution.tensors());
                }
                Ok(())
            }
            Event::Transient { bytes: 0 } => Ok(()),
            Event::Transient { bytes } => {
                let block = self.take(*bytes)?;
                self.give_back(block);
                Ok(())
            }
            Event::EmptyCache => {
                self.release_free_segments();
                Ok(())
            }
            Event::Mark { .. } => Ok(()),
        }
    }

    /// A storage of `bytes` comes into being; none for 0 bytes, as in PyTorch.
    ///
    /// # Errors
    /// An absurd size, or a handle in use.
    pub fn alloc(&mut self, handle: Handle, bytes: u64) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        if self.live.contains(handle) {
            return Err(Error::bad(format!("allocation of handle {handle}"), "the handle is in use"));
        }
        let block = self.take(bytes)?;
        self.live.insert(handle, block);
        Ok(())
    }

    /// The storage is let go of; a handle of 0 bytes is unknown and ignored.
    ///
    /// # Errors
    /// None at present; a handle that is not in use is ignored.
    pub fn free(&mut self, handle: Handle) -> Result<(), Error> {
        if let Some(block) = self.live.remove(handle) {
            self.give_back(block);
        }
        Ok(())
    }

    fn round(&self, bytes: u64) -> u64 {
        if bytes < MIN_BLOCK {
            return MIN_BLOCK;
        }
        let mib = bytes / MIB;
        let divisions =
            self.settings.roundup_power2_divisions.range(..=mib).next_back().map_or(0, |(_, n)| *n);
        if divisions > 1 && bytes > MIN_BLOCK * divisions {
            if bytes.is_power_of_two() {
                return bytes;
            }
            let floor = 1_u64 << bytes.ilog2();
            let step = floor >> divisions.ilog2();
            return if step == 0 { floor << 1 } else { bytes.next_multiple_of(step) };
        }
        bytes.next_multiple_of(MIN_BLOCK)
    }

    /// Hands out a block for `bytes`.
    fn take(&mut self, bytes: u64) -> Result<u32, Error> {
        if bytes > ABSURD {
            return Err(Error::Absurd { layer: "allocation".into(), what: format!("{bytes} bytes") });
        }
        let size = self.round(bytes);
        let small = size <= SMALL_SIZE;
        let found = match self.best_fit(small, size) {
            Some(block) => block,
            None if self.settings.expandable_segments => self.grow(small, size)?,
            None => self.new_segment(small, size)?,
        };
        self.remove_free(found);
        let rest = self.blocks[found as usize].size - size;
        let split = if small || self.settings.expandable_segments {
            rest >= MIN_BLOCK
        } else {
            self.settings.max_split_size.is_none_or(|max| size < max) && rest > SMALL_SIZE
        };
        if split {
            self.split(found, size);
        }
        let block = &mut self.blocks[found as usize];
        block.free = false;
        self.peak.allocated += block.size;
        self.peak.max_allocated = self.peak.max_allocated.max(self.peak.allocated);
        Ok(found)
    }

    fn best_fit(&self, small: bool, size: u64) -> Option<u32> {
        let pool = if small { &self.small } else { &self.large };
        let (found, _, block) = *pool.range((size, 0, 0)..).next()?;
        if let Some(max) = self.settings.max_split_size.filter(|_| !small)
            && ((size < max && found >= max) || (size >= max && found >= size + MAX_NON_SPLIT_ROUNDING))
        {
            return None;
        }
        Some(block)
    }

    fn segment_size(small: bool, size: u64) -> u64 {
        if small {
            SMALL_BUFFER
        } else if size < MIN_LARGE_ALLOC {
            LARGE_BUFFER
        } else {
            size.next_multiple_of(ROUND_LARGE)
        }
    }

    fn new_segment(&mut self, small: bool, size: u64) -> Result<u32, Error> {
        let size = Self::segment_size(small, size);
        self.make_room(size)?;
        let segment = self.segments.len() as u32;
        self.segments.push(Segment { small, size });
        let address = self.end_of_space;
        // A gap keeps blocks of different segments apart.
        self.end_of_space += size + MIN_BLOCK;
        self.reserve(size);
        Ok(self.add(Block { segment, address, size, free: true, prev: None, next: None }))
    }

    /// Maps pages at the end of the pool's one segment, after what is free there already.
    fn grow(&mut self, small: bool, size: u64) -> Result<u32, Error> {
        let want = Self::segment_size(small, size);
        let page = if small { SMALL_BUFFER } else { LARGE_BUFFER };
        let tail = self.tails[usize::from(small)];
        let free_tail = tail.filter(|t| self.blocks[*t as usize].free);
        let there = free_tail.map_or(0, |t| self.blocks[t as usize].size);
        let more = want.saturating_sub(there).max(1).next_multiple_of(page);
        self.make_room(more)?;
        let tail = self.tails[usize::from(small)];
        if there > 0 && tail.is_none() {
            // Giving back free segments has taken the tail with it: what was to be added to it is too little.
            return self.grow(small, size);
        }
        self.reserve(more);
        let block = match tail {
            Some(t) if self.blocks[t as usize].free => {
                self.remove_free(t);
                self.blocks[t as usize].size += more;
                self.insert_free(t);
                t
            }
            Some(t) => {
                let Block { segment, address, size, .. } = self.blocks[t as usize];
                let new = self.add(Block {
                    segment,
                    address: address + size,
                    size: more,
                    free: true,
                    prev: Some(t),
                    next: None,
                });
                self.blocks[t as usize].next = Some(new);
                new
            }
            None => {
                let segment = self.segments.len() as u32;
                self.segments.push(Segment { small, size: 0 });
                // The two pools' address spaces are far apart.
                let address = if small { ABSURD } else { 0 };
                self.add(Block { segment, address, size: more, free: true, prev: None, next: None })
            }
        };
        self.tails[usize::from(small)] = Some(block);
        let segment = self.blocks[block as usize].segment;
        self.segments[segment as usize].size += more;
        Ok(block)
    }

    fn reserve(&mut self, size: u64) {
        self.peak.reserved += size;
        self.peak.max_reserved = self.peak.max_reserved.max(self.peak.reserved);
    }

    /// Below the limit there is room; at it, free segments are given back.
    fn make_room(&mut self, size: u64) -> Result<(), Error> {
        // Sums stay far from overflow, also those of addresses that are given back and taken again.
        if self.peak.reserved + size > ABSURD || self.end_of_space > ABSURD << 10 {
            let what = format!("{} bytes on top of {} bytes", size, self.peak.reserved);
            return Err(Error::Absurd { layer: "allocations together".into(), what });
        }
        let Some(limit) = self.limit else { return Ok(()) };
        // PyTorch collects only where a share of the GPU is set.
        let threshold = self.settings.garbage_collection_threshold;
        let threshold = threshold.filter(|_| self.settings.memory_fraction.is_some()).unwrap_or(1.0);
        if self.peak.reserved as f64 > threshold * limit as f64 || self.peak.reserved + size > limit {
            self.release_free_segments();
        }
        Ok(())
    }

    fn release_free_segments(&mut self) {
        for block in std::mem::take(&mut self.whole) {
            self.remove_free(block);
            self.peak.reserved -= self.blocks[block as usize].size;
            for tail in &mut self.tails {
                if *tail == Some(block) {
                    *tail = None;
                }
            }
            self.vacant.push(block);
        }
    }

    /// Leaves `size` bytes in the block; the rest becomes a free block behind it.
    fn split(&mut self, at: u32, size: u64) {
        let Block { segment, address, size: all, next, .. } = self.blocks[at as usize];
        let rest = self.add(Block {
            segment,
            address: address + size,
            size: all - size,
            free: true,
            prev: Some(at),
            next,
        });
        self.blocks[at as usize].size = size;
        self.blocks[at as usize].next = Some(rest);
        match next {
            Some(next) => self.blocks[next as usize].prev = Some(rest),
            None => self.move_tail(at, rest),
        }
    }

    fn move_tail(&mut self, from: u32, to: u32) {
        for tail in &mut self.tails {
            if *tail == Some(from) {
                *tail = Some(to);
            }
        }
    }

    fn give_back(&mut self, at: u32) {
        self.peak.allocated -= self.blocks[at as usize].size;
        let mut at = at;
        if let Some(prev) = self.blocks[at as usize].prev
            && self.blocks[prev as usize].free
        {
            self.remove_free(prev);
            self.absorb(prev, at);
            at = prev;
        }
        if let Some(next) = self.blocks[at as usize].next
            && self.blocks[next as usize].free
        {
            self.remove_free(next);
            self.absorb(at, next);
        }
        self.blocks[at as usize].free = true;
        self.insert_free(at);
    }

    /// Joins `right` to `left`, its neighbour.
    fn absorb(&mut self, left: u32, right: u32) {
        let Block { size, next, .. } = self.blocks[right as usize];
        self.blocks[left as usize].size += size;
        self.blocks[left as usize].next = next;
        match next {
            Some(next) => self.blocks[next as usize].prev = Some(left),
            None => self.move_tail(right, left),
        }
        self.vacant.push(right);
    }

    /// Stores a block; a free one goes into its pool.
    fn add(&mut self, block: Block) -> u32 {
        let at = match self.vacant.pop() {
            Some(at) => {
                self.blocks[at as usize] = block;
                at
            }
            None => {
                self.blocks.push(block);
                (self.blocks.len() - 1) as u32
            }
        };
        if block.free {
            self.insert_free(at);
        }
        at
    }

    fn pool_of(&mut self, at: u32) -> (&mut Pool, (u64, u64, u32)) {
        let block = self.blocks[at as usize];
        let small = self.segments[block.segment as usize].small;
        (if small { &mut self.small } else { &mut self.large }, (block.size, block.address, at))
    }

    fn insert_free(&mut self, at: u32) {
        if self.is_whole(at) {
            self.whole.insert(at);
        }
        let (pool, key) = self.pool_of(at);
        pool.insert(key);
    }

    fn remove_free(&mut self, at: u32) {
        if self.is_whole(at) {
            self.whole.remove(&at);
        }
        let (pool, key) = self.pool_of(at);
        pool.remove(&key);
    }

    /// A block gets and loses neighbours while it is in no pool, so that this does not change in one.
    fn is_whole(&self, at: u32) -> bool {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        let block = &self.blocks[at as usize];
        block.prev.is_none() && block.next.is_none()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn allocator() -> Caching {
        Caching::new(Settings::default(), (8, 0))
    }

    #[test]
    fn segments_by_size() {
        let mut a = allocator();
        a.alloc(1, 1).unwrap();
        assert_eq!((a.peak().allocated, a.peak().reserved), (512, 2 * MIB));
        a.alloc(2, MIB + 1).unwrap();
        assert_eq!(a.peak().reserved, 22 * MIB);
        a.alloc(3, 10 * MIB).unwrap();
        // What is left of the 20 MiB segment would do, and is split.
        assert_eq!(a.peak().reserved, 22 * MIB);
        a.alloc(4, 11 * MIB).unwrap();
        assert_eq!(a.peak().reserved, 34 * MIB);
    }

    #[test]
    fn a_large_block_is_split_only_above_a_mebibyte() {
        let mut a = allocator();
        a.alloc(1, 12 * MIB).unwrap();
        a.free(1).unwrap();
        a.alloc(2, 11 * MIB).unwrap();
        assert_eq!(a.peak().allocated, 12 * MIB, "the whole block counts");
        a.free(2).unwrap();
        a.alloc(3, 11 * MIB - 512).unwrap();
        assert_eq!(a.peak().allocated, 11 * MIB - 512);
    }

    #[test]
    fn neighbours_merge() {
        let mut a = allocator();
        for h in 1..=3 {
            a.alloc(h, 6 * MIB).unwrap();
        }
        assert_eq!(a.peak().reserved, 20 * MIB);
        for h in [1, 3, 2] {
            a.free(h).unwrap();
        }
        a.alloc(4, 20 * MIB).unwrap();
        assert_eq!((a.peak().reserved, a.peak().allocated), (20 * MIB, 20 * MIB));
    }

    #[test]
    fn at_the_limit_free_segments_go_back() {
        let mut a = allocator().with_limit(100 * MIB);
        a.alloc(1, 60 * MIB).unwrap();
        a.free(1).unwrap();
        a.alloc(2, 80 * MIB).unwrap();
        assert_eq!(a.peak().reserved, 80 * MIB);
        // There is no room for it, and the peak says how much there would have to be.
        a.alloc(3, 40 * MIB).unwrap();
        assert_eq!((a.peak().reserved, a.peak().max_allocated), (120 * MIB, 120 * MIB));
    }

    #[test]
    fn expandable_segments_grow_by_pages() {
        let settings = Settings { expandable_segments: true, ..Settings::default() };
        let mut a = Caching::new(settings, (9, 0));
        a.alloc(1, 30 * MIB).unwrap();
        assert_eq!(a.peak().reserved, 40 * MIB);
        a.alloc(2, 25 * MIB).unwrap();
        // 10 MiB are free at the end; 15 more are needed, which is one page.
        assert_eq!(a.peak().reserved, 60 * MIB);
        a.free(1).unwrap();
        a.free(2).unwrap();
        a.alloc(3, 60 * MIB).unwrap();
        assert_eq!(a.peak().reserved, 60 * MIB);
    }

    #[test]
    fn workspaces_come_once_a_thread() {
        let mut a = Caching::new(Settings::default(), (9, 0));
        for thread in [0, 0, 1, 1] {
            a.apply(&Event::CublasWorkspace { thread }).unwrap();
        }
        assert_eq!(a.peak().allocated, 64 * MIB);
    }

    /// What is free at the end of the segment counts towards the request, until making room gives it back.
    #[test]
    fn a_tail_that_is_given_back_to_make_room_is_not_counted_on() {
        let settings = Settings { expandable_segments: true, ..Settings::default() };
        let mut a = Caching::new(settings, (9, 0)).with_limit(61 * MIB);
        for (handle, bytes) in [(1, MIB / 2), (2, 40 * MIB)] {
            a.alloc(handle, bytes).unwrap();
        }
        (1..3).for_each(|handle| a.free(handle).unwrap());
        assert_eq!(a.peak().reserved, 42 * MIB);
        // 20 MiB more would do at the end of the 40, but that makes 62; 60 anew fit.
        a.alloc(3, 50 * MIB).unwrap();
        check(&a);
        assert_eq!(a.peak().reserved, 60 * MIB);
    }

    /// A program may give back what is free after each step, and that used to look at all of it.
    #[test]
    fn of_what_is_free_only_whole_segments_are_looked_at_to_give_them_back() {
        let mut a = allocator();
        (0..20_000).for_each(|handle| a.alloc(handle, 2048).unwrap());
        (0..10_000).for_each(|i| a.free(2 * i).unwrap());
        a.alloc(20_000, 11 * MIB).unwrap();
        a.free(20_000).unwrap();
        // The last segment has a free end, too.
        assert_eq!(a.small.len() + a.large.len(), 10_002);
        for segments in [1, 0, 0] {
            a.looks.set(0);
            a.apply(&Event::EmptyCache).unwrap();
            assert_eq!((a.looks.get(), a.small.len() + a.large.len()), (segments, 10_001));
        }
    }

    #[test]
    fn absurd_sizes_are_refused() {
        assert!(allocator().alloc(1, u64::MAX).is_err());
    }

    /// Blocks of a segment follow each other from its start to its end, neighbours are not both free, pools
    /// hold what is free and nothing else, and the counts agree.
    fn check(a: &Caching) {
        let vacant: std::collections::HashSet<u32> = a.vacant.iter().copied().collect();
        let used = (0..a.blocks.len() as u32).filter(|at| !vacant.contains(at));
        let (mut allocated, mut reserved, mut free) = (0, 0, 0);
        let mut ranges = Vec::new();
        for at in used {
            let block = a.blocks[at as usize];
            assert!(block.size > 0);
            reserved += block.size;
            ranges.push((block.address, block.address + block.size));
            let small = a.segments[block.segment as usize].small;
            let listed = if small { &a.small } else { &a.large }.contains(&(block.size, block.address, at));
            assert_eq!(listed, block.free);
            assert_eq!(a.whole.contains(&at), block.free && a.is_whole(at));
            if block.free {
                free += 1
            } else {
                allocated += block.size
            }
            if let Some(next) = block.next {
                let next = a.blocks[next as usize];
                assert_eq!((next.prev, next.segment), (Some(at), block.segment));
                assert_eq!(next.address, block.address + block.size);
                assert!(!(block.free && next.free), "free neighbours are merged");
            }
        }
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "blocks overlap");
        assert_eq!(a.small.len() + a.large.len(), free);
        assert_eq!((a.peak.allocated, a.peak.reserved), (allocated, reserved));
        assert!(a.peak.allocated <= a.peak.max_allocated && a.peak.reserved <= a.peak.max_reserved);
    }

    proptest::proptest! {
        #[test]
        fn blocks_tile_their_segments(
            steps in proptest::collection::vec((0_u64..24, 0_u32..26, 0_u64..1024), 1..120),
            expandable in proptest::bool::ANY,
            max_split in proptest::option::of(21_u64..64),
            limit in proptest::option::of(64_u64..512),
        ) {
            let settings = Settings {
                expandable_segments: expandable,
                max_split_size: max_split.map(|mib| mib * MIB),
                ..Settings::default()
            };
            let mut a = Caching::new(settings, (9, 0));
            if let Some(limit) = limit {
                a = a.with_limit(limit * MIB);
            }
            let mut live = std::collections::HashSet::new();
            for (handle, exponent, offset) in steps {
                if live.remove(&handle) {
                    a.free(handle).unwrap();
                } else if a.alloc(handle, (1 << exponent) + offset * 700).is_ok() {
                    live.insert(handle);
                }
                check(&a);
            }
            for handle in live {
                a.free(handle).unwrap();
            }
            check(&a);
            assert_eq!(a.peak.allocated, 0);
        }
    }
}
