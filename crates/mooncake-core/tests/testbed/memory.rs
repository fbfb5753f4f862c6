//! Segments as their owners and everybody who maps them see them.

use mooncake_core::{Extent, GRANULE, Rid, SegmentUuid};

use super::{Process, World};

/// A stamp and a word per granule.
pub struct Memory {
    pub uuid: SegmentUuid,
    pub owner: Process,
    pub stamps: Vec<u64>,
    pub words: Vec<u64>,
}

/// What a value has in one of its granules.
pub fn word(value: u64, index: u64) -> u64 {
    (value << 16 | index).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

pub fn granules(extent: &Extent) -> std::ops::Range<u64> {
    let start = extent.offset / GRANULE;
    start..start + extent.length.div_ceil(GRANULE)
}

impl World {
    pub fn new_memory(&mut self, owner: Process, size: u64) -> usize {
        let number = self.memories.len();
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&(number as u64 + 1).to_le_bytes());
        self.memories.push(Memory {
            uuid: SegmentUuid(uuid),
            owner,
            stamps: vec![0; size as usize],
            words: vec![0; size as usize],
        });
        number
    }

    pub fn memory_of(&self, extent: &Extent) -> usize {
        self.numbers[&extent.segment]
    }

    /// A writer stamps its whole extent before its first byte. Stamps only grow, or somebody else was given this place.
    pub fn stamp(&mut self, memory: usize, extent: &Extent, rid: Rid) {
        for granule in granules(extent) {
            let stamp = &mut self.memories[memory].stamps[granule as usize];
            assert!(*stamp <= rid.0 | 1, "seed {}: {rid:?} stamps over {stamp:#x}: handed out twice", self.seed);
            // The owner may have fenced a writer that is late; its stamp must not undo that in an extent of its own.
            *stamp = rid.0;
            self.assert_not_viewed(memory, granule, rid);
        }
    }

    pub fn write(&mut self, memory: usize, granule: u64, rid: Rid, word: u64) {
        let stamp = self.memories[memory].stamps[granule as usize];
        assert_eq!(stamp & !1, rid.0, "seed {}: {rid:?} writes into the place of {stamp:#x}", self.seed);
        self.assert_not_viewed(memory, granule, rid);
        self.memories[memory].words[granule as usize] = word;
    }

    fn assert_not_viewed(&self, memory: usize, granule: u64, rid: Rid) {
        let viewed = self.viewed.contains_key(&(memory, granule));
        assert!(!viewed, "seed {}: {rid:?} writes under a view, memory {memory} granule {granule}", self.seed);
    }

    /// The owner's mark that a placement is no more. It never lowers a stamp: a fence that was asked for twice can come
    /// after its extent was handed out again.
    pub fn tombstone(&mut self, memory: usize, extent: &Extent, rid: Rid) {
        for granule in granules(extent) {
            let stamp = &mut self.memories[memory].stamps[granule as usize];
            *stamp = (*stamp).max(rid.0 | 1);
        }
    }

    /// The memory is given back, but for what views hold.
    pub fn punch(&mut self, memory: usize, pinned: &[Extent]) {
        let kept = |granule: u64| {
            let byte = granule * GRANULE;
            pinned.iter().any(|extent| extent.offset <= byte && byte < extent.offset.saturating_add(extent.length))
        };
        let Memory { stamps, words, .. } = &mut self.memories[memory];
        for granule in 0..stamps.len() as u64 {
            stamps[granule as usize] |= 1;
            if !kept(granule) {
                words[granule as usize] = 0xdead;
            }
        }
    }
}
