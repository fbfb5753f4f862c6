//! Slots with short numbers in chunks whose memory is given back, a step at a time, when they are empty, but for one;
//! and lists threaded through the slots.
//!
//! Beside each value there is room for some bytes, a key. Slots of a chunk have the same room for them, so that neither
//! a pointer nor an allocation of its own stands for a key, and a chunk that grows moves nothing.

use std::collections::BTreeMap;

use crate::ensure::ensure;
use crate::touched::Touched;

/// Slots of one chunk at most.
pub(crate) const CHUNK: usize = 2048;
pub(crate) const CHUNK_BITS: u32 = CHUNK.trailing_zeros();
/// Of chunks with long keys it is fewer: these take so many bytes.
const CHUNK_BYTES: usize = 256 << 10;
/// Of the longest still so many.
const CHUNK_MIN: usize = 8;
/// "No slot".
pub const NONE: u32 = u32::MAX;

/// Neighbours in whatever list a slot is in.
#[derive(Debug, Clone, Copy)]
pub struct Link {
    prev: u32,
    next: u32,
}

impl Link {
    /// Those that it has.
    pub(crate) fn neighbours(self) -> impl Iterator<Item = u32> {
        [self.prev, self.next].into_iter().filter(|slot| *slot != NONE)
    }
}

impl Default for Link {
    fn default() -> Self {
        Link { prev: NONE, next: NONE }
    }
}

/// Where lists find the links of a slot. A policy sees nothing else of the objects, so that a trace can be replayed
/// through the same policies.
pub trait Links {
    /// The links of a slot that is in use.
    fn link(&self, slot: u32) -> Link;
    /// The same, to change.
    fn link_mut(&mut self, slot: u32) -> &mut Link;
}

/// Something that can be in a list.
pub(crate) trait Linked {
    fn link(&self) -> Link;
    fn link_mut(&mut self) -> &mut Link;
}

/// A doubly linked list of slots; a slot is in one list at most.
#[derive(Debug)]
pub struct List {
    head: u32,
    tail: u32,
    len: u32,
    /// Where the next step of a walk goes.
    walker: u32,
}

impl Default for List {
    fn default() -> Self {
        List { head: NONE, tail: NONE, len: 0, walker: NONE }
    }
}

impl List {
    /// First slot.
    pub fn head(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// Number of slots.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// True when it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The slot after this one.
    pub fn next<L: Links + ?Sized>(&self, links: &L, slot: u32) -> Option<u32> {
        let next = links.link(slot).next;
        (next != NONE).then_some(next)
    }

    /// Last slot.
    pub fn tail(&self) -> Option<u32> {
        (self.tail != NONE).then_some(self.tail)
    }

    /// The slot before this one.
    pub fn prev<L: Links + ?Sized>(&self, links: &L, slot: u32) -> Option<u32> {
        let prev = links.link(slot).prev;
        (prev != NONE).then_some(prev)
    }

    /// Appends a slot.
    pub fn push_back<L: Links + ?Sized>(&mut self, links: &mut L, slot: u32) {
        self.insert_after(links, self.tail(), slot);
    }

    /// Puts a slot first.
    pub fn push_front<L: Links + ?Sized>(&mut self, links: &mut L, slot: u32) {
        self.insert_after(links, None, slot);
    }

    /// Puts a slot behind one of this list, or first.
    pub fn insert_after<L: Links + ?Sized>(&mut self, links: &mut L, prev: Option<u32>, slot: u32) {
        let next = match prev {
            None => std::mem::replace(&mut self.head, slot),
            Some(prev) => std::mem::replace(&mut links.link_mut(prev).next, slot),
        };
        match next {
            NONE => self.tail = slot,
            next => links.link_mut(next).prev = slot,
        }
        *links.link_mut(slot) = Link { prev: prev.unwrap_or(NONE), next };
        self.len += 1;
    }

    /// Takes a slot out; it must be in this list.
    pub fn remove<L: Links + ?Sized>(&mut self, links: &mut L, slot: u32) {
        let Link { prev, next } = links.link(slot);
        match prev {
            NONE => self.head = next,
            prev => links.link_mut(prev).next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => links.link_mut(next).prev = prev,
        }
        *links.link_mut(slot) = Link::default();
        self.len -= 1;
        if self.walker == slot {
            self.walker = next;
        }
    }

    /// Begins a walk at the first slot, in the place of a former one.
    pub fn begin_walk(&mut self) {
        self.walker = self.head;
    }

    /// The next slot of the walk. Between two steps the list may change: it goes on behind what it has met, or in front
    /// of what it was to meet next.
    pub fn walk_on<L: Links + ?Sized>(&mut self, links: &L) -> Option<u32> {
        let slot = self.walker;
        if slot == NONE {
            return None;
        }
        self.walker = links.link(slot).next;
        Some(slot)
    }

    /// Visits its slots in order. Each is in use, and its links and the list's length are right.
    pub(crate) fn check_invariants<T: Linked>(
        &self,
        slab: &Slab<T>,
        mut visit: impl FnMut(u32, &T) -> Result<(), String>,
    ) -> Result<(), String> {
        let List { head, tail, len, .. } = *self;
        let (mut before, mut at, mut count) = (NONE, head, 0);
        while at != NONE {
            let Some(value) = slab.get(at) else { return Err(format!("slot {at} behind {before} is not in use")) };
            let Link { prev, next } = value.link();
            ensure!(prev == before, "slot {at} is behind {before} and says behind {prev}");
            ensure!(count < len, "it goes on behind {before}, the last of {len} slots");
            visit(at, value)?;
            count += 1;
            (before, at) = (at, next);
        }
        ensure!((count, before) == (len, tail), "{count} slots up to {before}, and counted {len} up to {tail}");
        Ok(())
    }

    /// Makes a slot of this list the last one.
    pub fn move_to_back<L: Links + ?Sized>(&mut self, links: &mut L, slot: u32) {
        if self.tail != slot {
            self.remove(links, slot);
            self.push_back(links, slot);
        }
    }
}

enum Entry<T> {
    Used(T),
    Free(u16),
}

const NO_FREE: u16 = u16::MAX;

/// A chunk that is in no list of chunks with room.
const UNLISTED: u32 = u32::MAX;

struct Chunk<T> {
    entries: Vec<Entry<T>>,
    /// `stride` of them for each entry.
    bytes: Vec<u8>,
    stride: u32,
    free: u16,
    used: u16,
    /// Its place in the slab's list of chunks with room for values of its stride.
    listed: u32,
}

impl<T> Chunk<T> {
    /// Without memory.
    const NONE: Chunk<T> =
        Chunk { entries: Vec::new(), bytes: Vec::new(), stride: 0, free: NO_FREE, used: 0, listed: UNLISTED };

    /// Slots that it may have.
    fn slots(&self) -> usize {
        slots(self.stride)
    }
}

/// Room for so many bytes and a few more: an eighth at most, or what is missing to eight.
fn stride(bytes: usize) -> u32 {
    let step = (bytes.next_power_of_two() / 16).clamp(8, 8192);
    bytes.next_multiple_of(step) as u32
}

/// Slots of a chunk of that stride.
fn slots(stride: u32) -> usize {
    (CHUNK_BYTES / (stride as usize).max(1)).clamp(CHUNK_MIN, CHUNK)
}

/// Values under short numbers. A number stays valid until its value is removed.
pub(crate) struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    /// Numbers of chunks in use that have a free slot, by their stride.
    with_room: BTreeMap<u32, Vec<u32>>,
    /// Numbers of chunks without memory.
    without: Vec<u32>,
    /// Memory of chunks that are empty, until it is used again or given back: that takes the kernel as long as a dozen
    /// values take that leave, and of the last ones in a slab that was large each may be the last of its chunk.
    spent: Vec<Chunk<T>>,
    len: usize,
    touched: Touched,
}

impl<T> Slab<T> {
    pub fn new() -> Self {
        Slab {
            chunks: Vec::new(),
            with_room: BTreeMap::new(),
            without: Vec::new(),
            spent: Vec::new(),
            len: 0,
            touched: Touched::default(),
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Slots that have been looked at.
    pub fn touched(&self) -> u32 {
        self.touched.count()
    }

    /// One past the highest slot in use, for scans in slices.
    pub fn bound(&self) -> u32 {
        (self.chunks.len() as u32) << CHUNK_BITS
    }

    pub fn insert(&mut self, value: T) -> u32 {
        self.insert_with(value, &[])
    }

    /// Adds a value with bytes beside it.
    pub fn insert_with(&mut self, value: T, bytes: &[u8]) -> u32 {
        let stride = stride(bytes.len());
        let number = match self.with_room.get(&stride).and_then(|numbers| numbers.last()) {
            Some(number) => *number,
            None => self.add_chunk(stride),
        };
        let chunk = &mut self.chunks[number as usize];
        let at = |index: usize| index * stride as usize;
        let index = if chunk.free != NO_FREE {
            let index = chunk.free as usize;
            match chunk.entries[index] {
                Entry::Free(next) => chunk.free = next,
                Entry::Used(_) => unreachable!("a used slot in the free list"),
            }
            chunk.entries[index] = Entry::Used(value);
            chunk.bytes[at(index)..][..bytes.len()].copy_from_slice(bytes);
            index
        } else {
            if chunk.entries.is_empty() {
                // The memory is taken as it is used.
                chunk.entries.reserve_exact(slots(stride));
                chunk.bytes.reserve_exact(at(slots(stride)));
            }
            chunk.entries.push(Entry::Used(value));
            if stride > 0 {
                chunk.bytes.extend_from_slice(bytes);
                chunk.bytes.resize(at(chunk.entries.len()), 0);
            }
            chunk.entries.len() - 1
        };
        chunk.used += 1;
        if chunk.used as usize == slots(stride) {
            self.unlist(number);
        }
        self.len += 1;
        (number << CHUNK_BITS) | index as u32
    }

    /// Gives the memory of one empty chunk back. False when there is none.
    pub fn give_back(&mut self) -> bool {
        self.spent.pop().is_some()
    }

    fn add_chunk(&mut self, stride: u32) -> u32 {
        let number = self.without.pop().unwrap_or_else(|| {
            let number = self.chunks.len() as u32;
            assert!(number < NONE >> CHUNK_BITS, "more than 4 billion slots");
            self.chunks.push(Chunk::NONE);
            number
        });
        if let Some(mut spent) = self.spent.pop_if(|spent| spent.stride == stride) {
            spent.entries.clear();
            spent.bytes.clear();
            self.chunks[number as usize] = Chunk { entries: spent.entries, bytes: spent.bytes, ..Chunk::NONE };
        }
        self.chunks[number as usize].stride = stride;
        self.list(number);
        number
    }

    /// One without bytes stays where no other has room: where values come and go one at a time, each would else take
    /// and give back a whole chunk of memory.
    fn is_the_last(&self, chunk: &Chunk<T>) -> bool {
        chunk.stride == 0 && self.with_room.get(&0).is_some_and(|numbers| numbers.len() == 1)
    }

    fn list(&mut self, number: u32) {
        let chunk = &mut self.chunks[number as usize];
        let numbers = self.with_room.entry(chunk.stride).or_default();
        chunk.listed = numbers.len() as u32;
        numbers.push(number);
    }

    fn unlist(&mut self, number: u32) {
        let chunk = &mut self.chunks[number as usize];
        let place = std::mem::replace(&mut chunk.listed, UNLISTED);
        let numbers = self.with_room.get_mut(&chunk.stride).expect("it is listed");
        numbers.swap_remove(place as usize);
        match numbers.get(place as usize).copied() {
            Some(moved) => self.chunks[moved as usize].listed = place,
            None if numbers.is_empty() => _ = self.with_room.remove(&self.chunks[number as usize].stride),
            None => {}
        }
    }

    /// The bytes beside a value that is there, and what they leave of the room for them.
    #[inline]
    pub fn bytes(&self, slot: u32) -> &[u8] {
        let chunk = &self.chunks[(slot >> CHUNK_BITS) as usize];
        let stride = chunk.stride as usize;
        &chunk.bytes[(slot as usize & (CHUNK - 1)) * stride..][..stride]
    }

    #[inline]
    pub fn get(&self, slot: u32) -> Option<&T> {
        self.touched.add(1);
        match self.chunks.get((slot >> CHUNK_BITS) as usize)?.entries.get(slot as usize & (CHUNK - 1))? {
            Entry::Used(value) => Some(value),
            Entry::Free(_) => None,
        }
    }

    #[inline]
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.touched.add(1);
        match self.chunks.get_mut((slot >> CHUNK_BITS) as usize)?.entries.get_mut(slot as usize & (CHUNK - 1))? {
            Entry::Used(value) => Some(value),
            Entry::Free(_) => None,
        }
    }

    /// All values with their slots.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let all = self.chunks.iter().zip(0..).flat_map(|(chunk, number)| {
            chunk.entries.iter().zip(0..).filter_map(move |(entry, index)| match entry {
                Entry::Used(value) => Some(((number << CHUNK_BITS) | index, value)),
                Entry::Free(_) => None,
            })
        });
        self.touched.each(all)
    }

    /// Every slot is in use or in the free list of its chunk, and the counts are right.
    pub fn check_invariants(&self) -> Result<(), String> {
        let (mut len, mut listed, mut without, mut kept) = (0, 0, 0, None);
        for (number, chunk) in self.chunks.iter().enumerate() {
            let used = chunk.entries.iter().filter(|entry| matches!(entry, Entry::Used(_))).count();
            let (mut free, mut at) = (0, chunk.free);
            while at != NO_FREE {
                let Some(Entry::Free(next)) =
                    chunk.entries.get(usize::from(at)).filter(|_| used + free < chunk.slots())
                else {
                    return Err(format!("chunk {number}: slot {at} in the free list is not free"));
                };
                (free, at) = (free + 1, *next);
            }
            let (counted, all) = (usize::from(chunk.used), chunk.entries.len());
            ensure!(
                used == counted && used + free == all,
                "chunk {number}: {used} slots in use and {free} free of {all}, and counted {counted}"
            );
            let (stride, room) = (chunk.stride as usize, all > 0 && used < chunk.slots());
            ensure!(
                chunk.bytes.len() == all * stride,
                "chunk {number}: {} bytes of {stride} for {all}",
                chunk.bytes.len()
            );
            let place = chunk.listed as usize;
            let is_listed = self.with_room.get(&chunk.stride).and_then(|numbers| numbers.get(place));
            let is_listed = is_listed == Some(&(number as u32));
            ensure!(is_listed == room, "chunk {number}: {used} slots in use, and listed with room: {is_listed}");
            len += used;
            listed += usize::from(room);
            without += usize::from(all == 0);
            if used == 0 && all > 0 {
                ensure!(stride == 0 && kept.is_none(), "chunk {number} is empty and was kept, as was {kept:?}");
                kept = Some(number);
            }
        }
        let noted: usize = self.with_room.values().map(Vec::len).sum();
        ensure!(noted == listed, "{listed} chunks have room, and listed are {noted}");
        let empty = |number: &u32| self.chunks.get(*number as usize).is_some_and(|chunk| chunk.entries.is_empty());
        let all_are = self.without.iter().all(empty);
        ensure!(all_are && self.without.len() == without, "{without} chunks are empty, and noted {:?}", self.without);
        ensure!(len == self.len, "{len} slots are in use, and counted {}", self.len);
        Ok(())
    }

    pub fn remove(&mut self, slot: u32) -> T {
        let number = slot >> CHUNK_BITS;
        let chunk = &mut self.chunks[number as usize];
        let index = slot as usize & (CHUNK - 1);
        let entry = std::mem::replace(&mut chunk.entries[index], Entry::Free(chunk.free));
        let Entry::Used(value) = entry else { unreachable!("slot {slot} is not in use") };
        chunk.free = index as u16;
        chunk.used -= 1;
        self.len -= 1;
        let (left, unlisted) = (chunk.used, chunk.listed == UNLISTED);
        if left == 0 && !self.is_the_last(&self.chunks[number as usize]) {
            if !unlisted {
                self.unlist(number);
            }
            // Its number stays for later.
            self.spent.push(std::mem::replace(&mut self.chunks[number as usize], Chunk::NONE));
            self.without.push(number);
        } else if unlisted {
            self.list(number);
        }
        value
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;
    #[inline]
    fn index(&self, slot: u32) -> &T {
        self.get(slot).expect("slot in use")
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut T {
        self.get_mut(slot).expect("slot in use")
    }
}

impl<T: Linked> Links for Slab<T> {
    #[inline]
    fn link(&self, slot: u32) -> Link {
        self[slot].link()
    }
    #[inline]
    fn link_mut(&mut self, slot: u32) -> &mut Link {
        self[slot].link_mut()
    }
}

#[cfg(test)]
mod tests;
