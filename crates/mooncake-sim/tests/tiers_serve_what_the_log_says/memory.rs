//! Memory of owners, with its stamps and its writers, and what is in it.

use std::collections::BTreeMap;
use std::sync::Arc;

use mooncake_core::{Replica, SegmentNo};
use mooncake_ids::{GRANULE, Rid};
use mooncake_memory::crc32c;
use mooncake_tier::owner::Source;
use parking_lot::Mutex;

/// What was put: its bytes follow from its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value {
    pub number: u64,
    pub size: u64,
}

impl Value {
    pub fn bytes(self) -> Vec<u8> {
        (0..self.size)
            .map(|at| (self.number.wrapping_mul(0x9e37_79b9) >> 5) as u8 ^ at as u8 ^ (at >> 8) as u8)
            .collect()
    }
}

/// Memory with its stamps.
#[derive(Default)]
pub struct Memory {
    pub bytes: Vec<u8>,
    pub stamps: Vec<Rid>,
    /// Where each segment of it begins.
    begins: BTreeMap<SegmentNo, u64>,
    /// Of a writer that has its place: what comes at the worst time.
    pub to_come: Vec<(Replica, Vec<u8>)>,
}

impl Memory {
    pub fn add(&mut self, segment: SegmentNo, bytes: u64) {
        self.begins.insert(segment, self.bytes.len() as u64);
        self.bytes.resize(self.bytes.len() + bytes as usize, 0);
        self.stamps.resize(self.stamps.len() + (bytes / GRANULE) as usize, Rid(0));
    }

    pub fn begin(&self, replica: &Replica) -> u64 {
        self.begins[&replica.extent.segment] + replica.extent.offset
    }

    pub fn granules(&self, replica: &Replica) -> std::ops::Range<usize> {
        let start = (self.begin(replica) / GRANULE) as usize;
        start..start + replica.extent.length.div_ceil(GRANULE) as usize
    }

    pub fn stamp(&mut self, replica: &Replica, rid: Rid) {
        let granules = self.granules(replica);
        self.stamps[granules].fill(rid);
    }

    pub fn write(&mut self, replica: &Replica, bytes: &[u8]) {
        self.stamp(replica, replica.rid);
        let begin = self.begin(replica) as usize;
        self.bytes[begin..][..bytes.len()].copy_from_slice(bytes);
    }

    /// What is to come there.
    pub fn write_over(&mut self, replica: &Replica) {
        let granules = self.granules(replica);
        let is_there = |other: std::ops::Range<usize>| other.start < granules.end && granules.start < other.end;
        for (to, bytes) in std::mem::take(&mut self.to_come) {
            match is_there(self.granules(&to)) {
                true => self.write(&to, &bytes),
                false => self.to_come.push((to, bytes)),
            }
        }
    }

    pub fn write_all(&mut self) {
        std::mem::take(&mut self.to_come).into_iter().for_each(|(to, bytes)| self.write(&to, &bytes));
    }

    pub fn carries(&self, replica: &Replica) -> bool {
        self.stamps[self.granules(replica)].iter().all(|stamp| *stamp == replica.rid)
    }

    pub fn at(&self, replica: &Replica) -> &[u8] {
        &self.bytes[self.begin(replica) as usize..][..replica.extent.length as usize]
    }
}

pub struct Extent {
    pub memory: Arc<Mutex<Memory>>,
    pub replica: Replica,
}

impl Source for Extent {
    fn size(&self) -> u64 {
        self.replica.extent.length
    }

    fn sum(&self, at: u64, len: u64) -> Option<u32> {
        let mut memory = self.memory.lock();
        let sum = crc32c(&memory.at(&self.replica)[at as usize..][..len as usize]);
        memory.write_over(&self.replica);
        Some(sum)
    }

    fn copy(&self, at: u64, into: &mut [u8]) -> bool {
        into.copy_from_slice(&self.memory.lock().at(&self.replica)[at as usize..][..into.len()]);
        true
    }

    fn is_same(&self) -> bool {
        self.memory.lock().carries(&self.replica)
    }

    fn placement(&self) -> Rid {
        self.replica.rid
    }
}
