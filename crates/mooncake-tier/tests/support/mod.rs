//! Objects whose bytes follow from their rids, an owner that writes them, and readers.

#![allow(dead_code, reason = "each test uses a part")]

pub mod owned;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mooncake_ids::{Rid, TierUuid};
use mooncake_memory::crc32c;
use mooncake_tier::address::{Address, FileNumber, Geometry};
use mooncake_tier::appender::{Appender, Event, Order, Value};
use mooncake_tier::io_counts::{CountedReads, ReadFor};
use mooncake_tier::medium::Medium;
use mooncake_tier::reader::at_disk::AtDisk;
use mooncake_tier::reader::{Miss, Reader, RecordPlace, Want};
use mooncake_tier::slots::Slots;
use mooncake_tier::superblock::Superblock;
use mooncake_tier::tier::{NewTier, Owner, Tier};

pub const TIER: TierUuid = TierUuid([3; 16]);

/// An object's bytes.
pub struct Pattern {
    pub rid: Rid,
    pub size: u64,
}

impl Pattern {
    pub fn fill(&self, at: u64, into: &mut [u8]) {
        for (nth, byte) in into.iter_mut().enumerate() {
            let at = at + nth as u64;
            *byte = (self.rid.0.wrapping_mul(0x9e37_79b9) >> 7) as u8 ^ (at as u8) ^ (at >> 8) as u8 ^ (at >> 17) as u8;
        }
    }
}

impl Value for Pattern {
    fn size(&self) -> u64 {
        self.size
    }

    fn sum(&self, at: u64, len: u64) -> Option<u32> {
        let mut bytes = vec![0; len as usize];
        self.copy(at, &mut bytes).then(|| crc32c(&bytes))
    }

    fn copy(&self, at: u64, into: &mut [u8]) -> bool {
        self.fill(at, into);
        true
    }
}

/// A record that was told as written.
#[derive(Debug, Clone)]
pub struct Written {
    pub address: Address,
    pub rid: Rid,
    pub size: u64,
    pub key: Vec<u8>,
}

/// Of a reader whose counts nobody looks at.
pub fn uncounted() -> CountedReads {
    CountedReads { counts: Arc::default(), by: ReadFor::Kept }
}

pub fn owner(number: u8) -> Owner {
    Owner { boot_id: vec![number; 16], process: vec![number; 40] }
}

pub fn new_tier(capacity: u64, geometry: Geometry) -> NewTier {
    NewTier { tier: TIER, secret: [4; 16], cluster_id: "cluster".to_owned(), capacity, geometry }
}

/// Bytes of an object that is written until its process ends.
pub fn size_of(number: u64) -> u64 {
    match number % 5 {
        0 => number * 37 % 6_000,
        1 | 2 => number * 7_919 % 200_000,
        3 => number * 104_729 % (2 << 20),
        _ => 0,
    }
}

pub fn key_of(number: u64) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

/// The process that has the tier.
pub struct Writer<M: Medium> {
    pub appender: Appender<M>,
    pub lock: M::Lock,
    ordered: BTreeMap<Rid, (u64, Vec<u8>)>,
}

impl<M: Medium> Writer<M> {
    pub fn begin(medium: M, number: u8, capacity: u64, geometry: Geometry) -> (Writer<M>, Superblock) {
        let slots = Slots::new(6);
        let (tier, before) = match Tier::open(medium.clone(), owner(number), &slots) {
            Ok(opened) => opened,
            Err(_) => {
                let tier = Tier::create(medium.clone(), new_tier(capacity, geometry), owner(number), &slots).unwrap();
                let before = tier.superblock.clone();
                (tier, before)
            }
        };
        let (superblock, files) = ((tier.superblock.clone(), tier.sequence), tier.files.clone());
        let super_file = tier.super_file.clone();
        let lock = tier.into_lock();
        let appender = Appender::new(medium, slots, superblock, super_file, capacity, files).unwrap();
        (Writer { appender, lock, ordered: BTreeMap::new() }, before)
    }

    pub fn order(&mut self, rid: Rid, size: u64, key: &[u8]) {
        self.ordered.insert(rid, (size, key.to_vec()));
        let value = Box::new(Pattern { rid, size });
        self.appender.append(Order { rid, object_id: rid, key: key.to_vec(), crc32c: None, value, is_kept: false });
    }

    /// What was written, what came to nothing, and what became of files.
    pub fn poll(&mut self, now: Duration, wait: Duration) -> (Vec<Written>, Vec<Rid>, Vec<Event>) {
        let (mut written, mut lost, mut files) = (Vec::new(), Vec::new(), Vec::new());
        for event in self.appender.poll(now, wait) {
            match event {
                Event::Written { rid, address } => {
                    let (size, key) = self.ordered.remove(&rid).expect("it was ordered");
                    written.push(Written { address, rid, size, key });
                }
                Event::Lost { rid, .. } => {
                    self.ordered.remove(&rid).expect("it was ordered");
                    lost.push(rid);
                }
                other => files.push(other),
            }
        }
        (written, lost, files)
    }
}

impl Written {
    pub fn file(&self, geometry: Geometry) -> FileNumber {
        geometry.file_of(self.address)
    }

    pub fn place(&self) -> RecordPlace {
        RecordPlace { tier: TIER, address: self.address, rid: self.rid, size: self.size, key_bytes: self.key.len() }
    }
}

/// Reads a part of a record. Bytes that were given for a good read are those of the object.
pub fn read<M: Medium>(reader: &mut Reader<M>, written: &Written, from: u64, len: u64) -> Result<(), Miss> {
    let mut found = vec![0; len as usize];
    let mut given = 0;
    let mut sink = |at: u64, bytes: &[u8]| {
        found[(at - from) as usize..][..bytes.len()].copy_from_slice(bytes);
        given += bytes.len() as u64;
        crc32c(bytes)
    };
    // What it learns of the disk is of the clock's time, and no function of a seed.
    reader.knows(AtDisk::default());
    let mut wants = [Want { place: written.place(), from, len, crc: None, sink: &mut sink }];
    let [result] = reader.read(&mut wants, || Duration::from_secs(10))[..] else { panic!("one want, one result") };
    result?;
    assert_eq!(given, len, "{written:?} from {from}");
    let mut expected = vec![0; len as usize];
    Pattern { rid: written.rid, size: written.size }.fill(from, &mut expected);
    assert!(found == expected, "wrong bytes of {written:?} from {from}, {len}");
    Ok(())
}
